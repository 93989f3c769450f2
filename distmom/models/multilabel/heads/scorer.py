"""The scorer of a fitted model: its heads, the blend of their scores, and the scale of the result."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus import Block
from distmom.errors import UsageError
from distmom.models.multilabel.blend.stack import Stack, probability
from distmom.models.multilabel.heads.blends import Blend, GatedSum, OneHead, WeightedSum
from distmom.models.multilabel.heads.collection import Heads
from distmom.models.multilabel.heads.heads import GateHead, RidgeHead, StateHead
from distmom.models.multilabel.heads.query import Query
from distmom.models.multilabel.kernels import top_labels
from distmom.models.multilabel.variants import SIGNED, family_of


class Scale(Protocol):
    """The scale of the scores of a blend.

    Attributes
    ----------
    has_log_odds : bool
        Whether `log_odds` returns something.
    """

    has_log_odds: ClassVar[bool]

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """Return the log-odds of labels, given their scores (...), float32; a ValueError if they are unknown."""

    def positive(self, scores: np.ndarray) -> np.ndarray:
        """Return positive numbers that rank as the scores (n, L) do, to be multiplied by factors of labels."""


@dataclass(frozen=True)
class Sums:
    """Sums of the scores of heads that were not calibrated."""

    has_log_odds: ClassVar[bool] = False

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """Raise a ValueError."""
        raise ValueError("the scores of this model were not calibrated")

    def positive(self, scores: np.ndarray) -> np.ndarray:
        """Return the positive parts of the sums, in place."""
        np.maximum(scores, np.float32(1e-6), out=scores)
        return scores


@dataclass(frozen=True)
class Margins(Sums):
    """Margins of classifiers, which are negative for most labels, and often for the best ones too."""

    def positive(self, scores: np.ndarray) -> np.ndarray:
        """Return ``sigmoid(2 s)``, the function of margins whose logarithm is an input of a stack."""
        return probability(2.0 * scores)


@dataclass(frozen=True)
class CalibratedSums:
    """Sums of the scores of heads for which the log-odds of labels are known.

    Attributes
    ----------
    calibration : Stack
        Log-odds of a label given the sum.
    """

    calibration: Stack

    has_log_odds: ClassVar[bool] = True

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """See `Scale`."""
        return self.calibration.log_odds(np.ascontiguousarray(scores)[None])

    def positive(self, scores: np.ndarray) -> np.ndarray:
        """Return the positive parts of the sums, in place."""
        return Sums().positive(scores)


@dataclass(frozen=True)
class WeighedSums(CalibratedSums):
    """Calibrated sums; factors of labels multiply the probabilities, not the sums."""

    def positive(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities."""
        return probability(self.log_odds(scores))


@dataclass(frozen=True)
class LogOdds:
    """Log-odds of labels."""

    has_log_odds: ClassVar[bool] = True

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """Return the scores."""
        return scores

    def positive(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities."""
        return probability(scores)


@dataclass(frozen=True, kw_only=True)
class Scorer(Heads):
    """Scores all labels of documents by a blend of heads.

    Attributes
    ----------
    blend : Blend
        How the scores of the heads are combined.
    scale : Scale
        The scale of the scores of the blend.
    label_factor : ndarray of shape (L,), optional
        Multiplies the positive number that `Scale` makes of every label's score (propensity re-weighting); none by
        default.
    """

    blend: Blend
    scale: Scale
    label_factor: Any = None

    @property
    def n_matrices(self) -> int:
        """Number of dense matrices of scores that are held at a time."""
        return self.blend.n_matrices

    @one_blas_thread()
    def scores(self, query: Query) -> np.ndarray:
        """Return the scores of all labels, (n, L) float32, by the blend, multiplied by factors of labels."""
        out, _ = self.blend.scores(self, query)
        if self.label_factor is not None:
            out = self.scale.positive(out)
            out *= np.asarray(self.label_factor, np.float32)
        return out

    @property
    def has_probabilities(self) -> bool:
        """Whether scores can be converted to probabilities."""
        return self.label_factor is None and self.scale.has_log_odds

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities of labels, given their scores (...), float32; see `has_probabilities`."""
        return probability(self.log_odds(scores))

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """Return the log-odds of labels, given their scores (...), float32; see `has_probabilities`."""
        return self.scale.log_odds(scores)

    @property
    def ranks_alone(self) -> bool:
        """Whether `top` finds the best labels without a dense matrix of scores."""
        return self.label_factor is None and self.blend.ranks_alone

    @one_blas_thread()
    def top(self, block: Block, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of documents and their scores, (n, k) each; ties by smaller label."""
        if not k:
            return np.zeros((block.n_documents, 0), np.int32), np.zeros((block.n_documents, 0), np.float32)
        if self.ranks_alone:
            labels, values, _ = self.blend.top(self, self.query(block), k)
            return labels, values
        labels = np.zeros((block.n_documents, k), np.int32)
        values = np.zeros((block.n_documents, k), np.float32)
        for rows in self.blocks(block.n_documents):
            query = self.query(block.take(rows))
            if self.label_factor is None:
                labels[rows], values[rows], _ = self.blend.top(self, query, k)
            else:
                labels[rows], values[rows] = top_labels(self.scores(query), k)
        return labels, values

    def only(self, name: str) -> Scorer:
        """Return the scorer of one head alone; a UsageError if there is no head of that name."""
        kept = tuple(h for h in self.heads if h[0] == name)
        if not kept:
            names = ", ".join(known for known, _ in self.heads)
            raise UsageError(f"head: expected one of {names}, which the model has, got {name!r}")
        heads = Heads(n_labels=self.n_labels, idf=self.idf, heads=kept, basis=self.basis)
        return scorer_with(heads, sum_of(heads, (1.0,)), scale_of(heads), self.label_factor)


def scorer_with(heads: Heads, blend: Blend, scale: Scale, label_factor: Any = None) -> Scorer:
    """Return the scorer that combines the scores of heads by a blend."""
    given = {f.name: getattr(heads, f.name) for f in fields(Heads)}
    return Scorer(**given, blend=blend, scale=scale, label_factor=label_factor)


def scale_of(heads: Heads) -> Sums:
    """Return the scale of the sum of heads that was not calibrated."""
    return Margins() if all(family_of(name) in SIGNED for name, _ in heads.heads) else Sums()


def sum_of(heads: Heads, weights: tuple[float, ...]) -> OneHead | WeightedSum | GatedSum:
    """Return the sum of heads with weights, in their order; a gate multiplies the sum of the others."""
    named = dict(heads.heads)
    terms = tuple(zip(named, weights, strict=True))
    if len(terms) == 1:
        ((name, weight),) = terms
        return OneHead(name, weight) if isinstance(named[name], StateHead | RidgeHead) else WeightedSum(terms)
    gate = next((name for name, head in named.items() if isinstance(head, GateHead)), None)
    if gate is None:
        return WeightedSum(terms)
    return GatedSum(WeightedSum(tuple(each for each in terms if each[0] != gate)), gate, named[gate].power)
