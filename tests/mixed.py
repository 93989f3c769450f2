"""Samples of rows of three views of different kinds, with several components or factors in a row."""

import numpy as np

KINDS = (8, 6, 7)
SHAPES = np.array([1.0, 0.5, 2.0])


def parameters():
    """Return the means of the components and the parameters of their Dirichlet law."""
    rng = np.random.default_rng(3)
    means = [rng.uniform(0.05, 0.95, (3, 8)), rng.gamma(2.0, 2.0, (3, 6)), 2.0 * rng.normal(size=(3, 7))]
    return np.hstack(means), np.array([0.6, 0.4, 0.2])


def sampled_shares(n, seed):
    """Return bits, counts and values, and the shares of the components in every row."""
    rng, (means, alpha) = np.random.default_rng(seed), parameters()
    h = rng.dirichlet(alpha, n)
    bits, rates, values = np.split(h @ means, np.cumsum(KINDS)[:-1], axis=1)
    return (rng.random(bits.shape) < bits, rng.poisson(rates), values + rng.normal(size=values.shape)), h


def effects():
    """Return the effects of gamma factors of variance one on sizes, counts and values."""
    found = np.random.default_rng(5).normal(size=(3, 21))
    found[:, 8:14] = np.abs(found[:, 8:14])
    return found * np.sqrt(SHAPES)[:, None]


def sampled_factors(n, seed):
    """Return sizes, counts and values, and the factors of every row in units of mean zero and variance one."""
    rng = np.random.default_rng(seed)
    h = rng.gamma(SHAPES, size=(n, 3))
    sizes, rates, values = np.split(h @ (effects() / np.sqrt(SHAPES)[:, None]), np.cumsum(KINDS)[:-1], axis=1)
    views = (
        sizes + rng.normal(size=sizes.shape), rng.poisson(rates), values + rng.normal(size=values.shape)
    )  # fmt: skip
    return views, (h - SHAPES) / np.sqrt(SHAPES)
