"""Linear Bayesian networks of latent variables, from a denoised second moment and a whitened third moment.

The model is ``E[x | h] = A h`` with ``h = Lambda h + eta``: independent skewed noises eta drive a directed acyclic
graph of latent variables h. The second moment ``A E[hh'] A'`` gives the columns of A, as its sparsest vectors
(`distmom.linalg.expansion.sparse`). The third moment is diagonal in the noises, and gives
``S = A (I - Lambda)^-1 diag(sigma)`` up to order and sign (`distmom.linalg.factors`). Both together give Lambda
(`distmom.linalg.expansion.networks`).

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), section 4: algorithm TMLearn, theorem 4.1 and remark 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distmom.errors import NumericalError, UsageError
from distmom.linalg.expansion.networks import Network, network_of_factors
from distmom.linalg.expansion.projected import projected_columns
from distmom.linalg.expansion.sparse import SparseColumns, sparse_columns
from distmom.linalg.factors import Slices, find_factors
from distmom.linalg.whiten import Whitening


@dataclass(frozen=True)
class FoundNetwork:
    """A linear network of latent variables and their loadings.

    Node j is column j of the loadings, whose scale and sign determine those of the node.

    Attributes
    ----------
    loadings : ndarray of shape (n, k)
        Columns of A, scaled such that the entry of largest magnitude of each is 1.
    network : Network
        Weights, order and deviations of the noises of the nodes.
    covariance : ndarray of shape (k, k)
        ``E[hh']`` of the nodes.
    skewness : ndarray of shape (k,)
        Skewness of the noises in descending order, which is not the order of the nodes; their signs cannot be
        identified.
    columns : SparseColumns
        How well the second moment determines each column of the loadings.
    """

    loadings: np.ndarray
    network: Network
    covariance: np.ndarray
    skewness: np.ndarray
    columns: SparseColumns


def latent_network(
    whitening: Whitening,
    third: np.ndarray,
    *,
    basis: np.ndarray | None = None,
    noise: np.ndarray | None = None,
    n_constraints: int | None = None,
    n_program_rows: int | None = None,
    n_starts: int | None = None,
    n_projected: int = 0,
    seed: int = 0,
) -> FoundNetwork:
    """Return the network of latent variables with a second and a third moment (TMLearn, theorem 4.1).

    The second moment must be free of noise: between different views, or the low-rank part of the covariance of a
    single view. The same holds for the third (see `distmom.linalg.one_view`).

    Parameters
    ----------
    whitening : Whitening
        Whitening of the centred second moment of shape (r, r), with k columns.
    third : ndarray of shape (k, k, k)
        Centred third moment, contracted with the whitening matrix in every mode.
    basis : ndarray of shape (n, r), optional
        Orthonormal columns in whose coordinates the second moment was whitened. By default r = n and the moment is
        in the coordinates of the rows.
    noise : ndarray of shape (k, k, k, m), optional
        m draws of the sampling error of the third moment. By default the moment is exact up to rounding.
    n_constraints, n_program_rows, n_starts : int, optional
        As in `sparse_columns`; by default 6 k constraints, 40 k rows and 10 k starts.
    n_projected : int, default 0
        As in `sparse_loadings`.
    seed : int, default 0

    Raises
    ------
    UsageError
        If the shapes do not agree.
    NumericalError
        If the sparse columns span fewer than k dimensions, or fewer than k noises are skewed.
    """
    r, k = whitening.W.shape
    if basis is not None and basis.shape[1] != r:
        raise UsageError(f"basis: expected {r} columns, got {basis.shape[1]}")
    factors, skewness = _skewed_factors(whitening, third, noise, seed)
    found = sparse_loadings(
        whitening,
        basis,
        n_constraints=6 * k if n_constraints is None else n_constraints,
        n_program_rows=40 * k if n_program_rows is None else n_program_rows,
        n_starts=10 * k if n_starts is None else n_starts,
        n_projected=n_projected,
        seed=seed,
    )
    network = network_of_factors(found.inverse @ factors)
    return FoundNetwork(found.loadings, network, found.covariance, skewness, found.columns)


@dataclass(frozen=True)
class SparseLoadings:
    """Sparse loadings of latent variables, and the second moment of these.

    Attributes
    ----------
    loadings : ndarray of shape (n, k)
        A, scaled such that the entry of largest magnitude of every column is 1.
    inverse : ndarray of shape (k, r)
        Pseudoinverse of A in the coordinates of the second moment.
    covariance : ndarray of shape (k, k)
        ``E[hh']`` of the latent variables.
    columns : SparseColumns
    """

    loadings: np.ndarray
    inverse: np.ndarray
    covariance: np.ndarray
    columns: SparseColumns


def sparse_loadings(
    whitening: Whitening,
    basis: np.ndarray | None = None,
    *,
    n_constraints: int,
    n_program_rows: int,
    n_starts: int,
    n_projected: int = 0,
    seed: int,
) -> SparseLoadings:
    """Return the sparse loadings A with ``A E[hh'] A'`` the second moment.

    Parameters
    ----------
    whitening : Whitening
        Whitening of the second moment of shape (r, r), with k columns.
    basis : ndarray of shape (n, r), optional
        Orthonormal columns in whose coordinates the second moment was whitened; the unit matrix by default.
    n_constraints, n_program_rows, n_starts : int
        As in `sparse_columns`.
    n_projected : int, default 0
        Number of rows of every round of `projected_columns`, whose columns join the candidates; 0 for none.
        Where many columns overlap strongly, they find columns that the others miss. It takes k times as many
        programs.
    seed : int

    Raises
    ------
    NumericalError
        If the sparse columns span fewer than k dimensions.
    """
    directions = whitening.B / np.linalg.norm(whitening.B, axis=0)
    tall = directions if basis is None else np.asarray(basis @ directions)
    columns = sparse_columns(
        tall,
        n_constraints=n_constraints,
        n_program_rows=n_program_rows,
        n_starts=n_starts,
        candidates=projected_columns(tall, n_constraints=n_projected) if n_projected else None,
        seed=seed,
    )
    # The directions are orthonormal, so their inverse is their transpose.
    inverse = np.linalg.solve(columns.coefficients, directions.T)
    roots = inverse @ whitening.B
    return SparseLoadings(tall @ columns.coefficients, inverse, roots @ roots.T, columns)


def observed_network(
    whitening: Whitening, third: np.ndarray, *, noise: np.ndarray | None = None, seed: int = 0
) -> FoundNetwork:
    """Return the network of variables that are all observed, ``x = Lambda x + eta`` (remark 4.3).

    The loadings are the unit matrix.

    Parameters
    ----------
    whitening : Whitening
        Whitening of the covariance of shape (n, n), with n columns.
    third : ndarray of shape (n, n, n)
        Centred third moment, contracted with the whitening matrix in every mode.
    noise : ndarray of shape (n, n, n, m), optional
        m draws of the sampling error of the third moment. By default the moment is exact up to rounding.
    seed : int, default 0

    Raises
    ------
    UsageError
        If the shapes do not agree.
    NumericalError
        If fewer than n noises are skewed.
    """
    n, k = whitening.W.shape
    if n != k:
        raise UsageError(f"whitening: expected {n} columns, as many as there are variables, got {k}")
    factors, skewness = _skewed_factors(whitening, third, noise, seed)
    columns = SparseColumns(np.eye(n), np.full(n, n - 1), np.zeros(n), np.ones(n, bool), 0)
    covariance = np.asarray(whitening.B @ whitening.B.T)
    return FoundNetwork(np.eye(n), network_of_factors(factors), covariance, skewness, columns)


def _skewed_factors(
    whitening: Whitening, third: np.ndarray, noise: np.ndarray | None, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``M diag(sigma)`` up to order and sign, and the skewness of each column, in descending order."""
    k = whitening.W.shape[1]
    if third.shape != (k, k, k):
        raise UsageError(f"third: expected shape {(k, k, k)}, got {third.shape}")
    if noise is not None and (noise.ndim != 4 or noise.shape[:3] != (k, k, k)):
        raise UsageError(f"noise: expected shape {(k, k, k, 'm')}, got {noise.shape}")
    found = find_factors([Slices(third, (np.eye(k),), noise)], (3,), random_state=seed)
    n_found = found.vectors.shape[1]
    if n_found < k:
        raise NumericalError(
            f"the third moment separates {n_found} of {k} noises of the network: all but one must have a skewness "
            f"above {found.levels[3]:.3g}, the level of noise"
        )
    order = np.argsort(-found.strengths[3], kind="stable")
    return whitening.B @ found.vectors[:, order], found.strengths[3][order]
