"""Topics by the fourth moment of words, alone or together with the third.

Amounts of topics are independent, or shares of documents have a Dirichlet distribution with a known alpha0.
The moments of all documents and of random parts of them are added up in whitened coordinates, so that each order
can be weighted by its sampling errors, and topics that neither order separates are left out, as in `ECA`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import PassResult
from distmom.engine.directory.run_directory import load_sums
from distmom.linalg import Whitening
from distmom.linalg.factors import Factors
from distmom.models.topics.committed import CommittedMoments, warn_of_short_documents
from distmom.moments.documents.word_fourth import POSITIONS, FourthMoments, WordFourthPass, word_fourth
from distmom.moments.small import SmallMoments
from distmom.moments.views.fourth import pair_directions
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.components import common_fields
from distmom.spectral.steps.core import (
    Core,
    CoreSettings,
    load_moments,
    moments_and_whitening,
    unknown_whitening,
)
from distmom.spectral.steps.factors import (
    N_PAIRS,
    ORDERS,
    White,
    admissible,
    decompose_cumulants,
    separation,
)

#: the only method of decomposition: both orders diagonalised together
METHOD = "joint"


def find_by_fourth(run: Run, moments: CommittedMoments, orders: str) -> Core:
    """Find the topics of documents by their fourth moment, in one more pass over these documents.

    Parameters
    ----------
    run : Run
    moments : CommittedMoments
        Of orders one and two. The alpha0 of their settings is infinite for independent amounts, whose moments
        are cumulants, and finite for shares with a Dirichlet distribution.
    orders : str
        A name in `ORDERS`: "4", or "both" for the third and the fourth.

    Returns
    -------
    Core
        Directions, with skewnesses as eigenvalues, of the topics that are identified and that alpha0 allows.

    Raises
    ------
    InputError
        If no document has four words, and the moments are those of counts.
    NumericalError
        If no document has four words otherwise, the second moment carries no component, or no topic can be
        separated from the others.
    """
    settings, basis = moments.settings, moments.basis
    where = settings.decompose_on
    load = partial(load_moments, moments.directories, settings.kind, basis.matrix)
    small, white = run.small(
        moments_and_whitening, load, settings, basis.noise, where=where,
        out=(unknown(), unknown_whitening(basis.rank, settings.n_states)),
    )  # fmt: skip
    k = white.W.shape[1]
    left, right = pair_directions(k, max(N_PAIRS, k), settings.seed)
    pass_ = WordFourthPass(
        **common_fields(settings, moments.words, moments.selection), basis=basis.matrix, rank=basis.rank,
        whitener=run.put(white.W), left=run.put(left), right=run.put(right), n_states=k, n_pairs=left.shape[1],
        seed=settings.seed,
    )  # fmt: skip
    scanned = run.scan(pass_)
    if moments.selection is None and settings.kind.needs_positions:
        run.apply(_warn_of_short_documents, scanned, out=None)
    load_fourth = partial(_load, scanned.directory)
    found = run.small(
        _decompose, load_fourth, white, left, right, orders, settings, where=where, out=unknown()
    )
    out = Core.upto(basis.rank, settings.n_states)
    return run.apply(_core, small, white, found, orders, settings, out=out)


def _warn_of_short_documents(scanned: PassResult) -> None:
    n_documents, n_long = (float(x) for x in scanned.sums["documents"])
    warn_of_short_documents(n_documents, n_long, POSITIONS)


def _load(directory: str) -> FourthMoments:
    """Finish the committed sums of a fourth-moment pass; runs on a worker."""
    with one_blas_thread():
        return word_fourth(load_sums(directory)[0])


def _decompose(
    loaded: FourthMoments,
    white: Whitening,
    left: np.ndarray,
    right: np.ndarray,
    orders: str,
    settings: CoreSettings,
) -> Factors:
    """Find the factors; runs on the scheduler node."""
    fourth = (left, right, loaded.fourth, loaded.fourth_parts)
    moments = White(white, loaded.moments, loaded.parts)
    options = {"random_state": settings.seed}
    return decompose_cumulants(fourth, moments, settings.alpha0, ORDERS[orders], METHOD, options)


def _core(
    moments: SmallMoments,
    white: Whitening,
    found: Factors,
    orders: str,
    settings: CoreSettings,
) -> Core:
    kept = admissible(found, settings.alpha0, settings.n_states, orders)
    mean = (moments.m1 @ white.W) @ kept.vectors
    diagnostics: dict[str, Any] = {
        "orders": orders,
        "decomposition": METHOD,
        "n_usable_eigenvalues": int(white.n_usable),
        "noise_level": float(white.noise),
        "gap": float(white.gap),
        "kurtosis": [float(x) for x in kept.strengths[4]],
        **separation(kept),
        **({"sum_rules": moments.sum_rules} if moments.sum_rules else {}),
    }
    return Core(
        white.W, white.B, kept.vectors, kept.strengths[3], white.eigenvalues, mean,
        moments.lengths, diagnostics,
    )  # fmt: skip
