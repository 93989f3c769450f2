"""Passes over views by linear scores of their columns (`distmom.spectral.scores`).

`RowScoresPass` stores the probabilities of the components of rows, `ScoresEMPass` adds up the sums for an
expectation-maximisation (EM) iteration, and `ViewSharesPass` the moments of the probabilities that each view
gives alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import aligned, dense_rows, piece_rows, total_weight, view_slices
from distmom.moments.kernels import TENSOR_BLOCK
from distmom.moments.rows.multiview import add_triples
from distmom.moments.three_views import N_GROUPS, PAIRS
from distmom.spectral.posteriors import StoredPosteriorPass, normalise
from distmom.spectral.scores import ScoreProductsPass, ScoresPass


@dataclass(frozen=True)
class RowScoresPass(StoredPosteriorPass, ScoresPass):
    """Store the most probable component of every row, and the probabilities of all.

    Notes
    -----
    Fields as in `ScoresPass`; rows and sums as in `StoredPosteriorPass`.
    """

    def working_bytes(self, n_rows: int) -> int:
        return 24 * n_rows * self.n_components

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        shares = shares_of(
            aligned(dense_rows(block)[0]), np.asarray(self.coefficients), np.asarray(self.offsets)
        )[0]
        return {
            "components": shares.argmax(axis=1).astype(np.int32),
            "probabilities": shares.astype(np.float32),
        }


@dataclass(frozen=True)
class ScoresEMPass(ScoreProductsPass):
    """Add up the sums for one expectation-maximisation (EM) iteration.

    Notes
    -----
    Fields as in `ScoreProductsPass`. Further sums, with the probabilities p of the components of a row:
    ``p`` (k,), and ``evidence`` (), the sum of ``log sum_h exp s_h(x)``.
    """

    @property
    def name(self) -> str:
        return "em"

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, piece_rows(self.n_features))
        return 8 * n * (2 * self.n_features + 4 * self.n_components)

    def specs(self) -> dict[str, SumSpec]:
        return {"p": SumSpec((self.n_components,)), "evidence": SumSpec(()), **super().specs()}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        coefficients, offsets = np.asarray(self.coefficients), np.asarray(self.offsets)
        mean = np.asarray(self.averages)[:, 0]
        for _, x, own in self.pieces(block):
            p, evidence = shares_of(x, coefficients, offsets)
            p *= own[:, None]
            evidence *= own
            total = p.sum(axis=0)
            sums["p"] += total
            sums["px"] += x.T @ p - np.outer(mean, total)
            sums["evidence"] += evidence.sum()
        return None


@dataclass(frozen=True)
class ViewSharesPass(ScoreProductsPass):
    """Add up the moments of the probabilities of the components given single views.

    Attributes
    ----------
    offsets : ndarray of shape (3, k)
        Offsets of the scores of each view, in place of those of a row.
    logs : ndarray of shape (k,)
        Logarithms of the weights of the components.
    widths : tuple of int
        Numbers of columns of the views.

    Notes
    -----
    Other fields as in `ScoreProductsPass`. Sums, with q_t the probabilities given view t and p_t those given the
    two others: ``means``, ``pairs``, ``triples`` and ``mass`` of q_1, q_2 and q_3, as in
    `distmom.moments.documents.product.GroupMomentsPass`; ``crosses`` (3, k, k) of ``p_t q_t'``; ``px`` of the
    columns of view t with p_t.
    """

    logs: Any = None
    widths: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "correction"

    def working_bytes(self, n_rows: int) -> int:
        n, k = min(n_rows, piece_rows(self.n_features)), self.n_components
        products = n * TENSOR_BLOCK**2 + TENSOR_BLOCK**2 * k
        return 8 * (n * (2 * self.n_features + (3 * N_GROUPS + 2) * k) + products)

    @property
    def finish_bytes(self) -> int:
        return 8 * 3 * self.n_components**3

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_components
        return {
            "means": SumSpec((N_GROUPS, k)),
            "pairs": SumSpec((len(PAIRS), k, k)),
            "triples": SumSpec((k, k, k)),
            "crosses": SumSpec((N_GROUPS, k, k)),
            **super().specs(),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        coefficients, offsets, logs = (np.asarray(a) for a in (self.coefficients, self.offsets, self.logs))
        mean, cuts = np.asarray(self.averages)[:, 0], view_slices(self.widths)
        for _, x, row_weights in self.pieces(block):
            views = [x[:, cut] for cut in cuts]
            scores = [
                np.asarray(view @ coefficients[cut]) + offset
                for view, cut, offset in zip(views, cuts, offsets, strict=True)
            ]
            whole = sum(scores) + logs
            own = row_weights[:, None]
            shares = []
            for t, (view, cut, score) in enumerate(zip(views, cuts, scores, strict=True)):
                others = whole - score
                score += logs
                normalise(others)
                normalise(score)
                others *= own
                sums["px"][cut] += view.T @ others - np.outer(mean[cut], others.sum(axis=0))
                sums["crosses"][t] += others.T @ score
                sums["means"][t] += (own * score).sum(axis=0)
                shares.append(score)
            for i, (s, t) in enumerate(PAIRS):
                sums["pairs"][i] += shares[s].T @ (own * shares[t])
            add_triples(sums["triples"], shares[0], shares[1], own * shares[2])
        return None


def shares_of(X: Any, coefficients: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the exponentials of linear scores of rows, scaled to sum one, (n, k), and the logs of their sums."""
    scores = np.asarray(X @ coefficients) + offsets
    evidence = normalise(scores)
    return scores, evidence
