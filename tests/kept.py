"""Options and samples for tests of kept moments."""

import numpy as np

from distmom.simulate.topics import TopicPopulation

ALL_WORDS = {"min_df": 0.0, "max_df": 1.0, "max_count": None, "precision": "double"}
PURE = {"init": "tensor", "n_refine": 0}


def sample(n, d=60, k=3, length=40, seed=0):
    """Return a population of k topics, and counts of n documents of it."""
    rng = np.random.default_rng(seed)
    population = TopicPopulation(np.full(k, 0.2), rng.dirichlet(np.full(d, 0.1), k).T)
    counts, _ = population.sample(n, length, seed=seed + 1)
    return population, counts
