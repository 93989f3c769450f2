"""F1 and calibration of the labels that a threshold of probability assigns, as sums over blocks of documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.files.commit import check_file_target, destination, write_atomic
from distmom.errors import UsageError
from distmom.models.multilabel.blend.probabilities import Reliability
from distmom.predict.lines import escaped

#: largest number of labels of a document whose probabilities are considered; useful thresholds assign fewer
DEPTH = 100
_PER_LABEL = ("n_true", "n_assigned", "n_correct")
_PER_BIN = ("n_pairs", "probabilities", "truths")


@dataclass(frozen=True)
class AssignedSums:
    """Additive sums from which F1 and the expected calibration error are computed.

    Start from `zero`, add blocks of documents, and call `finish` for the metrics. Sums of the same threshold are
    merged by adding `sums`.

    Attributes
    ----------
    threshold : float
        Least probability of an assigned label.
    sums : dict of str to ndarray
        Per label (n_labels,) int64: ``n_true``, ``n_assigned`` and ``n_correct`` documents. Per bin of probability
        (10,): the sums of `Reliability`.
    """

    threshold: float
    sums: dict[str, np.ndarray]

    @classmethod
    def zero(cls, n_labels: int, threshold: float) -> AssignedSums:
        """Return the sums of no documents."""
        none = Reliability.of(np.zeros(0, np.float32), np.zeros(0, np.uint8))
        sums = {name: np.zeros(n_labels, np.int64) for name in _PER_LABEL}
        return cls(threshold, sums | {name: getattr(none, name) for name in _PER_BIN})

    def add(
        self, labels: np.ndarray, probabilities: np.ndarray, truth: csr_array, has_words: np.ndarray
    ) -> AssignedSums:
        """Return the sums including a block of documents.

        Parameters
        ----------
        labels : ndarray of shape (n, k), int
            The labels that rank highest, without repetition.
        probabilities : ndarray of shape (n, k), float32
        truth : csr_array of shape (n, n_labels)
            Labels of the documents, without repetition.
        has_words : ndarray of shape (n,), bool
            Whether a document has a word that the model knows; others are assigned no labels.
        """
        n, n_labels = truth.shape
        owner = np.repeat(np.arange(n, dtype=np.int64), np.diff(truth.indptr))
        pairs = np.arange(n, dtype=np.int64)[:, None] * n_labels + labels
        is_true = np.isin(pairs, owner * n_labels + truth.indices)
        assigned = (probabilities >= np.float32(self.threshold)) & has_words[:, None]
        bins = Reliability.of(probabilities, is_true)
        part = {
            "n_true": np.bincount(truth.indices, minlength=n_labels),
            "n_assigned": np.bincount(labels[assigned], minlength=n_labels),
            "n_correct": np.bincount(labels[assigned & is_true], minlength=n_labels),
            **{name: getattr(bins, name) for name in _PER_BIN},
        }
        return replace(self, sums={name: value + part[name] for name, value in self.sums.items()})

    def finish(self) -> dict[str, Any]:
        """Return the metrics.

        Returns
        -------
        dict of str to float
            ``F1_micro``, of all pairs of a document and a label together; ``F1_macro``, the mean F1 of the labels
            that a document has or is assigned; ``ECE``, the expected calibration error of the labels given to
            `add`; ``threshold``; ``n_assigned`` (pairs); and ``reliability``, the JSON values of `Reliability`.
            F1 without pairs is NaN.
        """
        true, assigned, correct = (self.sums[name] for name in _PER_LABEL)
        of_labels = _ratio(2 * correct, true + assigned)
        defined = ~np.isnan(of_labels)
        bins = Reliability(*(self.sums[name] for name in _PER_BIN))
        return {
            "F1_micro": float(_ratio(2 * correct.sum(), true.sum() + assigned.sum())),
            "F1_macro": float(of_labels[defined].mean()) if defined.any() else float("nan"),
            "ECE": bins.expected_calibration_error,
            "threshold": self.threshold,
            "n_assigned": int(assigned.sum()),
            "reliability": bins.to_json(),
        }

    def write_per_label(
        self, path: str | os.PathLike[str], names: Sequence[str], frequency: np.ndarray
    ) -> None:
        """Write one line per label with its name, frequency in training, counts, precision, recall and F1.

        Parameters
        ----------
        path : path-like
            The file, tab-separated, with a header; an existing file is replaced. The field of a ratio 0 / 0 is
            empty.
        names : sequence of str
            Names of all labels, written as by `distmom.predict.lines.escaped`.
        frequency : ndarray of shape (n_known,)
            Number of training documents of each of the first labels; the other labels have none.
        """
        true, assigned, correct = (self.sums[name] for name in _PER_LABEL)
        known = np.zeros(len(names))
        known[: len(frequency)] = frequency
        ratios = (_ratio(correct, assigned), _ratio(correct, true), _ratio(2 * correct, true + assigned))
        lines = ["label\tfrequency\ttrue\tpredicted\tprecision\trecall\tF1\n"]
        for i, name in enumerate(names):
            shown = ("" if np.isnan(x[i]) else f"{x[i]:.6g}" for x in ratios)
            lines.append(
                "\t".join((escaped(name), f"{known[i]:.0f}", str(true[i]), str(assigned[i]), *shown)) + "\n"
            )
        write_atomic(path, "".join(lines).encode())


def checked_table(path: str | os.PathLike[str]) -> Path:
    """Return the path of a table to write; a UsageError if it exists or cannot be written."""
    target = destination(path)
    if target.exists():
        raise UsageError(f"{target}: exists; choose another path")
    return check_file_target(target)


def _ratio(a: Any, b: Any) -> np.ndarray:
    """Return ``a / b``, NaN where b is 0."""
    b = np.asarray(b, np.float64)
    return np.asarray(np.divide(a, b, out=np.full(b.shape, np.nan), where=b > 0))
