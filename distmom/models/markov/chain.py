"""Hidden Markov chains: likelihoods of steps, and recursions over blocks of sequences in bounded memory.

Rows are processed in pieces. Only the filtered probabilities before each piece are kept; those inside a piece
are computed again in the backward direction, so that memory does not grow with the length of a sequence. The first
sequence of a block may have begun in an earlier one, and the last may continue in the next: `Edges` holds what the
recursions need from the other parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.models.markov.kernels import (
    backward,
    forward,
    gaussian_logs,
    max_transfer,
    transfer,
    viterbi_backward,
    viterbi_forward,
)

#: rows of a piece
PIECE_ROWS = 1 << 13


@dataclass(frozen=True)
class Chain:
    """Parameters of a hidden Markov model with k states.

    Attributes
    ----------
    start : ndarray of shape (k,)
    transition : ndarray of shape (k, k)
        Rows sum to one.
    table : ndarray of shape (n_symbols, k), optional
        Probabilities of the symbols; None for dense steps.
    means, variances : ndarray of shape (d, k), optional
        Means and variances of dense steps; None for symbols.
    """

    start: Any
    transition: Any
    table: Any = None
    means: Any = None
    variances: Any = None

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.start)


@dataclass(frozen=True)
class Edges:
    """Messages to a block from the other parts of sequences that are cut.

    Attributes
    ----------
    before : ndarray of shape (k,)
        Probabilities of the states at the row before the block, given all rows up to it.
    after : ndarray of shape (k,)
        Likelihood, up to a factor, of the rows after the block given the state at its last row.
    state_before, state_after : int
        States at the row before the block and at its last row on the best path of a sequence that was cut
        there.
    """

    before: np.ndarray
    after: np.ndarray
    state_before: int = 0
    state_after: int = 0

    @classmethod
    def none(cls, k: int) -> Edges:
        """Return the edges of a block in which no sequence is cut."""
        return cls(np.full(k, 1.0 / k), np.ones(k))


class Steps:
    """The rows of a block without context, with the likelihoods of the states in pieces.

    Parameters
    ----------
    block : RowBlock
    chain : Chain

    Attributes
    ----------
    rows : ndarray of shape (n, d) or (n,)
    starts : ndarray of shape (n_units,)
        First row of each unit, or part.
    begins : ndarray of shape (n,), bool
        Rows where a sequence begins.
    """

    def __init__(self, block: RowBlock, chain: Chain) -> None:
        self.rows = block.rows[block.context :]
        self.starts = block.starts[:-1] - block.context if block.context else block.starts[:-1]
        self.begins = np.zeros(len(self.rows), bool)
        self.begins[self.starts] = True
        if block.continued and len(self.begins):
            self.begins[0] = False
        self._chain = chain
        if chain.table is None:
            variances = np.asarray(chain.variances)
            self._means, self._precisions = np.ascontiguousarray(chain.means), 1.0 / variances
            self._constants = -0.5 * np.log(2.0 * np.pi * variances).sum(axis=0)
        else:
            self._table = np.ascontiguousarray(chain.table, np.float64)

    def __len__(self) -> int:
        return len(self.rows)

    def pieces(self) -> list[slice]:
        """Return consecutive slices of the rows."""
        return [slice(a, min(a + PIECE_ROWS, len(self))) for a in range(0, len(self), PIECE_ROWS)]

    def likelihoods(self, piece: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
        """Return indices into a table of likelihoods, the table, and logs of the factors of its rows."""
        if self._chain.table is not None:
            return self.rows[piece], self._table, 0.0
        index, logs = self._densities(piece)
        # Where the squares of a step overflow, minus infinity minus itself would be NaN.
        largest = np.maximum(logs.max(axis=1), np.finfo(float).min)
        logs -= largest[:, None]
        return index, np.exp(logs, out=logs), largest

    def logs(self, piece: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return indices into a table of log-likelihoods, and the table."""
        if self._chain.table is None:
            return self._densities(piece)
        if not hasattr(self, "_logs"):
            with np.errstate(divide="ignore"):
                self._logs = np.log(self._table)
        return self.rows[piece], self._logs

    def _densities(self, piece: slice) -> tuple[np.ndarray, np.ndarray]:
        rows = np.ascontiguousarray(self.rows[piece])
        logs = np.empty((len(rows), self._chain.n_states))
        gaussian_logs(rows, self._means, self._precisions, self._constants, logs)
        return np.arange(len(rows)), logs


