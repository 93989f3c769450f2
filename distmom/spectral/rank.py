"""How many components the second moment of a corpus carries.

Eigenvectors of the second moment of one half of the documents are tested on the other half. A direction that
is the noise of the first half has no second moment in the other, as the moments are of distinct positions and
so without bias; one that is a topic has as much. The share of an eigenvalue that comes back tells one from the
other, and how large the noise is need not be known.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, Selection
from distmom.spectral.components import CoreSettings, Words, basis_passes, fit_basis, load_moments

logger = logging.getLogger(__name__)

#: components that are looked for at most
MOST_COMPONENTS = 100
#: share of an eigenvalue that a topic brings back in the other half, at least
REPLICATED_SHARE = 0.3


@dataclass(frozen=True)
class Rank:
    """How many components were found, and by what.

    Attributes
    ----------
    n_components : int
    eigenvalues : ndarray of shape (r,)
        Of the second moment of the first half, falling.
    replicated : ndarray of shape (r,)
        Second moment of the other half along the same directions.
    """

    n_components: int
    eigenvalues: np.ndarray
    replicated: np.ndarray


def rank_settings(settings: CoreSettings, n_words: int) -> CoreSettings:
    """Return how the moments of both halves are found."""
    return replace(settings, n_states=min(MOST_COMPONENTS, n_words), third_moment="none")


def halves(seed: int) -> tuple[Selection, Selection]:
    """Return the two halves of the documents."""
    return Selection(0.5, heldout=True, seed=seed), Selection(0.5, heldout=False, seed=seed)


def find_rank(engine: Engine, settings: CoreSettings, words: Words) -> Rank:
    """Count the components, `MOST_COMPONENTS` at most, in one pass over each half beside those of a basis.

    Parameters
    ----------
    engine : Engine
    settings : CoreSettings
        Of `rank_settings`.
    words : Words
    """
    first, second = halves(settings.seed)
    basis = fit_basis(engine, settings, words, first)
    found = []
    for half in (first, second):
        pass_, _ = basis_passes(engine, settings, words, basis, half)
        found.append(load_moments((engine.run(pass_).directory,), settings.kind, basis.matrix).m2)
    with one_blas_thread():
        values, vectors = np.linalg.eigh(found[0])
        values, vectors = values[::-1], vectors[:, ::-1]
        again = np.einsum("ij,ij->j", vectors, found[1] @ vectors)
    n = count_replicated(values, again, settings.n_states)
    if n == settings.n_states == MOST_COMPONENTS:
        logger.warning("the corpus carries %d topics or more: give a larger number if they are wanted", n)
    return Rank(n, values, again)


def count_replicated(values: np.ndarray, again: np.ndarray, most: int) -> int:
    """Return how many of the first eigenvalues come back, at least one and at most ``most``.

    That is where the sum of what comes back beyond `REPLICATED_SHARE` is largest, so that neither one direction of
    noise that comes back by chance nor one topic that does not decides.
    """
    # The moments of a corpus without topics have as many negative eigenvalues as positive ones.
    beyond = again[:most] - REPLICATED_SHARE * np.abs(values[:most])
    return 1 + int(np.argmax(np.cumsum(beyond)))
