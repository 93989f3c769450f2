"""Dual coordinate descent for linear support vector machines: one label, or several labels at a time.

Algorithm 3 of Hsieh, Chang, Lin, Keerthi and Sundararajan, "A dual coordinate descent method for large-scale
linear SVM" (ICML 2008), with shrinking. The intercept is the weight of a constant feature, as there.
`descend_lanes` reads each row once for `LANES` labels, whose weights for a word share a cache line.
"""

from __future__ import annotations

import numpy as np

from distmom.compiled import compiled
from distmom.hashing import scramble
from distmom.lanes import LANES, accumulate, load, spread, store

#: a descent ends at this difference of projected gradients, or after this number of epochs
TOLERANCE, MAX_EPOCHS = 0.4, 100
#: `descend_lanes` visits rows in runs of about this number of entries; longer runs are read faster, but take more
#: epochs
RUN_ENTRIES = 96


def own_seed(seed: int, label: int) -> int:
    """Return the seed of the descent of a label, or of a batch of labels that begins with it, below 2**64."""
    return (seed + label) % (1 << 64)


@compiled
def descend(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    rows: np.ndarray,
    positive: np.ndarray,
    cost: float,
    negative_cost: float,
    tolerance: float,
    n_epochs: int,
    seed: np.uint64,
    alpha: np.ndarray,
    weights: np.ndarray,
) -> int:
    """Minimise ``|w|^2 / 2 + sum_i C_i max(0, 1 - y_i w'(a_i, 1))^2`` over w, by its dual.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Rows a_i in CSR.
    rows : ndarray of shape (n,), int32
        The rows of the problem.
    positive : ndarray of shape (n,), bool
        Whether y_i is 1, else -1.
    cost, negative_cost : float
        C_i of rows with y_i = 1 and -1.
    tolerance : float
        Largest difference of projected gradients at which the descent ends.
    n_epochs : int
        Largest number of epochs.
    seed : uint64
        Seed of the order in which rows are visited.
    alpha : ndarray of shape (n,), float64
        Dual variables to start from, changed in place.
    weights : ndarray of shape (d + 1,), float64
        ``sum_i alpha_i y_i (a_i, 1)``, changed in place; the last entry is the intercept.

    Returns
    -------
    int
        Number of epochs.
    """
    n = rows.shape[0]
    constant = weights.shape[0] - 1
    curvature = np.empty(n)
    for i in range(n):
        own = 0.5 / cost if positive[i] else 0.5 / negative_cost
        curvature[i] = _plus_squares(1.0 + own, indptr, data, rows[i])
    active = np.arange(n)
    n_active = n
    bound = np.inf
    state = np.uint64(seed)
    epoch = 0
    while epoch < n_epochs:
        epoch += 1
        largest = -np.inf
        smallest = np.inf
        s = 0
        while s < n_active:
            state += np.uint64(1)
            other = s + np.int64(scramble(state) % np.uint64(n_active - s))
            i = active[other]
            active[other] = active[s]
            active[s] = i
            sign = 1.0 if positive[i] else -1.0
            start = indptr[rows[i]]
            stop = indptr[rows[i] + 1]
            product = weights[constant]
            for p in range(start, stop):
                product += weights[indices[p]] * data[p]
            diagonal = 0.5 / cost if positive[i] else 0.5 / negative_cost
            gradient = sign * product - 1.0 + diagonal * alpha[i]
            projected = gradient
            if alpha[i] == 0.0:
                if gradient > bound:
                    # A row far from the margin is not visited again in this round.
                    n_active -= 1
                    active[s] = active[n_active]
                    active[n_active] = i
                    continue
                projected = min(gradient, 0.0)
            largest = max(largest, projected)
            smallest = min(smallest, projected)
            if abs(projected) > 1e-12:
                before = alpha[i]
                alpha[i] = max(before - gradient / curvature[i], 0.0)
                step = (alpha[i] - before) * sign
                weights[constant] += step
                for p in range(start, stop):
                    weights[indices[p]] += step * data[p]
            s += 1
        if largest - smallest <= tolerance:
            if n_active == n:
                break
            # The solution of the active rows is checked on all of them.
            n_active = n
            bound = np.inf
            continue
        bound = largest if largest > 0.0 else np.inf
    return epoch