@dataclass(frozen=True)
class Filtered:
    """One piece of a block, filtered, in the backward direction.

    Attributes
    ----------
    piece : slice
    index, table : ndarray
        Likelihoods (see `Steps.likelihoods`).
    before : ndarray of shape (k,)
        Filtered probabilities at the row before the piece.
    alpha : ndarray of shape (n, k)
        Filtered probabilities.
    """

    piece: slice
    index: np.ndarray
    table: np.ndarray
    before: np.ndarray
    alpha: np.ndarray


def filter_steps(steps: Steps, chain: Chain, edges: Edges) -> tuple[np.ndarray, Iterator[Filtered]]:
    """Filter a block.

    Returns
    -------
    logs : ndarray of shape (n,)
        Log-likelihood of each step given those before it.
    pieces : iterator of Filtered
        From the last piece to the first.
    """
    k, state = chain.n_states, np.array(edges.before, np.float64)
    logs, kept = np.empty(len(steps)), []
    pieces = steps.pieces()
    alpha = np.empty((min(PIECE_ROWS, len(steps)), k))
    last: tuple[np.ndarray, np.ndarray] | None = None
    start, transition = (
        np.asarray(chain.start, np.float64),
        np.ascontiguousarray(chain.transition, np.float64),
    )
    for piece in pieces:
        kept.append(state.copy())
        index, table, factor = steps.likelihoods(piece)
        scale = logs[piece]
        forward(index, table, steps.begins[piece], start, transition, state, alpha[: len(index)], scale)
        with np.errstate(divide="ignore"):
            np.log(scale, out=scale)
        scale += factor
        last = index, table

    def back() -> Iterator[Filtered]:
        for piece, before in zip(reversed(pieces), reversed(kept), strict=True):
            if piece is pieces[-1]:
                assert last is not None
                index, table = last
            else:
                index, table, _ = steps.likelihoods(piece)
                unused = np.empty(len(index))
                forward(
                    index, table, steps.begins[piece], start, transition, before.copy(), alpha[: len(index)],
                    unused
                )  # fmt: skip
            yield Filtered(piece, index, table, before, alpha[: len(index)])

    return logs, back()


