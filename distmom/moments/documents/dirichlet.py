"""Moments of topics whose shares in documents follow a Dirichlet distribution.

E2 and E3 are the moments over pairs and triples of distinct positions, mu_i the topics, alpha_i the Dirichlet
parameters and alpha0 their sum (tensor paper, theorem 3.5; ECA paper, section 4.3):

    M2 = E2 - a M1 M1'                              = sum_i alpha_i / (alpha0 (alpha0 + 1)) mu_i mu_i'
    M3 = E3 - b sym3(E2 (x) M1) + c M1 (x) M1 (x) M1
                                         = sum_i 2 alpha_i / (alpha0 (alpha0 + 1) (alpha0 + 2)) mu_i^(x)3

with a = alpha0 / (alpha0 + 1), b = alpha0 / (alpha0 + 2) and c = 2 a b. alpha0 = 0 is the model of one topic per
document, and alpha0 = inf gives central moments. For the moment E4 over quadruples, writing shares as gamma
variables divided by their sum, whose cumulants are known, gives

    M4 = E4 - p sym4(E3 (x) M1) - q sym3(E2 (x) E2) + s sym6(E2 (x) M1 (x) M1) - t M1 (x) M1 (x) M1 (x) M1
                             = sum_i 6 alpha_i / (alpha0 (alpha0 + 1) (alpha0 + 2) (alpha0 + 3)) mu_i^(x)4

with p = alpha0 / (alpha0 + 3), q = p (alpha0 + 1) / (alpha0 + 2), s = 2 p b and t = 3 p c; alpha0 = inf gives the
fourth cumulant.
"""

from __future__ import annotations

import math

import numpy as np

from distmom.errors import UsageError


def shifts(alpha0: float) -> tuple[float, float, float]:
    """Return a, b and c; a UsageError if alpha0 is negative or NaN."""
    if not alpha0 >= 0.0:
        raise UsageError(f"alpha0: expected a number of at least 0, got {alpha0}")
    if math.isinf(alpha0):
        return 1.0, 1.0, 2.0
    a, b = alpha0 / (alpha0 + 1.0), alpha0 / (alpha0 + 2.0)
    return a, b, 2.0 * a * b


def second_moment(m1: np.ndarray, e2: np.ndarray, alpha0: float) -> np.ndarray:
    """Return M2 from M1 (r,) and E2 (r, r)."""
    return second_cross_moment(m1, m1, e2, alpha0)


def second_cross_moment(first: np.ndarray, second: np.ndarray, e2: np.ndarray, alpha0: float) -> np.ndarray:
    """Return M2 of two views with means of their own, (r,) and (s,), from their E2 (r, s)."""
    a, _, _ = shifts(alpha0)
    return np.asarray(e2 - a * np.outer(first, second))


def third_moment(m1: np.ndarray, e2: np.ndarray, e3: np.ndarray, alpha0: float) -> np.ndarray:
    """Return M3 from M1 (r,), E2 (r, r) and E3 (r, r, r)."""
    return third_cross_moment((m1, m1, m1), (e2, e2, e2.T), e3, alpha0)


def third_cross_moment(
    means: tuple[np.ndarray, np.ndarray, np.ndarray],
    pairs: tuple[np.ndarray, np.ndarray, np.ndarray],
    e3: np.ndarray,
    alpha0: float,
) -> np.ndarray:
    """Return M3 of three views with means of their own (ECA paper, section 4.4).

    Parameters
    ----------
    means : tuple of ndarray of shape (r_t,)
        M1 of every view.
    pairs : tuple of ndarray of shape (r_s, r_t)
        E2 of views 1 and 2, 1 and 3, and 2 and 3.
    e3 : ndarray of shape (r_1, r_2, r_3)
    alpha0 : float

    Returns
    -------
    ndarray of shape (r_1, r_2, r_3), float64
    """
    _, b, c = shifts(alpha0)
    if b == 0.0:
        return np.asarray(e3)
    first, second, third = means
    out = np.asarray(e3 - b * np.multiply.outer(pairs[0], third))
    out -= b * np.multiply.outer(pairs[1], second).transpose(0, 2, 1)
    out -= b * np.multiply.outer(pairs[2], first).transpose(2, 0, 1)
    out += c * np.multiply.outer(np.outer(first, second), third)
    return out


def third_moment_slices(
    m1: np.ndarray, e2: np.ndarray, slices: np.ndarray, directions: np.ndarray, alpha0: float
) -> np.ndarray:
    """Return M3(I, I, h_l) from M1, E2 and E3(I, I, h_l) in the same coordinates.

    Parameters
    ----------
    m1 : ndarray of shape (k,)
    e2 : ndarray of shape (k, k)
    slices : ndarray of shape (k, k, m)
    directions : ndarray of shape (k, m)
        The h_l.
    alpha0 : float
    """
    return corrected_slices(m1, e2, slices, m1 @ directions, e2 @ directions, alpha0)


def corrected_slices(
    m1: np.ndarray, e2: np.ndarray, slices: np.ndarray, along: np.ndarray, across: np.ndarray, alpha0: float
) -> np.ndarray:
    """Return M3(I, I, h_l), where the coordinates of the h_l may differ from those of the first two modes.

    Parameters
    ----------
    m1 : ndarray of shape (k,)
    e2 : ndarray of shape (k, k)
    slices : ndarray of shape (k, k, m)
        E3(I, I, h_l).
    along : ndarray of shape (m,)
        M1(h_l).
    across : ndarray of shape (k, m)
        E2(I, h_l).
    alpha0 : float
    """
    _, b, c = shifts(alpha0)
    if b == 0.0:
        return slices
    out = slices - (b * e2[:, :, None] - c * np.outer(m1, m1)[:, :, None]) * along
    mixed = b * across[:, None, :] * m1[None, :, None]
    out -= mixed
    out -= mixed.transpose(1, 0, 2)
    return np.asarray(out)


