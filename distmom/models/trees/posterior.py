"""Probabilities of the states of hidden variables of a tree given its leaves, and the EM pass that uses them.

The density of a leaf x given state i of the hidden variable above it is ``exp(c_i'x + o_i)`` times a factor that
is the same for all states. Messages go from the leaves to the root and back (Pearl, "Probabilistic Reasoning in
Intelligent Systems", 1988, section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums import Sums, SumSpec
from distmom.models.posteriors import normalise
from distmom.moments.gaussian import dense_rows, piece_rows
from distmom.moments.groups import WHOLE_SHARD
from distmom.moments.multiview import aligned, total_weight, view_slices


@dataclass(frozen=True)
class TreeEMPass(Pass):
    """Add up what an iteration of expectation and maximisation needs.

    Attributes
    ----------
    widths : tuple of int
        Numbers of columns of the leaves; they add up to ``n_features``.
    parents, of_leaves : tuple of int
        As of `distmom.models.trees.structure.Tree`.
    n_components : int
        Number k of states of every hidden variable.
    averages : ndarray of shape (n_features, 2)
        The first column, the mean of every column, is subtracted from every row.
    coefficients : ndarray of shape (n_features, k)
    offsets : ndarray of shape (n_hidden, k)
        Sums of the offsets of the leaves at each hidden variable.
    root : ndarray of shape (k,)
        Distribution of the root.
    transitions : ndarray of shape (n_hidden - 1, k, k)

    Notes
    -----
    Sums over rows x, with the probabilities p of states given the row: ``p`` (n_hidden, k), ``edges`` (n_hidden -
    1, k, k) of those of a parent's and a variable's state together, ``px`` (n_features, k) of the products with x
    minus the means, ``evidence`` () of log-likelihoods, and ``mass`` ().
    """

    widths: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    of_leaves: tuple[int, ...] = ()
    n_components: int = 0
    averages: Any = None
    coefficients: Any = None
    offsets: Any = None
    root: Any = None
    transitions: Any = None

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "em"

    @property
    def mapped_bytes(self) -> int:
        # Beside the sum, the coefficients, the averages, and the products of a piece of rows.
        return 8 * self.n_features * (3 * self.n_components + 2)

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, piece_rows(self.n_features))
        return 8 * n * (2 * self.n_features + 5 * len(self.parents) * self.n_components)

    def specs(self) -> dict[str, SumSpec]:
        h, k = len(self.parents), self.n_components
        return {
            "p": SumSpec((h, k)),
            "edges": SumSpec((h - 1, k, k)),
            "px": SumSpec((self.n_features, k)),
            "evidence": SumSpec(()),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        X, weights = dense_rows(block)
        coefficients, offsets = np.asarray(self.coefficients), np.asarray(self.offsets)
        mean, step = np.asarray(self.averages)[:, 0], piece_rows(self.n_features)
        cuts = view_slices(self.widths)
        for start in range(0, X.shape[0], step):
            piece = slice(start, min(start + step, X.shape[0]))
            x = aligned(X[piece])
            leaves = [x[:, cut] for cut in cuts]
            logs = np.repeat(offsets[:, None], x.shape[0], axis=1)
            for leaf, cut, h in zip(leaves, cuts, self.of_leaves, strict=True):
                logs[h] += np.asarray(leaf @ coefficients[cut])
            own = np.ones(x.shape[0]) if weights is None else weights[piece]
            p, evidence = self._states(logs, own, sums["edges"])
            sums["evidence"] += own @ evidence
            sums["p"] += p.sum(axis=1)
            for leaf, cut, h in zip(leaves, cuts, self.of_leaves, strict=True):
                sums["px"][cut] += leaf.T @ p[h] - np.outer(mean[cut], p[h].sum(axis=0))
        return None

    def _states(
        self, logs: np.ndarray, weights: np.ndarray, edges: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of all states, times the weights of rows, and log-likelihoods.

        Parameters
        ----------
        logs : ndarray of shape (n_hidden, n, k)
            Log-densities of the leaves at each hidden variable by its state; overwritten by the probabilities.
        weights : ndarray of shape (n,)
        edges : ndarray of shape (n_hidden - 1, k, k)
            The probabilities of pairs of states are added to it.
        """
        root, transitions = np.asarray(self.root), np.asarray(self.transitions)
        tiny, evidence = np.finfo(float).tiny, np.zeros(logs.shape[1])
        sent = np.empty((len(transitions), *logs.shape[1:]))
        for g in range(len(transitions), 0, -1):
            top = logs[g].max(axis=1)
            evidence += top
            np.exp(logs[g] - top[:, None], out=logs[g])
            np.maximum(logs[g] @ transitions[g - 1].T, tiny, out=sent[g - 1])
            logs[self.parents[g]] += np.log(sent[g - 1])
        logs[0] += np.log(np.maximum(root, tiny))
        evidence += normalise(logs[0])
        logs[0] *= weights[:, None]
        for g, law in enumerate(transitions, start=1):
            ratio = logs[self.parents[g]] / sent[g - 1]
            edges[g - 1] += law * (ratio.T @ logs[g])
            logs[g] *= ratio @ law
        return logs, evidence
