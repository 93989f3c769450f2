"""The state of a search for one component: moments of rows in whitened coordinates, and their sampling errors.

A component has coordinates c, such that ``sum_i p_i c_i c_i'`` is whitened by W. Side information of any kind
becomes the symmetric matrix ``M = sum_i w_i v_i v_i'`` with the orthonormal ``v_i = sqrt(p_i) W'c_i`` and the
preference w_i for component i, in which `distmom.linalg.search.component` finds the component with the largest
preference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.engine import Sums, merge
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError
from distmom.linalg import Whitening
from distmom.spectral.saved.fields import array, value


@dataclass(frozen=True)
class Part:
    """Moments of some of the rows in whitened coordinates.

    Attributes
    ----------
    first : ndarray of shape (s,)
        ``sum_i p_i c_i``.
    slices : ndarray of shape (k, k, s)
        ``sum_i p_i (W'c_i) (W'c_i) c_i``.
    targets : ndarray of shape (k, k, q)
        The matrix M of each target.
    extras : ndarray of shape (k, e)
        ``sum_i p_i f_i W'c_i`` for further parameters f of a component.
    """

    first: np.ndarray
    slices: np.ndarray
    targets: np.ndarray
    extras: np.ndarray


@dataclass(frozen=True)
class SearchState:
    """The state of a fitted search.

    Attributes
    ----------
    basis : ndarray of shape (f, r)
        Maps coordinates to features, and its transpose vectors of features to coordinates.
    center : ndarray of shape (c,)
        Mean of the features and, for regressions, of the response.
    whitening, unwhitening : ndarray of shape (s, k)
        W, and the transpose of its pseudoinverse.
    first, slices, targets, extras : ndarray
        As in `Part`, of all rows.
    slices_error, targets_error : ndarray
        A draw of the sampling error of ``slices`` and ``targets``; zero for an enumerated population.
    n_sampled : int
        Number of rows; 0 for an enumerated population.
    diagnostics : dict
    """

    basis: np.ndarray = array("f", "r")
    center: np.ndarray = array("c")
    whitening: np.ndarray = array("s", "k")
    unwhitening: np.ndarray = array("s", "k")
    first: np.ndarray = array("s")
    slices: np.ndarray = array("k", "k", "s")
    slices_error: np.ndarray = array("k", "k", "s")
    targets: np.ndarray = array("k", "k", "q*")
    targets_error: np.ndarray = array("k", "k", "q*")
    extras: np.ndarray = array("k", "e")
    n_sampled: int = value()
    diagnostics: dict[str, Any] = value()


def loaded_halves(directories: Sequence[str]) -> tuple[Sums, Sums, Sums]:
    """Return the sums over all rows, and those of the two halves that passes have committed.

    Raises
    ------
    NumericalError
        If a half has no rows, or a sum is not finite.
    """
    first, second = (load_sums(directory)[0] for directory in directories)
    whole = merge((first, second))
    if not min(float(first["mass"]), float(second["mass"])) > 0.0:
        raise NumericalError(
            f"all rows, of weight {float(whole['mass']):g}, are in one of two random halves of the units: "
            "more units are needed, such as every row as a unit of its own"
        )
    if not all(np.isfinite(value).all() for value in whole.values()):
        raise NumericalError("the moments of the rows overflow: scale the rows")
    return whole, first, second


def search_state(
    basis: np.ndarray,
    center: np.ndarray,
    white: Whitening,
    parts: Sequence[Part],
    n_sampled: int,
    diagnostics: dict[str, Any],
) -> SearchState:
    """Return the state made of the moments of all rows and of two halves.

    Half of the difference of two halves has the distribution of the sampling error of their mean.
    """
    whole, first, second = parts
    scale = 0.5 if n_sampled else 0.0
    return SearchState(
        np.ascontiguousarray(basis), center, white.W, white.B, whole.first, whole.slices,
        scale * (first.slices - second.slices), whole.targets, scale * (first.targets - second.targets),
        whole.extras, n_sampled, diagnostics,
    )  # fmt: skip


def whitened_cube(cube: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Return a symmetric tensor (s, s, s) with two modes multiplied by W, (k, k, s)."""
    # Contracting the first axis puts the new one last.
    slices = np.tensordot(np.tensordot(cube, W, axes=(0, 0)), W, axes=(0, 0)).transpose(1, 2, 0)
    return np.ascontiguousarray(slices)


def symmetric_product(vector: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the sum of ``vector (x) matrix`` over the three places of the vector, for a symmetric matrix."""
    cube = vector[:, None, None] * matrix
    return np.asarray(cube + cube.transpose(1, 0, 2) + cube.transpose(1, 2, 0))
