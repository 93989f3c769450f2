"""Steps of refinement: from the sums of a pass to the next topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import polygamma, psi

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Partials, StoredArray, StoredColumns, Tallies, TallResult
from distmom.engine.stored.arrays import StoredRows
from distmom.spectral.steps.recovery import Slabs

#: sum of the Dirichlet parameters where refinement leaves it fixed, and the least share of a topic in it
EM_ALPHA, LEAST_SHARE = 1.0, 1e-4
#: share of the unigram distribution mixed into initial topics, which lack the words that are not in the moments
INITIAL_SMOOTHING = 0.1
#: over-relaxation of a step; below 2, EM converges with it where it does without it, in fewer passes
#: (Salakhutdinov and Roweis 2003)
RELAXATION = 1.5
#: average number of positions per document below which passes soon overfit
SHORT_DOCUMENT = 30
_NEWTON_STEPS = 20


@dataclass(frozen=True)
class Topics:
    """Topics between passes of refinement.

    Attributes
    ----------
    matrix : StoredColumns
        (d, k), columns sum to one.
    by_fold : StoredColumns
        The topics with which each fold of the documents is read next, (d, k) each: ``matrix`` if there is one
        fold, else the topics estimated from the other folds.
    shares : ndarray of shape (k,)
        Shares of the topics in the corpus; sum to one.
    alpha : ndarray of shape (k,)
        Dirichlet parameters with which shares are inferred.
    smoothing : float
        Share of the unigram distribution that the next pass mixes in.
    rows : dict of str to StoredRows
        Shares of the documents, if they are stored.
    log_likelihoods : tuple of float
        Mean log likelihood of a position before each pass over the same documents.
    dtype : str
        Type of the matrices.
    """

    matrix: StoredColumns
    by_fold: StoredColumns
    shares: np.ndarray
    alpha: np.ndarray
    smoothing: float = INITIAL_SMOOTHING
    rows: dict[str, StoredRows] = field(default_factory=dict)
    log_likelihoods: tuple[float, ...] = ()
    dtype: str = "float32"

    @property
    def n_folds(self) -> int:
        """Number of folds of the documents."""
        return len(self.by_fold.parts)


def mean_length(corpus: Corpus | MemoryCorpus) -> float:
    """Return the average number of positions of the documents."""
    return float(corpus.word_frequency.sum()) / max(1, corpus.n_documents)


def next_topics(
    engine: Engine, tallies: Tallies, topics: Topics, unigram: StoredArray, method: str, eta: float
) -> TallResult:
    """Turn counts into topics, and shares into Dirichlet parameters where the refinement estimates them."""
    sums, k, n_words = tallies.sums, len(topics.alpha), engine.corpus.n_words
    n_folds = 1 if method == "mixture" else len(topics.by_fold.parts)
    inputs: list[Partials | StoredColumns | StoredArray] = [
        tallies.tall[f"counts{fold}"] for fold in range(n_folds)
    ]
    if method != "mixture":
        inputs += [unigram, *topics.by_fold.parts]
    folds = [f"fold{fold}" for fold in range(n_folds)] if n_folds > 1 else []
    outputs = dict.fromkeys(("topics", *folds), (k, topics.dtype))
    n = max(float(sums["documents"]), 1.0)
    alpha = topics.alpha
    shares = np.asarray(sums["shares"]) / max(float(np.sum(sums["shares"])), 1e-300)
    if method == "vb":
        alpha = fit_alpha(alpha, np.asarray(sums["log_shares"]) / n)
    elif method == "cvb":
        # Expected counts are spread over more topics than the counts themselves, so that fitted parameters
        # would be too large; only their ratios are estimated.
        alpha = EM_ALPHA * np.maximum(shares, LEAST_SHARE)
    likelihood = float(sums["log_likelihood"]) / max(float(sums["tokens"]), 1.0)
    # The first step is not over-relaxed, nor is a step after the likelihood has decreased. With short documents,
    # longer steps of CVB0 would only overfit sooner.
    last = topics.log_likelihoods[-1:]
    relaxes = method == "em" or (method == "cvb" and mean_length(engine.corpus) >= SHORT_DOCUMENT)
    relaxed = relaxes and bool(last) and likelihood >= last[0]
    if relaxed and folds:
        inputs.append(topics.matrix)
    stored, found = engine.maps.map_rows(
        _distributions, inputs, n_words, outputs, np.asarray(sums["totals"]), eta * n_words, eta,
        topics.smoothing, topics.dtype, relaxed,
    )  # fmt: skip
    if relaxed:
        masses = [np.asarray(found[name]) for name in outputs]
        stored, _ = engine.maps.map_rows(
            _scaled, [stored[name] for name in outputs], n_words, outputs, masses
        )
    values = {
        "shares": [float(x) for x in shares],
        "alpha": [float(x) for x in alpha],
        "log_likelihood": likelihood,
    }
    whole = StoredColumns((stored["topics"],))
    by_fold = StoredColumns(tuple(stored[fold] for fold in folds)) if folds else whole
    return TallResult({"topics": whole, "by_fold": by_fold}, values)


def _distributions(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    """Return rows of the next topics, of all documents and, with folds, of all folds but one.

    The rows of counts, which nothing else reads, are overwritten.

    Over-relaxed topics are moved further from the topics before in the direction of a step; they do not
    sum to one, and their sums are returned too.
    """
    *inputs, totals, of_column, eta, smoothing, dtype, relaxed = arguments
    n_folds = len(totals)
    counts, (unigram, *before) = inputs[:n_folds], inputs[n_folds:] or [None]
    by_fold = before[:n_folds]
    if smoothing:
        by_fold = [(1.0 - smoothing) * own + smoothing * unigram for own in by_fold]
    if by_fold:
        for own, part in zip(counts, by_fold, strict=True):
            own *= part
    whole, all_totals = np.array(counts[0]), totals.sum(axis=0)
    for own in counts[1:]:
        whole += own
    topics = {}
    if n_folds > 1:
        for fold, (own, total) in enumerate(zip(counts, totals, strict=True)):
            np.subtract(whole, own, out=own)
            topics[f"fold{fold}"] = _shares(own, all_totals - total, eta, of_column)
    topics["topics"] = _shares(whole, all_totals, eta, of_column)
    if not relaxed:
        return topics, {}
    # Without folds the topics of the only fold are those of all documents.
    old = {"topics": before[-1], **{f"fold{fold}": before[fold] for fold in range(n_folds)}}
    further = {name: _further(value.astype(dtype), old[name]) for name, value in topics.items()}
    return further, {name: value.sum(axis=0, dtype=np.float64) for name, value in further.items()}


def _shares(counts: np.ndarray, totals: np.ndarray, eta: float, of_column: float) -> np.ndarray:
    """Turn rows of counts, in place, into rows of shares."""
    counts += eta
    counts /= totals + of_column
    return counts


def _further(stepped: np.ndarray, before: np.ndarray) -> np.ndarray:
    ratio = stepped / before
    ratio **= RELAXATION - 1.0
    ratio *= stepped
    return np.asarray(ratio)


def _scaled(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    """Return rows of topics divided by the sums of their columns."""
    *unscaled, masses = arguments
    names = ["topics", *(f"fold{fold}" for fold in range(len(unscaled) - 1))]
    return {name: own / mass for name, own, mass in zip(names, unscaled, masses, strict=True)}, {}


def fit_alpha(alpha: np.ndarray, mean_logs: np.ndarray) -> np.ndarray:
    """Return the maximum-likelihood Dirichlet parameters for given mean logarithms of shares.

    Newton's method with a Hessian that is diagonal plus rank one (Minka 2000, "Estimating a Dirichlet
    distribution").

    Parameters
    ----------
    alpha : ndarray of shape (k,)
        Initial parameters.
    mean_logs : ndarray of shape (k,)
        ``E log theta_i``, averaged over documents.
    """
    alpha = np.array(alpha, np.float64)
    if len(alpha) == 1:
        # The share of a single topic is always 1.
        return alpha
    for _ in range(_NEWTON_STEPS):
        total = alpha.sum()
        gradient = psi(total) - psi(alpha) + mean_logs
        diagonal, constant = -polygamma(1, alpha), float(polygamma(1, total))
        shared = (gradient / diagonal).sum() / (1.0 / constant + (1.0 / diagonal).sum())
        step = (gradient - shared) / diagonal
        factor = 1.0
        while factor > 1e-6 and not (alpha - factor * step > 0.0).all():
            factor /= 2.0
        after = np.maximum(alpha - factor * step, 1e-6)
        if np.abs(after - alpha).max() < 1e-6 * alpha.max():
            return np.asarray(after)
        alpha = after
    return np.asarray(alpha)
