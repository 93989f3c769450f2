"""Ranking metrics of extreme multi-label learning, as sums that are additive over blocks of documents.

Definitions are those of the extreme classification repository and its scripts (Bhatia et al., "The extreme
classification repository", 2016; Jain, Prabhu, Varma, "Extreme multi-label loss functions", KDD 2016).
With r(j) the j-th ranked label of a document, y its labels, |y| their number and 1/p the inverse propensity:

=========== ==========================================================================================
P@k         mean of ``(1/k) sum_{j<=k} [r(j) in y]``; divided by k even if fewer labels are ranked
recall@k    mean of ``sum_{j<=k} [r(j) in y] / |y|``
nDCG@k      mean of ``sum_{j<=k} [r(j) in y] / log2(j+1)`` over ``sum_{j<=min(k,|y|)} 1 / log2(j+1)``
PSP@k       ratio of two means over documents: ``sum_{j<=k} [r(j) in y] / p_r(j)``, and its largest possible
            value
PSnDCG@k    the same with terms multiplied by 1 / log2(j+1), and each document divided by its ideal DCG as in
            nDCG ("pyxclib", also napkinXC) or by the full ``sum_{j<=k} 1 / log2(j+1)`` ("matlab")
AUC         mean over documents of the probability that a label of the document has a higher score than another
            label, with ties counted as one half
=========== ==========================================================================================

A document without labels counts as zero in all metrics except AUC, unless it is skipped. Documents with no label
or with every label are excluded from AUC, which is undefined for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from distmom.errors import NumericalError, UsageError
from distmom.ranking import dense_areas, list_metrics, listed_areas, rank_discounts

PSnDCGConvention = Literal["pyxclib", "matlab"]

_PER_DEPTH = ("precision", "recall", "ndcg", "psp", "psp_best", "psndcg", "psndcg_best")
_COUNTS = ("n_documents", "n_scored", "n_unlabelled", "n_listed", "n_auc", "n_auc_listed")
_TOTALS = ("auc", "auc_listed")


@dataclass(frozen=True)
class RankingSums:
    """Additive sums from which the ranking metrics are computed.

    Start from `zero`, add blocks of documents, merge sums with ``+`` in any order, and call `finish` for the
    metrics.

    Attributes
    ----------
    depths : tuple of int
        Values of k, increasing.
    inverse_propensity : ndarray of shape (n_labels,) or None
        1/p of every label (see `distmom.ranking.inverse_propensity`); None omits PSP and PSnDCG.
    convention : {"pyxclib", "matlab"}
        Normalisation of PSnDCG.
    skip_unlabelled : bool
        Whether documents without labels are excluded from all means instead of counted as zero.
    sums : dict of str to ndarray
        The sums.
    """

    depths: tuple[int, ...]
    inverse_propensity: NDArray[np.float64] | None
    convention: PSnDCGConvention
    skip_unlabelled: bool
    sums: dict[str, NDArray[Any]]

    @classmethod
    def zero(
        cls,
        depths: Sequence[int] = (1, 3, 5),
        *,
        inverse_propensity: ArrayLike | None = None,
        convention: PSnDCGConvention = "pyxclib",
        skip_unlabelled: bool = False,
    ) -> RankingSums:
        """Return the sums of no documents.

        Parameters
        ----------
        depths : sequence of int, default=(1, 3, 5)
            Values of k to report.
        inverse_propensity : array_like of shape (n_labels,), optional
            1/p of every label that may occur in the truth; PSP and PSnDCG are omitted by default.
        convention : {"pyxclib", "matlab"}, default="pyxclib"
            Normalisation of PSnDCG.
        skip_unlabelled : bool, default=False
            Whether documents without labels are excluded from all means instead of counted as zero.

        Returns
        -------
        RankingSums

        Raises
        ------
        UsageError
            If a depth is not positive, the convention is unknown or a propensity is not a positive number.
        """
        ordered = tuple(sorted({int(depth) for depth in depths}))
        if not ordered or ordered[0] < 1:
            raise UsageError(f"depths: expected positive integers, got {tuple(depths)}")
        if convention not in ("pyxclib", "matlab"):
            raise UsageError(f"convention: expected 'pyxclib' or 'matlab', got {convention!r}")
        inverse = None
        if inverse_propensity is not None:
            inverse = np.ascontiguousarray(inverse_propensity, dtype=np.float64)
            if inverse.ndim != 1 or not (np.isfinite(inverse) & (inverse > 0)).all():
                low, high = np.min(inverse, initial=np.inf), np.max(inverse, initial=-np.inf)
                raise UsageError(
                    "inverse_propensity: expected a vector of positive finite numbers, got an array of shape "
                    f"{inverse.shape} with values from {low} to {high}"
                )
        sums: dict[str, NDArray[Any]] = {name: np.zeros(len(ordered)) for name in _PER_DEPTH}
        sums |= {name: np.zeros((), dtype=np.int64) for name in _COUNTS}
        sums |= {name: np.zeros(()) for name in _TOTALS}
        return cls(ordered, inverse, convention, skip_unlabelled, sums)

    def __add__(self, other: RankingSums) -> RankingSums:
        """Merge the sums of disjoint sets of documents."""
        if not isinstance(other, RankingSums):
            return NotImplemented
        same = (self.depths, self.convention, self.skip_unlabelled) == (
            other.depths,
            other.convention,
            other.skip_unlabelled,
        )
        mine, theirs = self.inverse_propensity, other.inverse_propensity
        if same and (mine is not None or theirs is not None):
            same = mine is not None and theirs is not None and np.array_equal(mine, theirs)
        if not same:
            raise UsageError("sums with different depths, propensities or conventions cannot be merged")
        return self._plus(other.sums)

    def _plus(self, sums: dict[str, NDArray[Any]]) -> RankingSums:
        """Add some of the sums."""
        merged = {name: value + sums[name] if name in sums else value for name, value in self.sums.items()}
        return replace(self, sums=merged)

    def add_lists(self, indices: ArrayLike, truth: Any, *, scores: ArrayLike | None = None) -> RankingSums:
        """Add a block of documents with their ranked lists of labels.

        Parameters
        ----------
        indices : array_like of shape (n, m), integer
            Labels without repetition, by decreasing score; shorter lists are padded with -1 at the end. m is at
            least the largest depth.
        truth : sparse matrix or array of shape (n, n_labels)
            Nonzero where a label belongs to the document. Columns beyond the labels of the model are allowed;
            these labels are never ranked and count as misses.
        scores : array_like of shape (n, m), optional
            Scores of the listed labels, so that equal scores are ties in "AUC_listed"; by default, the order of
            the list decides.

        Returns
        -------
        RankingSums
            The sums including the block. In "AUC_listed", all unlisted labels are tied at the last rank.

        Raises
        ------
        UsageError
            If shapes do not match, lists are shorter than the largest depth, or a label is not a whole number,
            repeated or outside the truth.
        NumericalError
            If a score is NaN.
        """
        given = np.asarray(indices)
        if given.size and given.dtype.kind not in "iu":
            raise UsageError(f"indices: expected whole numbers, got an array of type {given.dtype}")
        lists = np.ascontiguousarray(given, dtype=np.int64)
        labels = _as_truth(truth)
        n, n_labels = labels.shape
        if lists.ndim != 2 or lists.shape[0] != n:
            raise UsageError(
                f"ranked lists of shape {lists.shape} do not match a truth of shape {labels.shape}"
            )
        if lists.shape[1] < self.depths[-1]:
            raise UsageError(
                f"ranked lists of width {lists.shape[1]} are too short for depth {self.depths[-1]}: "
                "pad them with -1"
            )
        if lists.size and (int(lists.max()) >= n_labels or int(lists.min()) < -1):
            raise UsageError(
                f"indices: expected labels from -1 to {n_labels - 1}, got {int(lists.min())} to {int(lists.max())}"
            )
        ordered = np.sort(lists, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise UsageError("indices: expected labels without repetition, got one twice in a list")
        if scores is None:
            # Decreasing scores, so that no labels are tied.
            values = np.broadcast_to(-np.arange(lists.shape[1], dtype=np.float64), lists.shape)
        else:
            values = np.asarray(scores, dtype=np.float64)
            if values.shape != lists.shape:
                raise UsageError(f"scores of shape {values.shape} do not match lists of shape {lists.shape}")
            if np.isnan(values[lists >= 0]).any():
                raise NumericalError("scores: expected no NaN, got one for a ranked label")
        inverse = self._propensity_for(n_labels)
        depths = np.array(self.depths, dtype=np.int64)
        rows = np.zeros((n, len(_PER_DEPTH), len(depths)))
        list_metrics(
            lists,
            labels.indptr,
            labels.indices,
            inverse,
            rank_discounts(self.depths[-1]),
            depths,
            self.convention == "pyxclib",
            rows,
        )
        areas = np.full(n, np.nan)
        listed_areas(lists, values, labels.indptr, labels.indices, n_labels, areas)
        totals = rows.sum(axis=0)
        counted = ~np.isnan(areas)
        n_unlabelled = int(np.count_nonzero(np.diff(labels.indptr) == 0))
        part: dict[str, Any] = {name: totals[i] for i, name in enumerate(_PER_DEPTH)}
        part |= {
            "n_documents": n,
            "n_scored": int(np.count_nonzero((lists >= 0).any(axis=1))) if lists.size else 0,
            "n_unlabelled": n_unlabelled,
            "n_listed": n - n_unlabelled if self.skip_unlabelled else n,
            "n_auc_listed": int(np.count_nonzero(counted)),
            "auc_listed": float(areas[counted].sum()),
        }
        return self._plus(part)

    def add_scores(self, scores: ArrayLike, truth: Any) -> RankingSums:
        """Add a block of documents with scores of all labels, for the exact "AUC".

        Parameters
        ----------
        scores : array_like of shape (n, n_model_labels), float32 or float64
            Scores, which may be infinite.
        truth : sparse matrix or array of shape (n, n_labels)
            n_labels is at least n_model_labels; labels without a score are tied below all others.

        Returns
        -------
        RankingSums
            The sums including the AUC of the block. Other metrics and "n_documents" are added by `add_lists`, so
            AUC may be measured on a sample of the documents.

        Raises
        ------
        UsageError
            If shapes do not match.
        NumericalError
            If a score is NaN.
        """
        values = np.asarray(scores)
        if values.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            values = values.astype(np.float64)
        labels = _as_truth(truth)
        if values.ndim != 2 or values.shape[0] != labels.shape[0] or values.shape[1] > labels.shape[1]:
            raise UsageError(f"scores of shape {values.shape} do not match a truth of shape {labels.shape}")
        areas = np.full(labels.shape[0], np.nan)
        if not dense_areas(
            np.ascontiguousarray(values), labels.indptr, labels.indices, labels.shape[1], areas
        ):
            raise NumericalError("scores: expected no NaN, got one")
        counted = ~np.isnan(areas)
        part: dict[str, Any] = {
            "n_auc": int(np.count_nonzero(counted)),
            "auc": float(areas[counted].sum()),
        }
        return self._plus(part)

    def finish(self) -> dict[str, float]:
        """Return the metrics.

        Returns
        -------
        dict of str to float
            "P@k", "nDCG@k" and "recall@k" for each depth; "PSP@k" and "PSnDCG@k" if propensities are given;
            "AUC_listed"; "AUC" if scores were added; and the counts "n_documents", "n_scored" (documents with a
            nonempty list), "n_unlabelled", "n_auc_listed" and "n_auc". A metric without documents is NaN.
        """
        result: dict[str, float] = {}
        n = int(self.sums["n_listed"])
        for key, name in (("P", "precision"), ("nDCG", "ndcg"), ("recall", "recall")):
            for depth, value in zip(self.depths, self.sums[name], strict=True):
                result[f"{key}@{depth}"] = float(value) / n if n else math.nan
        if self.inverse_propensity is not None:
            for key, name in (("PSP", "psp"), ("PSnDCG", "psndcg")):
                best = self.sums[f"{name}_best"]
                for depth, value, bound in zip(self.depths, self.sums[name], best, strict=True):
                    result[f"{key}@{depth}"] = float(value / bound) if bound > 0 else math.nan
        for key, name in (("AUC", "auc"), ("AUC_listed", "auc_listed")):
            n_areas = int(self.sums[f"n_{name}"])
            if n_areas:
                result[key] = float(self.sums[name]) / n_areas
            elif key == "AUC_listed":
                result[key] = math.nan
        for name in ("n_documents", "n_scored", "n_unlabelled", "n_auc_listed", "n_auc"):
            result[name] = int(self.sums[name])
        return result

    def _propensity_for(self, n_labels: int) -> NDArray[np.float64]:
        """Return 1/p of the labels, an empty array without propensities; UsageError if labels have none."""
        if self.inverse_propensity is None:
            return np.zeros(0)
        if self.inverse_propensity.size < n_labels:
            raise UsageError(
                f"the truth has {n_labels} labels, but inverse propensities are given for "
                f"{self.inverse_propensity.size}; pass n_labels to inverse_propensity"
            )
        return self.inverse_propensity


@dataclass(frozen=True)
class _Truth:
    """The labels of a block of documents, sorted, without duplicates or explicit zeros."""

    shape: tuple[int, int]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]


def _as_truth(truth: Any) -> _Truth:
    """Extract label sets from a sparse or dense matrix without modifying it."""
    matrix = sparse.csr_array(truth)
    if not matrix.has_canonical_format or (matrix.nnz and not np.all(matrix.data != 0)):
        matrix = matrix.copy()
        # Any nonzero entry is a label, so entries of opposite sign must not cancel.
        matrix.data = (matrix.data != 0).astype(np.float64)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    n, n_labels = matrix.shape
    return _Truth((int(n), int(n_labels)), matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64))
