"""The ways in which the scores of heads are combined, one class each.

A blend names the heads that it uses; several parts of it may use the same head of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from distmom.models.multilabel.blend.class_stack import ClassStack
from distmom.models.multilabel.blend.covariates import Covariates
from distmom.models.multilabel.blend.reranking import Reranker
from distmom.models.multilabel.blend.stack import Stack
from distmom.models.multilabel.heads.collection import Heads
from distmom.models.multilabel.heads.heads import GateHead
from distmom.models.multilabel.heads.query import Query
from distmom.models.multilabel.kernels import check_labels, top_labels

#: labels of the largest sums whose factors by a gate are computed first
GATED_LABELS = 50

#: scores of single heads, (n, L) each, that were computed on the way, by the names of the heads
Known = Mapping[str, np.ndarray]


class Blend(Protocol):
    """A way to combine the scores of heads.

    Attributes
    ----------
    ranks_alone : bool
        Whether `top` finds the best labels without a dense matrix of scores.
    inputs : tuple of str
        Names of the variants of heads whose scores are used one by one; empty where heads are added as they are.
    n_matrices : int
        Number of dense matrices of scores that are held at a time.
    """

    ranks_alone: ClassVar[bool]

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def n_matrices(self) -> int: ...

    def scores(self, heads: Heads, query: Query) -> tuple[np.ndarray, Known]:
        """Return the scores of all labels, (n, L) float32, and those of single heads."""

    def top(self, heads: Heads, query: Query, k: int) -> tuple[np.ndarray, np.ndarray, Known]:
        """Return the k best labels and their scores, (n, k) each, ties by smaller label, and scores of heads."""

    def of_labels(self, labels: np.ndarray) -> Blend:
        """Return the blend for some labels. It does not rank them again, as that depends on all labels."""


@dataclass(frozen=True)
class OneHead:
    """One head that finds the best labels itself.

    Attributes
    ----------
    name : str
    weight : float
        Factor of its scores.
    """

    name: str
    weight: float

    ranks_alone: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ()
    n_matrices: ClassVar[int] = 1

    def scores(self, heads: Heads, query: Query) -> tuple[np.ndarray, Known]:
        """See `Blend`."""
        return WeightedSum(((self.name, self.weight),)).scores(heads, query)

    def top(self, heads: Heads, query: Query, k: int) -> tuple[np.ndarray, np.ndarray, Known]:
        """See `Blend`; a NumericalError if scores are NaN."""
        labels, values = heads.variant(self.name).top(query, self.weight, k)
        check_labels(labels, heads.n_labels)
        return labels, values, {}

    def of_labels(self, labels: np.ndarray) -> OneHead:
        """See `Blend`."""
        return self


@dataclass(frozen=True)
class WeightedSum:
    """The sum of the scores of heads.

    Attributes
    ----------
    terms : tuple of (str, float)
        Names of heads or of their variants, and factors of their scores.
    """

    terms: tuple[tuple[str, float], ...]

    ranks_alone: ClassVar[bool] = False
    inputs: ClassVar[tuple[str, ...]] = ()
    n_matrices: ClassVar[int] = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the heads."""
        return tuple(name for name, _ in self.terms)

    def scores(self, heads: Heads, query: Query) -> tuple[np.ndarray, Known]:
        """See `Blend`."""
        out = np.zeros((query.block.n_documents, heads.n_labels), np.float32)
        for name, weight in self.terms:
            heads.variant(name).add_scores(query, weight, out)
        return out, {}

    def top(self, heads: Heads, query: Query, k: int) -> tuple[np.ndarray, np.ndarray, Known]:
        """See `Blend`."""
        return *top_labels(self.scores(heads, query)[0], k), {}

    def of_labels(self, labels: np.ndarray) -> WeightedSum:
        """See `Blend`."""
        return self


