"""The basis that follows from the sums of a sketch or power pass, as a combination of tall matrices.

A basis that is too large for memory is orthonormalised slab by slab of rows: the Gram matrices of the slabs add
up to small matrices, and these give the coefficients of the new basis in terms of the old matrices. Sources: see
`distmom.linalg.orthonormal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from distmom.blas import one_blas_thread
from distmom.engine import Engine, Partials, StoredArray, StoredColumns
from distmom.engine.sums.tall import Tall, read_rows
from distmom.errors import NumericalError
from distmom.linalg import orthonormalise
from distmom.spectral.steps.recovery import WHOLE_BYTES, Slabs

#: smallest eigenvalue of an equilibrated Gram matrix for which Cholesky is used: the departure from orthonormality
#: is about eps divided by it
SAFE_EIGENVALUE = 1e-9


@dataclass(frozen=True)
class Combination:
    """A tall matrix ``sum_i A_i C_i``, not formed yet.

    Attributes
    ----------
    n_rows, width : int
    terms : tuple of (Tall, ndarray)
        Tall matrices and coefficients.
    scale : StoredArray of shape (n_rows, 1), optional
        Its squares multiply the rows of the sums (see `next_directions`).
    """

    n_rows: int
    width: int
    terms: tuple[tuple[Tall, np.ndarray], ...]
    scale: StoredArray | None = None


@dataclass(frozen=True)
class Directions:
    """The next basis and probes, from the sums of a sketch pass.

    Attributes
    ----------
    basis : Combination
        Orthonormal.
    probes : Combination or None
        Orthonormal, and orthogonal to the basis.
    largest : float
        Largest Ritz value in the old basis; 0 without a basis.
    noise : float
        Largest magnitude of an eigenvalue that the old probes met.
    error : float
        Distance of the new basis from the eigenvectors of the signals (see `_distance`).
    """

    basis: Combination
    probes: Combination | None
    largest: float
    noise: float
    error: float


def next_directions(
    engine: Engine,
    sketch: Partials,
    basis: StoredColumns | None,
    noise: Partials | None,
    probes: StoredColumns | None,
    *,
    indefinite: bool,
    scale: StoredArray | None = None,
    isotropic: tuple[float, int] | None = None,
) -> Directions:
    """Orthonormalise ``M2 Q``, and the noise outside of its range.

    Where M2 has a negative Ritz value -c, ``(M2 + c I) Q`` is used instead. Sampled moments of distinct positions
    have negative eigenvalues, and a power pass would amplify those of large magnitude; the shift makes the
    algebraically largest eigenvalues dominant. Probes stay outside of the basis: the sampling noise along
    directions of large eigenvalues is large too, but carries no information on the noise elsewhere.

    Isotropic noise adds its variance s to every eigenvalue, which makes unshifted power passes slow:
    ``(M2 - s I) Q`` is used, with s the average of the eigenvalues that are not signals, by trace and Ritz values.

    With a scale D of the words the moment is D M2 D. Passes compute with M2 alone: they multiply with ``D Q``,
    which is what is stored for the basis and the probes, and their sums are multiplied by D here.

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
        Whether M2 may have negative eigenvalues. If not, a large Q need not be read.
    scale : StoredArray of shape (d, 1), optional
        D, positive; None by default.
    isotropic : (float, int), optional
        Trace of M2, and number of eigenvalues above the noise; None (default) without isotropic noise.
    """
    n = sketch.n_rows
    if not indefinite and isotropic is None:
        basis = None
    tall: dict[str, Tall | None] = {"S": sketch, "Q": basis, "N": noise, "P": probes, "D": scale}
    there = {name: item for name, item in tall.items() if item is not None}

    def at_once() -> Directions:
        rows = slice(0, n)
        return _at_once({name: np.asarray(read_rows(item, rows)) for name, item in there.items()}, isotropic)

    if n * sketch.width * 8 <= WHOLE_BYTES:
        return at_once()
    _, grams = engine.maps.map_rows(_products, tuple(there.values()), n, {}, tuple(there))
    ritz = _symmetric_values(grams["QS"]) if basis is not None else np.zeros(1)
    shift = _shift(ritz, n, isotropic) if basis is not None else 0.0
    gram = grams["SS"]
    if shift:
        gram = gram - shift * (grams["QS"] + grams["QS"].T) + shift * shift * np.eye(len(gram))
    error = _distance(grams.get("QS"), gram, shift, isotropic)
    T = cholesky_factor(gram)
    if T is None:
        # Columns that depend on each other can only be found in the whole matrix.
        return at_once()
    terms: list[tuple[Tall, np.ndarray]] = [(sketch, T)]
    if shift:
        assert basis is not None
        terms.append((basis, -shift * T))
    found = Combination(n, T.shape[1], tuple(terms), scale)
    if noise is None:
        return Directions(found, None, float(ritz[-1]), 0.0, error)
    level = np.abs(_symmetric_values(grams["PN"])).max() if probes is not None else 0.0
    inside = T.T @ (grams["SN"] - shift * grams["QN"] if shift else grams["SN"])
    rest = grams["NN"] - inside.T @ inside
    outside = None
    if np.trace(rest) > 1e-18 * np.trace(grams["NN"]):
        factor = cholesky_factor(rest)
        if factor is None:
            return at_once()
        own = [(item, -coefficients @ inside @ factor) for item, coefficients in terms]
        outside = Combination(n, factor.shape[1], ((noise, factor), *own), scale)
    return Directions(found, outside, float(ritz[-1]), float(level), error)


def _shift(ritz: np.ndarray, n: int, isotropic: tuple[float, int] | None) -> float:
    """Return the shift that `next_directions` subtracts from M2, given its Ritz values, ascending."""
    if isotropic is not None:
        trace, n_signals = isotropic
        if n <= n_signals:
            # No direction is left to noise.
            return 0.0
        signals = float(ritz[max(0, len(ritz) - n_signals) :].sum())
        return max((trace - signals) / (n - n_signals), 0.0)
    return float(ritz[0]) if ritz[0] < -1e-9 * abs(ritz[-1]) else 0.0


def _distance(
    inner: np.ndarray | None, gram: np.ndarray, shift: float, isotropic: tuple[float, int] | None
) -> float:
    """Estimate the sine of the largest angle between the next basis and the eigenvectors of the signals.

    For the old basis, the norm of the residuals of the leading Ritz vectors divided by the gap that follows their
    Ritz values bounds it, with the gap estimated from the Ritz values (Davis and Kahan, "The Rotation of
    Eigenvectors by a Perturbation. III", 1970, the sin theta theorem). The multiplication by the moment then
    reduces it by about the ratio of the other Ritz values (their root mean square) to the least one of a signal.

    Parameters
    ----------
    inner : ndarray of shape (r, r) or None
        ``Q'M2 Q``; None without a basis.
    gram : ndarray of shape (r, r)
        ``Q'(M2 - s I)^2 Q``.
    shift : float
        s.
    isotropic : (float, int) or None
        Trace of M2, and number of eigenvalues above the noise.

    Returns
    -------
    float
        At most 1, which it also is without a basis; 0 for moments without isotropic noise.
    """
    if isotropic is None:
        return 0.0
    m = isotropic[1]
    if inner is None or not (np.isfinite(inner).all() and np.isfinite(gram).all()):
        return 1.0
    with one_blas_thread():
        values, vectors = np.linalg.eigh((inner + inner.T) / 2.0)
        values, V = values[::-1] - shift, vectors[:, ::-1][:, :m]
        residuals = V.T @ gram @ V - np.diag(values[:m] ** 2)
        norm = float(np.sqrt(max(_symmetric_values(residuals)[-1], 0.0)))
    least, others = float(values[:m][-1]), values[m:]
    gap = least - max(float(others[0]), 0.0) if len(others) else least
    if not gap > 0.0:
        return 1.0
    reduction = float(np.sqrt(np.mean(others**2))) / least if len(others) else 1.0
    return min(1.0, norm / gap * reduction)


def _at_once(whole: Mapping[str, np.ndarray], isotropic: tuple[float, int] | None = None) -> Directions:
    """Do the same as `next_directions` in memory, also where columns are linearly dependent."""
    D = whole.get("D", np.ones((1, 1)))
    plain = _unscaled(whole)
    S, Q, N, P = plain["S"], plain.get("Q"), plain.get("N"), plain.get("P")
    largest = level = shift = 0.0
    with one_blas_thread():
        inner = None if Q is None else Q.T @ S
        if Q is not None and inner is not None:
            ritz = _symmetric_values(inner)
            largest = float(ritz[-1])
            shift = _shift(ritz, len(S), isotropic)
            if shift:
                S = S - shift * Q
        error = 0.0
        if isotropic is not None:
            # The distance has no unit; without one the squares cannot overflow.
            unit = float(np.abs(S).max()) or 1.0
            scaled = S / unit
            error = _distance(
                None if inner is None else inner / unit, scaled.T @ scaled, shift / unit, isotropic
            )
        basis = orthonormalise([S]).slabs[0]
        found = _in_memory(D * basis)
        if N is None:
            return Directions(found, None, largest, 0.0, error)
        if P is not None:
            level = float(np.abs(_symmetric_values(P.T @ N)).max())
        outside = N - basis @ (basis.T @ N)
        if not np.linalg.norm(outside) > 1e-9 * np.linalg.norm(N):
            return Directions(found, None, largest, level, error)
        return Directions(found, _in_memory(D * orthonormalise([outside]).slabs[0]), largest, level, error)


def _unscaled(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return ``D M2 Q`` and ``Q`` in float64 from the sum ``M2 Q`` and the stored ``D Q``; likewise for probes."""
    wide = {name: np.asarray(slab, np.float64) for name, slab in stored.items()}
    scale = wide.pop("D", None)
    if scale is None:
        return wide
    return {name: slab * scale if name in "SN" else slab / scale for name, slab in wide.items()}


def _in_memory(matrix: np.ndarray) -> Combination:
    return Combination(len(matrix), matrix.shape[1], ((matrix, np.zeros((0, 0))),))


def _symmetric_values(matrix: np.ndarray) -> np.ndarray:
    with one_blas_thread():
        return np.asarray(np.linalg.eigvalsh((matrix + matrix.T) / 2))


def cholesky_factor(gram: np.ndarray) -> np.ndarray | None:
    """Return T such that ``A T`` is orthonormal for A with this Gram matrix; None if it is ill-conditioned."""
    if not np.isfinite(gram).all():
        raise NumericalError("the matrix to orthonormalise has entries that are not finite, or too large")
    squares = np.diag(gram)
    # A square that is a difference of larger ones may be negative by rounding.
    if not (squares > 0.0).all():
        return None
    norms = np.sqrt(squares)
    with one_blas_thread():
        equilibrated = gram / np.outer(norms, norms)
        if float(np.linalg.eigvalsh(equilibrated)[0]) <= SAFE_EIGENVALUE:
            return None
        upper = np.linalg.cholesky(equilibrated).T
        return np.asarray(solve_triangular(upper, np.eye(len(gram))) / norms[:, None])


def _products(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    """Return ``A'B`` of the pairs of matrices that are needed, keyed by both names."""
    names = arguments[-1]
    slabs = dict(zip(names, arguments[:-1], strict=True))
    wide = _unscaled(slabs)
    pairs = (("S", "S"), ("Q", "S"), ("S", "N"), ("Q", "N"), ("P", "N"), ("N", "N"))
    return {}, {a + b: wide[a].T @ wide[b] for a, b in pairs if a in wide and b in wide}
