"""A start of EM by the moments of all words together, where thirds of the words do not distinguish all components.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorems 3.2 and 3.3, by `distmom.spectral.steps.spherical`. In units of its standard deviation, the presence of a
word has a variance of at most about one on average within components, and mostly little less. As if it were the
same for all words, conditional means follow from the covariance and the third moment. They are biased by the
difference, but they need no views and have smaller sampling errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Engine, StoredArray
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.moments.documents.presence import PresenceMomentsPass, PresenceSketchPass
from distmom.moments.documents.product import smoothed_rates
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import Basis, range_basis
from distmom.spectral.steps.components import basis_slabs
from distmom.spectral.steps.spherical import Found, recover_in_basis


@dataclass(frozen=True)
class Probabilities:
    """Estimates of a mixture of product distributions.

    Attributes
    ----------
    components : ndarray of shape (d, k)
        Probabilities that words are present; they may be outside [0, 1].
    weights : ndarray of shape (k,)
    diagnostics : dict
    """

    components: np.ndarray
    weights: np.ndarray
    diagnostics: dict[str, Any]


def find_together(
    run: Run,
    k: int,
    n_oversamples: int,
    n_power_iter: int,
    method: str,
    where: str,
    seed: int,
    refusal: str,
) -> Probabilities:
    """Estimate k components by ``n_power_iter + 2`` passes.

    Parameters
    ----------
    run : Run
    k : int
    n_oversamples : int
        Columns of the sketch beyond the components.
    n_power_iter : int
        Power passes of the sketch.
    method : str
        A method of `distmom.linalg.decompose`.
    where : {"scheduler", "client"}
    seed : int
    refusal : str
        Why thirds of the words do not suffice.

    Raises
    ------
    NumericalError
        If the moments of all words carry fewer components, too.
    """
    run, d, n_varying = run.part("all words"), run.corpus.n_words, _n_varying(run.corpus)
    run.apply(_check_varying, n_varying, k, refusal, out=None)
    scale = run.rows(_scales, out=unknown(d, 1))
    r = min(k + n_oversamples, d)
    sketch = PresenceSketchPass(d, n_columns=r, seed=seed, scale=scale)
    n_slabs = basis_slabs(run, sketch, (PresenceMomentsPass(d, rank=r),))
    basis = range_basis(
        run, sketch, n_power_iter, "float64", n_slabs, indefinite=False, scale=scale, n_signals=max(k - 1, 1)
    )
    pass_ = PresenceMomentsPass(d, basis=basis.matrix, rank=basis.rank, scale=scale, origin=basis.mean)
    found = recover_in_basis(run, pass_, k, n_varying, method, where, seed)
    out = Probabilities(unknown(d, k), unknown(k), unknown())
    return run.rows(_probabilities, basis, scale, found, refusal, out=out)


def _scales(engine: Engine) -> StoredArray:
    """Store the inverse standard deviations of the presence of words, (d, 1)."""
    corpus = engine.corpus
    rates = smoothed_rates(corpus.document_frequency, corpus.n_documents)
    return engine.put((1.0 / np.sqrt(rates * (1.0 - rates)))[:, None])


def _n_varying(corpus: Any) -> int:
    """Return the number of words that are in some documents, but not in all."""
    frequency = np.asarray(corpus.document_frequency)
    return int(np.count_nonzero((frequency > 0) & (frequency < corpus.n_documents)))


def _check_varying(n_varying: int, k: int, refusal: str) -> None:
    if n_varying < k:
        raise NumericalError(f"{refusal}; and only {n_varying} words are in some documents but not in all")


def _probabilities(
    engine: Engine, basis: Basis, scale: StoredArray, found: Found | str, refusal: str
) -> Probabilities:
    """Map conditional means from the basis back to the words."""
    if isinstance(found, str):
        raise NumericalError(f"{refusal}; and with all words together, {found}")
    assert basis.mean is not None
    mean, scales = (np.asarray(each.load(), np.float64) for each in (basis.mean, scale))
    whole = np.asarray(read_rows(basis.matrix, slice(0, len(mean))))
    with one_blas_thread():
        components = mean + (whole @ found.means) / scales**2
    # One component has the spectrum alone, as nothing is decomposed.
    kept = [
        name for name in ("residual", "sum_weights", "eigenvalues", "spectrum") if name in found.diagnostics
    ]
    return Probabilities(components, found.weights, {name: found.diagnostics[name] for name in kept})
