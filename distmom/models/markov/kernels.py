"""Compiled recursions over the steps of hidden Markov models.

All kernels take a piece of consecutive rows, which may hold many sequences: ``begins`` marks the rows where a
sequence begins. The likelihoods of the states at row t are ``table[index[t]]``, so that symbols need no table
of their own. Messages carry a recursion from one piece to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.lanes import LANES, load, padded, spread, store, sum_of

#: sum of a message, or its inverse, at which the message is scaled; products of a few of them are finite
FAR = 1e60


@compiled
def _padded_rows(matrix: Any) -> Any:
    """Return a matrix with zeros up to an even number of rows, and of lanes in each row."""
    n, k = matrix.shape
    rows = np.zeros((n + n % 2, 2 * padded((k + 1) // 2)))
    for i in range(n):
        for j in range(k):
            rows[i, j] = matrix[i, j]
    return rows


@compiled
def _copy(source: Any, target: Any) -> None:
    """Set the first elements of a padded vector; faster than a slice where there are few."""
    for j in range(len(source)):
        target[j] = source[j]


@compiled
def _product(x: Any, rows: Any, out: Any) -> None:
    """Set ``out`` to ``x' rows``, for the rows of `_padded_rows`; ``x`` is padded, too."""
    for c in range(0, rows.shape[1], 2 * LANES):
        even0, even1, odd0, odd1 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
        for i in range(0, rows.shape[0], 2):
            x0, x1, row0, row1 = spread(x[i]), spread(x[i + 1]), rows[i], rows[i + 1]
            even0 = even0 + x0 * load(row0, c)
            even1 = even1 + x0 * load(row0, c + LANES)
            odd0 = odd0 + x1 * load(row1, c)
            odd1 = odd1 + x1 * load(row1, c + LANES)
        store(out, c, even0 + odd0)
        store(out, c + LANES, even1 + odd1)


@compiled
def _multiply(x: Any, y: Any, k: Any) -> Any:
    """Multiply the first k elements of ``x`` by ``y`` in place, and return their sum."""
    total = spread(0.0)
    for c in range(0, padded(k), LANES):
        value = load(x, c) * load(y, c)
        store(x, c, value)
        total = total + value
    return sum_of(total)


@compiled
def _divide(x: Any, divisor: Any, k: Any, otherwise: Any) -> None:
    """Divide the first k elements of ``x`` in place by a number, or set them where it is zero."""
    if divisor > 0.0:
        divisors = spread(divisor)
        for c in range(0, padded(k), LANES):
            store(x, c, load(x, c) / divisors)
    else:
        for j in range(k):
            x[j] = otherwise


@compiled
def _rescale(ahead: Any, message: Any) -> None:
    """Set a message, divided by its sum where this is far from one: posteriors do not depend on its factor."""
    total = 0.0
    for j in range(len(message)):
        message[j] = ahead[j]
        total += ahead[j]
    if not 1.0 / FAR < total < FAR:
        for j in range(len(message)):
            message[j] = message[j] / total if total > 0.0 else 1.0


@compiled
def forward(
    index: Any, table: Any, begins: Any, start: Any, transition: Any, state: Any, alpha: Any, scale: Any
) -> None:
    """Compute filtered probabilities of the states.

    Parameters
    ----------
    index : ndarray of shape (n,), integer
    table : ndarray of shape (m, k)
    begins : ndarray of shape (n,), bool
    start : ndarray of shape (k,)
    transition : ndarray of shape (k, k)
        Rows sum to one.
    state : ndarray of shape (k,)
        Probabilities at the row before the piece; replaced by those at its last row.
    alpha : ndarray of shape (n, k)
        Filled with the probabilities of the states given the steps so far.
    scale : ndarray of shape (n,)
        Filled with the likelihoods of each step given the steps before.
    """
    n, k = alpha.shape
    rows = _padded_rows(transition)
    width = rows.shape[1]
    row, current, following = np.zeros(width), np.zeros(width), np.zeros(width)
    _copy(state, current)
    for t in range(n):
        # Copied ahead of the products, which wait for the step before.
        _copy(table[np.uint64(index[t])], row)
        if begins[t]:
            _copy(start, following)
        else:
            _product(current, rows, following)
        scale[t] = _multiply(following, row, k)
        # A step that no state can produce does not distinguish the states.
        _divide(following, scale[t], k, 1.0 / k)
        current[:] = following
        _copy(following[:k], alpha[t])
    _copy(current[:k], state)


