"""Windows of consecutive steps of sequences: features of steps, weights of windows, and pieces of both.

A window belongs to the block that has its last row, so that the windows of a sequence split across shards are
counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, mass_of, weights_of

#: steps of a window
N_STEPS = 3
#: number of rows that are looked up and multiplied at a time
PIECE_ROWS = 1 << 14


@dataclass(frozen=True)
class StepMeanPass(Pass):
    """Average dense steps and their squares.

    Notes
    -----
    Sums: ``values`` (2, n_features) of the steps and their squares, ``mass`` ().
    """

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "means"

    def working_bytes(self, n_rows: int) -> int:
        return 8 * (n_rows + PIECE_ROWS * self.n_features)

    def specs(self) -> dict[str, SumSpec]:
        return {"values": SumSpec((2, self.n_features)), "mass": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        own, weights = dense_rows(block)
        sums["mass"] += mass_of(own, weights)
        for start in range(0, len(own), PIECE_ROWS):
            piece = slice(start, min(start + PIECE_ROWS, len(own)))
            some = weights_of(weights, piece)
            sums["values"][0] += some @ own[piece]
            sums["values"][1] += some @ np.square(own[piece])
        return None


def step_features(rows: np.ndarray, origin: np.ndarray, scale: np.ndarray, degree: int) -> np.ndarray:
    """Return the features of dense steps.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
    origin, scale : ndarray of shape (d,)
        Features are made of ``z = (x - origin) / scale``.
    degree : {1, 2}
        Whether squares are among the features.

    Returns
    -------
    ndarray of shape (n, 1 + d) or (n, 1 + 2 d)
        Columns 1, z and, with degree 2, ``z^2 - 1``. Thanks to the constant, d values can separate d + 1 states.
    """
    n, d = rows.shape
    found = np.ones((n, 1 + degree * d))
    np.subtract(rows, origin, out=found[:, 1 : d + 1])
    found[:, 1 : d + 1] /= scale
    if degree > 1:
        np.square(found[:, 1 : d + 1], out=found[:, d + 1 :])
        found[:, d + 1 :] -= 1.0
    return found


def n_step_features(n_features: int, degree: int) -> int:
    """Return the number of features of a dense step, or of symbols with degree 0."""
    return n_features if degree == 0 else 1 + degree * n_features


def window_weights(block: RowBlock) -> np.ndarray:
    """Return the weight of the window that begins at each row of a block, float64; 0 where none begins."""
    if not len(block.rows):
        return np.zeros(0)
    if block.weights is None:
        found = np.ones(len(block.rows))
    else:
        sizes = block.sizes
        sizes[0] += block.context
        found = np.repeat(np.asarray(block.weights, np.float64), sizes)
    ends = block.starts[1:]
    for start in range(0, len(ends), PIECE_ROWS):
        for lag in range(1, N_STEPS):
            # In a unit of one row this falls on the last row of the unit before.
            found[np.maximum(ends[start : start + PIECE_ROWS] - lag, 0)] = 0.0
    return found


def first_steps(block: RowBlock) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield slices of the sequences that begin in a block, the first rows of all, and the weights of the slice."""
    begins = block.starts[:-1][int(block.continued) :]
    weights = None if block.weights is None else np.asarray(block.weights, np.float64)[int(block.continued) :]
    for start in range(0, len(begins), PIECE_ROWS):
        piece = slice(start, min(start + PIECE_ROWS, len(begins)))
        yield piece, begins, weights_of(weights, piece)


def window_pieces(windows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the rows of consecutive windows, and the weights of these windows."""
    n_windows = len(windows) - N_STEPS + 1
    for start in range(0, n_windows, PIECE_ROWS):
        stop = min(start + PIECE_ROWS, n_windows)
        yield slice(start, stop + N_STEPS - 1), windows[start:stop]
