"""Mixings of independent sources."""

import numpy as np

from distmom.simulate.sources import continuous_sources


def mixing(d, k, seed=0):
    """Return a random mixing of k sources in d columns."""
    return np.random.default_rng(seed).normal(size=(d, k))


def sample(n, seed, d=4, k=4, noise=0.0):
    """Return rows with sources of kurtoses 3, -1.2, 6 and -1.5, and the mixing."""
    rng = np.random.default_rng(seed)
    A = mixing(d, k, 3)
    H = np.hstack([continuous_sources(n, min(4, k - i), rng) for i in range(0, k, 4)])
    return H @ A.T + noise * rng.normal(size=(n, d)), A