@compiled
def backward(
    index: Any, table: Any, begins: Any, transition: Any, message: Any, alpha: Any, posterior: Any
) -> None:
    """Compute posterior probabilities of the states from filtered ones.

    Parameters
    ----------
    index, table, begins, transition
        As in `forward`.
    message : ndarray of shape (k,)
        Likelihood, up to a factor, of the rows after the piece given the state at its last row; replaced by
        that of the piece and all rows after it given the state at the row before.
    alpha : ndarray of shape (n, k)
        From `forward`.
    posterior : ndarray of shape (n, k)
        Filled with the probabilities of the states given all steps.
    """
    n, k = alpha.shape
    columns = _padded_rows(transition.T)
    weighted, ahead = np.zeros(columns.shape[1]), np.zeros(columns.shape[1])
    for t in range(n - 1, -1, -1):
        row = table[np.uint64(index[t])]
        total = 0.0
        for j in range(k):
            posterior[t, j] = alpha[t, j] * message[j]
            total += posterior[t, j]
            weighted[j] = row[j] * message[j]
        for j in range(k):
            posterior[t, j] = posterior[t, j] / total if total > 0.0 else 1.0 / k
        if begins[t]:
            message[:] = 1.0
            continue
        _product(weighted, columns, ahead)
        _rescale(ahead, message)


@compiled
def expect(
    index: Any, table: Any, begins: Any, weights: Any, transition: Any, message: Any, before: Any, alpha: Any,
    posterior: Any, first: Any, pairs: Any,
) -> None:  # fmt: skip
    """Compute the same probabilities as `backward`, and add up expected numbers of first states and transitions.

    Parameters
    ----------
    index, table, begins, transition, message, alpha, posterior
        As in `backward`; ``posterior`` is filled with the weighted probabilities.
    weights : ndarray of shape (n,)
        Weight of every row.
    before : ndarray of shape (k,)
        Filtered probabilities at the row before the piece.
    first : ndarray of shape (k,)
        Expected numbers of first states; changed in place.
    pairs : ndarray of shape (k, k)
        Expected numbers of transitions, divided by their probabilities; changed in place.
    """
    n, k = alpha.shape
    columns = _padded_rows(transition.T)
    weighted, ahead = np.zeros(columns.shape[1]), np.zeros(columns.shape[1])
    for t in range(n - 1, -1, -1):
        row, w = table[np.uint64(index[t])], weights[t]
        total = 0.0
        for j in range(k):
            posterior[t, j] = alpha[t, j] * message[j]
            total += posterior[t, j]
            weighted[j] = row[j] * message[j]
        for j in range(k):
            posterior[t, j] = w * (posterior[t, j] / total if total > 0.0 else 1.0 / k)
        if begins[t]:
            for j in range(k):
                first[j] += posterior[t, j]
            message[:] = 1.0
            continue
        previous = alpha[t - 1] if t > 0 else before
        _product(weighted, columns, ahead)
        joint = 0.0
        for i in range(k):
            joint += ahead[i] * previous[i]
        if joint > 0.0:
            for i in range(k):
                x = w * previous[i] / joint
                for j in range(k):
                    pairs[i, j] += x * weighted[j]
        _rescale(ahead, message)


@compiled
def add_counts(symbols: Any, posterior: Any, counts: Any) -> None:
    """Add rows of weights to the rows of their symbols, (n_symbols, k), in place."""
    for t in range(len(symbols)):
        target, source = counts[np.uint64(symbols[t])], posterior[t]
        for j in range(len(source)):
            target[j] += source[j]