def third_moment_steps(
    m1: np.ndarray, e2: np.ndarray, steps: np.ndarray, vectors: np.ndarray, alpha0: float
) -> np.ndarray:
    """Return M3(I, v_l, v_l) from M1, E2 and E3(I, v_l, v_l) in the same coordinates.

    Parameters
    ----------
    m1 : ndarray of shape (k,)
    e2 : ndarray of shape (k, k)
    steps : ndarray of shape (k, m)
        E3(I, v_l, v_l).
    vectors : ndarray of shape (k, m)
        The v_l.
    alpha0 : float
    """
    _, b, c = shifts(alpha0)
    along, across = m1 @ vectors, e2 @ vectors
    twice = np.einsum("al,al->l", vectors, across)
    return np.asarray(steps - 2.0 * b * along * across + np.outer(m1, c * along**2 - b * twice))


def proportions_of_mean(mean: np.ndarray, eigenvalues: np.ndarray, alpha0: float) -> np.ndarray:
    """Return ``alpha_i / alpha0`` as the topics' coordinates of M1 (ECA paper, algorithm 3, as ``O^+ E[x]``).

    On samples it differs from `proportions`, which uses the other moments; a large difference indicates noise or a
    wrong alpha0.

    Parameters
    ----------
    mean : ndarray of shape (k,)
        M1 along the whitened components, ``V'W'M1``.
    eigenvalues : ndarray of shape (k,)
    alpha0 : float
    """
    usable = eigenvalues > 0.0
    return np.where(usable, mean / (topic_factor(alpha0) * np.where(usable, eigenvalues, 1.0)), 0.0)


def fourth_moment(
    m1: np.ndarray,
    e2: np.ndarray,
    e3: np.ndarray,
    contracted: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    alpha0: float,
) -> np.ndarray:
    """Return M4(I, I, a_l, b_l) from M1, E2, E3 and E4(I, I, a_l, b_l) in the same coordinates.

    Parameters
    ----------
    m1 : ndarray of shape (k,)
    e2 : ndarray of shape (k, k)
    e3 : ndarray of shape (k, k, k)
    contracted : ndarray of shape (k, k, m)
    left, right : ndarray of shape (k, m)
        The a_l and b_l.
    alpha0 : float
        From 0 to infinity.

    Returns
    -------
    ndarray of shape (k, k, m), float64

    Raises
    ------
    UsageError
        If alpha0 is negative.
    """
    _, b, c = shifts(alpha0)
    p = 1.0 if math.isinf(alpha0) else alpha0 / (alpha0 + 3.0)
    q = 1.0 if math.isinf(alpha0) else p * (alpha0 + 1.0) / (alpha0 + 2.0)
    s, t = 2.0 * p * b, 3.0 * p * c
    along, beside = m1 @ left, m1 @ right
    across, athwart = e2 @ left, e2 @ right
    both = np.einsum("al,al->l", left, athwart)
    out = np.array(contracted, np.float64)
    # Every term is added with its transpose; symmetric terms are therefore halved.
    half = np.zeros_like(out)
    half -= (p / 2.0) * (beside * (e3 @ left) + along * (e3 @ right))
    third = np.einsum("abc,bl,cl->al", e3, left, right, optimize=True)
    half += m1[None, :, None] * (s * (beside * across + along * athwart) - p * third)[:, None, :]
    half -= q * across[:, None, :] * athwart[None, :, :]
    half += e2[:, :, None] * ((s * along * beside - q * both) / 2.0)
    half += np.outer(m1, m1)[:, :, None] * ((s * both - t * along * beside) / 2.0)
    out += half
    out += half.transpose(1, 0, 2)
    return out


def topic_factor(alpha0: float) -> float:
    """Return the factor that turns ``lambda_i B v_i`` into the topic mu_i."""
    return (alpha0 + 2.0) / 2.0


def proportions(eigenvalues: np.ndarray, alpha0: float) -> np.ndarray:
    """Return ``alpha_i / alpha0`` from eigenvalues of the whitened third moment; 0 for those not positive."""
    usable = eigenvalues > 0.0
    squares = np.where(usable, eigenvalues, 1.0) ** 2
    return np.where(usable, 4.0 * (alpha0 + 1.0) / ((alpha0 + 2.0) ** 2 * squares), 0.0)


def proportions_of_kurtosis(kurtosis: np.ndarray, alpha0: float) -> np.ndarray:
    """Return ``alpha_i / alpha0`` from the whitened fourth moment along the topics; 0 where it is not positive.

    Parameters
    ----------
    kurtosis : ndarray of shape (k,)
        ``M4(W v_i, W v_i, W v_i, W v_i)`` of the whitened components v_i.
    alpha0 : float
    """
    usable = kurtosis > 0.0
    factor = 6.0 * (alpha0 + 1.0) / ((alpha0 + 2.0) * (alpha0 + 3.0))
    return np.where(usable, factor / np.where(usable, kurtosis, 1.0), 0.0)


def least_skewness(alpha0: float) -> float:
    """Return the least possible eigenvalue of the whitened third moment: that of a proportion of 1."""
    return 2.0 * math.sqrt(alpha0 + 1.0) / (alpha0 + 2.0)
