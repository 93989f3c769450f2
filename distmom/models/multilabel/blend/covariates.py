"""Numbers of documents and labels that the coefficients of a stack vary with.

How informative a score is depends on more than the head: votes count for more where a neighbour is near, sums of
weights grow with the number of words, and rare labels have small scores. So every coefficient of a stack may be a
linear function of three covariates: the logarithm of the number of known words of a document, its largest cosine
to a training document, and the log-odds of the frequency of a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

#: covariates of a document, in the order of their columns, and the covariate of a label
OF_DOCUMENTS, OF_LABELS = ("n_words", "cosine"), "frequency"
#: covariates are limited to this number of standard deviations, as few documents show what lies beyond
MOST_DEVIATIONS = 3.0


#: numbers of documents of labels, (n_folds, L) or (L,), and of all documents, (n_folds, 1) or float, among those
#: that the heads of every fold were fitted to
Frequency = tuple[np.ndarray, np.ndarray | float]


def frequency_log_odds(counts: np.ndarray, n_documents: np.ndarray | float) -> np.ndarray:
    """Return the log-odds of the frequency of labels that ``counts`` documents have, plus half a document."""
    known = np.minimum(np.asarray(counts, np.float64), n_documents)
    return np.asarray(np.log((known + 0.5) / (n_documents - known + 0.5)))


@dataclass(frozen=True)
class Covariates:
    """The covariates of documents and labels.

    Attributes
    ----------
    documents : ndarray of shape (n, 2)
        ``log(1 + number of known words)``, and the largest cosine to a training document.
    labels : ndarray of shape (L,), or (n, c) where documents have different candidates or are of several folds
        From `frequency_log_odds`.
    """

    documents: np.ndarray
    labels: np.ndarray

    def of(self, documents: np.ndarray) -> Covariates:
        """Return the covariates of some documents."""
        labels = self.labels if self.labels.ndim == 1 else self.labels[documents]
        return replace(self, documents=self.documents[documents], labels=labels)

    def runs(self) -> list[tuple[slice, Covariates]]:
        """Return runs of documents that have equal covariates of labels, which are then those of one document."""
        if self.labels.ndim == 1:
            return [(slice(0, len(self.documents)), self)]
        changes = np.flatnonzero((self.labels[1:] != self.labels[:-1]).any(axis=1)) + 1
        bounds = [0, *changes.tolist(), len(self.labels)]
        own = [slice(first, last) for first, last in pairwise(bounds)]
        return [(run, Covariates(self.documents[run], self.labels[run.start])) for run in own]

    def values(self, name: str) -> np.ndarray:
        """Return a covariate of all documents, (n,), or of labels, (L,) or (n, c)."""
        if name == OF_LABELS:
            return np.asarray(self.labels, np.float64)
        return np.asarray(self.documents[:, OF_DOCUMENTS.index(name)], np.float64)


@dataclass(frozen=True)
class Effect:
    """How the coefficients of a stack change with one covariate.

    Attributes
    ----------
    name : str
        Name of the covariate.
    centre, scale : float
        Its mean and standard deviation.
    linear, curve : tuple of float
        Change of the coefficients of every input per standard deviation.
    intercept : float
        Change of the intercept.
    """

    name: str
    centre: float
    scale: float
    linear: tuple[float, ...]
    curve: tuple[float, ...]
    intercept: float

    def standardised(self, covariates: Covariates) -> np.ndarray:
        """Return the covariate in standard deviations from its mean, within the limits."""
        z = (covariates.values(self.name) - self.centre) / self.scale
        return np.asarray(np.clip(z, -MOST_DEVIATIONS, MOST_DEVIATIONS))

    def coefficients(self) -> np.ndarray:
        """Return the changes of all coefficients, (2 n_inputs + 1,): linear, curve, and the intercept."""
        return np.array([*self.linear, *self.curve, self.intercept])

    def checked(self, n_inputs: int) -> Effect:
        """Return the effect; a ValueError if it does not suit the number of inputs, or a number is not finite."""
        known = (*OF_DOCUMENTS, OF_LABELS)
        numbers = np.array([self.centre, self.scale, *self.coefficients()])
        fits = len(self.linear) == len(self.curve) == n_inputs
        if not (self.name in known and fits and np.isfinite(numbers).all() and self.scale > 0):
            raise ValueError(f"expected finite changes of {n_inputs} inputs with one of {', '.join(known)}")
        return self

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Effect:
        """Rebuild an effect from the JSON values of its fields."""
        return cls(**{**record, "linear": tuple(record["linear"]), "curve": tuple(record["curve"])})


def varied(
    constant: np.ndarray, effects: tuple[Effect, ...], covariates: Covariates
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of documents (n, c), and the terms that labels (L, c) add to them, float64.

    ``constant`` (c,) are the coefficients at the mean of all covariates.
    """
    documents = np.tile(constant, (len(covariates.documents), 1))
    labels = np.zeros((len(covariates.labels), len(constant)))
    for effect in effects:
        target = labels if effect.name == OF_LABELS else documents
        target += effect.standardised(covariates)[:, None] * effect.coefficients()
    return documents, labels
