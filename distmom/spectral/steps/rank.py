"""Estimation of the number of components that the second moment of a corpus carries.

Eigenvectors of the second moment of one half of the documents are tested on the other half. A direction that is
noise of the first half has an expected second moment of zero in the other, as moments of distinct positions are
unbiased; a direction that belongs to a topic has the same second moment in both. The replicated share of an
eigenvalue separates the two, and the level of the noise need not be known.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Selection
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import N_PROBES, Basis
from distmom.spectral.steps.components import Words, fit_basis, moment_passes
from distmom.spectral.steps.core import CoreSettings, load_moments

logger = logging.getLogger(__name__)

#: largest number of components that is considered
MOST_COMPONENTS = 100
#: least share of the eigenvalue of a topic that is replicated in the other half
REPLICATED_SHARE = 0.3


@dataclass(frozen=True)
class Rank:
    """The estimated number of components, and the numbers that it is based on.

    Attributes
    ----------
    n_components : int
    eigenvalues : ndarray of shape (r,)
        Eigenvalues of the second moment of the first half, descending.
    replicated : ndarray of shape (r,)
        Second moment of the other half along the same directions.
    """

    n_components: int
    eigenvalues: np.ndarray
    replicated: np.ndarray


def rank_settings(settings: CoreSettings, n_words: int) -> CoreSettings:
    """Return the settings with which the moments of both halves are found."""
    return replace(settings, n_states=min(MOST_COMPONENTS, n_words), third_moment="none")


def within_plan(settings: CoreSettings, n_words: int) -> CoreSettings:
    """Return settings for a number of components that was found after the passes had been planned.

    The plan allows for a basis of all words. One of nearly all of them would need more memory than that, with its
    probes, and becomes one of all words.
    """
    if settings.n_states + settings.n_oversamples + 2 * N_PROBES <= n_words:
        return settings
    return replace(settings, n_oversamples=max(0, n_words - settings.n_states))


def halves(seed: int) -> tuple[Selection, Selection]:
    """Return the two halves of the documents."""
    return Selection(0.5, heldout=True, seed=seed), Selection(0.5, heldout=False, seed=seed)


def find_rank(run: Run, settings: CoreSettings, words: Words) -> Rank:
    """Estimate the number of components, at most `MOST_COMPONENTS`, with a pass over each half after a basis.

    Parameters
    ----------
    run : Run
    settings : CoreSettings
        From `rank_settings`.
    words : Words
    """
    selections = halves(settings.seed)
    basis = fit_basis(run, settings, words, selections[0])
    directories = tuple(
        run.scan(moment_passes(settings, words, basis, half)[0]).directory for half in selections
    )
    return run.apply(
        _compare_halves, settings, basis, directories, out=Rank(settings.n_states, unknown(), unknown())
    )


def _compare_halves(settings: CoreSettings, basis: Basis, directories: tuple[str, ...]) -> Rank:
    found = [load_moments((directory,), settings.kind, basis.matrix).m2 for directory in directories]
    with one_blas_thread():
        values, vectors = np.linalg.eigh(found[0])
        values, vectors = values[::-1], vectors[:, ::-1]
        again = np.einsum("ij,ij->j", vectors, found[1] @ vectors)
    n = count_replicated(values, again, settings.n_states)
    if n == settings.n_states == MOST_COMPONENTS:
        logger.warning("the corpus has %d topics or more: specify n_components to find more", n)
    return Rank(n, values, again)


def count_replicated(values: np.ndarray, again: np.ndarray, most: int) -> int:
    """Return how many of the first eigenvalues are replicated, at least 1 and at most ``most``.

    The count maximises the sum of the replicated moments in excess of `REPLICATED_SHARE`, so that no direction
    decides alone, be it noise that is replicated by chance or a topic that is not replicated.
    """
    # The moments of a corpus without topics have as many negative eigenvalues as positive ones.
    beyond = again[:most] - REPLICATED_SHARE * np.abs(values[:most])
    return 1 + int(np.argmax(np.cumsum(beyond)))
