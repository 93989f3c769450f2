"""Posterior probabilities of the components of a mixture of axis-aligned Gaussians, and passes that use them.

`DiagonalEMPass` makes one expectation-maximisation (EM) iteration: the log-likelihood of all rows, and the sums
that give the next parameters. `DiagonalAssignPass` stores the component and the probabilities of every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, mass_of, piece_bytes, piece_rows
from distmom.moments.rows.diagonal import standardised
from distmom.spectral.posteriors import AssignPass, MixturePass, normalise


@dataclass(frozen=True)
class Diagonals:
    """The parameters of a mixture; arrays, or stored arrays as fields of a pass.

    Attributes
    ----------
    units : ndarray of shape (d, 2)
        Mean of every column, and the factor that scales it to variance one.
    means, variances : ndarray of shape (k, d)
        Conditional means and variances of the columns in these units.
    weights : ndarray of shape (k,)

    Notes
    -----
    Several mixtures of k components each are stacked along the first axis of means, variances and weights.
    """

    units: Any
    means: Any
    variances: Any
    weights: Any


class Posterior:
    """Posterior probabilities of the components of rows.

    Parameters
    ----------
    of : Diagonals
        One mixture, or several stacked ones.
    """

    def __init__(self, of: Diagonals) -> None:
        means, variances = (np.asarray(values, np.float64) for values in (of.means, of.variances))
        weights = np.maximum(np.asarray(of.weights, np.float64), np.finfo(float).tiny)
        self.units = np.asarray(of.units)
        self.quadratic = np.ascontiguousarray((-0.5 / variances).T)
        self.linear = np.ascontiguousarray((means / variances).T)
        constants = np.log(variances) + np.log(2.0 * np.pi) + means**2 / variances
        self.constants = np.log(weights) + np.log(self.units[:, 1]).sum() - 0.5 * constants.sum(axis=1)

    def pieces(self, X: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows in pieces: their positions, z, its squares, probabilities (n, k) and log-densities (n,).

        Values of z and squares are valid until the next piece is taken. The rows are of one mixture.
        """
        for rows, z, squares, joint in self.joint(X):
            density = normalise(joint)
            yield rows, z, squares, joint, density

    def joint(self, X: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield positions, z, its squares, and ``log(w_h p(x | h))`` of all components of stacked mixtures."""
        room = np.empty((min(piece_rows(X.shape[1]), len(X)), X.shape[1]))
        for rows, z in standardised(X, self.units):
            # Where squares overflow, densities are zero.
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.square(z, out=room[: len(z)])
                joint = z @ self.linear
                joint += squares @ self.quadratic
                joint += self.constants
            joint[np.isnan(joint)] = -np.inf
            yield rows, z, squares, joint


@dataclass(frozen=True)
class _DiagonalPass(MixturePass):
    """Base class of passes that read the parameters of a mixture."""

    of: Any = None
    n_components: int = 0
    n_mixtures: int = 1

    block_rows = WHOLE_SHARD

    def posterior(self) -> Posterior:
        return Posterior(self.of)

    @property
    def mapped_bytes(self) -> int:
        # Parameters as stored, and as they are multiplied with rows.
        return 8 * self.n_features * (4 * self.n_mixtures * self.n_components + 2)

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, piece_rows(self.n_features))
        return 2 * piece_bytes(n_rows, self.n_features) + 24 * n * self.n_mixtures * self.n_components


@dataclass(frozen=True)
class DiagonalEMPass(_DiagonalPass):
    """Add up the sums for one expectation-maximisation (EM) iteration.

    Attributes
    ----------
    of : Diagonals
        One mixture, or several stacked ones.
    n_components : int
        Number of components of each.
    n_mixtures : int, default 1

    Notes
    -----
    Sums over rows in the units of the parameters, with their posterior probabilities p: ``p`` (m k,), ``pz`` and
    ``pzz`` (m k, n_features) of the values and their squares, for m mixtures; ``log_likelihood`` (m,) and
    ``mass`` ().
    """

    @property
    def name(self) -> str:
        return "em"

    def specs(self) -> dict[str, SumSpec]:
        k, d = self.n_mixtures * self.n_components, self.n_features
        return {
            "p": SumSpec((k,)),
            "pz": SumSpec((k, d)),
            "pzz": SumSpec((k, d)),
            "log_likelihood": SumSpec((self.n_mixtures,)),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        for piece, z, squares, p in self.posterior().joint(X):
            density = normalise(p.reshape(-1, self.n_components)).reshape(len(z), self.n_mixtures)
            if weights is not None:
                p *= weights[piece, None]
                density *= weights[piece, None]
            sums["p"] += p.sum(axis=0)
            sums["pz"] += p.T @ z
            sums["pzz"] += p.T @ squares
            sums["log_likelihood"] += density.sum(axis=0)
        return None


@dataclass(frozen=True)
class DiagonalAssignPass(AssignPass, _DiagonalPass):
    """Store the components of rows and their probabilities, as `AssignPass` does.

    Attributes
    ----------
    of : Diagonals
    n_components : int
    """


def maximised(sums: Sums, before: Diagonals, least: float) -> tuple[Diagonals, np.ndarray]:
    """Return the parameters that maximise the likelihood given the posterior, and the log-likelihood before.

    Parameters
    ----------
    sums : Sums
        Sums of `DiagonalEMPass`.
    before : Diagonals
        A component without rows keeps its means and variances.
    least : float
        Least variance of a column of variance one.

    Returns
    -------
    after : Diagonals
    log_likelihoods : ndarray of shape (n_mixtures,)
        On average per row, of the parameters before.
    """
    p, mass = np.asarray(sums["p"]), float(sums["mass"])
    some = (p > 1e-12 * mass)[:, None]
    share = np.where(some, p[:, None], 1.0)
    means = np.where(some, np.asarray(sums["pz"]) / share, before.means)
    variances = np.where(some, np.asarray(sums["pzz"]) / share - means**2, before.variances)
    likelihoods = np.asarray(sums["log_likelihood"]) / mass
    own = p.reshape(len(likelihoods), -1)
    weights = (own / own.sum(axis=1, keepdims=True)).ravel()
    return replace(before, means=means, variances=np.maximum(variances, least), weights=weights), likelihoods
