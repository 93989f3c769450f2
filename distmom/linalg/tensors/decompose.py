"""One interface to the decompositions of a symmetric k x k x k tensor into orthonormal components.

A whitened third moment is ``T = sum_i lambda_i v_i (x) v_i (x) v_i + noise`` with orthonormal ``v_i`` and
``lambda_i = pi_i ** -1/2`` (Anandkumar et al., "Tensor decompositions for learning latent variable models",
JMLR 2014, theorem 4.3). Every method here estimates the pairs ``(lambda_i, v_i)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError, UsageError
from distmom.linalg.checks import generator
from distmom.linalg.tensors.algebraic import flattening_vectors, pencil_vectors
from distmom.linalg.tensors.decomposition import Decomposition, Found, described, ordered
from distmom.linalg.tensors.jacobi import joint_diagonalise, slices
from distmom.linalg.tensors.power import History, PackedCube, power_deflation, power_stopping
from distmom.linalg.tensors.tensor import (
    as_symmetric,
    compose,
    contract_two,
    cubic_form,
    frobenius,
    multilinear,
    near_one,
)
from distmom.linalg.tensors.weights import polar

Array = NDArray[np.float64]

# Up to this size all k slices are diagonalised, which is more accurate.
_ALL_SLICES_UP_TO = 256
#: gain at which sweeps end; smaller ones are left to the polar steps, which take less time
STALL = 1e-3


def decompose(
    T: ArrayLike,
    method: str = "joint",
    *,
    random_state: int = 0,
    initial: ArrayLike | None = None,
    starts: ArrayLike | None = None,
    **options: Any,
) -> Decomposition:
    """Decompose a symmetric tensor into k components.

    Runs on one BLAS thread, so that a seed gives the same bits for any number of cores.

    Parameters
    ----------
    T : array_like of shape (k, k, k)
        Symmetric up to rounding (see `distmom.linalg.symmetrise`).
    method : {"joint", "power", "power-stop", "eca", "flatten", "jennrich"}, default="joint"
        "joint"
            Joint diagonalisation of slices by Jacobi sweeps, followed by simultaneous polar steps on the full
            tensor. Options ``n_slices`` (None: all for k <= 256, else ``8 log2 k`` random slices),
            ``max_sweeps`` (100), ``max_polar_steps`` (50).
        "power"
            Robust tensor power method with restarts and deflation. Options ``n_restarts`` (None:
            ``max(10, 2 k)``), ``n_iter`` (25), ``orthogonalise`` (False: keep the deflated estimates; True:
            replace the vectors by the nearest orthonormal ones), ``shifted`` (False; True: updates that never
            lower ``T(u, u, u)``, but take about 100 iterations).
        "power-stop"
            The same with a stopping condition instead of a fixed number of restarts. Options ``max_restarts``
            (100), ``n_iter`` (25), ``orthogonalise`` (False), ``shifted`` (False).
        "eca"
            All components at once by orthogonal iteration from random bases, with the update
            ``v_i <- T(I, v_i, v_i)`` followed by the nearest orthonormal basis; the best result is returned.
            Options ``n_restarts`` (5),
            ``max_iter`` (200).
        "flatten"
            Singular vectors of the flattening; a baseline that fails on equal eigenvalues.
        "jennrich"
            Eigenvectors of one random contraction; an oracle for exact tensors. Option ``n_draws`` (8).
    random_state : int, default=0
        Seed of all random draws.
    initial : array_like of shape (k, k), optional
        Columns near the components, such as those of a similar tensor, from which "joint" takes its polar steps.
        By default none are given.
    starts : array_like of shape (k, m), optional
        Columns of which some may be near components, such as whitened rows of data. "power" and "power-stop"
        take up to half of their initial vectors from these (section 5.2). Columns of zeros are left out. By
        default all are random.
    **options
        Options of the method, listed above with their defaults.

    Returns
    -------
    Decomposition

    Raises
    ------
    UsageError
        If the method or an option is unknown, an option is out of range, ``initial`` or ``starts`` are given for a
        method that does not take them, ``random_state`` is no seed, or T is not a symmetric cube.
    NumericalError
        If T is zero or not finite.

    References
    ----------
    Anandkumar et al. (JMLR 2014), Algorithms 1 and 2, section 6.2 and appendix D. For "joint": Kuleshov,
    Chaganty, Liang, "Tensor factorization via matrix factorization" (AISTATS 2015). For "eca": Anandkumar,
    Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent Dirichlet Allocation", appendix F.
    """
    if method not in _METHODS:
        raise UsageError(
            f"unknown decomposition method {method!r}, expected one of {', '.join(sorted(_METHODS))}"
        )
    settings = _settings(method, _METHODS[method].options, options)
    given = {name: of for name, of in (("initial", initial), ("starts", starts)) if of is not None}
    for name in given:
        if name != _METHODS[method].vectors:
            raise UsageError(f"{name}: expected method {' or '.join(methods_taking(name))}, got {method!r}")
    with one_blas_thread():
        cube, scale = near_one(as_symmetric(T))
        norm = frobenius(cube)
        if norm == 0.0:
            raise NumericalError(f"the tensor of shape {cube.shape} is zero: there is nothing to decompose")
        checked = {name: _CHECKS[name](of, len(cube)) for name, of in given.items()}
        # Iterations run at norm 1, where no product of three entries can overflow or vanish.
        found = _METHODS[method].run(cube / norm, generator(random_state), settings | checked)
        return _describe(cube, scale, norm, found, method)


def _settings(method: str, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options with the defaults; UsageError for unknown names and invalid values."""
    unknown = sorted(set(options) - set(defaults))
    if unknown:
        known = ", ".join(sorted(defaults)) or "none"
        raise UsageError(f"method {method!r} has no option {', '.join(unknown)}; its options are: {known}")
    for name, value in options.items():
        least = 0 if name == "max_polar_steps" else 1
        if defaults[name] is False:
            valid = isinstance(value, bool)
        else:
            valid = isinstance(value, (int, np.integer)) and int(value) >= least
            valid = valid or (value is None and defaults[name] is None)
        if not valid:
            raise UsageError(f"option {name}={value!r} of method {method!r} is out of range")
    return {**defaults, **options}