@compiled
def descend_lanes(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    rows: np.ndarray,
    taken: np.ndarray,
    positive: np.ndarray,
    costs: np.ndarray,
    negative_costs: np.ndarray,
    tolerance: float,
    n_epochs: int,
    seed: np.uint64,
    alpha: np.ndarray,
    weights: np.ndarray,
) -> int:
    """Solve the problem of `descend` for `LANES` labels, visiting the rows in one order for all of them.

    An epoch visits runs of rows in random order, as short rows that follow one another are next to each other in
    memory.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Rows a_i in CSR.
    rows : ndarray of shape (n,), int32
        The rows of the problems.
    taken, positive : ndarray of shape (n,), uint8
        Bit j is set if the row belongs to the problem of label j, and if y_i is 1 there.
    costs, negative_costs : ndarray of shape (LANES,)
        C_i of rows with y_i = 1 and -1.
    tolerance, n_epochs, seed
        As in `descend`.
    alpha : ndarray of shape (n, LANES), float64
        Dual variables to start from, changed in place.
    weights : ndarray of shape (d + 1, LANES), float64
        Weights of these dual variables, changed in place; the last row holds the intercepts.

    Returns
    -------
    int
        Number of epochs.
    """
    flat = weights.reshape(-1)
    n = rows.shape[0]
    constant = weights.shape[0] - 1
    squares = np.empty(n)
    n_entries = 0
    for i in range(n):
        squares[i] = _plus_squares(1.0, indptr, data, rows[i])
        n_entries += indptr[rows[i] + 1] - indptr[rows[i]]
    # Bit j of a flag is set while the row is visited for label j.
    flags = taken.copy()
    active = np.empty(n, np.int64)
    n_active = _find_active(flags, active)
    run_rows = max(1, RUN_ENTRIES * n // max(1, n_entries))
    order = np.empty(n // run_rows + 2, np.int64)
    diagonal, negative_diagonal = 0.5 / costs, 0.5 / negative_costs
    bound = np.full(LANES, np.inf)
    largest, smallest, step = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    live, whole = np.ones(LANES, np.bool_), np.ones(LANES, np.bool_)
    product = np.empty(LANES)
    state = np.uint64(seed)
    n_live, epoch = LANES, 0
    while epoch < n_epochs and n_live > 0:
        epoch += 1
        largest[:] = -np.inf
        smallest[:] = np.inf
        state += np.uint64(1)
        shift = np.int64(scramble(state) % np.uint64(run_rows))
        n_runs = -(-(n_active + shift) // run_rows)
        order[:n_runs] = np.arange(n_runs)
        for run in range(n_runs):
            state += np.uint64(1)
            other = run + np.int64(scramble(state) % np.uint64(n_runs - run))
            first = order[other] * run_rows - shift
            order[other] = order[run]
            for s in range(max(first, 0), min(first + run_rows, n_active)):
                i = active[s]
                start = indptr[rows[i]]
                stop = indptr[rows[i] + 1]
                sums = load(flat, constant * LANES)
                for p in range(start, stop):
                    sums = sums + load(flat, np.int64(indices[p]) * LANES) * spread(np.float64(data[p]))
                store(product, 0, sums)
                flag = flags[i]
                moved = False
                for j in range(LANES):
                    step[j] = 0.0
                    bit = np.uint8(1 << j)
                    if not flag & bit:
                        continue
                    is_positive = positive[i] & bit
                    sign = 1.0 if is_positive else -1.0
                    own = diagonal[j] if is_positive else negative_diagonal[j]
                    before = alpha[i, j]
                    gradient = sign * product[j] - 1.0 + own * before
                    projected = gradient
                    if before == 0.0:
                        if gradient > bound[j]:
                            # Far from the margin of this label, the row is not visited again in this round.
                            flag ^= bit
                            whole[j] = False
                            continue
                        projected = min(gradient, 0.0)
                    largest[j] = max(largest[j], projected)
                    smallest[j] = min(smallest[j], projected)
                    if abs(projected) > 1e-12:
                        alpha[i, j] = max(before - gradient / (squares[i] + own), 0.0)
                        step[j] = (alpha[i, j] - before) * sign
                        moved = True
                if moved:
                    steps = load(step, 0)
                    accumulate(flat, constant * LANES, steps)
                    for p in range(start, stop):
                        accumulate(flat, np.int64(indices[p]) * LANES, steps * spread(np.float64(data[p])))
                flags[i] = flag
        n_live -= _end_epoch(largest, smallest, tolerance, taken, live, whole, bound, flags)
        n_active = _find_active(flags, active)
    return epoch


@compiled
def _plus_squares(total: float, indptr: np.ndarray, data: np.ndarray, row: int) -> float:
    """Return a number plus the squares of the entries of a row, added one by one."""
    for p in range(indptr[row], indptr[row + 1]):
        total += np.float64(data[p]) * np.float64(data[p])
    return total


@compiled
def _find_active(flags: np.ndarray, active: np.ndarray) -> int:
    """Write the numbers of the rows that are visited for some label, and return how many there are."""
    n_active = 0
    for i in range(flags.shape[0]):
        if flags[i]:
            active[n_active] = i
            n_active += 1
    return n_active


@compiled
def _end_epoch(
    largest: np.ndarray,
    smallest: np.ndarray,
    tolerance: float,
    taken: np.ndarray,
    live: np.ndarray,
    whole: np.ndarray,
    bound: np.ndarray,
    flags: np.ndarray,
) -> int:
    """Bound the gradients of each label for the next epoch, and return how many labels have converged now.

    Parameters
    ----------
    largest, smallest : ndarray of shape (LANES,)
        The largest and smallest projected gradients of the epoch.
    tolerance, taken
        As in `descend_lanes`.
    live, whole : ndarray of shape (LANES,), bool
        Labels that have not converged, and those for which all rows were visited; changed in place.
    bound : ndarray of shape (LANES,)
        Rows at zero with a larger gradient are not visited again in this round; changed in place.
    flags : ndarray of shape (n,), uint8
        Bit j is set while the row is visited for label j; changed in place.
    """
    n_converged = 0
    for j in range(LANES):
        if not live[j]:
            continue
        if largest[j] - smallest[j] > tolerance:
            bound[j] = largest[j] if largest[j] > 0.0 else np.inf
            continue
        bit = np.uint8(1 << j)
        if whole[j]:
            live[j] = False
            n_converged += 1
            for i in range(flags.shape[0]):
                flags[i] &= ~bit
        else:
            # The solution of the active rows is checked on all of them.
            whole[j] = True
            bound[j] = np.inf
            for i in range(flags.shape[0]):
                flags[i] |= bit & taken[i]
    return n_converged
