"""A basis for the range of a second moment, by a sketch pass and power passes (a randomised range finder).

A basis that is too large for memory is orthonormalised slab by slab of rows: the Gram matrices of the slabs add
up to small matrices, these give the coefficients of the new basis in terms of the old matrices, and a second
round over the slabs writes it. Sources: see `distmom.linalg.orthonormal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from distmom.blas import one_blas_thread
from distmom.engine import Engine, Partials, StoredArray, StoredColumns, Tallies, TallResult
from distmom.engine.sums.tall import Tall, read_rows
from distmom.errors import NumericalError
from distmom.linalg import orthonormalise
from distmom.moments.sketching import SketchPass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.recovery import WHOLE_BYTES, Slabs, column_edges, store_columns

#: columns that measure the sampling noise of a second moment of distinct positions
N_PROBES = 8
#: factor on the noise that the probes measure: power passes drive the basis towards the largest noise, which a few
#: passes of independent probes underestimate
PROBE_MARGIN = 1.5
#: smallest eigenvalue of an equilibrated Gram matrix for which Cholesky is used: the departure from orthonormality
#: is about eps divided by it
SAFE_EIGENVALUE = 1e-9


@dataclass(frozen=True)
class Basis:
    """A basis for moments.

    Attributes
    ----------
    matrix : StoredColumns of shape (d, rank)
        Q, or ``scale * Q`` where rows are scaled: the matrix that passes multiply rows with.
    rank : int
        Number of columns.
    noise : float
        Level below which an eigenvalue of M2 is noise, as a share of the largest (see `_next_basis`).
    mean : StoredArray of shape (d, 1) or None
        Mean of the rows, from sketches that add it up; None (default) for others.
    error : float or None
        Estimate of the sine of the largest angle between the basis and an eigenvector above isotropic noise (see
        `_distance`); None (default) for other moments, and for a basis of a whole moment.
    """

    matrix: StoredColumns
    rank: int
    noise: float
    mean: StoredArray | None = None
    error: float | None = None


def range_basis(
    run: Run,
    sketch: SketchPass,
    n_power_iter: int,
    dtype: str,
    n_slabs: int = 1,
    *,
    indefinite: bool,
    scale: StoredArray | None = None,
    n_signals: int | None = None,
) -> Basis:
    """Find a basis for the range of a second moment in ``n_power_iter + 1`` passes.

    Parameters
    ----------
    run : Run
    sketch : SketchPass
        The first pass, with a random test matrix; later passes multiply with the basis and probes found so far.
    n_power_iter : int
        Passes after the first.
    dtype : str
        Type of the basis.
    n_slabs : int, default 1
        Number of slabs of columns in which the basis is stored.
    indefinite : bool
        Whether the moment may have negative eigenvalues.
    scale : StoredArray of shape (d, 1), optional
        Positive diagonal D; the range is then that of D M2 D, with M2 the moment of the passes. None by default.
    n_signals : int, optional
        Number of eigenvalues above isotropic noise, whose variance is estimated after every pass and
        subtracted (see `_next_directions`). The sketch adds up ``squares``, the trace of M2. Where it also adds
        up the ``mean`` of the rows, that is subtracted from the rows in the later passes. None by default.

    Raises
    ------
    NumericalError
        If no document is long enough for the moments.
    """
    d, r, n_probes = sketch.n_features, sketch.n_columns, sketch.n_probes
    basis: StoredColumns | None = None
    probes: StoredColumns | None = None
    mean: StoredArray | None = None
    pass_, noise = sketch, 0.0
    error: float | None = None
    centres = n_signals is not None and "mean" in sketch.specs()
    for _ in range(n_power_iter + 1):
        out = {"basis": unknown_columns(d, r, n_slabs)}
        if n_probes:
            out["probes"] = unknown_columns(d, n_probes)
        if centres and mean is None:
            out["mean"] = unknown_columns(d, 1)
        # Results of models without isotropic noise keep their fingerprint.
        more = () if n_signals is None else (n_signals,)
        scanned = run.scan(
            pass_, _next_basis, basis, probes, n_slabs, dtype, indefinite, scale, *more,
            out=TallResult(out, {"rank": r, "n_probes": n_probes, "noise": unknown(), "error": unknown()}),
        )  # fmt: skip
        basis, r = scanned.states["basis"], scanned.values["rank"]
        probes, n_probes = scanned.states.get("probes"), scanned.values["n_probes"]
        noise = scanned.values["noise"]
        error = scanned.values["error"] if n_signals is not None else None
        pass_ = replace(sketch, n_columns=r, basis=basis, n_probes=n_probes, probes=probes)
        if centres:
            mean = mean if mean is not None else scanned.states["mean"].parts[0]
            pass_ = pass_.about(mean)
    assert basis is not None
    return Basis(basis, r, noise, mean, error)


def unknown_columns(n_rows: int, width: int, n_slabs: int = 1) -> StoredColumns:
    """Return a stored matrix of known shape without content, for a ledger."""
    edges = column_edges(width, n_slabs)
    return StoredColumns(tuple(unknown(n_rows, cut.stop - cut.start) for cut in edges))


def _next_basis(
    engine: Engine,
    tallies: Tallies,
    basis: StoredColumns | None,
    probes: StoredColumns | None,
    n_slabs: int,
    dtype: str,
    indefinite: bool,
    scale: StoredArray | None,
    n_signals: int | None = None,
) -> TallResult:
    """Orthonormalise ``M2 Q`` and the product with the probes, and measure the noise.

    The level of noise is `PROBE_MARGIN` times the largest magnitude met by the probes, as a share of the
    largest Ritz value.
    """
    if not float(tallies.sums["mass"]) > 0.0:
        raise NumericalError(
            "no document is long enough for the moments: pairs of words, which suffice for anchor words, need "
            "documents of 2 words, triples need 3, quadruples need 4"
        )
    trace = None if n_signals is None else float(tallies.sums["squares"])
    if trace == 0.0:
        raise NumericalError("expected rows that differ from each other, got rows that are all equal")
    directions = _next_directions(
        engine, tallies.tall["sketch"], basis, tallies.tall.get("noise"), probes,
        indefinite=indefinite, scale=scale, isotropic=None if trace is None else (trace, n_signals or 0),
    )  # fmt: skip
    states = {"basis": _store_columns(engine, directions.basis, dtype, n_slabs)}
    if "mean" in tallies.tall:
        total = tallies.tall["mean"]
        mean = np.asarray(read_rows(total, slice(0, total.n_rows))) / float(tallies.sums["mass"])
        states["mean"] = StoredColumns((engine.put(mean),))
    n_probes = directions.probes.width if directions.probes is not None else 0
    if directions.probes is not None and n_probes:
        states["probes"] = _store_columns(engine, directions.probes, dtype, 1)
    noise = PROBE_MARGIN * directions.noise / directions.largest if directions.largest > 0.0 else 0.0
    values = {"rank": directions.basis.width, "n_probes": n_probes, "noise": noise, "error": directions.error}
    return TallResult(states, values)


@dataclass(frozen=True)
class _Combination:
    """A tall matrix ``sum_i A_i C_i``, not formed yet.

    Attributes
    ----------
    n_rows, width : int
    terms : tuple of (Tall, ndarray)
        Tall matrices and coefficients.
    scale : StoredArray of shape (n_rows, 1), optional
        Its squares multiply the rows of the sums (see `_next_directions`).
    """

    n_rows: int
    width: int
    terms: tuple[tuple[Tall, np.ndarray], ...]
    scale: StoredArray | None = None


@dataclass(frozen=True)
class _Directions:
    """The next basis and probes, from the sums of a sketch pass.

    Attributes
    ----------
    basis : _Combination
        Orthonormal.
    probes : _Combination or None
        Orthonormal, and orthogonal to the basis.
    largest : float
        Largest Ritz value in the old basis; 0 without a basis.
    noise : float
        Largest magnitude of an eigenvalue that the old probes met.
    error : float
        Distance of the new basis from the eigenvectors of the signals (see `_distance`).
    """

    basis: _Combination
    probes: _Combination | None
    largest: float
    noise: float
    error: float


def _next_directions(
    engine: Engine,
    sketch: Partials,
    basis: StoredColumns | None,
    noise: Partials | None,
    probes: StoredColumns | None,
    *,
    indefinite: bool,
    scale: StoredArray | None = None,
    isotropic: tuple[float, int] | None = None,
) -> _Directions:
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

    def at_once() -> _Directions:
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
    T = _cholesky_factor(gram)
    if T is None:
        # Columns that depend on each other can only be found in the whole matrix.
        return at_once()
    terms: list[tuple[Tall, np.ndarray]] = [(sketch, T)]
    if shift:
        assert basis is not None
        terms.append((basis, -shift * T))
    found = _Combination(n, T.shape[1], tuple(terms), scale)
    if noise is None:
        return _Directions(found, None, float(ritz[-1]), 0.0, error)
    level = np.abs(_symmetric_values(grams["PN"])).max() if probes is not None else 0.0
    inside = T.T @ (grams["SN"] - shift * grams["QN"] if shift else grams["SN"])
    rest = grams["NN"] - inside.T @ inside
    outside = None
    if np.trace(rest) > 1e-18 * np.trace(grams["NN"]):
        factor = _cholesky_factor(rest)
        if factor is None:
            return at_once()
        own = [(item, -coefficients @ inside @ factor) for item, coefficients in terms]
        outside = _Combination(n, factor.shape[1], ((noise, factor), *own), scale)
    return _Directions(found, outside, float(ritz[-1]), float(level), error)


def _shift(ritz: np.ndarray, n: int, isotropic: tuple[float, int] | None) -> float:
    """Return the shift that `_next_directions` subtracts from M2, given its Ritz values, ascending."""
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


def _at_once(whole: Mapping[str, np.ndarray], isotropic: tuple[float, int] | None = None) -> _Directions:
    """Do the same as `_next_directions` in memory, also where columns are linearly dependent."""
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
            return _Directions(found, None, largest, 0.0, error)
        if P is not None:
            level = float(np.abs(_symmetric_values(P.T @ N)).max())
        outside = N - basis @ (basis.T @ N)
        if not np.linalg.norm(outside) > 1e-9 * np.linalg.norm(N):
            return _Directions(found, None, largest, level, error)
        return _Directions(found, _in_memory(D * orthonormalise([outside]).slabs[0]), largest, level, error)


def _unscaled(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return ``D M2 Q`` and ``Q`` in float64 from the sum ``M2 Q`` and the stored ``D Q``; likewise for probes."""
    wide = {name: np.asarray(slab, np.float64) for name, slab in stored.items()}
    scale = wide.pop("D", None)
    if scale is None:
        return wide
    return {name: slab * scale if name in "SN" else slab / scale for name, slab in wide.items()}


