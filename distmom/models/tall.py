"""Algebra of tall matrices, slab by slab of rows: orthonormal bases, state distributions, their logarithms.

A basis is never orthonormalised by anyone who holds it whole. Gram matrices of the slabs add up to small
matrices, from those follow the coefficients of the new basis in the old matrices, and one more round over the
slabs writes it. Sources: as `distmom.linalg.orthonormal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from threadpoolctl import threadpool_limits

from distmom.engine import Engine, Partials, StoredArray, StoredColumns
from distmom.engine.tall import Tall, read_rows
from distmom.errors import NumericalError
from distmom.linalg import orthonormalise

#: float64 bytes of a matrix up to which it is orthonormalised at once, where it is
WHOLE_BYTES = 64 << 20
#: smallest eigenvalue of an equilibrated Gram matrix that is left to Cholesky: the departure from
#: orthonormality is eps over it
SAFE_EIGENVALUE = 1e-9

Slabs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Combination:
    """A tall matrix ``sum_i A_i C_i``, not formed yet.

    Attributes
    ----------
    n_rows, width : int
    terms : tuple of (Tall, ndarray)
        Tall matrices and coefficients.
    scale : StoredArray of shape (n_rows, 1), optional
        Squares of it multiply the rows of the sums (see `next_directions`).
    """

    n_rows: int
    width: int
    terms: tuple[tuple[Tall, np.ndarray], ...]
    scale: StoredArray | None = None


@dataclass(frozen=True)
class Directions:
    """What a sketch pass leads to.

    Attributes
    ----------
    basis : Combination
        Orthonormal.
    probes : Combination or None
        Orthonormal, and orthogonal to the basis.
    largest : float
        Largest Ritz value in the old basis; 0 without one.
    noise : float
        Largest magnitude of an eigenvalue that the old probes met.
    """

    basis: Combination
    probes: Combination | None
    largest: float
    noise: float


def next_directions(
    engine: Engine,
    sketch: Partials,
    basis: StoredColumns | None,
    noise: Partials | None,
    probes: StoredColumns | None,
    *,
    indefinite: bool,
    scale: StoredArray | None = None,
) -> Directions:
    """Orthonormalise ``M2 Q``, or ``(M2 + c I) Q`` where M2 has a negative Ritz value -c, and the noise outside.

    Sampled moments of distinct positions have negative eigenvalues, and a power pass would be drawn to those
    of large magnitude; the shift makes the algebraically largest the dominant ones. Probes stay outside of the
    basis: what sampling does to the directions of large eigenvalues is large too, but says nothing of the
    small ones.

    With a scale D of the words the moment is D M2 D. Passes do not know of it: they multiply with ``D Q``, which
    is what is stored for the basis and the probes, and what they return is to be multiplied by D.

    Parameters
    ----------
    engine : Engine
    sketch : Partials
        ``M2 Q``, or M2 times the test matrix.
    basis : StoredColumns or None
        Q.
    noise : Partials or None
        The product of the probes P with the moment of random signs.
    probes : StoredColumns or None
        P.
    indefinite : bool
        M2 may have negative eigenvalues. Otherwise a large Q need not be read.
    scale : StoredArray of shape (d, 1), optional
        D, positive.
    """
    n = sketch.n_rows
    if not indefinite:
        basis = None
    tall: dict[str, Tall | None] = {"S": sketch, "Q": basis, "N": noise, "P": probes, "D": scale}
    there = {name: item for name, item in tall.items() if item is not None}

    def at_once() -> Directions:
        rows = slice(0, n)
        return _at_once({name: np.asarray(read_rows(item, rows)) for name, item in there.items()})

    if n * sketch.width * 8 <= WHOLE_BYTES:
        return at_once()
    _, grams = engine.map_rows(_products, tuple(there.values()), n, {}, tuple(there))
    ritz = _symmetric_values(grams["QS"]) if basis is not None else np.zeros(1)
    shift = float(ritz[0]) if ritz[0] < -1e-9 * abs(ritz[-1]) else 0.0
    gram = grams["SS"]
    if shift:
        gram = gram - shift * (grams["QS"] + grams["QS"].T) + shift**2 * np.eye(len(gram))
    T = _cholesky_factor(gram)
    if T is None:
        # Dependent columns show only in the whole matrix.
        return at_once()
    terms: list[tuple[Tall, np.ndarray]] = [(sketch, T)]
    if shift:
        assert basis is not None
        terms.append((basis, -shift * T))
    found = Combination(n, T.shape[1], tuple(terms), scale)
    if noise is None:
        return Directions(found, None, float(ritz[-1]), 0.0)
    level = np.abs(_symmetric_values(grams["PN"])).max() if probes is not None else 0.0
    inside = T.T @ (grams["SN"] - shift * grams["QN"] if shift else grams["SN"])
    rest = grams["NN"] - inside.T @ inside
    outside = None
    if np.trace(rest) > 1e-18 * np.trace(grams["NN"]):
        factor = _cholesky_factor(rest)
        if factor is None:
            return at_once()
        own = [(item, -coefficients @ inside @ factor) for item, coefficients in terms]
        outside = Combination(n, factor.shape[1], ((noise, factor), *own), scale)
    return Directions(found, outside, float(ritz[-1]), float(level))


def _at_once(whole: Mapping[str, np.ndarray]) -> Directions:
    """Do the same with matrices in memory, also where columns depend on each other."""
    D = whole.get("D", np.ones((1, 1)))
    plain = _unscaled(whole)
    S, Q, N, P = plain["S"], plain.get("Q"), plain.get("N"), plain.get("P")
    largest = level = 0.0
    with threadpool_limits(limits=1):
        if Q is not None:
            ritz = _symmetric_values(Q.T @ S)
            largest = float(ritz[-1])
            if ritz[0] < -1e-9 * abs(ritz[-1]):
                S = S - ritz[0] * Q
        basis = orthonormalise([S]).slabs[0]
        found = _in_memory(D * basis)
        if N is None:
            return Directions(found, None, largest, 0.0)
        if P is not None:
            level = float(np.abs(_symmetric_values(P.T @ N)).max())
        outside = N - basis @ (basis.T @ N)
        if not np.linalg.norm(outside) > 1e-9 * np.linalg.norm(N):
            return Directions(found, None, largest, level)
        return Directions(found, _in_memory(D * orthonormalise([outside]).slabs[0]), largest, level)


def _unscaled(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return ``D M2 Q`` and ``Q`` in float64 from the sum ``M2 Q`` and the stored ``D Q``, for probes too."""
    wide = {name: np.asarray(slab, np.float64) for name, slab in stored.items()}
    scale = wide.pop("D", None)
    if scale is None:
        return wide
    return {name: slab * scale if name in "SN" else slab / scale for name, slab in wide.items()}


