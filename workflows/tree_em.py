"""EM by belief propagation for a known tree of hidden variables with categorical leaves: the textbook algorithm.

A peer of `LatentTree` in `run_latent`, and the likelihood by which `latents` compares all systems. It requires
only NumPy. Hidden variables are numbered from the root, each before those below it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: least gain of the mean log-likelihood per row at which EM continues
LEAST_GAIN = 1e-7


@dataclass(frozen=True)
class Shape:
    """A tree and the sizes of its variables.

    Attributes
    ----------
    parents : tuple of int
        Hidden variable above each hidden variable; -1 for the root, which is the first.
    of_leaves : tuple of int
        Hidden variable above each leaf.
    levels : tuple of int
        Number of categories of each leaf.
    k : int
        Number of states of every hidden variable.
    """

    parents: tuple[int, ...]
    of_leaves: tuple[int, ...]
    levels: tuple[int, ...]
    k: int


@dataclass(frozen=True)
class Law:
    """Probabilities of a tree.

    Attributes
    ----------
    root : ndarray of shape (k,)
    edges : list of ndarray of shape (k, k)
        For every hidden variable but the root, its distribution by the state of its parent.
    leaves : list of ndarray of shape (k, n_levels)
        For every leaf, its distribution by the state of the hidden variable above it.
    """

    root: np.ndarray
    edges: list[np.ndarray]
    leaves: list[np.ndarray]

    @classmethod
    def random(cls, shape: Shape, rng: np.random.Generator) -> Law:
        """Draw all distributions uniformly."""
        k = shape.k
        return cls(
            rng.dirichlet(np.ones(k)),
            [rng.dirichlet(np.ones(k), k) for _ in shape.parents[1:]],
            [rng.dirichlet(np.ones(n), k) for n in shape.levels],
        )

    def sample(self, shape: Shape, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the categories of the leaves, an array (n, n_leaves)."""
        hidden = [_draw(np.tile(self.root, (n, 1)), rng)]
        for g, parent in enumerate(shape.parents[1:], start=1):
            hidden.append(_draw(self.edges[g - 1][hidden[parent]], rng))
        above = zip(self.leaves, shape.of_leaves, strict=True)
        return np.stack([_draw(leaf[hidden[h]], rng) for leaf, h in above], axis=1)


def _draw(laws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.asarray((rng.random((len(laws), 1)) > laws.cumsum(axis=1)[:, :-1]).sum(axis=1))


def _upward(
    shape: Shape, law: Law, rows: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Return for every hidden variable the evidence from below, what it sends up, and log-likelihoods of rows.

    The evidence is scaled so that it sums to one over the states.
    """
    n, k = len(rows), shape.k
    below = [np.ones((n, k)) for _ in shape.parents]
    sent = [np.ones((n, k)) for _ in shape.parents]
    logs = np.zeros(n)
    for leaf, h in enumerate(shape.of_leaves):
        below[h] *= law.leaves[leaf].T[rows[:, leaf]]
    for h in range(len(shape.parents) - 1, -1, -1):
        scale = np.maximum(below[h].sum(axis=1, keepdims=True), 1e-300)
        below[h] /= scale
        logs += np.log(scale[:, 0])
        if h:
            sent[h] = below[h] @ law.edges[h - 1].T
            below[shape.parents[h]] *= sent[h]
    return below, sent, logs + np.log(np.maximum(below[0] @ law.root, 1e-300))


def log_likelihoods(shape: Shape, law: Law, rows: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of every row of categories."""
    return _upward(shape, law, rows)[2]


def em_step(shape: Shape, law: Law, rows: np.ndarray, weights: np.ndarray) -> tuple[Law, float]:
    """Return the law after one iteration over weighted rows, and the mean log-likelihood before it."""
    below, sent, logs = _upward(shape, law, rows)
    posterior = [np.empty(0)] * len(shape.parents)
    own = below[0] * law.root
    posterior[0] = own / np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
    edges = []
    for g, parent in enumerate(shape.parents[1:], start=1):
        ratio = posterior[parent] / np.maximum(sent[g], 1e-300)
        edge = law.edges[g - 1]
        edges.append(_rows_to_one(edge * ((ratio * weights[:, None]).T @ below[g])))
        posterior[g] = (ratio @ edge) * below[g]
    leaves = []
    for leaf, h in enumerate(shape.of_leaves):
        owned = posterior[h] * weights[:, None]
        counts = [np.bincount(rows[:, leaf], own, minlength=shape.levels[leaf]) for own in owned.T]
        leaves.append(_rows_to_one(np.stack(counts)))
    root = weights @ posterior[0]
    return Law(root / root.sum(), edges, leaves), float(weights @ logs / weights.sum())


def _rows_to_one(counts: np.ndarray) -> np.ndarray:
    totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0.0, counts / np.where(totals > 0.0, totals, 1.0), 1.0 / counts.shape[1])


def fit_em(shape: Shape, start: Law, rows: np.ndarray, n_iter: int) -> tuple[Law, float, int]:
    """Run EM until the likelihood hardly grows.

    Returns
    -------
    law : Law
    log_likelihood : float
        Per row, before the last iteration.
    n_iter : int
        Iterations made.
    """
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    weights, law, before = counts.astype(np.float64), start, -np.inf
    for i in range(n_iter):
        law, value = em_step(shape, law, distinct, weights)
        if value - before < LEAST_GAIN:
            return law, value, i + 1
        before = value
    return law, before, n_iter