def _in_memory(matrix: np.ndarray) -> _Combination:
    return _Combination(len(matrix), matrix.shape[1], ((matrix, np.zeros((0, 0))),))


def _symmetric_values(matrix: np.ndarray) -> np.ndarray:
    with one_blas_thread():
        return np.asarray(np.linalg.eigvalsh((matrix + matrix.T) / 2))


def _cholesky_factor(gram: np.ndarray) -> np.ndarray | None:
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


def _store_columns(engine: Engine, what: _Combination, dtype: str, n_slabs: int) -> StoredColumns:
    """Form a combination and store it in slabs of columns."""
    (matrix, coefficients), *others = what.terms
    if isinstance(matrix, np.ndarray) and not coefficients.size:
        edges = column_edges(what.width, n_slabs)
        return StoredColumns(tuple(engine.put(matrix[:, cut].astype(dtype)) for cut in edges))
    terms = ((matrix, coefficients), *others)
    inputs = tuple(item for item, _ in terms)
    scaled = [what.scale is not None and isinstance(item, Partials) for item in inputs]
    return store_columns(
        engine, _combine, inputs if what.scale is None else (*inputs, what.scale), what.n_rows,
        {"it": (what.width, n_slabs)}, dtype, [c for _, c in terms], scaled,
    )["it"]  # fmt: skip


def _combine(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    *slabs, coefficients, scaled = arguments
    # Squared: once as sums of the passes lack the scale, once as the stored basis includes it.
    factor = np.asarray(slabs.pop(), np.float64) ** 2 if any(scaled) else 1.0
    products = (np.asarray(a, np.float64) @ c for a, c in zip(slabs, coefficients, strict=True))
    total = sum(product * factor if by else product for product, by in zip(products, scaled, strict=True))
    return {"it": np.asarray(total)}, {}


def orthonormal_basis(sketch: np.ndarray) -> np.ndarray:
    """Orthonormalise a matrix in memory and return the (d, rank) basis, float64."""
    with one_blas_thread():
        return orthonormalise([sketch]).slabs[0]
