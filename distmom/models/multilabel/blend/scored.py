"""The scores of all heads for held-out documents as one value, on which a blend is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from distmom.engine import Csr
from distmom.models.multilabel.blend.covariates import Covariates, Frequency, frequency_log_odds
from distmom.models.multilabel.blend.reranking import pair_features
from distmom.models.multilabel.blend.stack import Pairs
from distmom.models.multilabel.variants import SIGNED, family_of

#: cosine from which a document is a copy of another: rows of the same words differ by rounding only
COPY_COSINE = 0.9999


@dataclass(frozen=True)
class Scored:
    """Scores of held-out documents by heads that were fitted to the documents outside their fold.

    Attributes
    ----------
    names : tuple of str
        Names of the variants of heads.
    labels : ndarray of shape (n, c), int32
        Candidates of every document, -1 for none.
    scores : ndarray of shape (n, n_heads, c), float32
        Scores of the candidates.
    best : ndarray of shape (n, n_heads), float32
        Largest score of any label.
    truth : ndarray of shape (n, c), uint8
        Which candidates are true.
    n_true : ndarray of shape (n,), int32
        Number of all true labels.
    covariates : ndarray of shape (n, 2), float32
        Covariates of the documents (see `Covariates`).
    fold : ndarray of shape (n,), int
        Number of the fold of every document.
    ideal : ndarray of shape (n, 3), float64, or None
        From `ideal_gains`; None where labels are not weighted by inverse propensities.
    frequency : Frequency or None
        Numbers of documents of the labels, and of all documents, among those that the heads of each fold are
        fitted to. Without it, no coefficients vary, and no labels are ranked again.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    scores: np.ndarray
    best: np.ndarray
    truth: np.ndarray
    n_true: np.ndarray
    covariates: np.ndarray
    fold: np.ndarray
    ideal: np.ndarray | None = None
    frequency: Frequency | None = None

    @property
    def families(self) -> tuple[str, ...]:
        """Families of the heads; of each, at most one is in a sum."""
        return tuple(family_of(name) for name in self.names)

    @property
    def n_labels(self) -> int | None:
        """Number of all labels; None without frequencies of labels."""
        return None if self.frequency is None else np.atleast_2d(self.frequency[0]).shape[1]

    def scores_of(self, name: str) -> np.ndarray:
        """Return the scores of a head, (n, c)."""
        return self.scores[:, self.names.index(name)]

    def of(self, documents: np.ndarray) -> Scored:
        """Return the scores of some documents."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("names", "frequency")}
        own: dict[str, Any] = {
            name: None if values is None else values[documents] for name, values in arrays.items()
        }
        return replace(self, **own)

    def only(self, names: Sequence[str]) -> Scored:
        """Return the scores of some heads, in the order given."""
        kept = [self.names.index(name) for name in names]
        return replace(self, names=tuple(names), scores=self.scores[:, kept], best=self.best[:, kept])

    def pairs(self, names: Sequence[str]) -> Pairs:
        """Return the pairs of documents and candidates, with the scores of some heads as inputs of a stack."""
        chosen = [self.names.index(name) for name in names]
        signed = tuple(family_of(name) in SIGNED for name in names)
        scores = np.ascontiguousarray(self.scores.swapaxes(0, 1)[chosen])
        return Pairs(tuple(names), signed, scores, self.truth, self.labels >= 0, self.all_covariates())

    def all_covariates(self) -> Covariates | None:
        """Return the covariates of documents and labels; None without frequencies of labels.

        The covariates of labels are those of the candidates of every document, unless all documents are of one
        fold and have the same candidates.
        """
        if self.frequency is None:
            return None
        log_odds = np.atleast_2d(frequency_log_odds(*self.frequency))
        every = self.labels.shape[1] == log_odds.shape[1] and (self.labels >= 0).all()
        of_labels = log_odds[0] if len(log_odds) == 1 and every else self.label_log_odds(self.labels)
        return Covariates(self.covariates, of_labels)

    def label_log_odds(self, labels: np.ndarray) -> np.ndarray:
        """Return the log-odds of the frequency of labels (n, m) outside the fold of each document."""
        assert self.frequency is not None
        log_odds = np.atleast_2d(frequency_log_odds(*self.frequency))
        return np.asarray(log_odds[self.fold[:, None], np.maximum(labels, 0)])

    def pair_features(
        self, inputs: Sequence[str], companions: Csr, best: np.ndarray, log_odds: np.ndarray
    ) -> np.ndarray:
        """Return the features for a reranker (see `pair_features`) of the best candidates.

        Parameters
        ----------
        inputs : sequence of str
            Names of the heads that the reranker uses.
        companions : Csr
            From `companion_shares`.
        best : ndarray of shape (n, m)
            From `best_candidates`.
        log_odds : ndarray of shape (n, c), float32
            Log-odds of all candidates by the blend.
        """
        scores = np.stack([np.take_along_axis(self.scores_of(name), best, axis=1) for name in inputs])
        labels = np.maximum(np.take_along_axis(self.labels, best, axis=1), 0)
        blended, frequency = np.take_along_axis(log_odds, best, axis=1), self.label_log_odds(labels)
        return pair_features(labels, scores, blended, frequency, self.covariates, companions)

    @property
    def repeated(self) -> float:
        """Share of the documents of which there is a copy among the documents of the fit."""
        return float((self.covariates[:, 1] >= COPY_COSINE).mean())


def joined(parts: Sequence[Scored]) -> Scored:
    """Return the documents of all folds, with as many candidates as the fold with most of them."""
    width = max(part.labels.shape[1] for part in parts)

    def wide(name: str, values: np.ndarray) -> np.ndarray:
        if name not in ("labels", "truth", "scores") or values.shape[-1] == width:
            return values
        added = [(0, 0)] * (values.ndim - 1) + [(0, width - values.shape[-1])]
        return np.pad(values, added, constant_values=-1 if name == "labels" else 0)

    arrays = [f.name for f in fields(Scored) if isinstance(getattr(parts[0], f.name), np.ndarray)]
    whole: dict[str, Any] = {
        name: np.concatenate([wide(name, getattr(part, name)) for part in parts]) for name in arrays
    }
    return replace(parts[0], **whole)
