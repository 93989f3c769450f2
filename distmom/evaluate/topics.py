"""Evaluation of topics: held-out perplexity, coherence and diversity.

Perplexity is measured by document completion: topic shares are inferred from a random half of a document's
tokens and predict the other half (Wallach et al., "Evaluation Methods for Topic Models", ICML 2009).
Coherence of the top words of a topic is computed from their occurrences in documents of the given corpus, as
the mean over pairs of words i < j of

    NPMI    log(p_ij / (p_i p_j)) / -log p_ij, -1 if they never co-occur    (Lau, Newman, Baldwin, EACL 2014)
    UMass   log((n_ij + 1) / n_i), with i the more probable word, 0 if it never occurs
                                                                             (Mimno et al., EMNLP 2011)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.corpus.layers import check_corpus
from distmom.engine import Engine, Observer, open_engine, open_executor
from distmom.models.topics.program import TopicModel
from distmom.moments.documents.cooccurrence import CooccurrencePass
from distmom.predict.aligned import check_words
from distmom.predict.pieces import in_pieces
from distmom.spectral.capabilities import Capability, require
from distmom.spectral.inputs.aligned import align
from distmom.spectral.inputs.checks import check_counts, check_size


def evaluate_topics(
    model: TopicModel,
    corpus: Corpus | MemoryCorpus,
    *,
    n_top: int = 10,
    seed: int = 0,
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
) -> dict[str, float]:
    """Evaluate a topic model, usually on documents that were not used for fitting.

    Parameters
    ----------
    model : TopicModel
    corpus : Corpus or MemoryCorpus
        A corpus of counts. Words unknown to the model are left out.
    n_top : int, default=10
        Number of top words per topic for coherence and diversity.
    seed : int, default=0
        Seed for splitting documents into halves.
    client : distributed.Client or Executor, optional
        Where passes run; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use; no limit by default.
    observer : callable, optional
        Receives progress events; none by default.

    Returns
    -------
    dict of str to float
        ``perplexity``, ``log_likelihood`` per token, ``NPMI``, ``UMass``, ``negative_NPMI`` (share of topics with
        negative NPMI), ``diversity``, ``n_documents``, ``n_tokens`` (number of predicted tokens). Coherence is
        NaN with fewer than two top words.

    Raises
    ------
    InputError
        If the corpus holds weights, because only counts can be split into halves of tokens.
    UsageError
        If the model infers no shares of topics, or knows none of the words, or ``n_top`` is not a whole number
        from 0.

    Notes
    -----
    A warning is logged if at least a tenth of the word occurrences are unknown.
    """
    require(model, Capability.SHARES)
    check_size("n_top", n_top)
    check_corpus(corpus)
    check_counts(corpus, "perplexity")
    check_words(corpus, model.vocabulary_)
    aligned = in_pieces(align(corpus, model.vocabulary_, []))
    top = top_words(model.components_, n_top)
    with (
        open_executor(client) as executor,
        open_engine(aligned, None, executor, memory_limit, observer) as engine,
    ):
        completion = model.completion(engine, seed)
        npmi, umass = coherence(engine, top)
    return {
        "perplexity": completion.perplexity,
        "log_likelihood": completion.log_likelihood,
        "NPMI": float(npmi.mean()),
        "UMass": float(umass.mean()),
        "negative_NPMI": float((npmi < 0.0).mean()) if top.shape[1] > 1 else math.nan,
        "diversity": diversity(top),
        "n_documents": completion.n_documents,
        "n_tokens": completion.n_tokens,
    }


def top_words(components: np.ndarray, n_top: int) -> np.ndarray:
    """Return the most probable words of every topic, of shape (k, n_top); ties by column number."""
    n_top = min(n_top, components.shape[1])
    return np.stack([np.lexsort((np.arange(len(row)), -row))[:n_top] for row in np.asarray(components)])


def diversity(top: np.ndarray) -> float:
    """Return the share of distinct words among the top words of all topics."""
    return len(np.unique(top)) / max(1, top.size)


def coherence(engine: Engine, top: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute NPMI and UMass of every topic from the documents of the engine's corpus.

    Parameters
    ----------
    engine : Engine
    top : ndarray of shape (k, n_top), int
        Words by decreasing probability.

    Returns
    -------
    npmi, umass : ndarray of shape (k,)
    """
    words = np.unique(top)
    numbers = np.full(engine.corpus.n_words, -1, np.int32)
    numbers[words] = np.arange(len(words), dtype=np.int32)
    sums = engine.run(CooccurrencePass(len(words), numbers=engine.put(numbers))).sums
    upper = np.asarray(sums["pairs"])
    return coherence_of_counts(np.maximum(upper, upper.T), float(sums["documents"]), numbers[top])


def coherence_of_counts(
    together: np.ndarray, n_documents: float, top: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute NPMI and UMass of every topic from document counts.

    Parameters
    ----------
    together : ndarray of shape (u, u)
        Number of documents with both words; on the diagonal, with the word.
    n_documents : float
    top : ndarray of shape (k, n_top), int
        Rows of ``together``, by decreasing probability.

    Returns
    -------
    npmi, umass : ndarray of shape (k,)
        NaN with fewer than two top words, which are no pair.
    """
    if top.shape[1] < 2:
        undefined = np.full(len(top), np.nan)
        return undefined, undefined
    first, second = np.triu_indices(top.shape[1], 1)
    i, j = top[:, first], top[:, second]
    n_i, n_j, n_ij = together[i, i], together[j, j], together[i, j]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_pair = np.log(n_ij / n_documents)
        npmi = (np.log(n_ij) + np.log(n_documents) - np.log(n_i) - np.log(n_j)) / -log_pair
        umass = np.log((n_ij + 1.0) / n_i)
    npmi = np.where(n_ij == 0.0, -1.0, np.where(n_ij >= n_documents, 1.0, npmi))
    umass = np.where(n_i == 0.0, 0.0, umass)
    return npmi.mean(axis=1), umass.mean(axis=1)
