"""Contractions of the fourth moment over distinct views of a document, in whitened coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.views.groups import N_PARTS, PIECE_ROWS, ProjectedViewsPass, mean_of_parts


@dataclass(frozen=True)
class ViewFourthPass(ProjectedViewsPass):
    """Contract the fourth moment over distinct views, in whitened coordinates, with pairs of directions.

    Let ``y_v`` be the views of a document in these coordinates, ``a_v = a'y_v``, ``b_v = b'y_v``, ``s(.)`` sums
    over the views of a document, ``S = s(y)``, ``A = s(a)`` and ``B = s(b)``. A document contributes, divided
    by ``(V)_4``,

        (A B - s(ab)) S S' + w S' + S w' + s(a y) s(b y)' + s(b y) s(a y)'
            + s((s(ab) - A B + 2 B a + 2 A b - 6 a b) y y'),        w = 2 s(a b y) - B s(a y) - A s(b y)

    Attributes
    ----------
    whitener : ndarray of shape (r, k)
        W, which whitens the second moment in the basis.
    left, right : ndarray of shape (k, m)
        The pairs a, b as columns.
    n_states, n_pairs : int
        k and m.

    Notes
    -----
    Other fields as in `ProjectedViewsPass`. Sums over p parts: ``mass`` (p,), ``fourth`` (p, m, k, k).
    """

    min_views: int = 4
    whitener: Any = None
    left: Any = None
    right: Any = None
    n_states: int = 0
    n_pairs: int = 0

    @property
    def name(self) -> str:
        return "fourth"

    def working_bytes(self, n_rows: int) -> int:
        piece = min(n_rows, PIECE_ROWS) * self.n_features
        return 8 * (n_rows * (self.rank + 8 * self.n_states + 2 * self.n_pairs) + piece)

    @property
    def finish_bytes(self) -> int:
        return 8 * (3 * N_PARTS + 4) * self.n_pairs * self.n_states**2

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_states
        return {"mass": SumSpec((N_PARTS,)), "fourth": SumSpec((N_PARTS, self.n_pairs, k, k))}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        for index, part, weights in self.parts(block):
            Y = self.project(part) @ self.whitener
            V = part.sizes.astype(np.float64)
            tuples = weights / (V * (V - 1.0) * (V - 2.0) * (V - 3.0))
            sums["mass"][index] += weights.sum()
            _add_fourth(sums["fourth"][index], Y, part, tuples, Y @ self.left, Y @ self.right)
        return None


def _add_fourth(
    out: np.ndarray, Y: np.ndarray, block: RowBlock, weights: np.ndarray, left: np.ndarray, right: np.ndarray
) -> None:
    """Add the contractions of some documents with every pair of directions to (m, k, k) matrices."""
    first, sizes = block.starts[:-1], block.sizes
    S = np.add.reduceat(Y, first, axis=0)
    for pair in range(left.shape[1]):
        a, b = left[:, pair], right[:, pair]
        A, B, ab = (np.add.reduceat(x, first) for x in (a, b, a * b))
        a_y, b_y, ab_y = (np.add.reduceat(Y * x[:, None], first, axis=0) for x in (a, b, a * b))
        out[pair] += crossed_products(S, a_y, b_y, ab_y, (A, B, ab), weights)
        A, B, ab, own = (np.repeat(x, sizes) for x in (A, B, ab, weights))
        repeated = own * (ab - A * B + 2.0 * (B * a + A * b) - 6.0 * a * b)
        out[pair] += (Y * repeated[:, None]).T @ Y


def crossed_products(
    S: np.ndarray,
    a_y: np.ndarray,
    b_y: np.ndarray,
    ab_y: np.ndarray,
    along: tuple[np.ndarray, np.ndarray, np.ndarray],
    weights: np.ndarray,
) -> np.ndarray:
    """Return the part of a contraction that is made of sums over the views, or positions, of every document.

    It is all of the contribution in `ViewFourthPass` but the last term.

    Parameters
    ----------
    S, a_y, b_y, ab_y : ndarray of shape (n, k)
        ``s(y)``, ``s(a y)``, ``s(b y)`` and ``s(a b y)`` of every document.
    along : tuple of ndarray of shape (n,)
        A, B and ``s(ab)``.
    weights : ndarray of shape (n,)
        Weights of a tuple.

    Returns
    -------
    ndarray of shape (k, k), float64
    """
    A, B, ab = along
    w = 2.0 * ab_y - B[:, None] * a_y - A[:, None] * b_y
    crossed = (S * weights[:, None]).T @ w + (a_y * weights[:, None]).T @ b_y
    same = (S * (weights * (A * B - ab))[:, None]).T @ S
    return np.asarray(same + crossed + crossed.T)


def view_fourth(sums: Sums) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Turn the sums of `ViewFourthPass` into contractions, (k, k, m), of all documents, and of every part."""
    mass = np.asarray(sums["mass"])
    parts = [
        np.ascontiguousarray(np.asarray(sums["fourth"][index]).transpose(1, 2, 0)) / mass[index]
        for index in np.flatnonzero(mass > 0.0)
    ]
    return mean_of_parts(parts, mass[mass > 0.0]), tuple(parts)


def pair_directions(k: int, n_pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of directions with which a symmetric fourth-order tensor is contracted.

    Parameters
    ----------
    k : int
    n_pairs : int
        If at least ``k (k + 1) / 2``, all pairs of axes are used, weighted so that the sum of squares of the
        contractions equals that of the tensor. Otherwise pairs are taken from random orthonormal bases.
    seed : int, default 0

    Returns
    -------
    left, right : ndarray of shape (k, m), float64
    """
    if n_pairs >= k * (k + 1) // 2:
        i, j = np.triu_indices(k)
        axes = np.eye(k)
        return axes[:, i] * np.where(i == j, 1.0, np.sqrt(2.0)), axes[:, j]
    rng = np.random.default_rng(seed)
    n_bases = -(-n_pairs // k)
    left, right = (
        np.concatenate([np.linalg.qr(rng.standard_normal((k, k)))[0] for _ in range(n_bases)], axis=1)
        for _ in range(2)
    )
    return left[:, :n_pairs], right[:, :n_pairs]
