"""Moments of windows of three consecutive steps of sequences, in a basis, never in the space of symbols.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.3. The steps of a window ``(t, t+1, t+2)`` of a hidden Markov model are three views that are
independent given the hidden state of the middle step. All windows of all sequences are pooled: they are those
of one model whose initial distribution is the average over the first steps of windows. Pairs and triples are taken
from exactly the same windows.

With phi(x) the features of a step (an indicator of its symbol, or see `distmom.moments.sequences.windows`) and Q a
basis of the range of ``sum_{a != b} E[phi(x_a) phi(x_b)']``, views are ``y = Q'phi(x)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Rows
from distmom.engine.stored.arrays import Columns
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.kernels import BLOCK_ROWS, TENSOR_BLOCK, add_slices
from distmom.moments.sequences.windows import (
    N_STEPS,
    PIECE_ROWS,
    first_steps,
    step_features,
    window_pieces,
    window_weights,
)
from distmom.moments.sketching import ProjectedPass, SketchPass
from distmom.moments.three_views import PAIRS, pair_of
from distmom.moments.weighting import positive


@dataclass(frozen=True)
class WindowSketchPass(SketchPass):
    """Multiply the second moment of different steps of a window by a test matrix or a basis.

    Attributes
    ----------
    degree : {0, 1, 2}
        0 for symbols; for dense steps see `step_features`.
    origin, scale : ndarray of shape (d,), optional
        For dense steps (see `step_features`).

    Notes
    -----
    Sums as in `SketchPass`, without probes; ``n_features`` is the number of features of a step.
    """

    degree: int = 0
    origin: Any = None
    scale: Any = None

    block_rows = WHOLE_SHARD
    halo = N_STEPS - 1

    @property
    def has_exact_columns(self) -> bool:
        # Products of dense rows are formed by BLAS, whose last bits depend on the number of columns.
        return self.degree == 0

    def working_bytes(self, n_rows: int) -> int:
        matrix = 12 * self.n_features * self.n_columns
        # Features of two consecutive pieces are in memory at once; symbols have none, and no products.
        width = 5 * self.n_columns + 2 * self.n_features if self.degree else N_STEPS
        return 8 * (n_rows + PIECE_ROWS * width) + matrix

    def windows(self, block: RowBlock) -> np.ndarray:
        """Return the weight of the window that begins at each row of a block."""
        return window_weights(block)

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        windows = self.windows(block)
        sums["mass"] += windows.sum()
        matrix, out = self.matrix(), sums["sketch"]
        if self.degree == 0:
            _add_windows(block.rows, windows, matrix, out.single)
            out.settle()
            return None
        for piece, weight in window_pieces(windows):
            features = step_features(block.rows[piece], self.origin, self.scale, self.degree)
            Y = features @ matrix
            others = np.zeros_like(Y)
            steps = [slice(a, a + len(weight)) for a in range(N_STEPS)]
            for a in range(N_STEPS):
                rest = sum(Y[steps[b]] for b in range(N_STEPS) if b != a)
                others[steps[a]] += weight[:, None] * rest
            out.single[...] += features.T @ others
        out.settle()
        return None


@dataclass(frozen=True)
class ProjectedWindowsPass(ProjectedPass):
    """Base class of passes that project the steps of windows onto a basis.

    Attributes
    ----------
    basis : matrix of shape (n_features, r), float64
        Q; an array, or slabs of columns.
    rank : int
        r.
    """

    basis: Any = None
    rank: int = 0

    block_rows = WHOLE_SHARD
    halo = N_STEPS - 1

    @property
    def mapped_bytes(self) -> int:
        # The map, and one matrix of all slabs.
        return 16 * self.n_features * self.rank


@dataclass(frozen=True)
class WindowMomentsPass(ProjectedWindowsPass):
    """Add up the moments of orders one to three of windows in a basis.

    Attributes
    ----------
    basis, rank
        As in `ProjectedWindowsPass`.
    degree, origin, scale
        As in `WindowSketchPass`.

    Notes
    -----
    Sums, with ``y_1, y_2, y_3`` the steps of a window in the basis: ``pairs`` (3, r, r) in the order of
    `PAIRS`, ``triples`` (r, r, r) of ``y_1 (x) y_2 (x) y_3``, ``means`` (3, r), ``mass`` (); ``first`` (r,)
    of the first steps of sequences and ``n_first`` (). For dense steps also ``squares`` (2, d, r): those of
    the middle step, in its features z, with ``y_1`` and ``y_3``.
    """

    degree: int = 0
    origin: Any = None
    scale: Any = None

    @property
    def name(self) -> str:
        return "moments"

    def working_bytes(self, n_rows: int) -> int:
        # The products and squares of the piece before are kept until those of a piece are complete.
        width = 7 * self.rank + (self.n_features + 2 * self.n_values if self.degree else 0)
        return 8 * (n_rows + PIECE_ROWS * width + TENSOR_BLOCK**2 * BLOCK_ROWS)

    @property
    def finish_bytes(self) -> int:
        return 8 * 4 * self.rank**3

    @property
    def n_values(self) -> int:
        """Number of values of a dense step."""
        return (self.n_features - 1) // max(1, self.degree)

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        specs = {
            "means": SumSpec((N_STEPS, r)),
            "pairs": SumSpec((len(PAIRS), r, r)),
            "triples": SumSpec((r, r, r)),
            "first": SumSpec((r,)),
            "n_first": SumSpec(()),
            "mass": SumSpec(()),
        }
        if self.degree:
            specs["squares"] = SumSpec((2, self.n_values, r))
        return specs

    def windows(self, block: RowBlock) -> np.ndarray:
        """Return the weight of the window that begins at each row of a block."""
        return window_weights(block)

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        matrix = _whole(self.basis)
        windows = self.windows(block)
        sums["mass"] += windows.sum()
        for piece, begins, weights in first_steps(block):
            sums["n_first"] += weights.sum()
            sums["first"] += weights @ self._project(block.rows[begins[piece]], matrix)[0]
        for piece, weight in window_pieces(windows):
            Y, squares = self._project(block.rows[piece], matrix)
            views = [Y[a : a + len(weight)] for a in range(N_STEPS)]
            weighted = [view * weight[:, None] for view in views]
            self.add_views(sums, views, weighted)
            if squares is not None:
                middle = squares[1 : 1 + len(weight)].T
                sums["squares"][0] += middle @ weighted[0]
                sums["squares"][1] += middle @ weighted[2]
        return None

    def add_views(self, sums: Sums, views: list[np.ndarray], weighted: list[np.ndarray]) -> None:
        """Add up the moments of the three steps of windows, given also times the weights of the windows."""
        for a in range(N_STEPS):
            sums["means"][a] += weighted[a].sum(axis=0)
        for i, (a, b) in enumerate(PAIRS):
            sums["pairs"][i] += weighted[a].T @ views[b]
        add_slices(sums["triples"], weighted[0], views[2], views[1])

    def _project(self, rows: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return steps in the basis, and the squares of dense ones."""
        if self.degree == 0:
            return matrix[rows], None
        features = step_features(rows, self.origin, self.scale, self.degree)
        return features @ matrix, np.square(features[:, 1 : self.n_values + 1])


