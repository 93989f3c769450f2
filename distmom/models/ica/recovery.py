"""From the fourth moment of projected rows to independent components.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models"
(JMLR 2014), theorem 3.4. With ``y = P'(x - m) = A h + z``, h independent with variance one and z Gaussian,
the fourth cumulant of y is ``sum_i kappa_i a_i (x) a_i (x) a_i (x) a_i`` with the excess kurtoses kappa_i and
the columns a_i of A: Gaussian noise does not enter it. Where the covariance N of the noise is known and S is
that of y, ``W'(S - N) W = I`` makes the columns of ``W'A`` orthonormal, and they are found by joint
diagonalisation of contractions of the cumulant (Cardoso and Souloumiac, "Blind beamforming for non Gaussian
signals", IEE Proceedings F 140, 1993) or by the power method. Where N is not known, contractions are
diagonalised by a basis that need not be orthogonal, or, for kurtoses of one sign, the cumulant contracted
with all axes takes the place of the covariance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError
from distmom.linalg import polar
from distmom.linalg.factors import Slices
from distmom.linalg.tensors.jacobi import joint_diagonalise
from distmom.linalg.tensors.pencil import joint_basis, off_diagonal_share, pencil_basis, transformed
from distmom.linalg.tensors.quartic import (
    axis_slices,
    contracted_cumulants,
    fourth_cumulant,
    map_quartic,
    quartic_power,
)
from distmom.linalg.whiten import whiten
from distmom.moments.rows.ica import FourthMoment, n_pairs
from distmom.spectral.program.run import Decomposed, unknown

METHODS = ("joint", "power", "pencil")
#: factor on negative kurtoses for their comparison with positive ones: those of Gaussian samples are smaller
LIGHT_TAILS = 1.5
#: kurtoses below this are attributed to rounding
ROUNDING = 1e-8
#: change of the sources in a step of refinement at which it has converged: 1 minus the cosine of the largest angle
CONVERGED = 1e-8
#: added to the diagonal of the covariance of functions of a source, in units of their variances
RIDGE = 1e-4


@dataclass(frozen=True)
class Found(Decomposed):
    """Independent components of projected rows.

    Attributes
    ----------
    mixing, unmixing : ndarray of shape (k, k)
        A, whose columns belong to sources of variance one, and its inverse.
    kurtosis : ndarray of shape (k,)
    cumulants : Slices
        Contractions of the fourth cumulant of the projected rows.
    n_sampled : int
    moved : float
        Change in the last step of refinement; infinite before the first one.
    diagnostics : dict
    """

    mixing: np.ndarray
    unmixing: np.ndarray
    kurtosis: np.ndarray
    cumulants: Slices
    n_sampled: int
    moved: float
    diagnostics: dict[str, Any]

    @property
    def n_components(self) -> int:
        return len(self.kurtosis)

    @classmethod
    def upto(cls, k: int) -> Found:
        """Return components of known shapes without content, for a ledger."""
        return cls(unknown(k, k), unknown(k, k), unknown(k), unknown(), unknown(), unknown(), unknown())


def recover(
    moments: FourthMoment,
    noise: np.ndarray | None,
    method: str,
    seed: int,
    left: np.ndarray | None,
    right: np.ndarray | None,
) -> Found:
    """Find the components in the moments of projected rows; runs on the scheduler node.

    Parameters
    ----------
    moments : FourthMoment
    noise : ndarray of shape (k, k), optional
        Covariance of the noise; None if it is not known.
    method : {"joint", "power", "pencil"}
    seed : int
    left, right : ndarray of shape (k, m), optional
        The directions of the contractions; None for the whole moment.

    Raises
    ------
    NumericalError
        If the moments are not finite, the noise leaves no variance, or, with ``method="power"`` and noise
        that is not known, the kurtoses have both signs.
    """
    if not (np.isfinite(moments.second).all() and np.isfinite(moments.fourth).all()):
        raise NumericalError("the fourth moments of the rows overflow: scale the rows")
    with one_blas_thread():
        rng = np.random.default_rng(seed)
        tensor = None
        if left is None or right is None:
            tensor = fourth_cumulant(moments.fourth, moments.second)
            matrices, left, right = axis_slices(tensor)
        else:
            matrices = contracted_cumulants(moments.fourth, moments.second, left, right)
        cumulants = Slices(matrices, (left, right))
        # Where the noise is not known, the noise that is left in the sources counts as part of them.
        signal = moments.second - (0.0 if noise is None else noise)
        diagnostics: dict[str, Any] = {"converged": True}
        if method == "power":
            assert tensor is not None
            unmixing = _by_power(tensor, None if noise is None else signal, rng)
        elif method == "joint" and noise is not None:
            unmixing = _by_rotations(tensor, cumulants, signal)
        else:
            unmixing = pencil_basis(matrices, rng)
            if method == "joint":
                unmixing, diagnostics["converged"] = joint_basis(matrices, unmixing)
            elif noise is not None:
                unmixing = _uncorrelated(unmixing, signal)
        spread = np.einsum("ia,ab,ib->i", unmixing, signal, unmixing)
        if not (spread > 0.0).all():
            raise NumericalError("the noise leaves no variance to some components: use fewer components")
        unmixing = unmixing / np.sqrt(spread)[:, None]
        mixing = np.linalg.inv(unmixing)
        diagnostics["off_diagonal_share"] = off_diagonal_share(matrices, unmixing)
        diagnostics["method"] = method
        kurtosis = kurtosis_of(cumulants, mixing, unmixing)
    return Found(mixing, unmixing, kurtosis, cumulants, moments.n_sampled, float("inf"), diagnostics)


def kurtosis_of(cumulants: Slices, mixing: np.ndarray, unmixing: np.ndarray) -> np.ndarray:
    """Return the excess kurtosis of every source.

    Contractions with all pairs of axes give that of the estimated sources; from fewer contractions it is
    determined by least squares.
    """
    along = np.einsum("iim->im", transformed(cumulants.matrices, unmixing))
    left, right = cumulants.directions
    k, m = left.shape
    if m == n_pairs(k):
        return np.asarray(np.sum(along * (unmixing @ left) * (unmixing @ right), axis=1))
    factors = (mixing.T @ left) * (mixing.T @ right)
    return np.asarray(np.sum(along * factors, axis=1) / np.maximum(np.sum(factors**2, axis=1), 1e-300))


def gaussian_level(n_components: int, n_rows: int) -> float:
    """Return the largest kurtosis that is found in Gaussian rows, for a number of their components.

    The standard error of the kurtosis of n Gaussian values is ``sqrt(24 / n)``; the factor, which accounts
    for the choice of the components, was determined by simulation. An enumerated population (``n_rows`` is 0)
    has no error.
    """
    error = np.sqrt(24.0 / n_rows) if n_rows else 0.0
    return float(max(error * (1.0 + 2.0 * np.sqrt(n_components)), ROUNDING))


def magnitudes(kurtosis: np.ndarray) -> np.ndarray:
    """Return the magnitudes of kurtoses in which those of Gaussian samples are symmetric about zero."""
    return np.asarray(np.maximum(kurtosis, -LIGHT_TAILS * kurtosis))


def n_gaussian(kurtosis: np.ndarray, n_rows: int) -> int:
    """Return the number of components whose kurtosis cannot be distinguished from that of Gaussian noise.

    There are none unless the two kurtoses of least magnitude are as small as those of two Gaussian components, or
    all are as small as those of Gaussian rows: components that are far from Gaussian need fewer rows than all
    components of noise would.
    """
    ascending = np.sort(magnitudes(kurtosis))
    levels = np.array([gaussian_level(max(2, i + 1), n_rows) for i in range(len(ascending))])
    small = ascending <= levels
    if small[:2].all() or small[-1]:
        return 1 + int(np.flatnonzero(small)[-1])
    return int(small[0])


def checked(found: Found, any_noise: bool, drop: bool) -> Found:
    """Return the components with the number of Gaussian ones among their diagnostics, or refuse these.

    A single Gaussian component is determined as the rest of the space, unless the noise is not known.

    Raises
    ------
    NumericalError
        If Gaussian components cannot be distinguished and are not to be left out, or if all are Gaussian.
    """
    n, k = n_gaussian(found.kurtosis, found.n_sampled), found.n_components
    least = 0 if any_noise else 1
    level = gaussian_level(max(2, n), found.n_sampled)
    if n > least and (not drop or n == k):
        shown = ", ".join(f"{x:.3g}" for x in sorted(found.kurtosis, key=abs)[:10])
        raise NumericalError(
            f"{n} of {k} components have an excess kurtosis between {-level / LIGHT_TAILS:.3g} and {level:.3g}, "
            "as in Gaussian rows: they cannot be separated from each other; the kurtoses of least magnitude are "
            f"{shown}; use more rows, fewer components, or gaussian='drop' to leave them out"
        )
    facts = {**found.diagnostics, "kurtosis_level": level, "n_gaussian": n if n > least else 0}
    return replace(found, diagnostics=facts)


def stepped(sums: Any, found: Found) -> Found:
    """Return the components after a step of quasi-maximum likelihood.

    Sources: Pham and Garat, "Blind separation of mixture of independent sources through a quasi-maximum likelihood
    approach" (IEEE Transactions on Signal Processing 45, 1997) for the score of a source as the best linear
    combination of fixed functions; Hyvärinen, "Fast and robust fixed-point algorithms for independent component
    analysis" (IEEE Transactions on Neural Networks 10, 1999), equations 20 and 22, for the step and its
    orthonormalisation.

    With functions g of a source, ``d = E[s g(s)] - E[g'(s)]`` and C the covariance of what is left of g(s) after
    regression on s, the combination ``d'C^-1 g`` gives the least variance of the angles between sources.
    """
    mass = float(sums["mass"])
    slopes, curvatures, means, products = (
        np.asarray(sums[name]) / mass for name in ("slopes", "curvatures", "means", "products")
    )
    n, k = curvatures.shape
    along = np.einsum("gii->gi", slopes)
    lower = np.tril_indices(n)
    covariance = np.zeros((k, n, n))
    covariance[:, lower[0], lower[1]] = covariance[:, lower[1], lower[0]] = products[lower].T
    covariance -= np.einsum("gi,fi->igf", means, means) + np.einsum("gi,fi->igf", along, along)
    # Each function in units of its own deviation; where nothing is left of it, the ridge bounds its weight.
    scale = np.sqrt(np.einsum("gg->g", products.mean(axis=2)))
    covariance = covariance / np.multiply.outer(scale, scale) + RIDGE * np.eye(n)
    gains = ((along - curvatures) / scale[:, None]).T
    with one_blas_thread():
        weights = np.linalg.solve(covariance, gains[:, :, None])[:, :, 0] / scale
        steps = np.einsum("ig,gij->ji", weights, slopes) - np.diag(np.einsum("ig,gi->i", weights, curvatures))
        rotation = polar(steps)
        unmixing = rotation.T @ found.unmixing
        mixing = found.mixing @ rotation
        kurtosis = kurtosis_of(found.cumulants, mixing, unmixing)
        share = off_diagonal_share(found.cumulants.matrices, unmixing)
    moved = float(np.max(1.0 - np.abs(np.diag(rotation))))
    changes = [*found.diagnostics.get("changes", []), moved]
    facts = {
        **found.diagnostics,
        "off_diagonal_share": share,
        "changes": changes,
        "converged": moved <= CONVERGED,
    }
    return replace(found, mixing=mixing, unmixing=unmixing, kurtosis=kurtosis, moved=moved, diagnostics=facts)


def _by_rotations(tensor: np.ndarray | None, cumulants: Slices, signal: np.ndarray) -> np.ndarray:
    """Whiten and rotate: contractions of the whitened cumulant become diagonal as far as possible."""
    white = whiten(signal, len(signal), noise=0.0)
    if tensor is not None:
        matrices = axis_slices(map_quartic(tensor, white.W))[0]
    else:
        matrices = transformed(cumulants.matrices, white.W.T)
    V = joint_diagonalise(np.ascontiguousarray((matrices + matrices.transpose(1, 0, 2)) / 2.0))[0]
    return np.asarray(V.T @ white.W.T)


def _uncorrelated(unmixing: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """Return the nearest unmixing, in whitened coordinates, whose sources are uncorrelated."""
    white = whiten(signal, len(signal), noise=0.0)
    rows = unmixing @ white.B
    return np.asarray(polar(rows / np.linalg.norm(rows, axis=1)[:, None]) @ white.W.T)


def _by_power(tensor: np.ndarray, signal: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Whiten by the covariance, or by the cumulant itself contracted with all axes, and take power steps."""
    sign = 1.0
    if signal is None:
        signal = np.einsum("abcc->ab", tensor)
        values = np.linalg.eigvalsh(signal)
        if values[0] < 0.0 < values[-1]:
            shown = ", ".join(f"{x:.3g}" for x in values)
            raise NumericalError(
                "decomposition='power' with noise='gaussian' needs kurtoses of one sign, but the cumulant "
                f"contracted with all axes has the eigenvalues {shown}; use decomposition='joint'"
            )
        sign = -1.0 if values[0] < 0.0 else 1.0
    white = whiten(sign * signal, len(signal), noise=0.0)
    V = quartic_power(sign * map_quartic(tensor, white.W), rng)
    return np.asarray(V.T @ white.W.T)
