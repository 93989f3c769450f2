"""Three views of one hidden variable, decomposed by the conditional means of one of them.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
sections 3.3 and 3.3.1, proposition 3.2 and theorem 3.6. With ``P_st = E[y_s y_t']``, ``(P_cb P_ab^-1) y_a`` and
``(P_ca P_ba^-1) y_b`` have the conditional means ``mu_i`` of view c, so that the second and third moments of the
three are ``sum_i w_i mu_i mu_i'`` and ``sum_i w_i mu_i^(x3)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError
from distmom.linalg import Decomposition, Whitening, decompose, fix_signs, multilinear, symmetrise
from distmom.moments.three_views import N_GROUPS, PAIRS, GroupMoments, GroupPairs, group_moments, group_pairs
from distmom.spectral.steps.core import whiten_moment

#: least singular value of the moment of two views, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-12


@contextmanager
def advising(remedy: str) -> Iterator[None]:
    """Add a remedy, if there is one, to the error of moments that carry too few components; a context manager."""
    try:
        yield
    except NumericalError as error:
        raise NumericalError(f"{error}; {remedy}" if remedy else str(error)) from error


def random_views(d: int, n: int, seed: int) -> list[np.ndarray]:
    """Return n random partitions of d columns into three views of nearly equal sizes.

    Conditional means A of all columns keep their rank in every view with high probability if no column has a large
    leverage (proposition 3.2).

    Parameters
    ----------
    d, n : int
    seed : int

    Returns
    -------
    list of ndarray of shape (d,), int64
        View of every column, 0 to 2; the smallest view has ``d // 3`` columns.
    """
    rng = np.random.default_rng(seed)
    return [rng.permutation(d) % N_GROUPS for _ in range(n)]


@dataclass(frozen=True)
class ViewComponents:
    """Components of three views.

    Attributes
    ----------
    means : ndarray of shape (k, k)
        Conditional means of view c, in its coordinates.
    weights : ndarray of shape (k,)
        Probabilities of the components, of sum one up to errors of the moments.
    diagnostics : dict
    """

    means: np.ndarray
    weights: np.ndarray
    diagnostics: dict[str, Any]


@dataclass(frozen=True)
class ViewMaps:
    """Maps that turn two views into copies of the last one, up to noise.

    Attributes
    ----------
    from_a, from_b : ndarray of shape (k, k)
        ``P_cb P_ab^-1`` and ``P_ca P_ba^-1``.
    white : Whitening
        Whitening of the second moment of view c, in its coordinates.
    asymmetry : float
        Relative asymmetry of the second moment before it was symmetrised.
    """

    from_a: np.ndarray
    from_b: np.ndarray
    white: Whitening
    asymmetry: float


@dataclass(frozen=True)
class SymmetricView(ViewMaps):
    """The second and third moments of three views, symmetrised towards the last one.

    Attributes
    ----------
    third : ndarray of shape (k, k, k)
        The third moment in whitened coordinates, symmetrised.
    """

    third: np.ndarray


def shared_range(pairs: np.ndarray, k: int, first: np.ndarray | None = None) -> np.ndarray:
    """Return an orthonormal basis (r, k) of the range that the views of all pairs share.

    Parameters
    ----------
    pairs : ndarray of shape (r, m)
        Moments of pairs of views side by side.
    k : int
    first : ndarray of shape (r, 1), optional
        The first column of the basis; none is given by default.

    Raises
    ------
    NumericalError
        If the rank of the pairs is less than k.
    """
    rest = pairs if first is None else pairs - first @ (first.T @ pairs)
    left, values, _ = np.linalg.svd(rest)
    known = 0 if first is None else 1
    n = known + int(np.sum(values > _LEAST_SHARE * np.linalg.norm(pairs, 2)))
    if n < k:
        raise NumericalError(
            f"n_components={k}: expected moments of windows of at least that rank, got {n}; use a smaller "
            "number, or more data"
        )
    return left[:, :k] if first is None else np.hstack([first, left[:, : k - 1]])


def view_maps(ab: np.ndarray, ac: np.ndarray, bc: np.ndarray) -> ViewMaps:
    """Return the maps that symmetrise three views towards the last one; parameters as for `decompose_views`."""
    from_a, from_b = mapped(bc.T, ab), mapped(ac.T, ab.T)
    second = from_a @ ac
    asymmetry = float(np.linalg.norm(second - second.T) / np.linalg.norm(second))
    second = (second + second.T) / 2.0
    # All k eigenvalues are needed, and a negative one shows how far noise has moved them.
    white = whiten_moment(second, len(second), max(-float(np.linalg.eigvalsh(second)[0]), 0.0))
    return ViewMaps(from_a, from_b, white, asymmetry)


def symmetric_view(
    ab: np.ndarray,
    ac: np.ndarray,
    bc: np.ndarray,
    triples: np.ndarray,
    coordinates: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> SymmetricView:
    """Symmetrise three views towards the last one, and whiten it; parameters as for `decompose_views`."""
    of, (u_a, u_b, u_c) = view_maps(ab, ac, bc), coordinates
    third = multilinear(triples, u_a @ of.from_a.T, u_b @ of.from_b.T, u_c)
    W = of.white.W
    white_third = symmetrise(multilinear(third, W, W, W))
    return SymmetricView(of.from_a, of.from_b, of.white, of.asymmetry, white_third)


def decompose_views(
    ab: np.ndarray,
    ac: np.ndarray,
    bc: np.ndarray,
    triples: np.ndarray,
    coordinates: tuple[np.ndarray, np.ndarray, np.ndarray],
    method: str,
    seed: int = 0,
) -> ViewComponents:
    """Symmetrise three views towards the last one, and decompose their third moment.

    Parameters
    ----------
    ab, ac, bc : ndarray of shape (k, k)
        ``P_ab``, ``P_ac`` and ``P_bc`` in coordinates of the ranges of the views.
    triples : ndarray of shape (r_a, r_b, r_c)
        ``E[y_a y_b y_c]``.
    coordinates : tuple of ndarray of shape (r, k)
        Orthonormal bases of the ranges of a, b and c.
    method : str
        A method of `distmom.linalg.decompose`.
    seed : int, default 0
        Seed of the method.

    Raises
    ------
    NumericalError
        If the symmetrised second moment carries fewer than k components.
    """
    view = symmetric_view(ab, ac, bc, triples, coordinates)
    return _components(view, decompose(view.third, method, random_state=seed))


def _components(of: ViewMaps, found: Decomposition) -> ViewComponents:
    """Return the components of view c by a decomposition of its whitened third moment."""
    white = of.white
    weights = found.eigenvalues**-2.0
    return ViewComponents(
        white.B @ (found.eigenvectors * found.eigenvalues),
        weights,
        {
            "asymmetry": of.asymmetry,
            "residual": float(found.residual),
            "sum_weights": float(weights.sum()),
            "eigenvalues": [float(x) for x in found.eigenvalues],
            "spectrum": [float(x) for x in white.eigenvalues],
        },
    )


def mapped(target: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return ``target source^-1``; a NumericalError if the source is singular up to rounding."""
    values = np.linalg.svd(source, compute_uv=False)
    k = len(values)
    least = k * float(np.finfo(float).eps) * values[0]
    if not values[-1] > least:
        shown = ", ".join(f"{x:.3g}" for x in values)
        raise NumericalError(
            f"the cross moment of two views is singular: {k} components need {k} singular values above "
            f"{least:.3g}, got {shown}; use fewer components, or more data"
        )
    return np.asarray(np.linalg.solve(source.T, target.T).T)