def _describe(cube: Array, scale: float, norm: float, found: Found, method: str) -> Decomposition:
    """Fix signs and order, and measure the fit against the tensor, which is the original one over a scale."""
    values = cubic_form(cube, found.vectors) if found.values is None else found.values * norm
    values, V, n_flipped = ordered(values, found.vectors)
    rotated = multilinear(cube, V, V, V)
    energy = float(np.vdot(rotated, rotated))
    index = np.arange(V.shape[0])
    rotated[index, index, index] = 0.0
    residual = frobenius(cube - compose(values, V)) / norm
    share = float(np.vdot(rotated, rotated)) / energy if energy > 0.0 else 0.0
    return described(replace(found, vectors=V), values * scale, n_flipped, residual, share, method)


def _joint(T: Array, rng: np.random.Generator, settings: Mapping[str, Any]) -> Found:
    """Diagonalise slices jointly unless a basis is given, then maximise the objective on the full tensor."""
    if "initial" in settings:
        return _refined(T, settings["initial"], [], True, settings)
    k = T.shape[0]
    n_slices = settings["n_slices"]
    if n_slices is None and k > _ALL_SLICES_UP_TO:
        n_slices = round(8 * np.log2(k))
    # Sweeps may stop early, as the polar steps refine their result.
    V, shares, converged = joint_diagonalise(
        slices(T, n_slices, rng), stall=STALL, max_sweeps=settings["max_sweeps"]
    )
    return _refined(T, V, [("sweep", share) for share in shares], converged, settings)


def _refined(T: Array, V: Array, history: History, converged: bool, settings: Mapping[str, Any]) -> Found:
    """Take polar steps from a basis, and add them to the history."""
    V, residuals, settled = _polar_steps(T, V, settings["max_polar_steps"])
    steps: History = [("polar", residual) for residual in residuals]
    return Found(V, None, history + steps, converged and settled)


def _checked_basis(initial: ArrayLike, k: int) -> Array:
    """Check initial vectors; return them as a float64 array."""
    V = np.asarray(initial, np.float64)
    if V.shape != (k, k) or not np.isfinite(V).all():
        raise UsageError(f"initial: expected finite vectors of shape {(k, k)}, got shape {V.shape}")
    return V


def _checked_starts(starts: ArrayLike, k: int) -> Array:
    """Check initial vectors, and return those that are not zero with unit norm."""
    U = np.asarray(starts, np.float64)
    if U.ndim != 2 or len(U) != k or not np.isfinite(U).all():
        raise UsageError(f"starts: expected finite columns of {k} numbers, got an array of shape {U.shape}")
    norms = np.linalg.norm(U, axis=0)
    return np.asarray(U[:, norms > 0.0] / norms[norms > 0.0])


#: how vectors are checked
_CHECKS = {"initial": _checked_basis, "starts": _checked_starts}