@dataclass(frozen=True)
class ContextPass(ProjectedWindowsPass):
    """Add up the neighbours of each symbol, in a basis.

    Attributes
    ----------
    basis, rank
        As in `ProjectedWindowsPass`.

    Notes
    -----
    Sums: ``contexts`` (n_symbols, 2 r + 1) tall, by the symbol of the middle step of a window: the sums of
    ``y_1``, of ``y_3`` and of ones; ``first`` (r,), ``n_first`` () and ``mass`` () as in `WindowMomentsPass`.
    """

    @property
    def name(self) -> str:
        return "contexts"

    def working_bytes(self, n_rows: int) -> int:
        return 8 * (n_rows + PIECE_ROWS * (self.rank + N_STEPS))

    def specs(self) -> dict[str, SumSpec]:
        return {
            "contexts": SumSpec((self.n_features, 2 * self.rank + 1), tall="features"),
            "first": SumSpec((self.rank,)),
            "n_first": SumSpec(()),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        matrix = _whole(self.basis)
        windows = window_weights(block)
        sums["mass"] += windows.sum()
        for piece, begins, weights in first_steps(block):
            sums["n_first"] += weights.sum()
            sums["first"] += weights @ matrix[block.rows[begins[piece]]]
        _add_contexts(block.rows, windows, matrix, sums["contexts"].single)
        sums["contexts"].settle()
        return None


@dataclass(frozen=True)
class WindowMoments:
    """Moments of windows in a basis.

    Attributes
    ----------
    means : ndarray of shape (3, r)
    pairs : ndarray of shape (3, r, r)
        In the order of `PAIRS`.
    triples : ndarray of shape (r, r, r)
    first : ndarray of shape (r,)
        Mean of the first steps of sequences.
    n_first : float
        Number of sequences.
    squares : ndarray of shape (2, d, r) or None
    """

    means: np.ndarray
    pairs: np.ndarray
    triples: np.ndarray
    first: np.ndarray
    n_first: float
    squares: np.ndarray | None

    def pair(self, s: int, t: int) -> np.ndarray:
        """Return ``E[y_s y_t']``, with steps counted from zero."""
        return pair_of(self.pairs, s, t)


def window_moments(sums: Sums) -> WindowMoments:
    """Turn the sums of `WindowMomentsPass` into moments."""
    mass = positive(sums["mass"])
    means, pairs, triples = (np.asarray(sums[name]) / mass for name in ("means", "pairs", "triples"))
    n_first = float(sums["n_first"])
    first = np.asarray(sums["first"]) / positive(n_first)
    squares = np.asarray(sums["squares"]) / mass if "squares" in sums else None
    return WindowMoments(means, pairs, triples, first, n_first, squares)


def _whole(basis: Any) -> np.ndarray:
    """Return a basis as one matrix, float64."""
    parts = basis.each() if isinstance(basis, Columns) else iter((basis,))
    matrices = [np.asarray(part, np.float64) for part in parts]
    return matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)


