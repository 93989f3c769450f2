"""Conditional means from the probabilities of the components given single views.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorem 3.6, which holds for functions of views of any distribution. With q_t the probabilities of the components
given view t alone, by the scores of EM, the moments of q_1, q_2 and q_3 give the weights w and ``F_t = E[q_t|h]``.
With p_t the probabilities given the two other views,

    E[p_t q_t'] = G_t diag(w) F_t'        E[x_t p_t'] = M_t diag(w) G_t'        G_t = E[p_t | h]

so that the means M_t of view t follow from ``E[x_t p_t']``. EM is accurate where columns are Gaussian; these means
are consistent for any distributions, and nearly as accurate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.blas import one_blas_thread
from distmom.engine import PassResult
from distmom.engine.directory.run_directory import load_sums
from distmom.errors import NumericalError
from distmom.models.multiview.fitting import Conditional
from distmom.moments.dense_rows import view_slices
from distmom.moments.three_views import GroupMoments, group_moments
from distmom.spectral.steps.three_views import align_views


@dataclass(frozen=True)
class Unmixing:
    """How the products of columns and probabilities give conditional means.

    Attributes
    ----------
    inverses : ndarray of shape (3, k, k)
        Inverses of ``diag(w) G_t'``.
    weights : ndarray of shape (k,)
        They sum to one.
    """

    inverses: np.ndarray
    weights: np.ndarray


def load_shares(directory: str) -> tuple[GroupMoments, np.ndarray]:
    """Return the moments of the q_t, and those of p_t and q_t, that a committed pass has added up."""
    sums = load_sums(directory)[0]
    return group_moments(sums), np.asarray(sums["crosses"]) / float(sums["mass"])


def unmix(shares: tuple[GroupMoments, np.ndarray], k: int, method: str) -> Unmixing | None:
    """Decompose the moments of probabilities; runs on the scheduler node.

    Returns
    -------
    Unmixing or None
        None if the moments carry fewer than k components, or if another component is on average more probable than
        that of a row, given two views.
    """
    moments, crosses = shares
    try:
        found = align_views(moments, k, method)
    except NumericalError:
        return None
    with one_blas_thread():
        mixed = [
            cross @ np.linalg.pinv(means).T / found.weights
            for cross, means in zip(crosses, found.means, strict=True)
        ]
    # The components come in the order of the probabilities that are theirs.
    order = linear_sum_assignment(-np.mean(mixed, axis=0))[1]
    weights = found.weights[order]
    if not all(
        np.array_equal(own[:, order].argmax(axis=axis), np.arange(k)) for own in mixed for axis in (0, 1)
    ):
        return None
    with one_blas_thread():
        inverses = np.stack([np.linalg.pinv(own[:, order] * weights).T for own in mixed])
    return Unmixing(inverses, weights / weights.sum())


def means_of_shares(
    scanned: PassResult,
    before: Conditional,
    unmixed: Unmixing | None,
    widths: tuple[int, ...],
) -> tuple[Conditional, bool]:
    """Return the parameters after the pass, and whether they have changed.

    Without a decomposition, they stay as they are.
    """
    if unmixed is None:
        return before, False
    products = np.asarray(scanned.sums["px"]) / float(scanned.sums["mass"])
    with one_blas_thread():
        deviations = np.concatenate(
            [products[cut] @ own for cut, own in zip(view_slices(widths), unmixed.inverses, strict=True)]
        )
        # Weights and means come from different products: on average, means are those of all rows.
        deviations -= (deviations @ unmixed.weights)[:, None]
    return Conditional(deviations, unmixed.weights), True
