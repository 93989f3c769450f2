"""Features of documents: tf-idf rows of unit length, and a constant column.

Values that are tf-idf weights already are not multiplied by idf a second time: their rows are only scaled.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Corpus, MemoryCorpus
from distmom.corpus.block import csr_from_parts

#: how the features of documents follow from the values of their words
FEATURES = ("auto", "tfidf", "given")
#: fewest documents of a word whose average value is used to find out whether values grow with idf
_WORD_DOCUMENTS = 5
#: least power of idf that values grow with if idf is a factor of them. In 13 corpora, the power is between -0.51
#: and 0.10 for counts and for frequencies within documents, and between 0.57 and 1.6 for tf-idf and BM25 weights
_IDF_POWER = 0.2


def inverse_document_frequency(document_frequency: np.ndarray, n_documents: int) -> np.ndarray:
    """Return ``ln((1 + N) / (1 + df)) + 1`` for every word.

    Parameters
    ----------
    document_frequency : ndarray of shape (d,), int64
    n_documents : int

    Returns
    -------
    ndarray of shape (d,), float64
    """
    return np.asarray(np.log((1.0 + n_documents) / (1.0 + document_frequency)) + 1.0)


def fit_idf(corpus: Corpus | MemoryCorpus, features: str = "auto") -> np.ndarray:
    """Return what the values of words are multiplied by.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    features : str, default "auto"
        ``tfidf`` for idf, ``given`` for values that are used as they are, and ``auto`` for ``given`` if the values
        of the first shard grow with idf.

    Returns
    -------
    ndarray of shape (d,) or (0,), float64
        Empty where values are used as they are.
    """
    frequency = np.asarray(corpus.document_frequency)
    idf = inverse_document_frequency(frequency, corpus.n_documents)
    if features == "given" or (features == "auto" and _grow_with(corpus.read_shard(0).words, idf)):
        return np.zeros(0)
    return idf


def _grow_with(words: csr_array, idf: np.ndarray) -> bool:
    """Return whether the values of words grow with their idf, by a regression of logarithms."""
    if words.dtype.kind in "iub" or np.array_equal(words.data, np.trunc(words.data)):
        return False
    n_documents = np.bincount(words.indices, minlength=len(idf))
    totals = np.bincount(words.indices, weights=words.data, minlength=len(idf))
    used = (n_documents >= _WORD_DOCUMENTS) & (totals > 0.0)
    if not used.any():
        return False
    x, y = np.log(idf[used]), np.log(totals[used] / n_documents[used])
    x -= x.mean()
    return bool(x @ y > _IDF_POWER * (x @ x))


def tfidf_rows(words: csr_array, idf: np.ndarray, dtype: np.typing.DTypeLike = np.float64) -> csr_array:
    """Return rows ``(1 + ln tf) idf`` scaled to unit Euclidean length; empty rows stay empty.

    Values below one (weights, not counts) are used directly instead of ``1 + ln tf``. Without idf, all values are
    used directly.

    Parameters
    ----------
    words : csr_array of shape (n, d)
    idf : ndarray of shape (d,) or (0,)
        From `fit_idf`.
    dtype : dtype
        Type of the result, float64 by default.

    Returns
    -------
    csr_array of shape (n, d)
    """
    values = words.data.astype(np.float64)
    if len(idf):
        values = np.where(values > 1.0, 1.0 + np.log(np.maximum(values, 1.0)), values) * idf[words.indices]
    squares = np.add.reduceat(np.append(values**2, 0.0), words.indptr[:-1]) if words.shape[0] else values[:0]
    counts = np.diff(words.indptr)
    squares = np.where(counts > 0, squares, 1.0)
    scale = np.repeat(1.0 / np.sqrt(np.where(squares > 0, squares, 1.0)), counts)
    return csr_from_parts((values * scale).astype(dtype), words.indices, words.indptr, words.shape)


def with_constant(rows: csr_array) -> csr_array:
    """Append a column of ones, the feature whose weights are the intercepts of linear scorers.

    Parameters
    ----------
    rows : csr_array of shape (n, d)

    Returns
    -------
    csr_array of shape (n, d + 1)
        Of the type of the rows.
    """
    n, d = rows.shape
    indptr = rows.indptr + np.arange(n + 1, dtype=rows.indptr.dtype)
    own = np.ones(rows.nnz + n, bool)
    own[indptr[1:] - 1] = False
    indices, data = np.full(len(own), d, rows.indices.dtype), np.ones(len(own), rows.dtype)
    indices[own], data[own] = rows.indices, rows.data
    return csr_from_parts(data, indices, indptr, (n, d + 1))
