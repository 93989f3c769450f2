"""Word distributions as columns of tall matrices, computed slab by slab of rows: masses, clipping, logarithms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distmom.engine import Engine, Partials, StoredArray, StoredColumns

#: bytes up to which a tall matrix is processed, or kept in memory, whole
WHOLE_BYTES = 64 << 20

Slabs = dict[str, np.ndarray]


def column_edges(width: int, n_slabs: int) -> list[slice]:
    """Cut ``width`` columns into at most ``n_slabs`` slabs of equal width, the last one narrower."""
    step = -(-width // max(1, n_slabs))
    return [slice(a, min(a + step, width)) for a in range(0, width, step)]


def column_masses(engine: Engine, basis: StoredColumns, n_rows: int, coefficients: np.ndarray) -> Slabs:
    """Return the positive and the negative mass of every column of ``Q C``."""
    return dict(engine.map_rows(_masses, [basis], n_rows, {}, coefficients)[1])


def _masses(rows: slice, q: np.ndarray, coefficients: np.ndarray) -> tuple[Slabs, Slabs]:
    return {}, _signed_masses(np.asarray(q, np.float64) @ coefficients)


def _signed_masses(matrix: np.ndarray) -> Slabs:
    return {"positive": np.maximum(matrix, 0.0).sum(axis=0), "negative": -np.minimum(matrix, 0.0).sum(axis=0)}


def state_rows(
    engine: Engine,
    basis: StoredColumns,
    n_rows: int,
    topics: np.ndarray,
    directions: np.ndarray | None,
    frequency: StoredArray,
    smoothing: float,
    dtype: str,
    n_slabs: int,
) -> tuple[StoredColumns, StoredColumns, StoredColumns | None]:
    """Store the word distributions of states, their logarithms for scoring documents, and directions.

    Parameters
    ----------
    engine : Engine
    basis : StoredColumns
        Q (d, r).
    n_rows : int
        d.
    topics : ndarray of shape (r, k)
        Coefficients of the distributions in Q; negative entries of the product are clipped.
    directions : ndarray of shape (r, k), optional
        Coefficients of ``W U`` in Q; None: no directions.
    frequency : StoredArray of shape (d, 1)
        Document frequencies.
    smoothing : float
        Share of the unigram distribution.
    dtype : str
        Type of the stored arrays.
    n_slabs : int
        Number of slabs of columns of the logarithms and directions.

    Returns
    -------
    topics, log_topics, directions : StoredColumns
    """
    k = topics.shape[1]
    edges = column_edges(k, n_slabs)
    outputs = {"topics": (k, dtype)}
    for name in ("log", "direction") if directions is not None else ("log",):
        outputs |= {f"{name}-{i}": (cut.stop - cut.start, dtype) for i, cut in enumerate(edges)}
    total = float(np.sum(frequency.load() + 0.5))
    stored, _ = engine.map_rows(
        _state_rows, [basis, frequency], n_rows, outputs, topics, directions, total, smoothing, dtype, edges
    )

    def columns(name: str) -> StoredColumns:
        return StoredColumns(tuple(stored[f"{name}-{i}"] for i in range(len(edges))))

    return (
        StoredColumns((stored["topics"],)),
        columns("log"),
        columns("direction") if directions is not None else None,
    )


def _state_rows(
    rows: slice,
    q: np.ndarray,
    frequency: np.ndarray,
    topics: np.ndarray,
    directions: np.ndarray | None,
    total: float,
    smoothing: float,
    dtype: str,
    edges: Sequence[slice],
) -> tuple[Slabs, Slabs]:
    wide = np.asarray(q, np.float64)
    clipped = np.maximum(wide @ topics, 0.0).astype(dtype)
    logs = smoothed_logs(clipped, frequency[:, 0], total, smoothing)
    written = {"topics": clipped} | {f"log-{i}": logs[:, cut] for i, cut in enumerate(edges)}
    if directions is not None:
        product = wide @ directions
        written |= {f"direction-{i}": product[:, cut] for i, cut in enumerate(edges)}
    return written, {}


def smoothed_logs(topics: np.ndarray, frequency: np.ndarray, total: float, smoothing: float) -> np.ndarray:
    """Mix the smoothed unigram distribution into topic columns and take logarithms.

    Parameters
    ----------
    topics : ndarray of shape (n, k)
        Rows of some words.
    frequency : ndarray of shape (n,)
        Document frequencies of the same words.
    total : float
        Sum of all document frequencies, each increased by 1/2.
    smoothing : float
        Share of the unigram distribution.
    """
    unigram = ((frequency + 0.5) * (smoothing / total)).astype(topics.dtype)
    mixed = topics.dtype.type(1.0 - smoothing) * topics + unigram[:, None]
    return np.asarray(np.log(np.maximum(mixed, np.finfo(topics.dtype).tiny)))


def clipped_columns(engine: Engine, tall: Partials, dtype: str) -> tuple[StoredColumns, np.ndarray]:
    """Clip and normalise the columns of a tall sum; also return the share of their mass that was negative."""
    mass = engine.map_rows(_plain_masses, [tall], tall.n_rows, {})[1]
    positive = np.where(mass["positive"] > 0.0, mass["positive"], 1.0)
    stored, _ = engine.map_rows(_clip, [tall], tall.n_rows, {"it": (tall.width, dtype)}, positive)
    share = mass["negative"] / np.maximum(mass["positive"] + mass["negative"], np.finfo(np.float64).tiny)
    return StoredColumns((stored["it"],)), share


def _plain_masses(rows: slice, matrix: np.ndarray) -> tuple[Slabs, Slabs]:
    return {}, _signed_masses(matrix)


def _clip(rows: slice, matrix: np.ndarray, positive: np.ndarray) -> tuple[Slabs, Slabs]:
    return {"it": np.maximum(matrix, 0.0) / positive}, {}


def to_columns(stored: StoredColumns) -> np.ndarray:
    """Return a stored matrix as one array."""
    parts = stored.load().parts
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
