"""Gradient boosted regression trees for the probability of an event, with the same bits on any number of cores.

The log-odds of an event are a sum of trees. Each tree is fitted to the gradients of the negative log-likelihood at
the sum of the trees before it, with the gain of a split by second derivatives (Chen and Guestrin, "XGBoost", KDD
2016, equations 5 to 7); it grows by the split of largest gain, over histograms of features that are cut into bins
(Ke et al., "LightGBM", NeurIPS 2017).

Both derivatives of an event are multiples of a unit, and share a 64-bit integer (see `derive`). A histogram is
then a sum of integers, which has the same value in any order and half the additions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import map_on_cores
from distmom.compiled import compiled
from distmom.spectral.saved.fields import array

#: largest number of bins of a feature
N_BINS = 128
#: events whose quantiles are the borders of bins
BIN_ROWS = 200_000
#: largest number of leaves of a tree
MAX_LEAVES = 31
#: factor of the values of all trees
LEARNING_RATE = 0.1
#: least sum of second derivatives in a leaf, and penalty of the squares of the values of leaves
LEAST_CURVATURE, PENALTY = 0.5, 1.0
#: least gain of a split
LEAST_GAIN = 1e-3
#: bits of the sum of second derivatives, below those of the first ones
_LOW = 32
_LOW_BITS = (1 << _LOW) - 1
#: sum of the absolute values of first or second derivatives, in their unit
_UNITS = float(1 << 30)


@dataclass(frozen=True)
class Binned:
    """Features of events, with their values cut into bins.

    Attributes
    ----------
    borders : list of ndarray
        Borders between the bins of every feature, ascending, fewer than `N_BINS`; float32.
    codes : ndarray of shape (n, n_features), uint8
        Bins of the values; a value above a border has a later bin.
    """

    borders: list[np.ndarray]
    codes: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, rows: np.ndarray | None = None) -> Binned:
        """Cut finite features (n, n_features), float32, at the quantiles of some events, by default of all."""
        rows = np.arange(len(x)) if rows is None else rows
        rows = rows[:: max(1, len(rows) // BIN_ROWS)]
        codes = np.empty(x.shape, np.uint8)

        def cut(j: int) -> np.ndarray:
            own = _borders(x[rows, j])
            codes[:, j] = np.searchsorted(own, x[:, j], side="left")
            return own

        return cls(map_on_cores(cut, range(x.shape[1])), codes)

    def take(self, rows: np.ndarray) -> Binned:
        """Return some events, with the same bins."""
        return replace(self, codes=self.codes[rows])


@dataclass(frozen=True)
class Trees:
    """A sum of binary trees, as arrays of the nodes of all trees.

    Attributes
    ----------
    roots : ndarray of shape (n_trees,), int32
        The first node of every tree, ascending.
    features : ndarray of shape (n_nodes,), int32
        The feature that a node compares.
    borders : ndarray of shape (n_nodes,), float32
        A value above the border goes to the right.
    children : ndarray of shape (n_nodes,), int32
        The left child, which the right one follows; 0 for a leaf.
    values : ndarray of shape (n_nodes,), float32
        Term that a leaf adds to the log-odds.
    start : ndarray of shape (1,), float64
        Log-odds before the first tree.
    """

    roots: Any = array("n_trees*", types=("<i4",), least=0, below="n_nodes*")
    features: Any = array("n_nodes*", types=("<i4",), least=0)
    borders: Any = array("n_nodes*", types=("<f4",))
    children: Any = array("n_nodes*", types=("<i4",), least=0, below="n_nodes*")
    values: Any = array("n_nodes*", types=("<f4",))
    start: Any = array(1, types=("<f8",))

    def log_odds(self, x: np.ndarray) -> np.ndarray:
        """Return the log-odds of events, (n,) float32, from their features (n, n_features), float32."""
        out = np.full(len(x), self.start[0])
        self.add_to(out, x)
        return np.asarray(out, np.float32)

    def add_to(self, totals: np.ndarray, x: np.ndarray, first: int = 0) -> None:
        """Add the values of all trees from number ``first`` on to log-odds (n,), float64, in place."""
        add_trees(x, self.roots[first:], self.features, self.borders, self.children, self.values, totals)

    def checked(self, n_features: int) -> Trees:
        """Return the trees; a ValueError if a feature does not exist, or a node precedes its parent."""
        nodes = np.arange(len(self.features))
        inner = np.asarray(self.children) > 0
        forward = (self.children > nodes) & (self.children + 1 < len(nodes))
        if not (np.all(forward[inner]) and np.all(self.features < n_features)):
            raise ValueError(f"expected trees over {n_features} features whose nodes precede their children")
        return self


class Boosting:
    """Boosted trees that are fitted step by step.

    Parameters
    ----------
    x : Binned
        Features of the events.
    truth : ndarray of shape (n,)
        1 for the events that occurred, else 0.
    weights : ndarray of shape (n,), optional
        Numbers of events that each one stands for; one by default.
    """

    def __init__(self, x: Binned, truth: np.ndarray, weights: np.ndarray | None = None) -> None:
        n, self._x, self._truth = len(x.codes), x, truth.astype(np.float64)
        self._weights = np.ones(n) if weights is None else weights
        mean = np.clip(np.average(self._truth, weights=self._weights) if n else 0.5, 1e-9, 1.0 - 1e-9)
        self._start = float(np.log(mean / (1.0 - mean)))
        self._totals = np.full(n, self._start)
        self._grown: list[tuple[np.ndarray, ...]] = []

    def grow(self, n_trees: int) -> Trees:
        """Add trees, fewer than ``n_trees`` where no split gains anything; return all trees."""
        n = len(self._totals)
        working, derivatives = np.empty((2, n)), np.empty(n, np.int64)
        order, moved = np.empty((2, n), np.int32)
        for _ in range(n_trees):
            units = derive(self._totals, self._truth, self._weights, working, derivatives)
            features, bins, children, values = grow_tree(
                self._x.codes, derivatives, *units, order, moved, N_BINS, MAX_LEAVES, LEAST_CURVATURE,
                PENALTY, LEAST_GAIN, LEARNING_RATE, self._totals,
            )  # fmt: skip
            inner = np.flatnonzero(children)
            if self._grown and not len(inner):
                break
            limits = np.zeros(len(features), np.float32)
            limits[inner] = [self._x.borders[features[node]][bins[node]] for node in inner]
            self._grown.append((features, limits, children, values.astype(np.float32)))
        roots = np.cumsum([0, *(len(own[0]) for own in self._grown)])[:-1].astype(np.int32)
        # Children are numbered among the nodes of all trees.
        numbered = [
            np.where(own[2] > 0, own[2] + root, 0) for own, root in zip(self._grown, roots, strict=True)
        ]
        features, limits, _, values = (np.concatenate(each) for each in zip(*self._grown, strict=True))
        children = np.concatenate(numbered).astype(np.int32)
        return Trees(roots, features, limits, children, values, np.array([self._start]))


def fit_trees(x: np.ndarray, truth: np.ndarray, n_trees: int, weights: np.ndarray | None = None) -> Trees:
    """Fit boosted trees; fewer than ``n_trees``, at least one, where no split gains anything."""
    return Boosting(Binned.of(x), truth, weights).grow(n_trees)


def _borders(column: np.ndarray) -> np.ndarray:
    """Return the borders between the bins of a feature, ascending, fewer than `N_BINS`."""
    ordered = np.sort(column)
    different = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]]
    if len(different) <= N_BINS:
        return np.asarray(different[:-1])
    # The quantiles of the values from below.
    return np.unique(ordered[(len(ordered) - 1) * np.arange(1, N_BINS) // N_BINS])


@compiled
def derive(
    totals: np.ndarray, truth: np.ndarray, weights: np.ndarray, working: np.ndarray, derivatives: np.ndarray
) -> tuple[float, float]:
    """Differentiate the weighted negative log-likelihood of all events by their log-odds.

    Parameters
    ----------
    totals, truth, weights : ndarray of shape (n,)
    working : ndarray of shape (2, n)
        Working memory.
    derivatives : ndarray of shape (n,), int64
        Receives the first derivatives times 2**32 plus the second ones, both as multiples of their units.

    Returns
    -------
    (float, float)
        Units of the first and second derivatives. Sums over any events fit into 32 bits each.
    """
    first = second = 0.0
    for i in range(totals.shape[0]):
        p = 1.0 / (1.0 + np.exp(-totals[i]))
        working[0, i] = weights[i] * (p - truth[i])
        working[1, i] = weights[i] * p * (1.0 - p)
        first += abs(working[0, i])
        second += working[1, i]
    # Where all probabilities are exact, any unit will do.
    first, second = max(first, 1e-300), max(second, 1e-300)
    for i in range(totals.shape[0]):
        g = np.int64(np.floor(working[0, i] / first * _UNITS + 0.5))
        h = np.int64(np.floor(working[1, i] / second * _UNITS + 0.5))
        derivatives[i] = (g << _LOW) + h
    return first / _UNITS, second / _UNITS


@compiled
def _add_histogram(codes: np.ndarray, derivatives: np.ndarray, rows: np.ndarray, sums: np.ndarray) -> None:
    """Add the derivatives of some rows to the sums (n_features, n_bins) of their bins."""
    for i in rows:
        own = derivatives[i]
        for j in range(codes.shape[1]):
            sums[j, codes[i, j]] += own


@compiled
def _best_split(
    sums: np.ndarray, total: int, first: float, second: float, least: float, penalty: float
) -> tuple[float, int, int]:
    """Return the largest gain of a split of a node, its feature, and the last bin on the left."""
    gradient, curvature = first * (total >> _LOW), second * (total & _LOW_BITS)
    whole = gradient * gradient / (curvature + penalty)
    best, feature, last = 0.0, -1, -1
    for j in range(sums.shape[0]):
        left = np.int64(0)
        for b in range(sums.shape[1] - 1):
            left += sums[j, b]
            h = second * (left & _LOW_BITS)
            if h < least:
                continue
            right = total - left
            h_right = second * (right & _LOW_BITS)
            if h_right < least:
                break
            g, g_right = first * (left >> _LOW), first * (right >> _LOW)
            gain = g * g / (h + penalty) + g_right * g_right / (h_right + penalty) - whole
            if gain > best:
                best, feature, last = gain, j, b
    return best, feature, last


@compiled
def grow_tree(
    codes: np.ndarray,
    derivatives: np.ndarray,
    first: float,
    second: float,
    order: np.ndarray,
    moved: np.ndarray,
    n_bins: int,
    max_leaves: int,
    least: float,
    penalty: float,
    least_gain: float,
    rate: float,
    totals: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Grow a tree by the split of largest gain, and add its values to the log-odds of all rows.

    Parameters
    ----------
    codes : ndarray of shape (n, n_features), uint8
        Bins of the features.
    derivatives : ndarray of shape (n,), int64
        From `derive`.
    first, second : float
        Units of the derivatives.
    order, moved : ndarray of shape (n,), int32
        Working memory.
    n_bins, max_leaves : int
    least : float
        Least sum of second derivatives in a leaf.
    penalty : float
        Penalty on the squares of the values of leaves.
    least_gain : float
        Least gain of a split.
    rate : float
        Factor of the values.
    totals : ndarray of shape (n,)
        Changed in place.

    Returns
    -------
    (ndarray, ndarray, ndarray, ndarray)
        Of every node its feature, the last bin on the left, its left child (0 for a leaf) and its value.
    """
    n_features = codes.shape[1]
    most = 2 * max_leaves - 1
    features, bins = np.zeros(most, np.int32), np.zeros(most, np.int32)
    children, values = np.zeros(most, np.int32), np.zeros(most)
    begins, ends = np.zeros(most, np.int64), np.zeros(most, np.int64)
    total, gains = np.zeros(most, np.int64), np.full(most, -1.0)
    # A split leaves the histogram of its node to the larger child, so leaves alone have one.
    places = np.zeros(most, np.int32)
    sums = np.zeros((max_leaves, n_features, n_bins), np.int64)
    # The rows of a node stay in this order, in which they are read from memory fast.
    for i in range(order.shape[0]):
        order[i] = i
    ends[0] = order.shape[0]
    _add_histogram(codes, derivatives, order, sums[0])
    total[0] = derivatives.sum()
    gains[0], features[0], bins[0] = _best_split(sums[0], total[0], first, second, least, penalty)
    n_nodes, n_leaves = 1, 1
    while n_leaves < max_leaves:
        node = int(np.argmax(gains[:n_nodes]))
        if gains[node] < least_gain:
            break
        j, last = features[node], bins[node]
        begin, end = begins[node], ends[node]
        n_left = begin
        n_right = 0
        for at in range(begin, end):
            i = order[at]
            if codes[i, j] <= last:
                order[n_left] = i
                n_left += 1
            else:
                moved[n_right] = i
                n_right += 1
        order[n_left:end] = moved[:n_right]
        left, right = n_nodes, n_nodes + 1
        children[node] = left
        gains[node] = -1.0
        begins[left], ends[left], begins[right], ends[right] = begin, n_left, n_left, end
        total[left] = sums[places[node], j, : last + 1].sum()
        total[right] = total[node] - total[left]
        # The smaller child is added up, and the larger one is what remains.
        is_left_small = n_left - begin <= end - n_left
        small = left if is_left_small else right
        large = right if is_left_small else left
        places[large], places[small] = places[node], n_leaves
        own, rest = sums[places[small]], sums[places[large]]
        _add_histogram(codes, derivatives, order[begins[small] : ends[small]], own)
        rest -= own
        n_nodes += 2
        n_leaves += 1
        if n_leaves < max_leaves:
            for child in (left, right):
                gains[child], features[child], bins[child] = _best_split(
                    sums[places[child]], total[child], first, second, least, penalty
                )
    for node in range(n_nodes):
        if children[node] == 0:
            features[node] = 0
            gradient, curvature = first * (total[node] >> _LOW), second * (total[node] & _LOW_BITS)
            values[node] = -rate * gradient / (curvature + penalty)
            for at in range(begins[node], ends[node]):
                totals[order[at]] += values[node]
    return features[:n_nodes], bins[:n_nodes], children[:n_nodes], values[:n_nodes]


@compiled
def add_trees(
    x: np.ndarray,
    roots: np.ndarray,
    features: np.ndarray,
    borders: np.ndarray,
    children: np.ndarray,
    values: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the values of trees (see `Trees`) to the log-odds (n,) of events with features (n, n_features)."""
    for i in range(x.shape[0]):
        row = x[i]
        for root in roots:
            node = root
            while children[node] > 0:
                node = children[node] + (row[features[node]] > borders[node])
            out[i] += values[node]
