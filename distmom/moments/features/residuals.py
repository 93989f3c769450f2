"""Residual passes: the residuals of a sparse linear scorer on true labels and on its hardest wrong labels.

With A the tf-idf rows and a constant column, and weights W (d + 1, L), let F be the scores ``A W`` restricted, in
every row, to the true labels and the few wrong labels of largest score. A pass adds up ``A'F`` on the entries
of W. As all true labels are kept, ``A'Y - s A'F`` is, on these entries, the cross moment of the features with
the residual ``Y - s F`` for any scale s. Adding a multiple of ``D^-1`` times it to ``s W``, D = diag(A'A) + mu,
is one Jacobi step of ridge regression on these entries: it is additive over shards, needs one number per entry
of W, and has no loop over labels. The least-squares scale follows from two numbers of the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.corpus import Block
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.csr import Csr, CsrArrays
from distmom.moments.features.tfidf import tfidf_rows, with_constant

#: number of labels whose maximum is compared with the hardest wrong labels before each label is
WINDOW = 128
#: a document whose words have at most 1 / FEW as many weights as there are labels is scored label by label
FEW = 8
#: entries of W per cache prefetch
LINE = 64
#: entries of W per row of the sum
ENTRY_COLUMNS = 64


@dataclass(frozen=True)
class ResidualPass(Pass):
    """Add up the cross moment of features and restricted scores on the entries of the weights.

    Attributes
    ----------
    n_labels : int
    idf : ndarray of shape (n_words,) or (0,)
    weights : Csr
        W (n_words + 1, n_labels), float32, with sorted rows; the last row holds the intercepts.
    n_entries : int
        Number of entries of W.
    inverse_diagonal : ndarray of shape (n_words + 1,)
        1 / D.
    n_negatives : int
        Number of wrong labels per row.
    leave_out : float
        Share of ``a_v^2 / D_v`` that a row has contributed to the weights of its labels: 1 for
        ``D^-1 A'Y``, 0 where the weights were not fitted to these rows.

    Notes
    -----
    Sums: ``entries`` = A'F on the entries of W in their order, tall with rows of `ENTRY_COLUMNS`; ``fit`` (2,),
    the sums of ``Y F`` and of ``F^2``. Large sums are in float32, with a relative error of about ``sqrt(n)
    6e-8``.
    """

    # An entry takes longer than in a sketch, as all weights of its word are added to scores. More groups would
    # slow down fits on few workers: each has sums of its own.
    entries_per_row = 8

    n_labels: int = 0
    idf: Any = None
    weights: Csr | None = None
    n_entries: int = 0
    inverse_diagonal: Any = None
    n_negatives: int = 5
    leave_out: float = 1.0

    @property
    def estimated(self) -> bool:
        # The number of weights that are not negligible is known only after they are computed.
        return True

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_entries

    def specs(self) -> dict[str, SumSpec]:
        n_rows = -(-self.n_entries // ENTRY_COLUMNS)
        return {
            "entries": SumSpec((n_rows, ENTRY_COLUMNS), "float32", tall="entries"),
            "fit": SumSpec((2,)),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.weights is not None
        a = with_constant(tfidf_rows(block.words, self.idf, np.float32))
        y, w = block.labels, self.weights
        n_true = np.diff(y.indptr)
        indptr, _, scores = restricted_scores(
            a, y, w, self.inverse_diagonal, self.n_labels, self.n_negatives, self.leave_out,
            sums["entries"].single.reshape(-1),
        )  # fmt: skip
        truth = np.zeros(len(scores), bool)
        starts = np.repeat(indptr[:-1], n_true)
        truth[starts + np.arange(len(starts)) - np.repeat(y.indptr[:-1], n_true)] = True
        sums["fit"] += (scores[truth].sum(dtype=np.float64), (scores.astype(np.float64) ** 2).sum())
        return None


def restricted_scores(
    features: Any,
    labels: Any,
    weights: Any,
    inverse_diagonal: np.ndarray,
    n_labels: int,
    n_negatives: int,
    leave_out: float,
    sums: np.ndarray,
) -> CsrArrays:
    """Return F, the scores of every row for its true labels and its hardest wrong labels, and add ``A'F``.

    A true label is scored without the row's own contribution, ``leave_out * sum_v a_v^2 / D_v``: the row must not
    explain itself.

    Parameters
    ----------
    features, labels : csr_array
        A (n, d) and Y (n, L).
    weights : Csr
        W (d, L), with sorted rows.
    inverse_diagonal : ndarray of shape (d,)
        1 / D.
    n_labels, n_negatives : int
    leave_out : float
    sums : ndarray of shape (nnz of W or more,), or empty
        Changed in place: ``a_v F_l`` is added for every entry (v, l) of W, unless it is empty.

    Returns
    -------
    CsrArrays
        In every row the true labels, in their order, then ``n_negatives`` wrong ones by descending score, float32;
        unused entries have the value 0.
    """
    indptr = np.concatenate([[0], np.cumsum(np.diff(labels.indptr) + n_negatives)]).astype(np.int64)
    out = CsrArrays(indptr, np.zeros(indptr[-1], np.int32), np.zeros(indptr[-1], np.float32))
    parts = CsrArrays.of(features), CsrArrays.of(labels), CsrArrays.of(weights)
    add_residuals(*parts, inverse_diagonal, n_labels, n_negatives, leave_out, out, sums)
    return out


@compiled
def add_residuals(
    features: CsrArrays,
    labels: CsrArrays,
    weights: CsrArrays,
    inverse_diagonal: np.ndarray,
    n_labels: int,
    n_negatives: int,
    leave_out: float,
    out: CsrArrays,
    sums: np.ndarray,
) -> None:
    """Fill the scores of `restricted_scores`, with room for them in ``out``, and add ``A'F``."""
    indptr, indices, data = features.indptr, features.indices, features.data
    y_indptr, y_indices = labels.indptr, labels.indices
    w_indptr, w_indices, w_data = weights.indptr, weights.indices, weights.data
    out_indptr, out_indices, out_data = out.indptr, out.indices, out.data
    scores = np.zeros(n_labels, np.float32)
    best = np.empty(n_negatives, np.float32)
    best_ids = np.empty(n_negatives, np.int32)
    keys, best_keys = scores.view(np.int32), best.view(np.int32)
    # Unsigned: a signed subscript may be negative, which would be checked on every access.
    w_columns, keys_of_weights = w_indices.view(np.uint32), w_data.view(np.uint32)
    few = n_labels // FEW
    met = np.empty(few + 1, np.uint32)
    asked = np.uint32(0)
    for i in range(indptr.shape[0] - 1):
        own = 0.0
        n_entries = 0
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            x = np.float32(data[p])
            own += x * x * inverse_diagonal[v]
            n_entries += w_indptr[v + 1] - w_indptr[v]
            # The weights of all words are touched before any is used, so that the memory loads them in parallel.
            for q in range(w_indptr[v], w_indptr[v + 1], LINE):
                asked ^= w_columns[q] ^ keys_of_weights[q]
        # Stored where no label is read, so that the compiler cannot remove the prefetch.
        met[few] = asked
        sparse = n_entries <= few
        n_met = 0
        for p in range(indptr[i], indptr[i + 1]):
            v = indices[p]
            x = np.float32(data[p])
            if sparse:
                for q in range(w_indptr[v], w_indptr[v + 1]):
                    column = w_columns[q]
                    met[n_met] = column
                    n_met += scores[column] == 0.0
                    scores[column] += x * w_data[q]
            else:
                for q in range(w_indptr[v], w_indptr[v + 1]):
                    scores[w_columns[q]] += x * w_data[q]
        position = out_indptr[i]
        for p in range(y_indptr[i], y_indptr[i + 1]):
            label = y_indices[p]
            out_indices[position] = label
            out_data[position] = scores[label] - leave_out * own
            scores[label] = 0.0
            position += 1
        best[:] = 0.0
        best_ids[:] = 0
        if sparse:
            for m in range(n_met):
                column = met[m]
                s = scores[column]
                scores[column] = 0.0
                last = n_negatives - 1
                if s > best[last] or (s == best[last] and s > 0.0 and np.int32(column) < best_ids[last]):
                    _insert(best, best_ids, s, np.int32(column))
        else:
            for start in range(0, n_labels, WINDOW):
                # Most windows have no candidate; positive floats compare like their bits as integers, whose
                # maximum is computed by vector instructions.
                window = keys[start : start + WINDOW]
                top = np.int32(0)
                for j in range(window.shape[0]):
                    top = max(top, window[j])
                if top <= best_keys[n_negatives - 1]:
                    continue
                for label in range(start, start + window.shape[0]):
                    if scores[label] > best[n_negatives - 1]:
                        _insert(best, best_ids, scores[label], np.int32(label))
            scores[:] = 0.0
        for j in range(n_negatives):
            out_indices[position] = best_ids[j]
            out_data[position] = best[j]
            position += 1
        if sums.shape[0] == 0:
            continue
        # The weights of the row's words are still in the cache.
        for p in range(indptr[i], indptr[i + 1]):
            start, stop = w_indptr[indices[p]], w_indptr[indices[p] + 1]
            x = np.float32(data[p])
            for f in range(out_indptr[i], position):
                if out_data[f] != 0.0:
                    q = _find(w_indices, start, stop, out_indices[f])
                    if q >= 0:
                        sums[q] += x * out_data[f]


@compiled
def _find(values: np.ndarray, start: int, stop: int, value: int) -> int:
    """Return the position of a value in an ascending range of an array, -1 if it is not there.

    The next half is computed without a branch, which could not be predicted.
    """
    if start == stop:
        return -1
    n = stop - start
    while n > 1:
        half = n >> 1
        start += half if values[np.uint64(start + half)] <= value else 0
        n -= half
    return start if values[np.uint64(start)] == value else -1


@compiled
def _insert(best: np.ndarray, ids: np.ndarray, score: Any, label: Any) -> None:
    """Insert into a short list sorted by descending score, ties by smaller label."""
    j = best.shape[0] - 1
    while j > 0 and (best[j - 1] < score or (best[j - 1] == score and ids[j - 1] > label)):
        best[j] = best[j - 1]
        ids[j] = ids[j - 1]
        j -= 1
    best[j] = score
    ids[j] = label
