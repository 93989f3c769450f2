"""Posterior probabilities of the components of a mixture of spherical Gaussians, and passes that use them.

`RowEMPass` makes one expectation-maximisation (EM) iteration: the log-likelihood of all rows, and the sums
that give the next parameters. `RowAssignPass` stores the component and the probabilities of every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, mass_of, piece_bytes, piece_rows, pieces, squared_norms
from distmom.spectral.posteriors import AssignPass, MixturePass, normalise


@dataclass(frozen=True)
class Gaussians:
    """The parameters of a mixture; arrays, or stored arrays as fields of a pass.

    Attributes
    ----------
    origin : ndarray of shape (d, 1)
        Subtracted from rows: near the means, for accurate distances.
    offsets : ndarray of shape (k, d)
        Means minus the origin.
    weights, variances : ndarray of shape (k,)
    """

    origin: Any
    offsets: Any
    weights: Any
    variances: Any


class Posterior:
    """Posterior probabilities of the components of rows.

    Parameters
    ----------
    of : Gaussians
    """

    def __init__(self, of: Gaussians) -> None:
        self.origin = np.asarray(of.origin)[:, 0]
        self.offsets = np.asarray(of.offsets, np.float64)
        self.norms = squared_norms(self.offsets)
        self.variances = np.asarray(of.variances, np.float64)
        weights = np.maximum(np.asarray(of.weights, np.float64), np.finfo(float).tiny)
        d = self.offsets.shape[1]
        self.constants = np.log(weights) - 0.5 * d * np.log(2.0 * np.pi * self.variances)

    def pieces(self, X: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows in pieces, with their posterior probabilities.

        Each item has the positions of the rows, the rows minus the origin, their squared norms, the probabilities
        (n, k) and the log-densities (n,).
        """
        for rows, centred in pieces(X, self.origin):
            squares = squared_norms(centred)
            p = self.joint(centred, squares)
            density = normalise(p)
            yield rows, centred, squares, p, density

    def joint(self, centred: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Return ``log(w_i p(x | i))`` of rows minus the origin, (n, k), given their squared norms."""
        return self.joint_of_products(centred @ self.offsets.T, squares)

    def joint_of_products(self, products: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Return the same from the inner products of rows and means; ``products`` is overwritten."""
        products *= -2.0
        products += squares[:, None]
        products += self.norms
        # Rounding makes the distance to a mean negative where a row is at it.
        np.maximum(products, 0.0, out=products)
        products *= -0.5 / self.variances
        products += self.constants
        return products


@dataclass(frozen=True)
class _GaussianPass(MixturePass):
    """Base class of passes that read the parameters of a mixture."""

    of: Any = None
    n_components: int = 0

    block_rows = WHOLE_SHARD

    def posterior(self) -> Posterior:
        return Posterior(self.of)

    @property
    def mapped_bytes(self) -> int:
        return 2 * 8 * self.n_features * self.n_components

    def working_bytes(self, n_rows: int) -> int:
        return piece_bytes(n_rows, self.n_features) + 24 * piece_rows(self.n_features) * self.n_components


@dataclass(frozen=True)
class RowEMPass(_GaussianPass):
    """Add up the sums for one expectation-maximisation (EM) iteration.

    Attributes
    ----------
    of : Gaussians
    n_components : int

    Notes
    -----
    Sums over rows minus the origin, with their posterior probabilities p: ``p`` (k,), ``px`` (k, n_features),
    ``ps`` (k,) of squared norms; ``log_likelihood`` () and ``mass`` ().
    """

    @property
    def name(self) -> str:
        return "em"

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_components
        return {
            "p": SumSpec((k,)),
            "px": SumSpec((k, self.n_features)),
            "ps": SumSpec((k,)),
            "log_likelihood": SumSpec(()),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        for piece, centred, squares, p, density in self.posterior().pieces(X):
            if weights is not None:
                p *= weights[piece, None]
                density *= weights[piece]
            sums["p"] += p.sum(axis=0)
            sums["px"] += p.T @ centred
            sums["ps"] += squares @ p
            sums["log_likelihood"] += density.sum()
        return None


@dataclass(frozen=True)
class RowAssignPass(AssignPass, _GaussianPass):
    """Store the components of rows and their probabilities, as `AssignPass` does.

    Attributes
    ----------
    of : Gaussians
    n_components : int
    """


def maximised(sums: Sums, before: Gaussians, common: bool, least: float) -> tuple[Gaussians, float]:
    """Return the parameters that maximise the likelihood given the posterior, and the log-likelihood before.

    Parameters
    ----------
    sums : Sums
        Sums of `RowEMPass`.
    before : Gaussians
        A component without rows keeps its mean and variance.
    common : bool
        Whether all components have the same variance.
    least : float
        Least variance.

    Returns
    -------
    after : Gaussians
    log_likelihood : float
        On average per row, of the parameters before.
    """
    p, mass = np.asarray(sums["p"]), float(sums["mass"])
    d = before.offsets.shape[1]
    some = p > 1e-12 * mass
    share = np.where(some, p, 1.0)
    offsets = np.where(some[:, None], np.asarray(sums["px"]) / share[:, None], before.offsets)
    spread = np.maximum(np.asarray(sums["ps"]) / share - squared_norms(offsets), 0.0) / d
    shared = np.full(len(p), float(p @ spread) / mass)
    variances = shared if common else np.where(some, spread, before.variances)
    after = Gaussians(before.origin, offsets, p / p.sum(), np.maximum(variances, least))
    return after, float(sums["log_likelihood"]) / mass
