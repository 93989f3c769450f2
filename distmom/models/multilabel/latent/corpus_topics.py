"""Topics of the corpus of a multi-label model: the words and the labels of each topic.

The latent states of a multi-label model rank labels, and their most probable words are those of all documents.
The topics here are those of `SpectralLDA` from one set of moments and a few passes of refinement, with a
background topic for the words that all documents share, and without trials on held-out documents. A last pass
adds up their shares over the documents of every label. Large corpora are sampled, so that the time is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Selection, Tallies, TallResult
from distmom.models.topics.committed import fit_moments, moment_words, word_numbers
from distmom.models.topics.estimators import SpectralLDA
from distmom.models.topics.fitted import lift_part, top_words
from distmom.models.topics.initial import initials, word_shares
from distmom.models.topics.refine import COMPLETION_SMOOTHING, initial_topics, refine_topics, unigram_of
from distmom.models.topics.steps import Topics
from distmom.moments.documents.shares import RefinePass
from distmom.moments.documents.topic_labels import TopicLabelsPass
from distmom.moments.documents.words import WordMomentsPass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.steps.components import Words, common_fields
from distmom.spectral.steps.recovery import tall_sum, to_columns

#: default number of topics: the square root of the number of documents divided by the first value, at most the
#: last value; corpora for which that is below the second value have no topics
ROOT_PER_TOPIC, FEWEST_TOPICS, MOST_TOPICS = 4, 5, 50
#: largest vocabulary that has topics by default: beyond it, they would take a quarter of the time of a fit
MOST_WORDS = 500_000
#: largest number of positions in the documents to which topics are fitted
MOST_POSITIONS = 1_500_000
#: passes of refinement, and power passes of the sketch
N_REFINE, N_POWER_ITER = 2, 2
#: sum of the Dirichlet parameters that moments are corrected for
ALPHA0 = 1.0
#: largest share of documents in which a word of the moments may occur, for many topics and for few, whose
#: characteristic words are in many documents; refinement adds more common words, which the background absorbs
MAX_DF, MAX_DF_OF_FEW = 0.2, 0.5
#: the `LIFT_PARTS` of labels, which are few, and the most frequent of which belong to many topics
LABEL_LIFT_PARTS = {"probability": 0.0, "relevance": 0.6, "lift": 1.0}
#: number of documents that smooth the lift of a label: the lift of a label without documents is 1
LIFT_DOCUMENTS = 10.0
#: share of the largest probability of a label in a topic below which labels are not shown
LEAST_LABEL = 0.02


@dataclass(frozen=True, kw_only=True)
class CorpusTopics:
    """Topics of a corpus and their labels, in the shapes stored on disk.

    Attributes
    ----------
    components : ndarray of shape (d, t)
        Word probabilities; the last topic is the background.
    weights : ndarray of shape (t,)
        Shares of the topics in the corpus.
    alpha : ndarray of shape (t,)
        Dirichlet parameters with which the topics of documents were inferred.
    label_components : ndarray of shape (m, t)
        Label probabilities: the shares of a topic in the documents of every label, divided by their sum.
    label_weights : ndarray of shape (t,)
        The sums of these shares.
    unigram : ndarray of shape (d,)
        Shares of words in the corpus.
    diagnostics : dict
    """

    components: np.ndarray = array("d", "t", least=0.0)
    weights: np.ndarray = array("t", least=0.0)
    alpha: np.ndarray = array("t", least=0.0)
    label_components: np.ndarray = array("m", "t", least=0.0)
    label_weights: np.ndarray = array("t", least=0.0)
    unigram: np.ndarray = array("d", least=0.0)
    diagnostics: dict[str, Any] = value()

    def listed(
        self, words: Sequence[str], labels: Sequence[str], n_top: int, by: str = "relevance"
    ) -> list[dict[str, Any]]:
        """Return the top words and labels of every topic but the background, topics by descending share.

        Parameters
        ----------
        words, labels : sequence of str
            Names.
        n_top : int
            Number of words, and of labels at most: those that are more frequent in the topic than in the corpus.
        by : {"relevance", "probability", "lift"}, default "relevance"
            As in `distmom.models.SpectralLDA.topics`, for words and for labels.

        Returns
        -------
        list of dict
            Keys ``state``, the number of the topic, ``weight``, ``words`` and ``labels``, the last two lists of
            (name, probability).

        Raises
        ------
        UsageError
            If ``by`` is unknown.
        """
        part = lift_part(by)
        found = []
        for t in np.argsort(-self.weights[:-1], kind="stable"):
            row, own = self.components[:, t], self.label_components[:, t]
            found.append(
                {
                    "state": int(t),
                    "weight": float(self.weights[t]),
                    "words": [(words[i], float(row[i])) for i in top_words(row, self.unigram, n_top, part)],
                    "labels": [
                        (labels[i], float(own[i]))
                        for i in self._top_labels(int(t), n_top, LABEL_LIFT_PARTS[by])
                    ],
                }
            )
        return found

    def _top_labels(self, t: int, n_top: int, part: float) -> np.ndarray:
        own = self.label_components[:, t].astype(np.float64)
        counts = self.label_components @ self.label_weights
        weight = self.label_weights[t] / max(float(self.label_weights.sum()), 1e-300)
        expected = (counts + LIFT_DOCUMENTS) * weight
        lift = (own * self.label_weights[t] + LIFT_DOCUMENTS * weight) / np.maximum(expected, 1e-300)
        shown = np.flatnonzero((lift > 1.0) & (own >= LEAST_LABEL * own.max()))
        rank = (1.0 - part) * np.log(own[shown]) + part * np.log(lift[shown])
        return np.asarray(shown[np.lexsort((shown, -rank))[:n_top]])


def topic_model(n_topics: int, seed: int, precision: str, decompose_on: str) -> SpectralLDA:
    """Return the model of the topics of a corpus, with parameters for a fit much shorter than that of heads."""
    max_df = max(MAX_DF, min(MAX_DF_OF_FEW, 2.0 / n_topics))
    return SpectralLDA(
        n_topics + 1, alpha0=ALPHA0, init="tensor", background=True, n_refine=N_REFINE, max_df=max_df,
        n_power_iter=N_POWER_ITER, random_state=seed, precision=precision, decompose_on=decompose_on,
    )  # fmt: skip


def default_topics(corpus: Corpus | MemoryCorpus) -> int:
    """Return the default number of topics of a corpus; 0 if it is too small, or its vocabulary too large."""
    if corpus.n_words > MOST_WORDS:
        return 0
    k = min(MOST_TOPICS, math.isqrt(corpus.n_documents) // ROOT_PER_TOPIC)
    return k if k >= FEWEST_TOPICS else 0


def why_no_topics(run: Run, model: SpectralLDA) -> str | None:
    """Return why the corpus of a run can have no topics with these parameters; None if it can.

    The words have weights in place of counts, they are too few, or the passes exceed the memory limit.
    """
    corpus, k = run.corpus, model.most_components(run.corpus)
    if corpus.values != "counts":
        return "topics need counts of words, and the words of the corpus have weights"
    n_words = int((word_numbers(corpus, 0, model.min_df, model.max_df) >= 0).sum())
    if n_words < k:
        return f"{k - 1} topics need at least {k} words of medium frequency, and the corpus has {n_words}"
    settings, documents = model.core_settings(k), _sample(corpus, model._seed)
    rank = min(settings.n_states + settings.n_oversamples, n_words)
    largest = (
        WordMomentsPass(**common_fields(settings, Words(n_words), documents), rank=rank, mean=True),
        RefinePass(corpus.n_words, documents, n_topics=k, how=model.refine_method(corpus)),
        TopicLabelsPass(corpus.n_words, documents, n_topics=k, n_labels=corpus.n_labels),
    )
    if not all(run.fits(pass_) for pass_ in largest):
        return f"the passes of {k - 1} topics need more memory than the limit"
    return None


def fit_topics(run: Run, model: SpectralLDA, is_requested: bool = True) -> CorpusTopics:
    """Fit the topics of the corpus of a run and their labels.

    Parameters
    ----------
    run : Run
    model : SpectralLDA
        Model whose parameters are used; it is not changed.
    is_requested : bool, default True
        Whether the user has chosen the number of topics.

    Raises
    ------
    NumericalError
        If the moments carry no topic.
    """
    corpus, settings = run.corpus, model.core_settings(model.most_components(run.corpus))
    documents = _sample(corpus, model._seed)
    words, numbers = moment_words(run, settings.n_states, model.min_df, model.max_df, model.scale_words)
    moments = fit_moments(run, settings, words, documents, documents)
    how_found = replace(model.init_settings(), is_requested=is_requested)
    init = initials(run, moments, numbers, how_found)[0]
    initial = initial_topics(init.topics, init.proportions, dtype=settings.dtype)
    method = model.refine_method(corpus)
    topics = refine_topics(run, initial, method, model.n_refine_passes(corpus), documents, model.eta)
    unigram = unigram_of(run)
    pass_ = TopicLabelsPass(
        corpus.n_words, documents, topics=topics.matrix, n_topics=len(topics.alpha), alpha=topics.alpha,
        unigram=unigram, smoothing=COMPLETION_SMOOTHING, n_labels=corpus.n_labels, how=method,
    )  # fmt: skip
    labels = run.scan(
        pass_, _distributions, settings.dtype, out=TallResult(unknown(), unknown()), rows=topics.rows
    )
    found: CorpusTopics = run.rows(_assembled, topics, labels, out=unknown())
    return found


def _sample(corpus: Corpus | MemoryCorpus, seed: int) -> Selection | None:
    """Return the documents to which topics are fitted; None for all of them."""
    share = MOST_POSITIONS / max(1.0, float(corpus.word_frequency.sum()))
    return Selection(share, heldout=True, seed=seed) if share < 1.0 else None


def _distributions(engine: Engine, tallies: Tallies, dtype: str) -> TallResult:
    found, masses = tall_sum(tallies.tall["labels"]).distributions(engine, dtype)
    return TallResult({"labels": found}, {"masses": [float(x) for x in masses.positive]})


def _assembled(engine: Engine, topics: Topics, labels: TallResult) -> CorpusTopics:
    return CorpusTopics(
        components=np.array(to_columns(topics.matrix)),
        weights=topics.shares,
        alpha=topics.alpha,
        label_components=np.array(to_columns(labels.states["labels"])),
        label_weights=np.asarray(labels.values["masses"]),
        unigram=word_shares(engine.corpus),
        diagnostics={"log_likelihoods": list(topics.log_likelihoods)},
    )