def load_moments(directory: str) -> GroupMoments:
    """Return the moments that a committed pass has added up."""
    return group_moments(load_sums(directory)[0])


def load_pairs(directory: str) -> GroupPairs:
    """Return the moments up to the second order that a committed pass has added up."""
    return group_pairs(load_sums(directory)[0])


@dataclass(frozen=True)
class AlignedViews:
    """Conditional means of three views, with the components in one order.

    Attributes
    ----------
    means : ndarray of shape (3, r, k)
    weights : ndarray of shape (k,)
        Probabilities of the components, of sum one up to errors of the moments.
    diagnostics : dict
    """

    means: np.ndarray
    weights: np.ndarray
    diagnostics: dict[str, Any]


def align_views(moments: GroupMoments, k: int, method: str, seed: int = 0) -> AlignedViews:
    """Decompose three views towards the last one, and return the conditional means of all.

    Runs on the scheduler node.

    Parameters
    ----------
    moments : GroupMoments
    k : int
        Number of components.
    method : str
        A method of `distmom.linalg.decompose`.
    seed : int, default 0
        Seed of the method.

    Raises
    ------
    NumericalError
        If the moments carry fewer than k components.
    """
    with one_blas_thread():
        U, (ab, ac, bc) = _ranges(moments, k)
        own = decompose_views(ab, ac, bc, moments.triples, U, method, seed)
        return _aligned(moments, U, own)


