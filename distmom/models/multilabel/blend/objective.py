"""The objective of a blend: metrics of scores of candidate labels on held-out documents.

The metrics have the definitions of `distmom.evaluate.metrics`. Propensity-scored precision is largest for labels
ranked by their probability times their inverse propensity, so a blend that is chosen for it multiplies its
probabilities by a power of the inverse propensities. The exponent is chosen too, as both are estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Corpus, MemoryCorpus
from distmom.models.multilabel.blend.stack import probability
from distmom.models.multilabel.kernels import top_candidates
from distmom.ranking import inverse_propensity, mean_metrics, rank_discounts

#: mean of P@1, P@3, P@5 and nDCG@5, and of AUC where all labels are candidates
MEAN = "mean"
#: metrics that a blend may be chosen for
OBJECTIVES = (MEAN, "P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
#: depths k of the metrics
DEPTHS = (1, 3, 5)
#: number of documents on which AUC is measured in every trial
AUC_DOCUMENTS = 1000
#: exponents of the inverse propensity that are tried
EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def weighs_propensity(metric: str) -> bool:
    """Return whether a metric weights true labels by their inverse propensity."""
    return metric.startswith("PSP@")


def corpus_propensity(corpus: Corpus | MemoryCorpus) -> np.ndarray:
    """Return the inverse propensities (L,) of the labels of a training corpus, as `evaluate_corpus` does."""
    return np.asarray(inverse_propensity(np.asarray(corpus.label_frequency), max(3, corpus.n_documents)))


def ideal_gains(labels: csr_array, inverse: np.ndarray) -> np.ndarray:
    """Return the largest possible gain at every depth of `DEPTHS`, (n, 3) float64.

    Parameters
    ----------
    labels : csr_array of shape (n, L)
        True labels.
    inverse : ndarray of shape (L,)
        Inverse propensities.
    """
    n = labels.shape[0]
    owner = np.repeat(np.arange(n), np.diff(labels.indptr))
    gains = np.asarray(inverse, np.float64)[labels.indices]
    order = np.lexsort((-gains, owner))
    rank = np.arange(len(owner)) - labels.indptr[owner]
    found = [np.bincount(owner[rank < k], gains[order][rank < k], minlength=n) / k for k in DEPTHS]
    return np.stack(found, axis=1)


@dataclass(frozen=True)
class Objective:
    """The objective of a blend: metrics of its scores of candidate labels.

    Attributes
    ----------
    labels : ndarray of shape (n, c), int32
        Candidates, -1 for none.
    truth : ndarray of shape (n, c), uint8
        Which of them are true.
    n_true : ndarray of shape (n,), int32
        Number of all true labels.
    metric : str, default "mean"
        One of `OBJECTIVES`.
    inverse : ndarray of shape (L,), optional
        Inverse propensities of the labels; required by PSP@k.
    ideal : ndarray of shape (n, 3), optional
        From `ideal_gains`; required by PSP@k.
    n_labels : int, optional
        Number of all labels; that of the columns of candidates by default.
    """

    labels: np.ndarray
    truth: np.ndarray
    n_true: np.ndarray
    metric: str = MEAN
    inverse: np.ndarray | None = None
    ideal: np.ndarray | None = None
    n_labels: int | None = None

    @cached_property
    def has_auc(self) -> bool:
        """Whether all labels are candidates, so that AUC is measured too."""
        width = self.labels.shape[1]
        # Of many labels, a few documents may have equally many candidates.
        return width > 0 and self.n_labels in (None, width) and bool((self.labels >= 0).all())

    @property
    def weighs_propensity(self) -> bool:
        """Whether true labels are weighted by their inverse propensity."""
        return weighs_propensity(self.metric)

    @property
    def of_probability(self) -> Objective:
        """The objective that weights of a sum are chosen for; the mean for PSP@k, which needs probabilities."""
        return replace(self, metric=MEAN) if self.weighs_propensity else self

    @property
    def depth(self) -> int:
        """The depth k of the metric."""
        return int(self.metric.partition("@")[2])

    def measure(self, totals: np.ndarray) -> np.ndarray:
        """Return P@k for `DEPTHS`, nDCG@5 and AUC of scores (n, c)."""
        n_areas = min(len(self.n_true), AUC_DOCUMENTS) if self.has_auc else 0
        lists = top_candidates(totals, self.labels, DEPTHS[-1])
        depths, discounts = np.array(DEPTHS), rank_discounts(DEPTHS[-1])
        return np.asarray(mean_metrics(lists, totals, self.truth, self.n_true, depths, discounts, n_areas))

    def value(self, totals: np.ndarray) -> float:
        """Return the metric of scores (n, c); NaN for PSP@k if no document has a label."""
        if self.metric == MEAN:
            parts = self.measure(totals)
            return float(parts.mean() if self.has_auc else parts[:-1].mean())
        return float(self._parts(totals).mean()) if len(self.n_true) else 0.0

    def error(self, totals: np.ndarray) -> float:
        """Return the standard error of the metric over documents; 0 for the mean of metrics, or one document."""
        if self.metric == MEAN:
            return 0.0
        parts = self._parts(totals)
        if self.weighs_propensity:
            # The standard error of a ratio of sums, to first order.
            parts = parts - parts.mean() * self._ideal / self._ideal.mean()
        return standard_error(parts)

    def clearly_prefers(self, totals: np.ndarray, others: np.ndarray) -> bool:
        """Return whether scores are better than others; for a single metric, by more than a standard error.

        One metric of few documents varies more than the mean of several, and the best of many heads may be best by
        chance.
        """
        if self.metric == MEAN:
            return self.value(totals) > self.value(others)
        gained = self._parts(totals) - self._parts(others)
        return bool(gained.mean() > standard_error(gained))

    def named(self, totals: np.ndarray) -> dict[str, float]:
        """Return the metrics by name; without AUC where no document has both a label and another one."""
        n_true = self.n_true[:AUC_DOCUMENTS]
        is_defined = self.has_auc and bool(((n_true > 0) & (n_true < self.labels.shape[1])).any())
        keys = [*(f"P@{k}" for k in DEPTHS), f"nDCG@{DEPTHS[-1]}"] + (["AUC"] if is_defined else [])
        found = {key: float(x) for key, x in zip(keys, self.measure(totals), strict=False)}
        return found | ({self.metric: self.value(totals)} if self.weighs_propensity else {})

    def first_hits(self, totals: np.ndarray) -> np.ndarray:
        """Return whether the first label of each document is true, (n,) uint8."""
        found = np.where(self.labels >= 0, totals, -np.inf).argmax(axis=1)
        return np.asarray(np.take_along_axis(self.truth, found[:, None], axis=1)[:, 0])

    def of(self, documents: np.ndarray) -> Objective:
        """Return the objective of some documents."""
        return replace(
            self,
            labels=self.labels[documents],
            truth=self.truth[documents],
            n_true=self.n_true[documents],
            ideal=None if self.ideal is None else self.ideal[documents],
        )

    def ranking(self, log_odds: np.ndarray, exponent: float) -> np.ndarray:
        """Return probabilities times a power of the inverse propensities, (n, c) float32, which rank labels."""
        assert self.inverse is not None
        factor = np.asarray(self.inverse**exponent, np.float32)
        return np.asarray(probability(log_odds) * factor[np.maximum(self.labels, 0)])

    def best_exponent(self, log_odds: np.ndarray) -> float:
        """Return the exponent of `EXPONENTS` with the best value; of equally good ones the smallest."""
        return max(EXPONENTS, key=lambda exponent: self.value(self.ranking(log_odds, exponent)))

    @property
    def _ideal(self) -> np.ndarray:
        assert self.ideal is not None
        return np.asarray(self.ideal[:, DEPTHS.index(self.depth)])

    def _listed(self, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns of the best candidates, (n, depth), and which of them are true."""
        lists = top_candidates(totals, self.labels, self.depth)
        known = np.maximum(lists, 0)
        return known, np.take_along_axis(self.truth, known, axis=1) * (lists >= 0)

    def _parts(self, totals: np.ndarray) -> np.ndarray:
        """Return numbers of documents, (n,), whose mean is the metric; NaN for PSP@k if none has a label."""
        columns, hits = self._listed(totals)
        if self.weighs_propensity:
            assert self.inverse is not None
            labels = np.maximum(np.take_along_axis(self.labels, columns, axis=1), 0)
            gains, ideal = (hits * self.inverse[labels]).sum(axis=1) / self.depth, self._ideal.mean()
            return np.asarray(gains / ideal if ideal > 0 else np.full(len(gains), np.nan))
        if self.metric.startswith("nDCG"):
            discounts = rank_discounts(self.depth)
            ideals = np.concatenate([[1.0], np.cumsum(discounts)])[np.minimum(self.n_true, self.depth)]
            return np.asarray(hits @ discounts / ideals)
        return np.asarray(hits.sum(axis=1) / self.depth)


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean; 0 for fewer than two values."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
