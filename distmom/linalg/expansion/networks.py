"""Linear networks without cycles: weights of a directed acyclic graph from small matrices.

In such a network ``h = Lambda h + eta`` with independent noises eta, so that ``h = (I - Lambda)^-1 eta``. In an
order in which parents precede their children, Lambda is strictly lower triangular. Source: Anandkumar, Hsu,
Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion Constraints"
(arXiv:1209.5350), section 4 and remark 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cholesky
from scipy.optimize import linear_sum_assignment

from distmom.errors import NumericalError, UsageError


@dataclass(frozen=True)
class Network:
    """The weights of a directed acyclic graph.

    Attributes
    ----------
    weights : ndarray of shape (k, k)
        Lambda: the weight of node j in node i.
    order : ndarray of shape (k,), int
        Nodes, parents before their children.
    deviations : ndarray of shape (k,)
        Standard deviations of the noises.
    against : float
        Share of the magnitudes of all weights, in units in which the noises have variance one, that was against
        the order and was set to zero: 0 for an exact network.
    """

    weights: np.ndarray
    order: np.ndarray
    deviations: np.ndarray
    against: float


def network_of_factors(factors: np.ndarray) -> Network:
    """Return the network whose responses to the noises are given in unknown order and sign (theorem 4.1).

    The order of the nodes does not depend on their scale.

    Parameters
    ----------
    factors : ndarray of shape (k, k)
        ``(I - Lambda)^-1 diag(sigma)`` with permuted columns of any sign, such as the coefficients of the factors
        of excess correlation analysis in the columns of a mixing matrix. Rows in another scale t give the weights
        of ``h / t``.

    Raises
    ------
    NumericalError
        If the matrix is singular.
    """
    k = len(factors)
    sizes = np.linalg.norm(factors, axis=1)
    if not (sizes > 0.0).all() or np.linalg.matrix_rank(unit := factors / sizes[:, None]) < k:
        raise NumericalError(f"the factors of {k} nodes are linearly dependent")
    # The only permutation of a triangular matrix without a zero on the diagonal.
    logs = np.log(np.maximum(np.abs(unit), np.finfo(float).tiny))
    paired = factors[:, linear_sum_assignment(-logs)[1]]
    own = np.diag(paired)
    # With noises of variance one, all weights have sampling errors of similar size, in any units of the nodes.
    weights = np.eye(k) - np.linalg.inv(paired / own[:, None])
    found = _network(weights, _order(np.abs(weights)), np.abs(own))
    return replace(found, weights=found.weights * own[:, None] / own)


def network_of_order(second: np.ndarray, order: np.ndarray) -> Network:
    """Return the network with a given second moment, given an order of its nodes (remark 4.4).

    A wrong order gives a network with the same moment and more weights that are not zero.

    Parameters
    ----------
    second : ndarray of shape (k, k)
        ``E[h h']`` of centred h, positive definite.
    order : ndarray of shape (k,), int
        Nodes, parents before their children.

    Raises
    ------
    UsageError
        If the moment is not square, or the order is not a permutation of the nodes in whole numbers.
    NumericalError
        If the moment is not positive definite.
    """
    second, order = np.asarray(second, np.float64), np.asarray(order)
    k = len(second) if second.ndim else 0
    if second.shape != (k, k):
        raise UsageError(f"second: expected a square matrix, got shape {second.shape}")
    if order.dtype.kind not in "iu" or not np.array_equal(np.sort(order), np.arange(k)):
        raise UsageError(f"order: expected a permutation of {k} nodes in whole numbers, got {order!r:.80}")
    try:
        # Unlike the function of the same name in NumPy, it does not accept NaN.
        triangle = cholesky(second[np.ix_(order, order)], lower=True)
    except ValueError as error:
        raise NumericalError("the second moment of the nodes is not positive definite") from error
    own = np.diag(triangle)
    sorted_weights = np.eye(k) - own[:, None] * np.linalg.inv(triangle)
    weights, deviations = np.zeros((k, k)), np.zeros(k)
    weights[np.ix_(order, order)] = sorted_weights
    deviations[order] = own
    return _network(weights, order, deviations)


def _order(magnitudes: np.ndarray) -> np.ndarray:
    """Return nodes such that each has the least sum of weights from those that follow it."""
    left, order = list(range(len(magnitudes))), []
    while left:
        sums = [sum(magnitudes[i, j] for j in left if j != i) for i in left]
        order.append(left.pop(int(np.argmin(sums))))
    return np.array(order)


def _network(weights: np.ndarray, order: np.ndarray, deviations: np.ndarray) -> Network:
    """Return a network without the weights against its order."""
    place = np.argsort(order)
    # Parents precede their children.
    allowed = place[None, :] < place[:, None]
    total = float(np.abs(weights).sum())
    kept = np.where(allowed, weights, 0.0)
    against = float(np.abs(weights - kept).sum()) / total if total > 0.0 else 0.0
    return Network(kept, order, deviations, against)
