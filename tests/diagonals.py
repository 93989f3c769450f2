"""Mixtures of axis-aligned Gaussians that tests of `DiagonalMixture` share."""

import numpy as np
from helpers import exact_rows

from distmom.simulate.mixtures import GaussianPopulation

#: passes of a fit of few columns, and of more
WHOLE = ["columns", "moments"]
SKETCH = ["columns", "sketch", "power", "power", "moments", "squares"]
#: passes of a start by many columns together
TOGETHER = ["sketch", "power", "power", "moments"]


def parameters(d, k, seed=0, scale=1.0):
    """Return means, variances and weights of a mixture."""
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(k, d)), rng.uniform(0.3, 2.0, (k, d)), rng.dirichlet(np.full(k, 8.0))


def population(means, variances, weights, **options):
    return exact_rows(GaussianPopulation(means, weights, variances), **options)


def sample(means, variances, weights, n, seed):
    rows = GaussianPopulation(means, weights, variances).sample(n, seed)
    return rows.X, rows.components


def names_of(model):
    return [timing["name"] for timing in model.timings_]


def few_of_many_columns(n_rows, seed):
    """Return rows of 8 components and 73 columns, the last one constant, and their components."""
    rng = np.random.default_rng(seed)
    means = np.kron(np.eye(8), np.full((1, 9), 1.3))
    h = rng.integers(0, 8, n_rows)
    X = means[h] + rng.uniform(0.7, 1.3, (8, 72))[h] * rng.normal(size=(n_rows, 72))
    X = 10.0 ** np.linspace(-3, 3, 72) * X + np.linspace(0, 1e3, 72)
    return np.column_stack([X, np.full(n_rows, 7.0)]), h
