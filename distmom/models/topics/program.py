"""What all topic models share: the way from a corpus, or from moments that were kept, to topics."""

from __future__ import annotations

import logging
import math
import shutil
import time
from dataclasses import replace
from typing import Any, Self

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Selection
from distmom.errors import NumericalError, UsageError
from distmom.linalg import METHODS
from distmom.models.topics.fitted import FittedTopics
from distmom.models.topics.initial import (
    CommittedMoments,
    Initial,
    anchor_init,
    check_topics,
    extend_moments,
    fit_moments,
    moment_words,
    tensor_inits,
    topic_settings,
)
from distmom.models.topics.jackknife import Jackknife
from distmom.models.topics.kept import TopicMoments, commit_sums
from distmom.models.topics.refine import (
    EM_ALPHA,
    REFINEMENTS,
    Completion,
    Topics,
    complete,
    initial_topics,
    refine_topics,
    with_background,
    word_shares,
)
from distmom.moments.weighting import WEIGHTINGS
from distmom.spectral.components import CoreSettings, Words, warn_of_sum_rules
from distmom.spectral.estimator import DECOMPOSE_ON, check_bounds, check_choices
from distmom.spectral.inputs import checked_rows
from distmom.spectral.rank import MOST_COMPONENTS, Rank, find_rank, rank_settings
from distmom.spectral.tall import to_columns

logger = logging.getLogger(__name__)

INITS = ("auto", "tensor", "anchors")
#: sums of Dirichlet parameters that ``alpha0="auto"`` tries
ALPHA0S = (1.0, 5.0)
#: documents on which starts are chosen at most, and the largest share of the corpus
HELD_OUT_DOCUMENTS, HELD_OUT_SHARE = 5_000, 0.1
#: documents that a start is refined on before it is chosen, at most
TRIAL_DOCUMENTS = 50_000
#: passes of refinement before the sum of the Dirichlet parameters is estimated on held-out documents
N_ALPHA = 2
#: mean positions of a document below which ``refine="auto"`` is collapsed: shares of largest posterior say more of
#: few words than they tell, and so does each of these words of itself
SHORT_DOCUMENT = 30
#: passes of refinement with ``n_refine="auto"``, and how many if it is collapsed: few words are soon overfitted
N_REFINE, N_COLLAPSED = 4, 2
#: folds of the documents in refine, where there are fewer positions than this for every probability of a word in
#: a topic, and no more such probabilities than that; with two folds each would follow the other one alone
N_FOLDS, ENOUGH_POSITIONS, MOST_FREE = 4, 4.0, 1 << 24
#: least count that is added to those of words: probabilities of float32 end at 1e-38
LEAST_ETA = 1e-12
#: documents for every topic and fold that it takes
FOLD_DOCUMENTS = 2
#: share of the documents that an anchor word is in at least
ANCHOR_DF = 0.01