def posterior(
    steps: Steps, chain: Chain, edges: Edges, dtype: str = "float64", values: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-likelihoods of the steps (n,), and posterior probabilities of the states (n, k) as ``dtype``.

    With ``values`` (k, m) of the states, their posterior means (n, m) replace the probabilities.
    """
    logs, pieces = filter_steps(steps, chain, edges)
    found = np.empty((len(steps), chain.n_states if values is None else values.shape[1]), dtype)
    room = np.empty((min(PIECE_ROWS, len(steps)), chain.n_states))
    message = np.array(edges.after, np.float64)
    transition = np.ascontiguousarray(chain.transition, np.float64)
    for part in pieces:
        own = room[: len(part.alpha)]
        begins = steps.begins[part.piece]
        backward(part.index, part.table, begins, transition, message, part.alpha, own)
        found[part.piece] = own if values is None else own @ values
    return logs, found


def unit_log_likelihoods(steps: Steps, chain: Chain) -> np.ndarray:
    """Return the log-likelihood of every sequence of a block, (n_units,); no sequence may be cut."""
    logs, _ = filter_steps(steps, chain, Edges.none(chain.n_states))
    return np.asarray(np.add.reduceat(logs, steps.starts)) if len(logs) else np.zeros(0)


def best_path(
    steps: Steps, chain: Chain, edges: Edges, *, continued: bool = False, continues: bool = False
) -> np.ndarray:
    """Return the states on the best paths of a block (Viterbi), (n,) int32.

    Parameters
    ----------
    steps : Steps
    chain : Chain
    edges : Edges
    continued, continues : bool, default False
        Whether ``edges`` gives the states before the block, and at its last row.
    """
    k, path = chain.n_states, np.empty(len(steps), np.int32)
    if not len(steps):
        return path
    start, transition = _log(chain.start), _log(chain.transition)
    state = np.full(k, -np.inf)
    state[edges.state_before if continued else 0] = 0.0
    pieces, kept = steps.pieces(), []
    back = np.empty((min(PIECE_ROWS, len(steps)), k), np.int32)
    for piece in pieces:
        kept.append(state.copy())
        index, logs = steps.logs(piece)
        viterbi_forward(index, logs, steps.begins[piece], start, transition, state, back[: len(index)])
    last = edges.state_after if continues else int(np.argmax(state))
    for piece, before in zip(reversed(pieces), reversed(kept), strict=True):
        index, logs = steps.logs(piece)
        own = back[: len(index)]
        viterbi_forward(index, logs, steps.begins[piece], start, transition, before, own)
        last = int(viterbi_backward(own, last, path[piece]))
    return path


def part_products(steps: Steps, chain: Chain, rows: slice, *, paths: bool) -> np.ndarray:
    """Return the products of transitions and likelihoods of a part of a cut sequence.

    Parameters
    ----------
    steps : Steps
    chain : Chain
    rows : slice
        Rows of the part.
    paths : bool
        Whether the products for best paths are needed too.

    Returns
    -------
    ndarray of shape (2, k, k)
        Likelihoods of its steps and its last state given the state before it, up to a factor, and the
        logarithms of those of best paths. Where the part begins the sequence, the state is that of its first
        row.
    """
    k = chain.n_states
    found = np.stack([np.eye(k), np.where(np.eye(k) > 0.0, 0.0, -np.inf)])
    transition, logs = np.ascontiguousarray(chain.transition, np.float64), _log(chain.transition)
    for first in range(rows.start, rows.stop, PIECE_ROWS):
        piece = slice(first, min(first + PIECE_ROWS, rows.stop))
        index, table, _ = steps.likelihoods(piece)
        transfer(index, table, steps.begins[piece], transition, found[0])
        if paths:
            index, table = steps.logs(piece)
            max_transfer(index, table, steps.begins[piece], logs, found[1])
    return found


def join_parts(products: list[np.ndarray], chain: Chain) -> list[Edges]:
    """Return the edges of every part of one sequence, given the `part_products` of its parts."""
    k, n = chain.n_states, len(products)
    before, after = [np.full(k, 1.0 / k)], [np.ones(k)]
    scores = []
    state, score = np.asarray(chain.start, np.float64), _log(chain.start)
    for sums, best in products:
        state = _scaled(state @ sums)
        before.append(state)
        score = (score[:, None] + best).max(axis=0)
        score = score - score.max() if np.isfinite(score.max()) else np.zeros(k)
        scores.append(score)
    for sums, _ in reversed(products[1:]):
        after.append(_scaled(sums @ after[-1]))
    after.reverse()
    states = [int(np.argmax(scores[-1]))]
    for i in range(n - 1, 0, -1):
        states.append(int(np.argmax(scores[i - 1] + products[i][1][:, states[-1]])))
    states.reverse()
    return [Edges(before[i], after[i], states[i - 1] if i else 0, states[i]) for i in range(n)]


def _scaled(values: np.ndarray) -> np.ndarray:
    total = float(values.sum())
    return values / total if total > 0.0 else np.full(len(values), 1.0 / len(values))


def _log(values: Any) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.ascontiguousarray(np.log(np.asarray(values, np.float64)))