@compiled
def _add_windows(symbols: Any, windows: Any, matrix: Any, out: Any) -> None:
    """Add the second moment of different steps of windows of symbols, times a matrix, to ``out`` in place.

    Parameters
    ----------
    symbols : ndarray of shape (n,), int32
    windows : ndarray of shape (n,)
        Weight of the window that begins at each row.
    matrix, out : ndarray of shape (n_symbols, r)
    """
    r = matrix.shape[1]
    for t in range(symbols.shape[0] - 2):
        w = windows[t]
        if w == 0.0:
            continue
        # Unsigned: a signed subscript may be negative, which would be checked on every access.
        a, b, c = np.uint64(symbols[t]), np.uint64(symbols[t + 1]), np.uint64(symbols[t + 2])
        first, second, third = matrix[a], matrix[b], matrix[c]
        for j in range(r):
            x, y, z = w * first[j], w * second[j], w * third[j]
            out[a, j] += y + z
            out[b, j] += x + z
            out[c, j] += x + y


@compiled
def _add_contexts(symbols: Any, windows: Any, matrix: Any, out: Any) -> None:
    """Add the neighbours of the middle steps of windows to the rows of their symbols, in place.

    Parameters
    ----------
    symbols : ndarray of shape (n,), int32
    windows : ndarray of shape (n,)
        Weight of the window that begins at each row.
    matrix : ndarray of shape (n_symbols, r)
    out : ndarray of shape (n_symbols, 2 r + 1)
    """
    r = matrix.shape[1]
    for t in range(symbols.shape[0] - 2):
        w = windows[t]
        if w == 0.0:
            continue
        target = out[np.uint64(symbols[t + 1])]
        before, after = matrix[np.uint64(symbols[t])], matrix[np.uint64(symbols[t + 2])]
        for j in range(r):
            target[j] += w * before[j]
            target[r + j] += w * after[j]
        target[2 * r] += w