class TopicModel(FittedTopics):
    """Base of the topic models; see `SpectralLDA` for parameters and attributes."""

    # What a model does not let the user choose.
    n_components: int | str
    n_refine: int | str
    min_df: float | str
    max_df: float
    max_count: int | None
    scale_words: bool
    weighting: str
    eta: float
    n_oversamples: int | None
    n_power_iter: int
    precision: str
    random_state: int
    background: bool = False
    alpha0: float | str = 0.0
    init: str = "tensor"
    refine: str = "auto"
    decomposition: str = "joint"
    decompose_on: str = "client"
    #: starts and weightings that a model of this kind may have
    inits: tuple[str, ...] = INITS
    weightings: tuple[str, ...] = WEIGHTINGS

    def fit(self, X: Any, y: Any = None) -> TopicModel:
        """Fit arrays in memory.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_documents, n_words)
            Counts: whole numbers, not negative, of any type.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is wrong, or does not go with the documents.
        InputError
            If a value is negative, not finite or not a whole number.
        NumericalError
            If the moments do not carry any topic.
        """
        return self.fit_corpus(MemoryCorpus(checked_rows(X, 2, type(self).__name__)))

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Refuse parameters that are wrong or do not go with a corpus, UsageError, and weights, InputError."""
        check_topics(self, corpus, 1 + int(self.background), autos=True, weightings=self.weightings)
        check_choices(
            self,
            {
                "init": self.inits,
                "decomposition": METHODS,
                "refine": ("auto", *REFINEMENTS),
                "decompose_on": DECOMPOSE_ON,
            },
        )
        check_bounds(self, {"n_refine": 0}, autos=("n_refine",))
        if self.background and not self.n_refine:
            raise UsageError(
                "background: expected n_refine of at least 1, as only refinement tells its share, got 0"
            )
        if not LEAST_ETA <= self.eta < math.inf:
            raise UsageError(f"eta: expected a number from {LEAST_ETA:g} on, got {self.eta}")
        for value in self._alpha0s():
            if not (0.0 <= value < math.inf):
                raise UsageError(f"alpha0: expected a number from 0 on, or 'auto', got {value}")

    def _alpha0s(self) -> tuple[float, ...]:
        if self.alpha0 == "auto":
            return ALPHA0S
        try:
            return (float(self.alpha0),)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"alpha0: expected a number from 0 on, or 'auto', got {self.alpha0!r}"
            ) from error

    def way_of_refine(self, corpus: Corpus | MemoryCorpus) -> str:
        """Return how topics are refined; "auto" is settled by the mean length of the documents."""
        if self.refine != "auto":
            return self.refine
        short = float(corpus.word_frequency.sum()) < SHORT_DOCUMENT * corpus.n_documents
        return "cvb" if short else "em"

    def n_folds(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the number of folds of the documents in refinement; none is read with topics that it has made."""
        k = self.most_components(corpus)
        n_free = k * corpus.n_words
        is_small = float(corpus.word_frequency.sum()) < ENOUGH_POSITIONS * n_free
        fits = self.way_of_refine(corpus) != "mixture" and n_free <= MOST_FREE
        # Elsewhere some fold might have to do without a topic.
        return N_FOLDS if is_small and fits and corpus.n_documents >= FOLD_DOCUMENTS * N_FOLDS * k else 1

    def finds_alpha(self, corpus: Corpus | MemoryCorpus) -> bool:
        """Whether refinement finds the parameters that documents are read with."""
        how = self.way_of_refine(corpus)
        return how == "mixture" or (how == "vb" and self.n_refine != 0)

    def holds_out(self, corpus: Corpus | MemoryCorpus) -> bool:
        """Whether documents are held out at first, to choose the start or how documents are read."""
        return len(self.trials()) > 1 or not self.finds_alpha(corpus)

    def n_alpha_passes(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the passes of refinement before held-out documents give the parameters to read documents with."""
        return 0 if self.finds_alpha(corpus) else min(N_ALPHA, self.n_refine_passes(corpus))

    def n_trial_passes(self, corpus: Corpus | MemoryCorpus) -> tuple[int, int]:
        """Return the passes of refinement and of completion that serve choices on held-out documents."""
        if not self.holds_out(corpus):
            return 0, 0
        n_trials, n_alpha = len(self.trials()), self.n_alpha_passes(corpus)
        if n_trials == 1:
            return n_alpha, 1
        n_first = min(1, self.n_refine_passes(corpus))
        return n_trials * n_first + max(0, n_alpha - n_first), n_trials + int(n_alpha > n_first)

    def most_components(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the number of topics, or with "auto" how many there may be."""
        if isinstance(self.n_components, str):
            return min(MOST_COMPONENTS, corpus.n_words) + int(self.background)
        return self.n_components

    def core_settings(self, n_components: int) -> CoreSettings:
        """Return how moments are decomposed into so many topics, that of all words among them."""
        k = n_components - int(self.background)
        settings = topic_settings(self, k, "none" if self.init == "anchors" else "full")
        return replace(settings, decomposition=self.decomposition, decompose_on=self.decompose_on)

    def _fit(self, engine: Engine) -> None:
        corpus = engine.corpus
        self._describe(corpus)
        trials = self.trials()
        held = held_out(corpus, self.random_state) if self.holds_out(corpus) else None
        rest = None if held is None else replace(held, heldout=False)
        fewest = 2 if self.n_components == "auto" else self.most_components(corpus) - int(self.background)
        words, numbers = moment_words(engine, fewest, self.min_df, self.max_df, self.scale_words)
        rank = self._find_components(engine, words)
        settings = self.core_settings(self.n_components_)
        # Documents that the basis is of are completed too well to tell starts from each other. How documents are
        # read it does not move.
        moments = fit_moments(engine, settings, words, rest, rest if len(trials) > 1 else None)
        completion = None
        if held is not None:
            starts = self._starts(engine, moments, numbers, trials)
            chosen, completion = self._choose(engine, starts, held)
            trials = [trials[0] if len(trials) == 1 else chosen.alpha0]
            # All that follows is of all documents, those held out among them.
            moments = extend_moments(engine, moments, held)
        start = self._starts(engine, moments, numbers, trials)[0]
        topics = self._refined(engine, start, self.n_refine_passes(corpus))
        self._take(start, topics, words.n_words)
        self.diagnostics_["common_words"] = self._share_of_common_words(corpus)
        if self.n_refine:
            self.diagnostics_["refine"] = self.way_of_refine(corpus)
        if rank is not None:
            self.diagnostics_ |= {
                "half_spectrum": [float(x) for x in rank.eigenvalues],
                "replicated_spectrum": [float(x) for x in rank.replicated],
            }
        self.alpha_ = self._final_alpha(corpus, topics, completion)

    def _share_of_common_words(self, corpus: Corpus | MemoryCorpus) -> float:
        """Return the share of the positions whose words are in more documents than those of the moments."""
        common = np.asarray(corpus.document_frequency) > self.max_df * corpus.n_documents
        frequency = np.asarray(corpus.word_frequency, np.float64)
        return float(frequency[common].sum() / max(1.0, frequency.sum()))

    def _describe(self, corpus: Any) -> None:
        """Take over what a model knows of the documents it is fitted to."""
        self.vocabulary_ = list(corpus.vocabulary)
        # Kept moments have none.
        self.label_names_: list[str] = list(getattr(corpus, "label_names", ()))
        self.n_features_in_ = corpus.n_words
        self.settings_ = dict(corpus.settings)
        self.n_documents_ = corpus.n_documents
        self.unigram_ = word_shares(corpus)
        self.selection_: dict[str, Any] | None = None
        self.components_error_: np.ndarray | None = None
        self.weights_error_: np.ndarray | None = None

    def _take(self, start: Initial, topics: Topics, n_moment_words: int) -> None:
        self.init_ = start.name
        self.diagnostics_ = {
            **start.diagnostics,
            "init": start.name,
            "alpha0": start.alpha0,
            "n_moment_words": n_moment_words,
            "log_likelihoods": list(topics.log_likelihoods),
        }
        warn_of_sum_rules(self.diagnostics_.get("sum_rules", {}))
        self.components_ = np.array(to_columns(topics.matrix).T)
        self.weights_ = topics.shares
        self.n_components_ = len(self.weights_)

    def _find_components(self, engine: Engine, words: Words) -> Rank | None:
        """Set the number of topics; where it is to be found, return by what it was."""
        self.n_components_ = self.most_components(engine.corpus)
        if self.n_components != "auto":
            return None
        settings = rank_settings(self.core_settings(self.n_components_), words.n_words)
        rank = find_rank(engine, settings, words)
        self.n_components_ = rank.n_components + int(self.background)
        return rank

    def fit_moments(self, moments: TopicMoments) -> Self:
        """Fit sums of moments that were kept, without the documents.

        The topics are those of the moments, zero at words that the moments do not see. The jackknife over the
        parts of the documents gives their standard errors, `components_error_` and `weights_error_`.

        Parameters
        ----------
        moments : TopicMoments
            What the moments are of, and how documents count in them, was settled with them; the parameters of
            this model that say so are not looked at.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the parameters ask for what needs documents: refine, a choice among starts, or the number of topics.
        NumericalError
            If the moments do not carry any topic.
        """
        started = time.monotonic()
        totals = moments.totals()
        self.check(totals)  # type: ignore[arg-type]
        self._check_without_documents(moments)
        self._describe(totals)
        self.n_components_ = self.most_components(totals)  # type: ignore[arg-type]
        with moments.open() as (engine, committed):
            settings = self.core_settings(self.n_components_)
            made = committed.settings
            settings = replace(settings, kind=made.kind, single_precision=made.single_precision)
            committed = replace(committed, settings=settings)
            start, topics = self._of_moments(engine, committed, moments.numbers_)
            self._take(start, topics, committed.words.n_words)
            self.alpha_ = topics.shares * (start.alpha0 or EM_ALPHA if self.refine != "mixture" else 1.0)
            jackknife = Jackknife(self.components_, self.weights_)
            for sums in moments.without_parts():
                directory = commit_sums(engine, sums)
                part = replace(committed, directories=(directory,))
                # The next are added up in memory of their own.
                del sums
                try:
                    _, topics = self._of_moments(engine, part, moments.numbers_)
                except NumericalError as error:
                    logger.warning("standard errors leave out a part of the documents: %s", error)
                    continue
                finally:
                    shutil.rmtree(directory)
                jackknife.add(np.asarray(to_columns(topics.matrix)).T, topics.shares)
            self.components_error_, self.weights_error_ = jackknife.errors()
            self.timings_, self.spent_ = [vars(t) for t in engine.timings], engine.spent
        self.fit_seconds_ = time.monotonic() - started
        return self

    def _of_moments(
        self, engine: Engine, moments: CommittedMoments, numbers: np.ndarray
    ) -> tuple[Initial, Topics]:
        start = self._starts(engine, moments, numbers, self.trials())[0]
        return start, initial_topics(start.topics, start.proportions)

    def _check_without_documents(self, moments: TopicMoments) -> None:
        wrong = None
        if self.n_components == "auto":
            wrong = "n_components: expected a number, got 'auto'"
        elif len(self.trials()) > 1:
            wrong = "alpha0, start: expected a number and one start, got a choice"
        elif self.n_refine:
            wrong = f"n_refine: expected 0, got {self.n_refine!r}"
        elif self.background:
            wrong = "background: only refinement tells its share"
        elif self.init == "factors":
            wrong = "the moments of independent factors are others than those kept"
        if wrong is not None:
            raise UsageError(f"{wrong}; without documents none can be made")
        moments.check_components(int(self.n_components))

    def trials(self) -> list[float | None]:
        """Return the starts to be tried: an alpha0 of the tensor, infinite for factors, None for anchors."""
        if self.init == "factors":
            return [math.inf]
        tensors: list[float | None] = [] if self.init == "anchors" else list(self._alpha0s())
        return tensors if self.init == "tensor" else [*tensors, None]

    def n_refine_passes(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the passes of refinement; "auto" is settled by the way of refinement."""
        if self.n_refine != "auto":
            return int(self.n_refine)
        return N_COLLAPSED if self.way_of_refine(corpus) == "cvb" else N_REFINE

    def _starts(
        self, engine: Engine, moments: CommittedMoments, numbers: np.ndarray, trials: list[float | None]
    ) -> list[Initial]:
        outcomes = tensor_inits(engine, moments, numbers, [alpha0 for alpha0 in trials if alpha0 is not None])
        if None in trials:
            try:
                outcomes.append(anchor_init(engine, moments, numbers, self.vocabulary_, ANCHOR_DF))
            except NumericalError as error:
                outcomes.append(error)
        found = [outcome for outcome in outcomes if isinstance(outcome, Initial)]
        if not found:
            raise next(outcome for outcome in outcomes if isinstance(outcome, NumericalError))
        for start in found:
            if len(start.proportions) < moments.settings.n_states:
                logger.warning(
                    "%s: the moments carry %d topics of the %d asked for", start.name, len(start.proportions),
                    moments.settings.n_states,
                )  # fmt: skip
        return [_with_background(engine, start) for start in found] if self.background else found

    def _refined(
        self, engine: Engine, start: Initial, n_passes: int, selection: Selection | None = None
    ) -> Topics:
        topics = initial_topics(start.topics, start.proportions, self.n_folds(engine.corpus))
        return refine_topics(engine, topics, self.way_of_refine(engine.corpus), n_passes, selection, self.eta)

    def _choose(self, engine: Engine, starts: list[Initial], held: Selection) -> tuple[Initial, Completion]:
        """Return the start whose topics, refined without some documents, complete them best.

        Each of several starts is refined by one pass, and the best one by another before the parameters that
        documents are read with are estimated, unless refinement estimates them: after one pass topics are too
        even.
        """
        corpus = engine.corpus
        n = corpus.n_documents
        trial = replace(held, heldout=False)
        if n > TRIAL_DOCUMENTS:
            trial = Selection(TRIAL_DOCUMENTS / n, heldout=True, seed=held.seed, offset=held.fraction)
        several, n_alpha = len(self.trials()) > 1, self.n_alpha_passes(corpus)
        n_first = min(1, self.n_refine_passes(corpus)) if several else n_alpha
        tried: list[tuple[Initial, Topics, Completion]] = []
        for start in starts:
            topics = self._refined(engine, start, n_first, trial)
            tried.append((start, topics, complete(engine, topics.matrix, topics.shares, held)))
        best, topics, completion = max(tried, key=lambda t: t[2].log_likelihood)
        if not completion.n_tokens:
            logger.warning("no held-out document has words to be told from others: the first start is taken")
            return starts[0], completion
        if several:
            self.selection_ = {
                "init": best.name,
                "n_held_out": completion.n_documents,
                "perplexity": {start.name: found.perplexity for start, _, found in tried},
            }
        if n_alpha > n_first:
            how = self.way_of_refine(corpus)
            topics = refine_topics(engine, topics, how, n_alpha - n_first, trial, self.eta)
            completion = complete(engine, topics.matrix, topics.shares, held)
        return best, completion

    def _final_alpha(
        self, corpus: Corpus | MemoryCorpus, topics: Topics, completion: Completion | None
    ) -> np.ndarray:
        """Return the parameters that new documents are read with."""
        if completion is None or self.finds_alpha(corpus):
            return topics.shares if self.refine == "mixture" else topics.alpha
        shares = np.maximum(topics.shares, 1e-6)
        return np.asarray(completion.alpha.sum() * shares / shares.sum())


def _with_background(engine: Engine, start: Initial) -> Initial:
    """Return a start with the distribution of all words as one more topic, of half of the corpus."""
    topics = with_background(engine, start.topics)
    return replace(start, topics=topics, proportions=np.append(0.5 * start.proportions, 0.5))


def held_out(corpus: Corpus | MemoryCorpus, seed: int) -> Selection:
    """Return the documents on which starts are chosen."""
    share = min(HELD_OUT_SHARE, HELD_OUT_DOCUMENTS / max(1, corpus.n_documents))
    return Selection(share, heldout=True, seed=seed)