@dataclass(frozen=True)
class GatedSum:
    """A weighted sum whose positive values are multiplied by the factors of a gate.

    Attributes
    ----------
    ungated : WeightedSum
    gate : str
        Name of the head whose scores are the factors.
    power : float
        Power of the factors.
    """

    ungated: WeightedSum
    gate: str
    power: float

    ranks_alone: ClassVar[bool] = False
    inputs: ClassVar[tuple[str, ...]] = ()
    n_matrices: ClassVar[int] = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the heads."""
        return (*self.ungated.names, self.gate)

    def gate_of(self, heads: Heads) -> GateHead:
        """Return the gate, with the power of its factors."""
        gate: GateHead = replace(heads.variant(self.gate), power=self.power)
        return gate

    def scores(self, heads: Heads, query: Query) -> tuple[np.ndarray, Known]:
        """See `Blend`."""
        out, _ = self.ungated.scores(heads, query)
        self.gate_of(heads).multiply(query, out)
        return out, {}

    def top(self, heads: Heads, query: Query, k: int) -> tuple[np.ndarray, np.ndarray, Known]:
        """See `Blend`; the factors of few labels are computed where these suffice."""
        few = max(GATED_LABELS, 4 * k)
        if few >= heads.n_labels:
            return *top_labels(self.scores(heads, query)[0], k), {}
        gate, (sums, _) = self.gate_of(heads), self.ungated.scores(heads, query)
        found, totals = top_labels(sums, few)
        gated = np.where(totals > 0.0, totals * gate.scores_at(query, found), totals)
        order = np.lexsort((found, -gated), axis=1)[:, :k]
        labels, values = np.take_along_axis(found, order, axis=1), np.take_along_axis(gated, order, axis=1)
        # Factors are at most one, so a label beyond these has at most the last of their sums.
        for row in np.flatnonzero(values[:, -1] <= totals[:, -1]):
            own = slice(row, row + 1)
            gate.multiply(query.part(own), sums[own])
            labels[own], values[own] = top_labels(sums[own], k)
        return labels, values, {}

    def of_labels(self, labels: np.ndarray) -> GatedSum:
        """See `Blend`."""
        return self


@dataclass(frozen=True)
class SumLogOdds:
    """The log-odds of a label, given the sum of the scores of variants of heads.

    Attributes
    ----------
    total : WeightedSum or GatedSum
    calibration : Stack
        Log-odds of a label given the sum.
    """

    total: WeightedSum | GatedSum
    calibration: Stack

    ranks_alone: ClassVar[bool] = False
    n_matrices: ClassVar[int] = 1

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Blend`."""
        return tuple(sorted(self.total.names))

    def scores(self, heads: Heads, query: Query) -> tuple[np.ndarray, Known]:
        """See `Blend`."""
        totals, known = self.total.scores(heads, query)
        return self._log_odds(totals), known

    def top(self, heads: Heads, query: Query, k: int) -> tuple[np.ndarray, np.ndarray, Known]:
        """Return what `Blend` states, for the labels with the largest sums, in their order."""
        labels, totals, known = self.total.top(heads, query, k)
        return labels, self._log_odds(totals), known

    def of_labels(self, labels: np.ndarray) -> SumLogOdds:
        """See `Blend`."""
        return self

    def _log_odds(self, totals: np.ndarray) -> np.ndarray:
        return self.calibration.log_odds(np.ascontiguousarray(totals)[None])


