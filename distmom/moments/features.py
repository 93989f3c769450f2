"""Features of documents: tf-idf rows of unit length, and a constant column."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.block import csr_from_parts


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


def tfidf_rows(words: csr_array, idf: np.ndarray, dtype: np.typing.DTypeLike = np.float64) -> csr_array:
    """Return rows ``(1 + ln tf) idf`` scaled to unit Euclidean length; empty rows stay empty.

    Values below one (weights, not counts) are used directly instead of ``1 + ln tf``.

    Parameters
    ----------
    words : csr_array of shape (n, d)
    idf : ndarray of shape (d,)
    dtype : dtype
        Type of the result, float64 by default.

    Returns
    -------
    csr_array of shape (n, d)
    """
    tf = words.data.astype(np.float64)
    tf = np.where(tf > 1.0, 1.0 + np.log(np.maximum(tf, 1.0)), tf)
    values = tf * idf[words.indices]
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