def _in_memory(matrix: np.ndarray) -> Combination:
    return Combination(len(matrix), matrix.shape[1], ((matrix, np.zeros((0, 0))),))


def _symmetric_values(matrix: np.ndarray) -> np.ndarray:
    with threadpool_limits(limits=1):
        return np.asarray(np.linalg.eigvalsh((matrix + matrix.T) / 2))


def _cholesky_factor(gram: np.ndarray) -> np.ndarray | None:
    """Return T such that ``A T`` is orthonormal where A has this Gram matrix; None where it is ill-conditioned."""
    if not np.isfinite(gram).all():
        raise NumericalError("the matrix to orthonormalise has entries that are not finite or overflow")
    norms = np.sqrt(np.diag(gram))
    if not (norms > 0.0).all():
        return None
    with threadpool_limits(limits=1):
        equilibrated = gram / np.outer(norms, norms)
        if float(np.linalg.eigvalsh(equilibrated)[0]) <= SAFE_EIGENVALUE:
            return None
        upper = np.linalg.cholesky(equilibrated).T
        return np.asarray(solve_triangular(upper, np.eye(len(gram))) / norms[:, None])


def _products(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    """Return ``A'B`` for every pair of matrices, by their names."""
    names = arguments[-1]
    slabs = dict(zip(names, arguments[:-1], strict=True))
    wide = _unscaled(slabs)
    pairs = (("S", "S"), ("Q", "S"), ("S", "N"), ("Q", "N"), ("P", "N"), ("N", "N"))
    return {}, {a + b: wide[a].T @ wide[b] for a, b in pairs if a in wide and b in wide}


def store_columns(engine: Engine, what: Combination, dtype: str, n_slabs: int) -> StoredColumns:
    """Form a combination and store it in slabs of columns."""
    edges = column_edges(what.width, n_slabs)
    (matrix, coefficients), *others = what.terms
    if isinstance(matrix, np.ndarray) and not coefficients.size:
        return StoredColumns(tuple(engine.put(matrix[:, cut].astype(dtype)) for cut in edges))
    terms = ((matrix, coefficients), *others)
    outputs = {str(i): (cut.stop - cut.start, dtype) for i, cut in enumerate(edges)}
    inputs = [item for item, _ in terms]
    scaled = [what.scale is not None and isinstance(item, Partials) for item in inputs]
    stored, _ = engine.map_rows(
        _combine, inputs if what.scale is None else [*inputs, what.scale], what.n_rows, outputs,
        [c for _, c in terms], scaled, edges,
    )  # fmt: skip
    return StoredColumns(tuple(stored[str(i)] for i in range(len(edges))))


def column_edges(width: int, n_slabs: int) -> list[slice]:
    """Cut columns into slabs as a pass is cut."""
    step = -(-width // max(1, n_slabs))
    return [slice(a, min(a + step, width)) for a in range(0, width, step)]


def _combine(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    *slabs, coefficients, scaled, edges = arguments
    # A sum is to be multiplied by the scale, as is the basis that is stored.
    factor = np.asarray(slabs.pop(), np.float64) ** 2 if any(scaled) else 1.0
    products = (np.asarray(a, np.float64) @ c for a, c in zip(slabs, coefficients, strict=True))
    total = sum(product * factor if by else product for product, by in zip(products, scaled, strict=True))
    return {str(i): total[:, cut] for i, cut in enumerate(edges)}, {}


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
    """Store the word distributions of states, the logarithms that documents are scored with, and directions.

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
        Coefficients of ``W U``.
    frequency : StoredArray of shape (d, 1)
        Document frequencies.
    smoothing : float
    dtype : str
    n_slabs : int
        Slabs of columns of logarithms and directions.

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
    """Mix the unigram distribution, itself without zeros, into topic columns and take logarithms.

    Parameters
    ----------
    topics : ndarray of shape (n, k)
        Rows of some words.
    frequency : ndarray of shape (n,)
        Document frequencies of the same words.
    total : float
        Sum of all document frequencies, each with the half that is added here.
    smoothing : float
        Share of the unigram distribution.
    """
    unigram = ((frequency + 0.5) * (smoothing / total)).astype(topics.dtype)
    mixed = topics.dtype.type(1.0 - smoothing) * topics + unigram[:, None]
    return np.asarray(np.log(np.maximum(mixed, np.finfo(topics.dtype).tiny)))


def clipped_columns(engine: Engine, tall: Partials, dtype: str) -> tuple[StoredColumns, np.ndarray]:
    """Turn the columns of a tall sum into distributions; also return the share of their mass that was negative."""
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


def orthonormal_basis(sketch: np.ndarray) -> np.ndarray:
    """Orthonormalise a matrix in memory and return the (d, rank) basis, float64."""
    with threadpool_limits(limits=1):
        return orthonormalise([sketch]).slabs[0]
