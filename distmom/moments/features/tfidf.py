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
#: least power of idf that values grow with if idf is a factor of them (workflows/idf_powers.py has the powers of
#: values of many kinds)
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
    """Return the factors by which the values of words are multiplied.

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
    if features == "given" or (features == "auto" and _has_idf(corpus.read_shard(0).words, idf)):
        return np.zeros(0)
    return idf


def _has_idf(words: csr_array, idf: np.ndarray) -> bool:
    """Return whether idf is a factor of the values of words; it is not one of whole numbers."""
    if words.dtype.kind in "iub" or np.array_equal(words.data, np.trunc(words.data)):
        return False
    return idf_power(words, idf) > _IDF_POWER


def idf_power(words: csr_array, idf: np.ndarray) -> float:
    """Return the power of idf that the values of words grow with, by a regression of logarithms.

    Parameters
    ----------
    words : csr_array of shape (n, d)
    idf : ndarray of shape (d,)

    Returns
    -------
    float
        Slope of the logarithm of the average value of a word over that of its idf, for the words in five or more
        rows; zero if these have the same idf.
    """
    n_documents = np.bincount(words.indices, minlength=len(idf))
    totals = np.bincount(words.indices, weights=words.data, minlength=len(idf))
    used = (n_documents >= _WORD_DOCUMENTS) & (totals > 0.0)
    if not used.any():
        return 0.0
    x, y = np.log(idf[used]), np.log(totals[used] / n_documents[used])
    x -= x.mean()
    return float(x @ y / (x @ x)) if x.any() else 0.0


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