def _polar_steps(T: Array, V: Array, max_steps: int) -> tuple[Array, list[float], bool]:
    """Maximise the sum of squared eigenvalues over orthonormal bases, by polar steps.

    The sum equals ``||T||^2`` minus the squared residual, and ``T(I, V, V) diag(lambda)`` is its gradient up to a
    factor; a step replaces V by the polar factor of the gradient. Without ``diag(lambda)`` the noise would be
    divided equally between the two components of each pair rather than by precision. A step that lowers the
    sum is undone. The iteration ends when a step gains less than 1e-5 of the unexplained part.
    """
    V, cube = polar(V), PackedCube(T)
    gradient = cube.contract_two(V)
    values = np.einsum("in,in->n", V, gradient)
    best = float(values @ values)
    residuals: list[float] = []
    for _ in range(max_steps):
        scaled = gradient * values
        if not scaled.any():
            return V, residuals, True
        candidate = polar(scaled)
        gradient = cube.contract_two(candidate)
        values = np.einsum("in,in->n", candidate, gradient)
        total = float(values @ values)
        if total < best * (1.0 - 1e-14):
            return V, residuals, True
        gain = total - best
        V, best = candidate, total
        residuals.append(float(np.sqrt(max(0.0, 1.0 - best))))
        if gain <= max(1e-12 * best, 1e-5 * (1.0 - best)):
            return V, residuals, True
    return V, residuals, max_steps == 0


def _power(T: Array, rng: np.random.Generator, settings: Mapping[str, Any]) -> Found:
    """Run Algorithm 1."""
    values, V, history, converged = power_deflation(
        T,
        rng,
        n_restarts=settings["n_restarts"],
        n_iter=settings["n_iter"],
        starts=settings.get("starts"),
        shifted=settings["shifted"],
    )
    return _orthogonalised(values, V, history, converged, orthogonalise=settings["orthogonalise"])


def _power_stop(T: Array, rng: np.random.Generator, settings: Mapping[str, Any]) -> Found:
    """Run Algorithm 2."""
    values, V, history, converged = power_stopping(
        T,
        rng,
        max_restarts=settings["max_restarts"],
        n_iter=settings["n_iter"],
        starts=settings.get("starts"),
        shifted=settings["shifted"],
    )
    return _orthogonalised(values, V, history, converged, orthogonalise=settings["orthogonalise"])


def _orthogonalised(
    values: Array, V: Array, history: History, converged: bool, *, orthogonalise: bool
) -> Found:
    """Build the result; if ``orthogonalise``, replace the vectors by the nearest orthonormal ones."""
    if orthogonalise:
        return Found(polar(V), None, history, converged)
    return Found(V, values, history, converged)


def _eca(T: Array, rng: np.random.Generator, settings: Mapping[str, Any]) -> Found:
    """Iterate from random bases and keep the result that explains most of the tensor."""
    best, best_total, history, settled = np.eye(len(T)), -1.0, [], False
    for _ in range(settings["n_restarts"]):
        V = polar(rng.standard_normal(T.shape[:2]))
        converged = False
        for _ in range(settings["max_iter"]):
            gradient = contract_two(T, V)
            if not gradient.any():
                break
            following = polar(gradient)
            change = float(np.abs(following - V).max())
            V = following
            if change < 1e-13:
                converged = True
                break
        values = cubic_form(T, V)
        total = float(values @ values)
        history.append(("restart", float(np.sqrt(max(0.0, 1.0 - total)))))
        if total > best_total:
            best, best_total, settled = V, total, converged
    return Found(best, None, history, settled)


def _flatten(T: Array, rng: np.random.Generator, settings: Mapping[str, Any]) -> Found:
    """Use the singular vectors of the flattening."""
    return Found(flattening_vectors(T), None, [], True)


def _jennrich(T: Array, rng: np.random.Generator, settings: Mapping[str, Any]) -> Found:
    """Use the eigenvectors of one random contraction."""
    return Found(pencil_vectors(T, rng, n_draws=settings["n_draws"]), None, [], True)


@dataclass(frozen=True)
class _Method:
    """How a method is run, and the options that it takes.

    Attributes
    ----------
    run : callable
        Takes a tensor of norm one, a generator and the options with the vectors that are given.
    options : dict
        Names and defaults; False marks a choice, None a number that the method chooses.
    vectors : {"initial", "starts"} or None
        Name of the parameter for vectors that may be near components, if it takes any.
    """

    run: Callable[[Array, np.random.Generator, Mapping[str, Any]], Found]
    options: Mapping[str, Any]
    vectors: str | None = None


_METHODS = {
    "joint": _Method(_joint, {"n_slices": None, "max_sweeps": 100, "max_polar_steps": 50}, "initial"),
    "power": _Method(
        _power, {"n_restarts": None, "n_iter": 25, "orthogonalise": False, "shifted": False}, "starts"
    ),
    "power-stop": _Method(
        _power_stop, {"max_restarts": 100, "n_iter": 25, "orthogonalise": False, "shifted": False}, "starts"
    ),
    "eca": _Method(_eca, {"n_restarts": 5, "max_iter": 200}),
    "flatten": _Method(_flatten, {}),
    "jennrich": _Method(_jennrich, {"n_draws": 8}),
}

METHODS = tuple(_METHODS)


def methods_taking(vectors: str) -> tuple[str, ...]:
    """Return the methods that take ``initial`` vectors or ``starts``."""
    return tuple(name for name, method in _METHODS.items() if method.vectors == vectors)
