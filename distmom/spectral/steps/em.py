"""Expectation-maximisation (EM) iterations, each with one pass over the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from distmom.spectral.program.run import Run, unknown

logger = logging.getLogger(__name__)

#: gain in log-likelihood per row in the last iteration from which more iterations are suggested
_NOTABLE_GAIN = 0.01

_P = TypeVar("_P")
_L = TypeVar("_L")


def iterate(
    run: Run,
    parameters: _P,
    n_iter: int,
    expect: Callable[[_P], tuple[Any, ...]],
    maximise: Callable[..., tuple[_P, _L]],
) -> tuple[_P, list[_L]]:
    """Return the parameters after some iterations, and the log-likelihood before each.

    Parameters
    ----------
    run : Run
    parameters : object
        Those before the first iteration. In a ledger, their placeholder also stands for the parameters after every
        iteration.
    n_iter : int
    expect : callable
        Stores the arrays that a pass reads of the given parameters, makes the pass, and returns the arguments of
        ``maximise``: the result of the pass, and whatever else it takes.
    maximise : callable
        ``maximise(*arguments)`` returns the next parameters, and the log-likelihood of those before, or the
        log-likelihoods of several mixtures.

    Returns
    -------
    parameters : object
    log_likelihoods : list of float or ndarray
    """
    likelihoods = []
    for _ in range(n_iter):
        parameters, likelihood = run.apply(maximise, *expect(parameters), out=(parameters, unknown()))
        likelihoods.append(likelihood)
    return parameters, likelihoods


def warn_of_rise(log_likelihoods: Sequence[float]) -> None:
    """Log a warning if log-likelihoods per row, one before each iteration, were still rising at the end."""
    gain = float(np.diff(log_likelihoods[-2:]).sum())
    if gain >= _NOTABLE_GAIN:
        logger.warning(
            "the log-likelihood per row was still rising after %d EM passes, by %.2g in a pass: more (n_em_iter) "
            "may give a better fit", len(log_likelihoods), gain,
        )  # fmt: skip


def count_empty(weights: np.ndarray, n_rows: int) -> int:
    """Return the number of components whose weight is less than that of a single row."""
    return int(np.count_nonzero(np.asarray(weights) * n_rows < 1.0))
