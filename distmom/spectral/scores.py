"""Linear scores of the components of a row, and the base classes of passes that read rows by them.

Distributions of one shape have densities whose ratios are linear in the row: with scores ``s_h(x) = c_h'x + o_h``,
component h has the probability ``exp s_h(x) / sum_g exp s_g(x)``. Gaussians that share a covariance have such
scores. Rows may be sparse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass
from distmom.engine.sums.additive import SumSpec
from distmom.moments.dense_rows import aligned, dense_rows, piece_rows, weights_of

#: least variance of a column within components, as a share of its variance
LEAST_VARIANCE = 1e-3
#: least variance of z_t in a direction, as a share of the largest, that rounding does not account for
_LEAST_SHARE = 1e-9


def whitening_of(covariance: np.ndarray) -> np.ndarray:
    """Return a matrix W with one column for each direction of positive variance, for which ``W'CW = I``."""
    values, vectors = np.linalg.eigh(covariance)
    kept = (values > _LEAST_SHARE * values[-1]) & (values > 0.0)
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def scores_by_covariance(deviations: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the coefficients of the scores of Gaussians that share a covariance.

    Parameters
    ----------
    deviations : ndarray of shape (r, k)
        Means, in units in which the covariance over all rows is the identity. The covariance within components is
        what they leave of it, with a variance of `LEAST_VARIANCE` or more in every direction.
    weights : ndarray of shape (k,)

    Returns
    -------
    coefficients : ndarray of shape (r, k)
    constant : float
        Part of the average log-likelihood, less that of a single component, that is the same for all rows.
    """
    values, vectors = np.linalg.eigh(np.eye(len(deviations)) - (deviations * weights) @ deviations.T)
    values = np.maximum(values, LEAST_VARIANCE)
    coefficients = vectors @ ((vectors.T @ deviations) / values[:, None])
    return coefficients, -0.5 * float((np.log(values) + 1.0 / values - 1.0).sum())


@dataclass(frozen=True)
class ScoresPass(Pass):
    """Base class of passes that read linear scores.

    Attributes
    ----------
    coefficients : ndarray of shape (n_features, k)
    offsets : ndarray of shape (k,)
        The scores of a row x are ``coefficients' x + offsets``.
    n_components : int
        k.
    """

    coefficients: Any = None
    offsets: Any = None
    n_components: int = 0

    block_rows = WHOLE_SHARD

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_features * self.n_components

    def pieces(self, block: RowBlock) -> Iterator[tuple[slice, Any, np.ndarray]]:
        """Yield rows in pieces: their positions, the rows, and their weights (n,)."""
        X, weights = dense_rows(block)
        step = piece_rows(self.n_features)
        for start in range(0, X.shape[0], step):
            piece = slice(start, min(start + step, X.shape[0]))
            yield piece, aligned(X[piece]), weights_of(weights, piece)


@dataclass(frozen=True)
class ScoreProductsPass(ScoresPass):
    """Base class of passes that add up products of the columns with probabilities by scores.

    Attributes
    ----------
    averages : ndarray of shape (n_features, 2)
        The first column, the mean of every column, is subtracted from every row.

    Notes
    -----
    Other fields as in `ScoresPass`. Sums over rows x with probabilities p: ``px`` (n_features, k) of the products
    of x minus the means with p, and ``mass`` ().
    """

    averages: Any = None

    @property
    def mapped_bytes(self) -> int:
        # The coefficients, the averages, and the products of a piece of rows, without the sum.
        return 8 * self.n_features * (3 * self.n_components + 2)

    def specs(self) -> dict[str, SumSpec]:
        return {"px": SumSpec((self.n_features, self.n_components)), "mass": SumSpec(())}