@dataclass(frozen=True)
class WhitenedViews:
    """Three views whose third moment is contracted by passes.

    Attributes
    ----------
    coordinates : tuple of ndarray of shape (r, k)
        Orthonormal bases of the ranges of the views.
    maps : ViewMaps
    whiteners : ndarray of shape (3, r, k)
        They turn the views into whitened copies of the last one: ``whiteners_t'z_t``.
    """

    coordinates: tuple[np.ndarray, np.ndarray, np.ndarray]
    maps: ViewMaps
    whiteners: np.ndarray


def whiten_views(moments: GroupPairs, k: int) -> WhitenedViews:
    """Return the maps that whiten three views by their second moments; otherwise as `align_views`."""
    with one_blas_thread():
        U, pairs = _ranges(moments, k)
        maps = view_maps(*pairs)
        W = maps.white.W
        whiteners = np.stack([U[0] @ (maps.from_a.T @ W), U[1] @ (maps.from_b.T @ W), U[2] @ W])
    return WhitenedViews(U, maps, whiteners)


def align_whitened(moments: GroupPairs, views: WhitenedViews, found: Decomposition) -> AlignedViews:
    """Return the conditional means of all views by a decomposition of their whitened third moment."""
    with one_blas_thread():
        return _aligned(moments, views.coordinates, _components(views.maps, found))


def _ranges(
    moments: GroupPairs, k: int
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return bases of the ranges of the views, and the moments of pairs of views in these: ab, ac and bc."""
    # The range of a view is that of its moments with the other views.
    left, values, right = np.linalg.svd(moments.pair(0, 1))
    if not values[k - 1] > _LEAST_SHARE * values[0]:
        shown = ", ".join(f"{x:.3g}" for x in values[: k + 1])
        raise NumericalError(
            f"the cross moment of the first two views carries fewer than {k} components: its largest singular "
            f"values are {shown}; use fewer components, or views that distinguish them"
        )
    last = np.linalg.svd(np.hstack([moments.pair(2, 0), moments.pair(2, 1)]))[0]
    U = (fix_signs(left[:, :k]), fix_signs(right[:k].T), fix_signs(last[:, :k]))
    ab, ac, bc = (np.asarray(U[s].T @ moments.pair(s, t) @ U[t]) for s, t in PAIRS)
    return U, (ab, ac, bc)


def _aligned(
    moments: GroupPairs, U: tuple[np.ndarray, np.ndarray, np.ndarray], own: ViewComponents
) -> AlignedViews:
    third = U[2] @ own.means
    # A_t = P_t3 (A_3')^+ diag(w)^-1, aligned with the third view
    inverse = np.linalg.pinv(third.T) / own.weights
    means = np.stack([moments.pair(0, 2) @ inverse, moments.pair(1, 2) @ inverse, third])
    return AlignedViews(means, own.weights, own.diagnostics)


def mean_rows(q: np.ndarray, views: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return rows of the conditional means, each from the means of the view that it belongs to.

    Parameters
    ----------
    q : ndarray of shape (n, r)
        Rows of the basis.
    views : ndarray of shape (n,)
        View of every row, from 0.
    means : ndarray of shape (3, r, k)
        Conditional means of the views in the basis.
    """
    rows = np.empty((len(q), means.shape[2]))
    for t in range(len(means)):
        rows[views == t] = np.asarray(q[views == t], np.float64) @ means[t]
    return rows
