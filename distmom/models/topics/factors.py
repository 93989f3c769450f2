"""Independent topics by the fourth moment of words, alone or together with the third.

The moments of all documents and of random parts of them are added up in whitened coordinates, so that each order
can be weighted by its sampling errors, and topics that neither order separates are left out, as in `ECA`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine
from distmom.engine.directory import load_sums
from distmom.linalg import Whitening
from distmom.linalg.factors import Factors
from distmom.models.topics.committed import CommittedMoments
from distmom.moments.fourth import pair_directions
from distmom.moments.small import SmallMoments
from distmom.moments.word_fourth import FourthMoments, WordFourthPass, word_fourth
from distmom.spectral.components import common_fields
from distmom.spectral.core import Core, load_moments, moments_and_whitening, unknown_whitening
from distmom.spectral.factors import (
    N_PAIRS,
    ORDERS,
    White,
    admissible,
    decompose_cumulants,
    separation,
)
from distmom.spectral.run import Run, unknown

#: the only method of decomposition: both orders diagonalised together
METHOD = "joint"


def find_independent(run: Run, moments: CommittedMoments, orders: str) -> Core:
    """Find independent factors of documents by fourth cumulants, in one more pass over these documents.

    Parameters
    ----------
    run : Run
    moments : CommittedMoments
        Of orders one and two, with infinite alpha0.
    orders : str
        A name in `ORDERS`: "4", or "both" for the third and the fourth.

    Returns
    -------
    Core
        Directions, with skewnesses as eigenvalues, of the factors that are identified.

    Raises
    ------
    InputError
        If no document has four words.
    NumericalError
        If the second moment carries no component, or no factor can be separated from the others.
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
    load_fourth = partial(_load, run.scan(pass_).directory)
    found = run.small(
        _decompose, load_fourth, white, left, right, orders, settings.seed, where=where, out=unknown()
    )
    out = Core.upto(basis.rank, settings.n_states)
    return run.rows(_core, small, white, found, orders, settings.n_states, out=out)


def _load(directory: str) -> FourthMoments:
    """Finish the committed sums of a fourth-moment pass; runs on a worker."""
    with one_blas_thread():
        return word_fourth(load_sums(directory)[0])


def _decompose(
    loaded: FourthMoments, white: Whitening, left: np.ndarray, right: np.ndarray, orders: str, seed: int
) -> Factors:
    """Find the factors; runs on the scheduler node."""
    fourth = (left, right, loaded.fourth, loaded.fourth_parts)
    moments = White(white, loaded.moments, loaded.parts)
    return decompose_cumulants(fourth, moments, math.inf, ORDERS[orders], METHOD, {"random_state": seed})


def _core(
    engine: Engine, moments: SmallMoments, white: Whitening, found: Factors, orders: str, n_components: int
) -> Core:
    kept = admissible(found, math.inf, n_components, orders)
    mean = (moments.m1 @ white.W) @ kept.vectors
    diagnostics: dict[str, Any] = {
        "orders": orders,
        "decomposition": METHOD,
        "n_usable_eigenvalues": int(white.n_usable),
        "noise_level": float(white.noise),
        "gap": float(white.gap),
        "kurtosis": [float(x) for x in kept.strengths[4]],
        **separation(kept),
    }
    return Core(
        white.W, white.B, kept.vectors, kept.strengths[3], white.eigenvalues, mean,
        moments.lengths, diagnostics,
    )  # fmt: skip
