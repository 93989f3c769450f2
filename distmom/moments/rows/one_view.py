"""A pass over dense rows whose columns have independent noise: third moments, of the rows and of the noise.

The model is ``x = m + A h + epsilon``. Rows are projected to ``y = W'(x - m)`` with the whitening matrix W of the
covariance without noise. The noise adds a term per column to the third moment of y, which is estimated from
residuals (see `distmom.linalg.one_view`) and subtracted after the pass. Sums are kept by random parts of the rows,
whose differences estimate the sampling error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, piece_bytes, pieces
from distmom.moments.kernels import BLOCK_ROWS, TENSOR_BLOCK, add_third_moment, fill_symmetric
from distmom.moments.views.groups import N_PARTS, part_numbers


@dataclass(frozen=True)
class Predictors:
    """Matrices that predict every variable from each of the two parts that it does not belong to.

    Attributes
    ----------
    latent : ndarray of shape (n, 3 k)
        The product with centred rows estimates the latent variables, from each part in turn.
    left, right : ndarray of shape (n, 3 k)
        Products with these estimates predict the variables.
    """

    latent: np.ndarray
    left: np.ndarray
    right: np.ndarray


def noise_moments(
    centred: np.ndarray, predictors: Predictors, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted sums ``sum w u v`` and ``sum w u v (u + v) / 2`` of every variable.

    With weights of sum 1 they are the variances and third moments of the noises. The sums of several blocks of
    rows add up.

    Parameters
    ----------
    centred : ndarray of shape (m, n)
        Rows without their mean.
    predictors : Predictors
    weights : ndarray of shape (m,)

    Returns
    -------
    variances, thirds : ndarray of shape (n,)
    """
    latent = centred @ predictors.latent
    u, v = centred - latent @ predictors.left.T, centred - latent @ predictors.right.T
    both = u * v
    return weights @ both, weights @ (both * (u + v)) / 2.0


@dataclass(frozen=True)
class OneViewPass(Pass):
    """Add up the third moments of whitened rows and of the noise of their columns.

    Attributes
    ----------
    origin : ndarray of shape (n_features,)
        m, subtracted from every row: their mean.
    whitener : ndarray of shape (n_features, rank)
        W.
    latent, left, right : ndarray of shape (n_features, 3 rank), optional
        Those of `Predictors`; None (default) where there is no noise.
    rank : int
        Number k of latent variables.
    seed : int
        Seed of the assignment of rows to parts.

    Notes
    -----
    Sums over p parts of the rows: ``mass`` (p,), ``third`` (p, k, k, k), and with predictors ``noise``
    (p, n_features).
    """

    origin: Any = None
    whitener: Any = None
    latent: Any = None
    left: Any = None
    right: Any = None
    rank: int = 0
    seed: int = 0

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        return "moments"

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_features * self.rank * (1 if self.latent is None else 10)

    @property
    def finish_bytes(self) -> int:
        return 8 * (3 * N_PARTS + 4) * self.rank**3

    def working_bytes(self, n_rows: int) -> int:
        k, n = self.rank, min(n_rows, BLOCK_ROWS)
        products = n * (2 * k + TENSOR_BLOCK**2) + TENSOR_BLOCK**2 * k
        # A part of the rows, and where there is noise both residuals of its columns with their products.
        pieces_ = piece_bytes(n_rows, self.n_features) * (1 if self.latent is None else 5)
        return pieces_ + 8 * (n_rows * self.n_features + products)

    def specs(self) -> dict[str, SumSpec]:
        k = self.rank
        specs = {"mass": SumSpec((N_PARTS,)), "third": SumSpec((N_PARTS, k, k, k))}
        return specs if self.latent is None else specs | {"noise": SumSpec((N_PARTS, self.n_features))}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block, self.n_features)
        W, predictors = np.asarray(self.whitener), None
        if self.latent is not None:
            predictors = Predictors(*map(np.asarray, (self.latent, self.left, self.right)))
        if weights is None:
            index, own = np.repeat(part_numbers(block, self.seed), block.sizes), np.ones(len(X))
        else:
            # An enumerated population has no sampling error.
            index, own = np.zeros(len(X), np.int64), weights
        for part in np.unique(index):
            chosen = index == part
            used, masses = X[chosen], own[chosen]
            sums["mass"][part] += masses.sum()
            for piece, centred in pieces(used, np.asarray(self.origin)):
                Y = centred @ W
                add_third_moment(sums["third"][part], Y, Y, masses[piece])
                if predictors is not None:
                    sums["noise"][part] += noise_moments(centred, predictors, masses[piece])[1]
        return None


@dataclass(frozen=True)
class OneViewMoments:
    """Third moments of a part of the rows.

    Attributes
    ----------
    mass : float
        Weight of the rows.
    third : ndarray of shape (k, k, k)
        Third moment of the whitened rows, with the noise of the columns.
    noise : ndarray of shape (n_features,)
        Third moments of the noise; zero without noise.
    """

    mass: float
    third: np.ndarray
    noise: np.ndarray


def one_view_moments(sums: Sums, n_features: int) -> list[OneViewMoments]:
    """Turn the sums of `OneViewPass` into the moments of every part of the rows that is not empty."""
    found = []
    for part in np.flatnonzero(np.asarray(sums["mass"]) > 0.0):
        mass = float(sums["mass"][part])
        noise = np.asarray(sums["noise"][part]) / mass if "noise" in sums else np.zeros(n_features)
        found.append(OneViewMoments(mass, fill_symmetric(np.array(sums["third"][part])) / mass, noise))
    return found