@dataclass(frozen=True)
class Stacked:
    """A stack of the scores of variants of heads, which are log-odds.

    Attributes
    ----------
    stack : Stack or ClassStack
    label_log_odds : ndarray of shape (L,)
        Log-odds of the frequency of every label.
    """

    stack: Stack | ClassStack
    label_log_odds: Any

    ranks_alone: ClassVar[bool] = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Blend`."""
        return tuple(dict.fromkeys(given.name for given in self.stack.inputs))

    @property
    def n_matrices(self) -> int:
        """See `Blend`."""
        return 1 + len(self.stack.inputs)

    def scores(self, heads: Heads, query: Query) -> tuple[np.ndarray, Known]:
        """See `Blend`."""
        names = [given.name for given in self.stack.inputs]
        scores = np.zeros((len(names), query.block.n_documents, heads.n_labels), np.float32)
        for own, name in zip(scores, names, strict=True):
            heads.variant(name).add_scores(query, 1.0, own)
        covariates = None
        if self.stack.has_covariates:
            covariates = Covariates(query.covariates(heads.index), np.asarray(self.label_log_odds))
        return self.stack.log_odds(scores, covariates), dict(zip(names, scores, strict=True))

    def top(self, heads: Heads, query: Query, k: int) -> tuple[np.ndarray, np.ndarray, Known]:
        """See `Blend`."""
        scores, known = self.scores(heads, query)
        return *top_labels(scores, k), known

    def of_labels(self, labels: np.ndarray) -> Stacked:
        """See `Blend`."""
        return replace(self, label_log_odds=np.asarray(self.label_log_odds)[labels])


@dataclass(frozen=True)
class Reranked:
    """A blend of log-odds whose best labels are ranked again.

    Attributes
    ----------
    first : SumLogOdds or Stacked
        Finds the best labels, and ranks all others.
    reranker : Reranker
    label_log_odds : ndarray of shape (L,)
        Log-odds of the frequency of every label.
    """

    first: SumLogOdds | Stacked
    reranker: Reranker
    label_log_odds: Any

    ranks_alone: ClassVar[bool] = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `Blend`."""
        return tuple(dict.fromkeys([*self.first.inputs, *self.reranker.inputs]))

    @property
    def n_matrices(self) -> int:
        """See `Blend`."""
        return max(2, self.first.n_matrices)

    def scores(self, heads: Heads, query: Query) -> tuple[np.ndarray, Known]:
        """See `Blend`."""
        out, known = self.first.scores(heads, query)
        if out.size:
            labels, blended = top_labels(out, min(self.reranker.depth, heads.n_labels))
            found = self._log_odds(heads, query, labels, blended, known)
            out += _shift(found, blended)
            np.put_along_axis(out, labels, found, axis=1)
        return out, known

    def top(self, heads: Heads, query: Query, k: int) -> tuple[np.ndarray, np.ndarray, Known]:
        """See `Blend`."""
        # Labels that rank below k may move up.
        n_first = min(max(k, self.reranker.depth), heads.n_labels)
        labels, blended, known = self.first.top(heads, query, n_first)
        depth = min(self.reranker.depth, n_first)
        best, odds = np.ascontiguousarray(labels[:, :depth]), np.ascontiguousarray(blended[:, :depth])
        found = self._log_odds(heads, query, best, odds, known)
        rest = blended[:, depth:] + _shift(found, odds)
        order = np.lexsort((best, -found), axis=1)
        best, found = (np.take_along_axis(each, order, axis=1) for each in (best, found))
        labels, values = np.hstack([best, labels[:, depth:]]), np.hstack([found, rest])
        return labels[:, :k], values[:, :k], known

    def of_labels(self, labels: np.ndarray) -> SumLogOdds | Stacked:
        """See `Blend`."""
        return self.first.of_labels(labels)

    def _log_odds(
        self, heads: Heads, query: Query, labels: np.ndarray, blended: np.ndarray, known: Known
    ) -> np.ndarray:
        """Return the reranker's log-odds of the best labels (n, m) of the first blend, in the order of these."""
        scores = np.empty((len(self.reranker.inputs), *labels.shape), np.float32)
        for own, name in zip(scores, self.reranker.inputs, strict=True):
            if name in known:
                own[:] = np.take_along_axis(known[name], labels, axis=1)
            else:
                own[:] = heads.variant(name).scores_at(query, labels)
        frequency = np.asarray(self.label_log_odds)[labels]
        return self.reranker.log_odds(labels, scores, blended, frequency, query.covariates(heads.index))


def _shift(found: np.ndarray, blended: np.ndarray) -> np.ndarray:
    """Return the shifts that move the log-odds of further labels below those of the reranked ones, (n, 1)."""
    return np.asarray(np.minimum(found.min(axis=1, keepdims=True) - blended[:, -1:], np.float32(0.0)))
