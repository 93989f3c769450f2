"""Refinement of topics by a few additive passes, and their evaluation on held-out documents.

One pass is one step of EM, of variational Bayes or, where documents have a single topic each, of EM for a mixture.
It uses all words and raw counts, so that words left out of the moments get probabilities too. Topics are evaluated
by document completion: how well the shares inferred from half of a held-out document predict the other half. For a
small corpus, documents are divided into folds, and each fold is read with topics estimated from the others, so
that documents do not confirm their own noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.engine import Engine, PassResult, Selection, StoredArray, StoredColumns, TallResult
from distmom.models.topics.initial import word_shares
from distmom.models.topics.steps import EM_ALPHA, Topics, next_topics
from distmom.moments.documents.shares import CompletionPass, MixturePass, RefinePass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.recovery import Slabs

#: count added to every word of every topic
ETA = 0.05
#: share of the unigram distribution mixed into topics that predict documents
COMPLETION_SMOOTHING = 0.01
#: sums of Dirichlet parameters that completion tries
ALPHA_SUMS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
#: number of sums that are tried where the best one for similar topics is known
N_NEAR = 3


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
    method: str,
    n_passes: int,
    selection: Selection | None = None,
    eta: float = ETA,
) -> Topics:
    """Make some passes of EM, of variational Bayes ("vb" or collapsed, "cvb"), or of EM for a mixture.

    Parameters
    ----------
    run : Run
    topics : Topics
    method : {"em", "vb", "cvb", "mixture"}
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
        n_folds = 1 if method == "mixture" else topics.n_folds
        if method == "mixture":
            logs, log_weights = run.rows(
                _logarithms, topics, unigram, out=(unknown_columns(d, k), unknown(k))
            )
            step = MixturePass(d, selection, n_topics=k, log_topics=logs, log_weights=log_weights)
        else:
            step = RefinePass(
                d, selection, topics=topics.by_fold, n_topics=k, alpha=topics.alpha,
                unigram=unigram, smoothing=topics.smoothing, how=method, n_folds=n_folds,
            )  # fmt: skip
        by_fold = StoredColumns(n_folds * unknown_columns(d, k).parts)
        out = TallResult({"topics": unknown_columns(d, k), "by_fold": by_fold}, unknown())
        found = run.scan(step, next_topics, topics, unigram, method, eta, out=out, rows=topics.rows)
        topics = run.apply(
            _refined, topics, found,
            out=replace(topics, matrix=out.states["topics"], by_fold=by_fold, smoothing=0.0),
        )  # fmt: skip
    return topics


def _refined(topics: Topics, found: TallResult) -> Topics:
    values = found.values
    return Topics(
        found.states["topics"],
        found.states["by_fold"],
        np.asarray(values["shares"]),
        np.asarray(values["alpha"]),
        0.0,
        found.rows,
        (*topics.log_likelihoods, values["log_likelihood"]),
        topics.dtype,
    )


def _logarithms(engine: Engine, topics: Topics, unigram: StoredArray) -> tuple[StoredColumns, np.ndarray]:
    """Return the logarithms of smoothed topics and of their shares."""
    logs, _ = engine.maps.map_rows(
        _logs, [topics.matrix, unigram], engine.corpus.n_words, {"log": (len(topics.alpha), topics.dtype)},
        max(topics.smoothing, COMPLETION_SMOOTHING),
    )  # fmt: skip
    return StoredColumns((logs["log"],)), np.log(np.maximum(topics.shares, 1e-12))


def _logs(rows: slice, topics: np.ndarray, unigram: np.ndarray, smoothing: float) -> tuple[Slabs, Slabs]:
    return {"log": np.log((1.0 - smoothing) * topics + smoothing * unigram)}, {}


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
    normalised = run.apply(_normalised, proportions, out=unknown(k))
    pass_ = CompletionPass(
        run.corpus.n_words, selection, topics=topics, n_topics=k, alpha=normalised,
        unigram=unigram_of(run) if unigram is None else unigram, smoothing=smoothing,
        alpha_sums=(1.0,) if mixture else alpha_sums, mixture=mixture, seed=seed,
    )  # fmt: skip
    out = Completion(unknown(k), unknown(), unknown(), unknown())
    return run.apply(_completion, normalised, pass_.alpha_sums, run.scan(pass_), out=out)


def near_sums(run: Run, completion: Completion) -> tuple[float, ...]:
    """Return the sums of Dirichlet parameters next to those of a completion, to try for similar topics."""
    found: tuple[float, ...] = run.apply(_near, completion, out=ALPHA_SUMS[:N_NEAR])
    return found


def _near(completion: Completion) -> tuple[float, ...]:
    best = int(np.argmin(np.abs(np.array(ALPHA_SUMS) - completion.alpha.sum())))
    first = min(max(0, best - N_NEAR // 2), len(ALPHA_SUMS) - N_NEAR)
    return ALPHA_SUMS[first : first + N_NEAR]


def _normalised(proportions: np.ndarray) -> np.ndarray:
    proportions = np.maximum(proportions, 1e-6)
    return np.asarray(proportions / proportions.sum())


def _completion(proportions: np.ndarray, alpha_sums: tuple[float, ...], found: PassResult) -> Completion:
    sums: Mapping[str, Any] = found.sums
    tokens = float(sums["tokens"])
    if not tokens:
        return Completion(EM_ALPHA * proportions, float("nan"), 0, int(sums["documents"]))
    values = np.asarray(sums["log_likelihood"]) / tokens
    best = int(np.argmax(values))
    return Completion(
        alpha_sums[best] * proportions, float(values[best]), int(tokens), int(sums["documents"])
    )
