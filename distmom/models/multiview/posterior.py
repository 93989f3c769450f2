"""Probabilities of the components of a row by linear scores of its columns, and passes that use them.

Distributions of one shape have densities whose ratios are linear in the row: with scores ``s_h(x) = c_h'x + o_h``,
component h has the probability ``exp s_h(x) / sum_g exp s_g(x)``. `RowScoresPass` stores probabilities,
`ScoresEMPass` adds up what an iteration of expectation and maximisation needs, and `ViewSharesPass` the moments of
the probabilities that each view gives alone. Rows may be sparse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums import Sums, SumSpec
from distmom.moments.gaussian import dense_rows, piece_rows
from distmom.moments.groups import WHOLE_SHARD
from distmom.moments.multiview import aligned, total_weight, view_slices
from distmom.moments.product import N_GROUPS, PAIRS
from distmom.spectral.posteriors import normalise


@dataclass(frozen=True)
class ScoresPass(Pass):
    """Base class of passes that read linear scores.

    Attributes
    ----------
    coefficients : ndarray of shape (n_features, k)
    offsets : ndarray of shape (k,)
        The scores of a row x are ``coefficients' x + offsets``.
    n_components : int
    """

    coefficients: Any = None
    offsets: Any = None
    n_components: int = 0

    block_rows = WHOLE_SHARD

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_features * self.n_components


@dataclass(frozen=True)
class RowScoresPass(ScoresPass):
    """Store the most probable component of every row, and the probabilities of all.

    Notes
    -----
    Fields as in `ScoresPass`. Rows: ``components`` (n,), int32, and ``probabilities`` (n, k), float32. Sums:
    ``mass`` ().
    """

    row_axis = "rows"

    @property
    def name(self) -> str:
        return "assign"

    @property
    def row_bytes(self) -> int:
        return 4 + 4 * self.n_components

    def working_bytes(self, n_rows: int) -> int:
        return 24 * n_rows * self.n_components

    def specs(self) -> dict[str, SumSpec]:
        return {"mass": SumSpec(())}

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
class ScoresEMPass(ScoresPass):
    """Add up what an iteration of expectation and maximisation needs.

    Attributes
    ----------
    averages : ndarray of shape (n_features, 2)
        The first column, the mean of every column, is subtracted from every row.

    Notes
    -----
    Other fields as in `ScoresPass`. Sums over rows x with their probabilities p: ``p`` (k,), ``px`` (n_features,
    k) of the products with x minus the means, ``evidence`` () of ``log sum_h exp s_h(x)``, and ``mass`` ().
    """

    averages: Any = None

    @property
    def name(self) -> str:
        return "em"

    @property
    def mapped_bytes(self) -> int:
        # Beside the sum, the coefficients, the averages, and the products of a piece of rows.
        return 8 * self.n_features * (3 * self.n_components + 2)

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, piece_rows(self.n_features))
        return 8 * n * (2 * self.n_features + 4 * self.n_components)

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_components
        return {
            "p": SumSpec((k,)),
            "px": SumSpec((self.n_features, k)),
            "evidence": SumSpec(()),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        X, weights = dense_rows(block)
        coefficients, offsets = np.asarray(self.coefficients), np.asarray(self.offsets)
        mean, step = np.asarray(self.averages)[:, 0], piece_rows(self.n_features)
        for start in range(0, X.shape[0], step):
            piece = slice(start, min(start + step, X.shape[0]))
            x = aligned(X[piece])
            p, evidence = shares_of(x, coefficients, offsets)
            if weights is not None:
                p *= weights[piece, None]
                evidence *= weights[piece]
            total = p.sum(axis=0)
            sums["p"] += total
            sums["px"] += x.T @ p - np.outer(mean, total)
            sums["evidence"] += evidence.sum()
        return None


@dataclass(frozen=True)
class ViewSharesPass(ScoresPass):
    """Add up the moments of the probabilities of the components given single views.

    Attributes
    ----------
    offsets : ndarray of shape (3, k)
        Of the scores of each view, in place of those of a row.
    logs : ndarray of shape (k,)
        Logarithms of the weights of the components.
    averages : ndarray of shape (n_features, 2)
        The first column, the mean of every column, is subtracted from every row.
    widths : tuple of int
        Numbers of columns of the views.

    Notes
    -----
    Other fields as in `ScoresPass`. Sums, with q_t the probabilities given view t and p_t those given the two
    others: ``means``, ``pairs``, ``triples`` and ``mass`` of q_1, q_2 and q_3, as of
    `distmom.moments.product.GroupMomentsPass`; ``crosses`` (3, k, k) of ``p_t q_t'``; ``px`` (n_features, k) of
    the products of the columns of view t, minus their means, with p_t.
    """

    logs: Any = None
    averages: Any = None
    widths: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "correction"

    @property
    def mapped_bytes(self) -> int:
        # Beside the sum, the coefficients, the averages, and the products of a piece of rows.
        return 8 * self.n_features * (3 * self.n_components + 2)

    def working_bytes(self, n_rows: int) -> int:
        n, k = min(n_rows, piece_rows(self.n_features)), self.n_components
        return 8 * n * (2 * self.n_features + (3 * N_GROUPS + 2 + k) * k)

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
            "px": SumSpec((self.n_features, k)),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        sums["mass"] += total_weight(block)
        X, weights = dense_rows(block)
        coefficients, offsets, logs = (np.asarray(a) for a in (self.coefficients, self.offsets, self.logs))
        mean, step, k = np.asarray(self.averages)[:, 0], piece_rows(self.n_features), self.n_components
        for start in range(0, X.shape[0], step):
            piece = slice(start, min(start + step, X.shape[0]))
            x = aligned(X[piece])
            cuts = view_slices(self.widths)
            views = [x[:, cut] for cut in cuts]
            scores = [
                np.asarray(view @ coefficients[cut]) + offset
                for view, cut, offset in zip(views, cuts, offsets, strict=True)
            ]
            whole = sum(scores) + logs
            own = np.ones((x.shape[0], 1)) if weights is None else weights[piece, None]
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
            products = (shares[0][:, :, None] * (own * shares[1])[:, None, :]).reshape(-1, k * k)
            sums["triples"] += (products.T @ shares[2]).reshape(k, k, k)
        return None


def shares_of(X: Any, coefficients: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the exponentials of linear scores of rows, scaled to sum one, (n, k), and the logs of their sums."""
    scores = np.asarray(X @ coefficients) + offsets
    evidence = normalise(scores)
    return scores, evidence
