"""Probabilities of the states of hidden variables of a tree given its leaves, and the passes that use them.

The density of a leaf x given state i of the hidden variable above it is ``exp(c_i'x + o_i)`` times a factor that
is the same for all states. Messages go from the leaves to the root and back (Pearl, "Probabilistic Reasoning in
Intelligent Systems", 1988, section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, piece_rows, total_weight, view_slices
from distmom.spectral.posteriors import StoredPosteriorPass, normalise
from distmom.spectral.scores import ScoreProductsPass, ScoresPass


@dataclass(frozen=True)
class TreeReader:
    """How rows are read with the parameters of a tree.

    Attributes
    ----------
    widths : tuple of int
        Numbers of columns of the leaves.
    parents, of_leaves : tuple of int
        As in `distmom.models.trees.structure.Tree`.
    coefficients : ndarray of shape (d, k)
    offsets : ndarray of shape (n_hidden, k)
        Sums of the offsets of the leaves at each hidden variable.
    root : ndarray of shape (k,)
        Distribution of the root.
    transitions : ndarray of shape (n_hidden - 1, k, k)
    """

    widths: tuple[int, ...]
    parents: tuple[int, ...]
    of_leaves: tuple[int, ...]
    coefficients: np.ndarray
    offsets: np.ndarray
    root: np.ndarray
    transitions: np.ndarray

    def states(
        self, x: Any, weights: np.ndarray | None = None, edges: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of all states given rows, and log-likelihoods.

        Parameters
        ----------
        x : array or sparse matrix of shape (n, d)
        weights : ndarray of shape (n,), optional
            Weights of rows, by which probabilities are multiplied; ones by default.
        edges : ndarray of shape (n_hidden - 1, k, k), optional
            The probabilities of pairs of states, summed over rows, are added to it.

        Returns
        -------
        p : ndarray of shape (n_hidden, n, k)
        evidence : ndarray of shape (n,)
            Less a function of the row where leaves are not categories.
        """
        logs = np.repeat(self.offsets[:, None], x.shape[0], axis=1)
        for cut, h in zip(view_slices(self.widths), self.of_leaves, strict=True):
            logs[h] += np.asarray(x[:, cut] @ self.coefficients[cut])
        tiny, evidence = np.finfo(float).tiny, np.zeros(logs.shape[1])
        sent = np.empty((len(self.transitions), *logs.shape[1:]))
        for g in range(len(self.transitions), 0, -1):
            top = logs[g].max(axis=1)
            evidence += top
            np.exp(logs[g] - top[:, None], out=logs[g])
            np.maximum(logs[g] @ self.transitions[g - 1].T, tiny, out=sent[g - 1])
            logs[self.parents[g]] += np.log(sent[g - 1])
        logs[0] += np.log(np.maximum(self.root, tiny))
        evidence += normalise(logs[0])
        if weights is not None:
            logs[0] *= weights[:, None]
        for g, law in enumerate(self.transitions, start=1):
            ratio = logs[self.parents[g]] / sent[g - 1]
            if edges is not None:
                edges[g - 1] += law * (ratio.T @ logs[g])
            logs[g] *= ratio @ law
        return logs, evidence


@dataclass(frozen=True)
class TreePass(ScoresPass):
    """Base class of passes that read rows with the parameters of a tree.

    Attributes
    ----------
    widths, parents, of_leaves, coefficients, offsets, root, transitions
        As in `TreeReader`; arrays may be stored ones.
    n_components : int
        Number k of states of every hidden variable.
    """

    widths: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    of_leaves: tuple[int, ...] = ()
    root: Any = None
    transitions: Any = None

    def reader(self) -> TreeReader:
        """Return how a worker reads rows."""
        arrays = map(np.asarray, (self.coefficients, self.offsets, self.root, self.transitions))
        return TreeReader(self.widths, self.parents, self.of_leaves, *arrays)

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, piece_rows(self.n_features))
        return 8 * n * (2 * self.n_features + 5 * len(self.parents) * self.n_components)


@dataclass(frozen=True)
class TreeStatesPass(StoredPosteriorPass, TreePass):
    """Store the most probable state of every hidden variable given each row, and the probabilities of all.

    Notes
    -----
    Fields as in `TreePass`. Rows: ``states`` (n, n_hidden), int32, and ``probabilities`` (n, n_hidden, k),
    float32. Sums: ``mass`` ().
    """

    @property
    def row_bytes(self) -> int:
        return len(self.parents) * super().row_bytes

    def working_bytes(self, n_rows: int) -> int:
        return super().working_bytes(n_rows) + n_rows * self.row_bytes

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        n, h, reader = dense_rows(block)[0].shape[0], len(self.parents), self.reader()
        states = np.empty((n, h), np.int32)
        found = np.empty((n, h, self.n_components), np.float32)
        for piece, x, _ in self.pieces(block):
            p = np.moveaxis(reader.states(x)[0], 0, 1)
            states[piece], found[piece] = p.argmax(axis=2), p
        return {"states": states, "probabilities": found}


@dataclass(frozen=True)
class TreeEMPass(TreePass, ScoreProductsPass):
    """Add up the sums for one expectation-maximisation (EM) iteration.

    Notes
    -----
    Fields as in `TreePass` and `ScoreProductsPass`. Further sums, with the probabilities p of states given a
    row: ``p`` (n_hidden, k), ``edges`` (n_hidden - 1, k, k), the joint probabilities of the states of a variable's
    parent and of the variable, and ``evidence`` (), the log-likelihoods.
    """

    @property
    def name(self) -> str:
        return "em"

    def specs(self) -> dict[str, SumSpec]:
        h, k = len(self.parents), self.n_components
        return {
            "p": SumSpec((h, k)),
            "edges": SumSpec((h - 1, k, k)),
            "evidence": SumSpec(()),
            **super().specs(),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        mean, cuts, reader = np.asarray(self.averages)[:, 0], view_slices(self.widths), self.reader()
        for _, x, own in self.pieces(block):
            p, evidence = reader.states(x, own, sums["edges"])
            sums["evidence"] += own @ evidence
            sums["p"] += p.sum(axis=1)
            for cut, h in zip(cuts, self.of_leaves, strict=True):
                sums["px"][cut] += x[:, cut].T @ p[h] - np.outer(mean[cut], p[h].sum(axis=0))
        return None
