"""The scorer of a fitted model: the heads, added or stacked, and the probabilities of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.errors import UsageError
from distmom.models.multilabel.blend.class_stack import ClassStack
from distmom.models.multilabel.blend.covariates import Covariates
from distmom.models.multilabel.blend.reranking import Reranker
from distmom.models.multilabel.blend.stack import Stack, probability
from distmom.models.multilabel.heads.heads import MIN_ROWS, GateHead, RidgeHead, StateHead, rows_at_a_time
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead
from distmom.models.multilabel.heads.query import Query
from distmom.models.multilabel.kernels import check_labels, top_labels
from distmom.models.multilabel.variants import GATE, INDEX, family_of, votes_of

#: labels of the largest sums whose factors by a gate are computed first
GATED_LABELS = 50


@dataclass(frozen=True)
class Scorer:
    """The features, heads and weights that score documents.

    Attributes
    ----------
    n_labels : int
    idf : ndarray of shape (d,) or (0,)
    heads : tuple of (str, Head)
        Names and heads.
    weights : tuple of float
        Factor of every head in the sum.
    basis : ndarray of shape (d, r), optional
        R of the sketch.
    label_factor : ndarray of shape (L,), optional
        Multiplies the positive part of every label's score (propensity re-weighting), or its probability where
        heads are stacked; none by default.
    stack : Stack or ClassStack, optional
        Combines the scores of variants of the heads; their weighted sum by default.
    calibration : Stack, optional
        Log-odds of a label given the weighted sum; unknown by default.
    label_log_odds : ndarray of shape (L,), optional
        Log-odds of the frequency of every label; required by a reranker, and by a stack whose coefficients depend
        on it.
    weighs_probability : bool, default False
        Whether ``label_factor`` multiplies the calibrated probability of a weighted sum instead of the sum.
    summed : dict of str to float, optional
        Weights of variants of the heads, and the power of a gate, where the heads are not multiplied by their
        weights; ``weights`` are then not used. Scores are then the log-odds by ``calibration``, which is required.
    reranker : Reranker, optional
        Ranks the best labels again; requires a stack or ``summed``.
    """

    n_labels: int
    idf: Any
    heads: tuple[tuple[str, Any], ...]
    weights: tuple[float, ...]
    basis: Any = None
    label_factor: Any = None
    stack: Stack | ClassStack | None = None
    calibration: Stack | None = None
    weighs_probability: bool = False
    label_log_odds: Any = None
    summed: Mapping[str, float] | None = None
    reranker: Reranker | None = None

    def query(self, block: Block) -> Query:
        """Prepare a block for scoring."""
        return Query(block, self.idf, self.basis)

    def scores(self, query: Query) -> np.ndarray:
        """Return the scores of all labels, (n, L) float32; see `has_log_odds`."""
        blended, known = self._blended(query)
        out = self._log_odds_of(blended)
        if self.reranker is not None and out.size:
            labels, blended = top_labels(out, min(self.reranker.depth, self.n_labels))
            found = self._reranked(query, self.reranker, labels, blended, known)
            out += _shift(found, blended)
            np.put_along_axis(out, labels, found, axis=1)
        if self.label_factor is not None:
            if self.has_log_odds:
                out = probability(out)
            elif self.weighs_probability and self.calibration is not None:
                out = probability(self.calibration.log_odds(out[None]))
            else:
                np.maximum(out, np.float32(1e-6), out=out)
            out *= np.asarray(self.label_factor, np.float32)
        return out

    @property
    def has_log_odds(self) -> bool:
        """Whether scores are log-odds."""
        return self.stack is not None or self.summed is not None

    def _blended(self, query: Query) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return what the blend ranks all labels by: log-odds of a stack, or a weighted sum.

        Also return the scores of the inputs of a stack, (n, L) each, by their names.
        """
        out = np.zeros((query.block.n_documents, self.n_labels), np.float32)
        if self.stack is not None:
            heads, scores = dict(self.heads), np.zeros((len(self.stack.inputs), *out.shape), np.float32)
            for own, given in zip(scores, self.stack.inputs, strict=True):
                variant(heads, given.name).add_scores(query, 1.0, own)
            named = zip((given.name for given in self.stack.inputs), scores, strict=True)
            return self.stack.log_odds(scores, self._covariates(query)), dict(named)
        self._add_sums(query, out)
        if self.gate is not None:
            self.gate.multiply(query, out)
        return out, {}

    def _log_odds_of(self, blended: np.ndarray) -> np.ndarray:
        """Return the scores of labels, given what the blend ranks them by: log-odds if `has_log_odds`."""
        if self.summed is None:
            return blended
        assert self.calibration is not None
        return self.calibration.log_odds(np.ascontiguousarray(blended)[None])

    def _reranked(
        self,
        query: Query,
        reranker: Reranker,
        labels: np.ndarray,
        blended: np.ndarray,
        known: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        """Return the log-odds of the best labels (n, m) of a blend by its reranker, given some heads' scores."""
        heads, scores = dict(self.heads), np.empty((len(reranker.inputs), *labels.shape), np.float32)
        for own, name in zip(scores, reranker.inputs, strict=True):
            if name in known:
                own[:] = np.take_along_axis(known[name], labels, axis=1)
            else:
                own[:] = variant(heads, name).scores_at(query, labels)
        frequency = np.asarray(self.label_log_odds)[labels]
        return reranker.log_odds(labels, scores, blended, frequency, query.covariates(self.index))

    def _covariates(self, query: Query) -> Covariates | None:
        if self.stack is None or not self.stack.has_covariates:
            return None
        return Covariates(query.covariates(self.index), np.asarray(self.label_log_odds))

    @property
    def index(self) -> NeighborsHead | None:
        """The first head with an index of training documents, if there is one."""
        return next((head for _, head in self.heads if isinstance(head, NeighborsHead)), None)

    @property
    def gate(self) -> GateHead | None:
        """The head that multiplies the sum of the others, if there is one."""
        if self.stack is not None:
            return None
        if self.summed is not None:
            power = self.summed.get(GATE)
            return None if power is None else replace(variant(dict(self.heads), GATE), power=power)
        if len(self.heads) == 1:
            return None
        return next((head for _, head in self.heads if isinstance(head, GateHead)), None)

    def _add_sums(self, query: Query, out: np.ndarray) -> None:
        """Add the weighted sum of all heads but the gate."""
        if self.summed is not None:
            heads = dict(self.heads)
            for name, weight in self.summed.items():
                if name != GATE:
                    variant(heads, name).add_scores(query, weight, out)
            return
        gate = self.gate
        for (_, head), weight in zip(self.heads, self.weights, strict=True):
            if head is not gate:
                head.add_scores(query, weight, out)

    @property
    def has_probabilities(self) -> bool:
        """Whether scores can be converted to probabilities."""
        return self.label_factor is None and (self.has_log_odds or self.calibration is not None)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities of labels, given their scores (...), float32; see `has_probabilities`."""
        return probability(self.log_odds(scores))

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """Return the log-odds of labels, given their scores (...), float32; see `has_probabilities`."""
        if self.has_log_odds:
            return scores
        if self.calibration is None:
            raise ValueError("the scores of this model were not calibrated")
        return self.calibration.log_odds(np.ascontiguousarray(scores)[None])

    @property
    def ranks_alone(self) -> bool:
        """Whether `top` finds the best labels without a dense matrix of scores."""
        heads = [head for _, head in self.heads]
        alone = len(heads) == 1 and isinstance(heads[0], StateHead | RidgeHead)
        return alone and self.label_factor is None and not self.has_log_odds

    def top(self, block: Block, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of documents and their scores, (n, k) each; ties by smaller label."""
        if self.ranks_alone:
            labels, values = self.heads[0][1].top(self.query(block), self.weights[0], k)
            check_labels(labels, self.n_labels)
            return labels, values
        labels = np.zeros((block.n_documents, k), np.int32)
        values = np.zeros((block.n_documents, k), np.float32)
        # A reranker takes more labels than are asked for.
        n_blended = k if self.reranker is None else min(max(k, self.reranker.depth), self.n_labels)
        few = max(GATED_LABELS, 4 * n_blended)
        for rows in self.blocks(block.n_documents):
            query = self.query(block.take(rows))
            if self.label_factor is not None:
                labels[rows], values[rows] = top_labels(self.scores(query), k)
                continue
            known: dict[str, np.ndarray] = {}
            if self.gate is not None and few < self.n_labels:
                found, blended = self._gated_top(query, self.gate, n_blended, few)
            else:
                scores, known = self._blended(query)
                found, blended = top_labels(scores, n_blended)
            blended = self._log_odds_of(blended)
            if self.reranker is not None:
                found, blended = self._reordered(query, self.reranker, found, blended, known)
            labels[rows], values[rows] = found[:, :k], blended[:, :k]
        return labels, values

    def _reordered(
        self,
        query: Query,
        reranker: Reranker,
        labels: np.ndarray,
        blended: np.ndarray,
        known: Mapping[str, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best labels of a blend in the order of the reranker, and their log-odds."""
        depth = min(reranker.depth, labels.shape[1])
        first = np.ascontiguousarray(labels[:, :depth]), np.ascontiguousarray(blended[:, :depth])
        values = self._reranked(query, reranker, *first, known)
        rest = blended[:, depth:] + _shift(values, first[1])
        order = np.lexsort((first[0], -values), axis=1)
        found, values = (np.take_along_axis(each, order, axis=1) for each in (first[0], values))
        return np.hstack([found, labels[:, depth:]]), np.hstack([values, rest])

    def _gated_top(self, query: Query, gate: GateHead, k: int, few: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what `top` does for a gated sum, with the factors of few labels where these suffice."""
        sums = np.zeros((query.block.n_documents, self.n_labels), np.float32)
        self._add_sums(query, sums)
        found, totals = top_labels(sums, few)
        gated = np.where(totals > 0.0, totals * gate.scores_at(query, found), totals)
        order = np.lexsort((found, -gated), axis=1)[:, :k]
        labels, values = np.take_along_axis(found, order, axis=1), np.take_along_axis(gated, order, axis=1)
        # Factors are at most one, so a label beyond these has at most the last of their sums.
        for row in np.flatnonzero(values[:, -1] <= totals[:, -1]):
            own = slice(row, row + 1)
            gate.multiply(query.part(own), sums[own])
            labels[own], values[own] = top_labels(sums[own], k)
        return labels, values

    def blocks(self, n_documents: int, min_rows: int = MIN_ROWS) -> Iterator[slice]:
        """Cut documents into blocks whose dense scores stay small."""
        n_matrices = 1 + (self.reranker is not None) if self.stack is None else 1 + len(self.stack.inputs)
        step = rows_at_a_time(n_matrices * self.n_labels, min_rows)
        for start in range(0, n_documents, step):
            yield slice(start, min(start + step, n_documents))

    def only(self, name: str) -> Scorer:
        """Return the scorer of one head alone; a UsageError if there is no head of that name."""
        heads = tuple(h for h in self.heads if h[0] == name)
        if not heads:
            names = ", ".join(known for known, _ in self.heads)
            raise UsageError(f"head: expected one of {names}, which the model has, got {name!r}")
        return replace(
            self, heads=heads, weights=(1.0,), stack=None, calibration=None, summed=None, reranker=None
        )


def _shift(found: np.ndarray, blended: np.ndarray) -> np.ndarray:
    """Return what moves the log-odds of further labels below those of the reranked ones, (n, 1)."""
    return np.asarray(np.minimum(found.min(axis=1, keepdims=True) - blended[:, -1:], np.float32(0.0)))


def variant(heads: Mapping[str, Any], name: str) -> Any:
    """Return the head whose scores are the input of that name of a stack or a reranker.

    Parameters
    ----------
    heads : mapping of str to Head
        The heads of a scorer.
    name : str
        That of a variant with an index stands for its votes, and any other name for the head of that name, or of
        its family.

    Raises
    ------
    KeyError
        If there is no such head.
    ValueError
        If the name has no number of neighbours or no power.
    """
    votes = votes_of(name)
    if votes is not None:
        return replace(heads[INDEX], **vars(votes))
    return heads[name] if name in heads else heads[family_of(name)]