@compiled
def viterbi_forward(
    index: Any, logs: Any, begins: Any, start: Any, transition: Any, state: Any, back: Any
) -> None:
    """Compute the best predecessors of all states.

    Parameters
    ----------
    index, begins
        As in `forward`.
    logs : ndarray of shape (m, k)
        Log-likelihoods.
    start, transition : ndarray
        Logarithms.
    state : ndarray of shape (k,)
        Scores of the best paths to the row before the piece, up to a constant; replaced by those to its last
        row.
    back : ndarray of shape (n, k), int32
        Filled with the best predecessor of each state; where a sequence begins, with the best last state of
        the sequence before.
    """
    n, k = back.shape
    following = np.empty(k)
    for t in range(n):
        row = logs[np.uint64(index[t])]
        if begins[t]:
            best = np.argmax(state)
            for j in range(k):
                back[t, j] = best
                following[j] = start[j] + row[j]
        else:
            for j in range(k):
                following[j] = -np.inf
                back[t, j] = 0
            for i in range(k):
                for j in range(k):
                    x = state[i] + transition[i, j]
                    if x > following[j]:
                        following[j] = x
                        back[t, j] = i
            for j in range(k):
                following[j] += row[j]
        # Scores near zero keep their digits over long sequences.
        largest = np.max(following)
        for j in range(k):
            state[j] = following[j] - largest if largest > -np.inf else 0.0


@compiled
def viterbi_backward(back: Any, last: Any, path: Any) -> Any:
    """Fill ``path`` (n,) with the best states, given the last one, and return the one before the piece."""
    current = last
    for t in range(len(path) - 1, -1, -1):
        path[t] = current
        current = back[t, current]
    return current


@compiled
def transfer(index: Any, table: Any, begins: Any, transition: Any, product: Any) -> None:
    """Multiply a matrix by the transitions and likelihoods of the rows of one sequence, in place.

    Parameters
    ----------
    index, table, begins, transition
        As in `forward`; at most the first row begins a sequence, and only its likelihoods count then.
    product : ndarray of shape (k, k)
        Scaled to a largest entry of one after every row.
    """
    k = len(product)
    rows = _padded_rows(transition)
    width = rows.shape[1]
    row, current, following = np.zeros(width), np.zeros(width), np.zeros((k, width))
    for t in range(len(index)):
        _copy(table[np.uint64(index[t])], row)
        largest = 0.0
        for i in range(k):
            target = following[i]
            _copy(product[i], current)
            if begins[t]:
                target[:] = current
            else:
                _product(current, rows, target)
            _multiply(target, row, k)
            largest = max(largest, np.max(target))
        for i in range(k):
            for j in range(k):
                product[i, j] = following[i, j] / largest if largest > 0.0 else 1.0


@compiled
def max_transfer(index: Any, logs: Any, begins: Any, transition: Any, product: Any) -> None:
    """Like `transfer`, but for the scores of best paths: in logarithms, with a largest entry of zero."""
    k = len(product)
    following = np.empty((k, k))
    for t in range(len(index)):
        row = logs[np.uint64(index[t])]
        largest = -np.inf
        for i in range(k):
            target = following[i]
            if begins[t]:
                for j in range(k):
                    target[j] = product[i, j]
            else:
                target[:] = -np.inf
                for m in range(k):
                    x, source = product[i, m], transition[m]
                    for j in range(k):
                        target[j] = max(target[j], x + source[j])
            for j in range(k):
                target[j] += row[j]
                largest = max(largest, target[j])
        for i in range(k):
            for j in range(k):
                product[i, j] = following[i, j] - largest if largest > -np.inf else 0.0


@compiled
def draw_states(laws: Any, uniforms: Any, states: Any) -> None:
    """Fill ``states`` (n,) with a chain.

    Parameters
    ----------
    laws : ndarray of shape (k + 1, k)
        Cumulative distributions of the state after each state; the last row is that of the first state.
    uniforms : ndarray of shape (n,)
    states : ndarray of shape (n,), int64
    """
    k = laws.shape[1]
    state = k
    for t in range(len(states)):
        following = 0
        while following < k - 1 and uniforms[t] >= laws[state, following]:
            following += 1
        state = following
        states[t] = state


@compiled
def gaussian_logs(rows: Any, means: Any, precisions: Any, constants: Any, out: Any) -> None:
    """Fill ``out`` (n, k) with log densities of independent coordinates.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
    means, precisions : ndarray of shape (d, k)
    constants : ndarray of shape (k,)
        Logarithms of the densities at the means.
    """
    n, d = rows.shape
    k = len(constants)
    for t in range(n):
        target = out[t]
        for j in range(k):
            target[j] = 0.0
        for c in range(d):
            x = rows[t, c]
            for j in range(k):
                away = x - means[c, j]
                target[j] += away * away * precisions[c, j]
        for j in range(k):
            target[j] = constants[j] - 0.5 * target[j]
