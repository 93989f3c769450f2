"""Curves of scores, and the terms of an input of a stack in log-odds: a score and its curve times coefficients.

The curve of a score s is ``log max(s, floor)``, or ``log sigmoid(2 s)`` for the signed scores of margin
classifiers.
"""

from __future__ import annotations

import numpy as np

from distmom.compiled import compiled


def curve_of(scores: np.ndarray, signed: bool, floor: float) -> np.ndarray:
    """Return the curve of scores, of the same shape, float64."""
    return np.asarray(-np.logaddexp(0.0, -2.0 * scores) if signed else np.log(np.maximum(scores, floor)))


@compiled
def _curve(s: float, signed: bool, floor: float, lowest: float) -> float:
    """Return the curve of one score; ``lowest`` is the logarithm of the floor."""
    if signed:
        return -np.log1p(np.exp(-2.0 * s)) if s > -300.0 else 2.0 * s
    return np.log(s) if s > floor else lowest


@compiled
def add_input(
    scores: np.ndarray, signed: bool, floor: float, linear: float, curve: float, out: np.ndarray
) -> None:
    """Add ``linear * s + curve * curve(s)`` to the log-odds of every pair."""
    lowest = np.log(floor)
    for i in range(scores.shape[0]):
        s = np.float64(scores[i])
        out[i] += np.float32(linear * s + curve * _curve(s, signed, floor, lowest))


@compiled
def add_varying_input(
    scores: np.ndarray,
    signed: bool,
    floor: float,
    linear: np.ndarray,
    curve: np.ndarray,
    label_linear: np.ndarray,
    label_curve: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add ``(b_i + c_l) s + (b'_i + c'_l) curve(s)`` to the log-odds of every document i and label l."""
    lowest = np.log(floor)
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            s = np.float64(scores[i, j])
            bent = _curve(s, signed, floor, lowest)
            out[i, j] += np.float32((linear[i] + label_linear[j]) * s + (curve[i] + label_curve[j]) * bent)


@compiled
def add_class_input(
    scores: np.ndarray,
    classes: np.ndarray,
    signed: bool,
    lowest: np.ndarray,
    linear: np.ndarray,
    curve: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add ``linear_c s + curve_c curve(s)`` to the log-odds of every pair, c being the class of its label.

    Parameters
    ----------
    scores : ndarray of shape (n, m), float32
    classes : ndarray of shape (n, m) or (1, m), uint8
        With one row, that of all documents.
    signed : bool
        Whether the curve is ``log sigmoid(2 s)``.
    lowest : ndarray of shape (n_classes,)
        Logarithms of the least scores whose logarithm is taken.
    linear, curve : ndarray of shape (n_classes,)
    out : ndarray of shape (n, m), float32
        Changed in place.
    """
    least = np.exp(lowest)
    for i in range(scores.shape[0]):
        own = classes[i if classes.shape[0] > 1 else 0]
        for j in range(scores.shape[1]):
            c, s = own[j], np.float64(scores[i, j])
            bent = _curve(s, signed, least[c], lowest[c])
            out[i, j] += np.float32(linear[c] * s + curve[c] * bent)
