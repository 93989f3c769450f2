"""Refinement of topics by a few additive passes, and their evaluation on held-out documents.

One pass is one step of EM, of variational Bayes or, where documents have a single topic each, of EM for a mixture.
It uses all words and raw counts, so that words left out of the moments get probabilities too. Topics are evaluated
by document completion: how well the shares inferred from half of a held-out document predict the other half. For a
small corpus, documents are divided into folds, and each fold is read with topics estimated from the others, so
that documents do not confirm their own noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import polygamma, psi

from distmom.engine import (
    Engine,
    Partials,
    PassResult,
    Selection,
    StoredArray,
    StoredColumns,
    Tallies,
    TallResult,
)
from distmom.engine.state import StoredRows
from distmom.models.topics.initial import word_shares
from distmom.moments.shares import CompletionPass, MixturePass, RefinePass
from distmom.spectral.basis import unknown_columns
from distmom.spectral.recovery import Slabs
from distmom.spectral.run import Run, unknown

#: sum of the Dirichlet parameters where refinement leaves it fixed, and the least share of a topic in it
EM_ALPHA, LEAST_SHARE = 1.0, 1e-4
#: count added to every word of every topic
ETA = 0.05
#: share of the unigram distribution mixed into initial topics, which lack the words that are not in the moments
INITIAL_SMOOTHING = 0.1
#: share of the unigram distribution mixed into topics that predict documents
COMPLETION_SMOOTHING = 0.01
#: sums of Dirichlet parameters that completion tries
ALPHA_SUMS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
#: over-relaxation of a step of EM; below 2 it converges where EM does, in fewer passes (Salakhutdinov and
#: Roweis 2003)
RELAXATION = 1.5
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


def initial_topics(
    matrix: StoredColumns, shares: np.ndarray, n_folds: int = 1, dtype: str = "float32"
) -> Topics:
    """Return initial topics with an even prior, for refinement with some number of folds.

    Parameters
    ----------
    matrix : StoredColumns
        (d, k), of one slab.
    shares : ndarray of shape (k,)
    n_folds : int, default 1
    dtype : str, default "float32"
        Type of the matrix.
    """
    k = len(shares)
    by_fold = StoredColumns(n_folds * matrix.parts)
    return Topics(matrix, by_fold, shares, np.full(k, EM_ALPHA / k), dtype=dtype)


def unigram_of(run: Run) -> StoredArray:
    """Return the shares of words in the corpus of a run as a stored column."""
    stored: StoredArray = run.put(word_shares(run.corpus)[:, None])
    return stored


def refine_topics(
    run: Run,
    topics: Topics,
    how: str,
    n_passes: int,
    selection: Selection | None = None,
    eta: float = ETA,
) -> Topics:
    """Make some passes of EM, of variational Bayes ("vb" or collapsed, "cvb"), or of EM for a mixture.

    Parameters
    ----------
    run : Run
    topics : Topics
    how : {"em", "vb", "cvb", "mixture"}
    n_passes : int
    selection : Selection, optional
        Documents; all by default.
    eta : float, default 0.05
        Count added to every word of every topic.
    """
    unigram = unigram_of(run)
    d, k = run.corpus.n_words, len(topics.alpha)
    for _ in range(n_passes):
        step: RefinePass | MixturePass
        n_folds = 1 if how == "mixture" else topics.n_folds
        if how == "mixture":
            logs, log_weights = run.rows(
                _logarithms, topics, unigram, out=(unknown_columns(d, k), unknown(k))
            )
            step = MixturePass(d, selection, n_topics=k, log_topics=logs, log_weights=log_weights)
        else:
            step = RefinePass(
                d, selection, topics=topics.by_fold, n_topics=k, alpha=topics.alpha,
                unigram=unigram, smoothing=topics.smoothing, how=how, n_folds=n_folds,
            )  # fmt: skip
        by_fold = StoredColumns(n_folds * unknown_columns(d, k).parts)
        out = TallResult({"topics": unknown_columns(d, k), "by_fold": by_fold}, unknown())
        found = run.scan(step, _next_topics, topics, unigram, how, eta, out=out, rows=topics.rows)
        topics = run.rows(
            _refined, topics, found, selection is None,
            out=replace(topics, matrix=out.states["topics"], by_fold=by_fold, smoothing=0.0),
        )  # fmt: skip
    return topics


def _refined(engine: Engine, topics: Topics, found: TallResult, of_all: bool) -> Topics:
    values = found.values
    return Topics(
        found.states["topics"],
        found.states["by_fold"],
        np.asarray(values["shares"]),
        np.asarray(values["alpha"]),
        0.0,
        # Shares stored for some documents cannot be used for all.
        found.rows if of_all else {},
        (*topics.log_likelihoods, values["log_likelihood"]),
        topics.dtype,
    )


def _logarithms(engine: Engine, topics: Topics, unigram: StoredArray) -> tuple[StoredColumns, np.ndarray]:
    """Return the logarithms of smoothed topics and of their shares."""
    logs, _ = engine.map_rows(
        _logs, [topics.matrix, unigram], engine.corpus.n_words, {"log": (len(topics.alpha), topics.dtype)},
        max(topics.smoothing, COMPLETION_SMOOTHING),
    )  # fmt: skip
    return StoredColumns((logs["log"],)), np.log(np.maximum(topics.shares, 1e-12))


def _logs(rows: slice, topics: np.ndarray, unigram: np.ndarray, smoothing: float) -> tuple[Slabs, Slabs]:
    return {"log": np.log((1.0 - smoothing) * topics + smoothing * unigram)}, {}


def _next_topics(
    engine: Engine, tallies: Tallies, topics: Topics, unigram: StoredArray, how: str, eta: float
) -> TallResult:
    """Turn counts into topics, and shares into Dirichlet parameters where the refinement estimates them."""
    sums, k, n_words = tallies.sums, len(topics.alpha), engine.corpus.n_words
    n_folds = 1 if how == "mixture" else len(topics.by_fold.parts)
    inputs: list[Partials | StoredColumns | StoredArray] = [
        tallies.tall[f"counts{fold}"] for fold in range(n_folds)
    ]
    if how != "mixture":
        inputs += [topics.by_fold, unigram]
    folds = [f"fold{fold}" for fold in range(n_folds)] if n_folds > 1 else []
    outputs = dict.fromkeys(("topics", *folds), (k, topics.dtype))
    stored, _ = engine.map_rows(
        _distributions, inputs, n_words, outputs, np.asarray(sums["totals"]), eta * n_words, eta,
        topics.smoothing,
    )  # fmt: skip
    n = max(float(sums["documents"]), 1.0)
    alpha = topics.alpha
    shares = np.asarray(sums["shares"]) / max(float(np.sum(sums["shares"])), 1e-300)
    if how == "vb":
        alpha = fit_alpha(alpha, np.asarray(sums["log_shares"]) / n)
    elif how == "cvb":
        # Expected counts are spread over more topics than the counts themselves, so that fitted parameters
        # would be too large; only their ratios are estimated.
        alpha = EM_ALPHA * np.maximum(shares, LEAST_SHARE)
    likelihood = float(sums["log_likelihood"]) / max(float(sums["tokens"]), 1.0)
    # The first step is not over-relaxed, nor is a step after the likelihood has decreased.
    last = topics.log_likelihoods[-1:]
    if how == "em" and last and likelihood >= last[0]:
        stored["topics"] = _relaxed(engine, stored["topics"], topics.matrix)
        for fold, old in zip(folds, topics.by_fold.parts, strict=False):
            stored[fold] = _relaxed(engine, stored[fold], StoredColumns((old,)))
    values = {
        "shares": [float(x) for x in shares],
        "alpha": [float(x) for x in alpha],
        "log_likelihood": likelihood,
    }
    whole = StoredColumns((stored["topics"],))
    by_fold = StoredColumns(tuple(stored[fold] for fold in folds)) if folds else whole
    return TallResult({"topics": whole, "by_fold": by_fold}, values)


def _distributions(rows: slice, *arguments: Any) -> tuple[Slabs, Slabs]:
    *inputs, totals, of_column, eta, smoothing = arguments
    counts, before = inputs[: len(totals)], inputs[len(totals) :]
    if before:
        mixed = (1.0 - smoothing) * before[0] + smoothing * before[1]
        parts = np.split(mixed, len(totals), axis=1)
        counts = [own * part for own, part in zip(counts, parts, strict=True)]
    whole, all_totals = sum(counts), totals.sum(axis=0)
    found = {"topics": (whole + eta) / (all_totals + of_column)}
    if len(counts) > 1:
        for fold, (own, total) in enumerate(zip(counts, totals, strict=True)):
            found[f"fold{fold}"] = (whole - own + eta) / (all_totals - total + of_column)
    return found, {}


def _relaxed(engine: Engine, stepped: StoredArray, matrix: StoredColumns) -> StoredArray:
    """Return topics over-relaxed: moved further from ``matrix`` in the direction of a step of EM."""
    n_rows, k = stepped.load().shape
    outputs = {"topics": (k, str(stepped.load().dtype))}
    further, sums = engine.map_rows(_further, [stepped, matrix], n_rows, outputs)
    scaled, _ = engine.map_rows(_scaled, [further["topics"]], n_rows, outputs, np.asarray(sums["mass"]))
    return scaled["topics"]


def _further(rows: slice, stepped: np.ndarray, before: np.ndarray) -> tuple[Slabs, Slabs]:
    found = stepped * (stepped / before) ** (RELAXATION - 1.0)
    return {"topics": found}, {"mass": found.sum(axis=0, dtype=np.float64)}


def _scaled(rows: slice, topics: np.ndarray, mass: np.ndarray) -> tuple[Slabs, Slabs]:
    return {"topics": topics / mass}, {}


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


@dataclass(frozen=True)
class Completion:
    """How well topics complete held-out documents.

    Attributes
    ----------
    alpha : ndarray of shape (k,)
        Dirichlet parameters, with the best of the sums tried.
    log_likelihood : float
        Mean log likelihood of a predicted position.
    n_tokens, n_documents : int
    """

    alpha: np.ndarray
    log_likelihood: float
    n_tokens: int
    n_documents: int

    @property
    def perplexity(self) -> float:
        """``exp(-log_likelihood)``."""
        return float(np.exp(-self.log_likelihood))


def complete(
    run: Run,
    topics: StoredColumns,
    proportions: np.ndarray,
    selection: Selection | None = None,
    *,
    unigram: StoredArray | None = None,
    mixture: bool = False,
    alpha_sums: tuple[float, ...] = ALPHA_SUMS,
    smoothing: float = COMPLETION_SMOOTHING,
    seed: int = 0,
) -> Completion:
    """Complete documents with given topics.

    Parameters
    ----------
    run : Run
    topics : StoredColumns
        (d, k), columns sum to one.
    proportions : ndarray of shape (k,)
        Mean shares of the topics.
    selection : Selection, optional
        Documents; all by default.
    unigram : StoredArray of shape (d, 1), optional
        Share of every word; the share in the corpus by default.
    mixture : bool, default False
        Whether documents have a single topic each, with the probabilities ``proportions``.
    alpha_sums : tuple of float, default ALPHA_SUMS
        Sums of the Dirichlet parameters to try; the best is used. ``ALPHA_SUMS`` range from 0.1 to 50.
    smoothing : float, default 0.01
        Share of the unigram distribution that is mixed into every topic.
    seed : int, default 0
        Seed of the division of documents into halves.
    """
    k = len(proportions)
    normalised = run.rows(_normalised, proportions, out=unknown(k))
    pass_ = CompletionPass(
        run.corpus.n_words, selection, topics=topics, n_topics=k, alpha=normalised,
        unigram=unigram_of(run) if unigram is None else unigram, smoothing=smoothing,
        alpha_sums=(1.0,) if mixture else alpha_sums, mixture=mixture, seed=seed,
    )  # fmt: skip
    out = Completion(unknown(k), unknown(), unknown(), unknown())
    return run.rows(_completion, normalised, pass_.alpha_sums, run.scan(pass_), out=out)


def _normalised(engine: Engine, proportions: np.ndarray) -> np.ndarray:
    proportions = np.maximum(proportions, 1e-6)
    return np.asarray(proportions / proportions.sum())


def _completion(
    engine: Engine, proportions: np.ndarray, alpha_sums: tuple[float, ...], found: PassResult
) -> Completion:
    sums: Mapping[str, Any] = found.sums
    tokens = float(sums["tokens"])
    if not tokens:
        return Completion(EM_ALPHA * proportions, float("nan"), 0, int(sums["documents"]))
    values = np.asarray(sums["log_likelihood"]) / tokens
    best = int(np.argmax(values))
    return Completion(
        alpha_sums[best] * proportions, float(values[best]), int(tokens), int(sums["documents"])
    )
