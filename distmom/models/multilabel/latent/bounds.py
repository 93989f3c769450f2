"""Bounds of the errors of latent states: theorem 1 of the multi-label paper, corrected.

Source: Dasgupta, "Multi-label learning with provable guarantee" (arXiv 1609.03426), section 4 and appendices A
to D. As printed, the theorem does not hold. Its proof assumes rows of norm at most one (equations 37 to 39
and 44), but divides by moments of lengths that are not scaled, and it counts two events of probability delta as
one. Here the errors of the moments are bounded with the norms of the rows as they are. Those of the states follow
from them and from eigenvalues of the estimates, with lower powers of ``1 / s_k`` than in the paper.

Let the estimates ``M2``, ``M3`` and ``ML`` be off by at most ``e2``, ``e3`` and ``eL`` in Frobenius norm, and
let W whiten ``M2``, so that ``|W|^2 = 1 / s_k``. Then ``W (W' E[M2] W)^(-1/2)`` whitens the second moment of
the population, whose third moment becomes ``sum_h l_h u_h (x) u_h (x) u_h`` with orthonormal ``u_h``.
Therefore

    g = 1 - (1 - e2 / s_k)^(1/2)                                  how far the two whitening matrices differ
    eps = (l_max ((1 + g)^3 - 1) + e3 / s_k^(3/2)) / (1 - 5 ((1 + g)^3 - 1))      error of the whitened M3
    t = 8 eps / (l_min - 5 eps) + g                               error of an eigenvector, and of whitening
    words    l_max w + 5 eps (b + w),  w = (s_1 + e2)^(1/2) t + e2 / s_k^(1/2),  b = max_h |B u_h|
    labels   eL / s_k + t (2 + t)
    weights  (l_min - 5 eps)^(-2) - l_min^(-2)

with estimated eigenvalues l_h, which are off by at most ``5 eps``, and eigenvectors that are off by at most
``8 eps / l_h`` (tensor paper, theorem 5.1: for ``eps`` below ``l_min / k`` times a constant that is not given).
"""

from __future__ import annotations

import math

import numpy as np

from distmom.spectral.steps.core import Core

#: probability with which a bound may fail
DELTA = 0.05


def moment_errors(spread: np.ndarray, delta: float = DELTA) -> np.ndarray:
    """Bound the sampling errors of the moments of pairs, of triples, and of labels and pairs, in Frobenius norm.

    The error of a moment of N independent documents is the mean of independent tensors of mean zero,
    ``rho_i S_i - omega_i E[M]``, over the mean of omega. If documents follow the model, with tuples of distinct
    positions and with lengths that do not depend on the state, their expected squared norm is at most that of
    ``rho_i S_i``, so that by Chebyshev's inequality

        P(|M - E[M]|^2 > 3 sum_i s_i^2 / (delta (sum_i omega_i)^2)) <= delta / 3,

    with sums over the sample in place of N times expectations. All three bounds hold with probability ``1 -
    delta``. In place of the paper's largest norm they have the root mean square, which one very long document
    among millions hardly changes.

    Parameters
    ----------
    spread : ndarray of shape (3, 2)
        Sums of omega and of ``s^2`` (see `distmom.moments.weighting.moment_spread`).
    delta : float, default 0.05
        Probability, in (0, 1), with which a bound may fail.

    Returns
    -------
    ndarray of shape (3,)
        Infinite for a moment to which no document contributes.
    """
    mass, squares = np.asarray(spread, np.float64).T
    some = mass > 0.0
    return np.where(some, np.sqrt(3.0 * squares / delta) / np.where(some, mass, 1.0), math.inf)


def error_bounds(core: Core, spread: np.ndarray, delta: float = DELTA) -> dict[str, float | None]:
    """Bound the errors of the states by those of the moments (multi-label paper, theorem 1, corrected).

    With probability ``1 - delta`` no state is further from the truth than these bounds, in Euclidean norm, if
    documents follow the model and moments are those of distinct positions and counts. Moments of the presence
    of words, or that pair a position with itself, also have a bias, which more documents do not reduce.

    Parameters
    ----------
    core : Core
    spread : ndarray of shape (3, 2)
        As in `moment_errors`, of the documents of the moments.
    delta : float, default 0.05

    Returns
    -------
    dict of str to float
        ``delta``; ``pairs``, ``triples`` and ``label_pairs``, the bounds of `moment_errors`; ``words``, for
        ``mu_h = l_h B u_h``; ``labels``, for ``gamma_h``; ``weights``, for ``pi_h = l_h^(-2)``. The last three
        are bounds of estimates whose sums have not been set to one. None where there are too few documents
        for a bound.
    """
    pairs, triples, label_pairs = (float(x) for x in moment_errors(spread, delta))
    s1, sk = float(core.spectrum[0]), float(core.spectrum[core.n_components - 1])
    least, most = float(core.eigenvalues.min()), float(core.eigenvalues.max())
    bounds = {"delta": delta, "pairs": pairs, "triples": triples, "label_pairs": label_pairs}
    bounds |= {"words": math.inf, "labels": math.inf, "weights": math.inf}
    if pairs < sk:
        apart = 1.0 - math.sqrt(1.0 - pairs / sk)
        grown = (1.0 + apart) ** 3 - 1.0
        if 5.0 * grown < 1.0:
            eps = (most * grown + triples / sk**1.5) / (1.0 - 5.0 * grown)
            if 5.0 * eps < least:
                turned = 8.0 * eps / (least - 5.0 * eps) + apart
                length = float(np.linalg.norm(core.B @ core.V, axis=0).max())
                word = math.sqrt(s1 + pairs) * turned + pairs / math.sqrt(sk)
                bounds["words"] = most * word + 5.0 * eps * (length + word)
                bounds["labels"] = label_pairs / sk + turned * (2.0 + turned)
                bounds["weights"] = (least - 5.0 * eps) ** -2.0 - least**-2.0
    return {name: value if math.isfinite(value) else None for name, value in bounds.items()}
