"""The program of all topic models: topics from a corpus, or from kept moments."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Selection
from distmom.errors import NumericalError, UsageError
from distmom.models.topics.committed import CommittedMoments, extend_moments, fit_moments, moment_words
from distmom.models.topics.fitted import TopicState
from distmom.models.topics.initial import Initial, initials, word_shares
from distmom.models.topics.kept import TopicMoments, commit_sums
from distmom.models.topics.longer import Chosen, Trial, choose_start, part_of_positions
from distmom.models.topics.refine import Completion, complete, initial_topics, refine_topics
from distmom.models.topics.settings import TopicSettings
from distmom.models.topics.steps import EM_ALPHA, Topics
from distmom.spectral.program.jackknife import Jackknife
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.core import warn_of_sum_rules
from distmom.spectral.steps.rank import Rank, find_rank, rank_settings, within_plan
from distmom.spectral.steps.recovery import to_columns

logger = logging.getLogger(__name__)

#: largest number of held-out documents on which initial topics are chosen, and their largest share of the corpus
HELD_OUT_DOCUMENTS, HELD_OUT_SHARE = 5_000, 0.1
#: largest number of documents on which initial topics are refined before the choice
TRIAL_DOCUMENTS = 50_000


class TopicModel(TopicSettings):
    """Base class of the topic models; see `SpectralLDA` for parameters and attributes."""

    def fit(self, X: Any, y: Any = None) -> TopicModel:
        """Fit the model to documents in memory.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            Texts, which are tokenized with the defaults of `distmom.corpus.text_corpus`, or counts: whole numbers,
            not negative, of any type.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid or does not suit the documents.
        InputError
            If a value is negative, not finite or not a whole number.
        NumericalError
            If the moments do not carry any topic.
        """
        return self.fit_corpus(self._corpus(X))

    def program(self, run: Run) -> TopicState:
        """Fit the model by the passes of a run and return its state."""
        corpus, trials = run.corpus, self.trials()
        held = held_out(corpus, self._seed) if self.holds_out(corpus) else None
        rest = None if held is None else replace(held, heldout=False)
        most, auto = self.most_components(corpus), self.n_components == "auto"
        n_words = 2 if auto else most - int(self.background)
        words, numbers = moment_words(run, n_words, self.min_df, self.max_df, self.scale_words)
        rank = None
        if auto:
            settings = rank_settings(self.core_settings(most), words.n_words)
            rank = find_rank(run.part("rank"), settings, words)
            most = rank.n_components + int(self.background)
        # The basis must not see the held-out documents where initial topics are compared: it would favour topics
        # that fit their noise. The choice of the Dirichlet parameters is not affected.
        of_basis = rest if len(trials) > 1 else None
        settings = replace(self.core_settings(most), kept=self.kept_documents(corpus))
        if auto:
            settings = within_plan(settings, words.n_words)
        moments = fit_moments(run, settings, words, rest, of_basis)
        chosen = None
        if held is not None:
            tried = initials(
                run, moments, numbers, trials, self.background, self.orders, self.loss, self.max_words
            )
            chosen = self._choose(run.part("choose"), moments, tried, held)
            trials = [trials[0] if len(trials) == 1 else chosen.init.alpha0]
        from_moments = partial(self._start_of_all, moments=moments, numbers=numbers, trials=trials, held=held)
        if chosen is not None and self.chooses_start(corpus):
            refined: Any = (chosen.init, chosen.start)
            init, start = run.when(lambda: chosen.start is None, from_moments, otherwise=refined)
        else:
            init, start = from_moments(run)
        how, n_passes = self.way_of_refine(corpus), self.n_refine_passes(corpus)
        topics = refine_topics(run, start, how, n_passes, eta=self.eta)
        state: TopicState = run.rows(
            self._assembled, init, topics, words.n_words, rank, chosen, out=unknown()
        )
        return state

    def _start_of_all(
        self,
        run: Run,
        moments: CommittedMoments,
        numbers: np.ndarray,
        trials: list[float | None],
        held: Selection | None,
    ) -> tuple[Initial, Topics]:
        """Return initial topics from the moments of all documents, including those held out so far."""
        if held is not None:
            moments = extend_moments(run.part("extend"), moments, held)
        init = initials(
            run, moments, numbers, trials, self.background, self.orders, self.loss, self.max_words
        )[0]
        n_folds = self.n_folds(run.corpus)
        return init, initial_topics(init.topics, init.proportions, n_folds, moments.settings.dtype)

    def _assembled(
        self,
        engine: Engine,
        init: Initial,
        topics: Topics,
        n_moment_words: int,
        rank: Rank | None,
        chosen: Chosen | None,
    ) -> TopicState:
        corpus = engine.corpus
        state = _state_of(corpus, init, topics, n_moment_words)
        diagnostics = {**state.diagnostics, "common_words": self._share_of_common_words(corpus)}
        if self.n_refine:
            diagnostics["refine"] = self.way_of_refine(corpus)
        if chosen is not None and chosen.longer:
            diagnostics |= {
                "trial_passes": chosen.n_passes,
                "trial_perplexity": chosen.longer,
                "background": chosen.background,
            }
        if rank is not None:
            diagnostics |= {
                "half_spectrum": [float(x) for x in rank.eigenvalues],
                "replicated_spectrum": [float(x) for x in rank.replicated],
            }
        completion = None if chosen is None else chosen.completion
        return replace(
            state,
            alpha=self._final_alpha(corpus, topics, completion),
            diagnostics=diagnostics,
            selection=None if chosen is None else chosen.selection,
        )

    def _share_of_common_words(self, corpus: Corpus | MemoryCorpus) -> float:
        """Return the share of the positions whose words exceed ``max_df``."""
        common = np.asarray(corpus.document_frequency) > self.max_df * corpus.n_documents
        frequency = np.asarray(corpus.word_frequency, np.float64)
        return float(frequency[common].sum() / max(1.0, frequency.sum()))

    def fit_moments(self, moments: TopicMoments) -> Self:
        """Fit the model to kept moments, without the documents.

        The topics are estimated from the moments, and are zero for words that are not in the moments. The
        jackknife over the parts of the documents gives their standard errors, `components_error_` and
        `weights_error_`.

        Parameters
        ----------
        moments : TopicMoments
            Its parameters for the words and the weights of documents apply; those of this model are ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the parameters require documents: for refinement, to choose initial topics or the number of topics.
        NumericalError
            If the moments do not carry any topic.
        """
        started = time.monotonic()
        self._draw_seed()
        totals: Any = moments.totals()
        self.check(totals)
        self._check_without_documents(moments)
        settings = self.core_settings(self.most_components(totals))
        with moments.open() as (run, committed):
            made = committed.settings
            settings = replace(settings, kind=made.kind, single_precision=made.single_precision)
            committed = replace(committed, settings=settings)
            init, topics = self._of_moments(run, committed, moments.numbers_)
            state = _state_of(totals, init, topics, committed.words.n_words)
            whole = {"topics": state.topics.T, "weights": state.weights}
            jackknife = Jackknife(np.sqrt(whole["topics"]), whole)
            for sums in moments.without_parts():
                directory = commit_sums(run.engine, sums)
                part = replace(committed, directories=(directory,))
                # Frees the memory before the next sums are added up.
                del sums
                try:
                    _, topics = self._of_moments(run, part, moments.numbers_)
                except NumericalError as error:
                    logger.warning("standard errors leave out a part of the documents: %s", error)
                    continue
                finally:
                    shutil.rmtree(directory)
                found = np.asarray(to_columns(topics.matrix)).T
                jackknife.add(np.sqrt(found), {"topics": found, "weights": topics.shares})
            errors = jackknife.errors() or {}
            self.timings_, self.spent_ = [vars(t) for t in run.engine.timings], run.engine.spent
        of_all = init.alpha0 or EM_ALPHA if self.refine != "mixture" else 1.0
        topics_error = errors.get("topics")
        self._describe(totals)
        self._keep(
            replace(
                state, alpha=state.weights * of_all, weights_error=errors.get("weights"),
                topics_error=None if topics_error is None else topics_error.T.astype(np.float32),
            )
        )  # fmt: skip
        self.fit_seconds_ = time.monotonic() - started
        return self

    def _of_moments(self, run: Run, moments: CommittedMoments, numbers: np.ndarray) -> tuple[Initial, Topics]:
        init = initials(
            run, moments, numbers, self.trials(), self.background, loss=self.loss, max_words=self.max_words
        )[0]
        return init, initial_topics(init.topics, init.proportions, dtype=moments.settings.dtype)

    def _check_without_documents(self, moments: TopicMoments) -> None:
        wrong = None
        if self.n_components == "auto":
            wrong = "n_components: expected a number, got 'auto'"
        elif len(self.trials()) > 1:
            wrong = "alpha0, init: expected a number and one initialisation, got a choice"
        elif self.n_refine:
            wrong = f"n_refine: expected 0, got {self.n_refine!r}"
        elif self.background:
            wrong = "background: expected False, as only refinement estimates its share"
        elif self.starts != "random":
            wrong = f"starts: expected 'random', got {self.starts!r}"
        elif self.orders != "3":
            wrong = f"orders: expected '3', got {self.orders!r}"
        elif self.init == "factors":
            wrong = "independent topics need other moments than those kept"
        if wrong is not None:
            raise UsageError(f"{wrong}; kept moments are fitted without documents")
        moments.check_components(int(self.n_components))

    def _choose(self, run: Run, moments: CommittedMoments, inits: list[Initial], held: Selection) -> Chosen:
        """Choose the initial topics that, refined without the held-out documents, complete these best.

        Where there are several, each is refined by one pass, and the best by another pass before the parameters to
        read documents with are estimated, as topics are still too even after one pass. The second pass is left out
        where refinement estimates these parameters.
        """
        corpus = run.corpus
        n = corpus.n_documents
        trial = replace(held, heldout=False)
        if n > TRIAL_DOCUMENTS:
            trial = Selection(TRIAL_DOCUMENTS / n, heldout=True, seed=held.seed, offset=held.fraction)
        how, n_folds = self.way_of_refine(corpus), self.n_folds(corpus)
        on_trial = Trial(how, self.eta, n_folds, trial, held)
        several, n_alpha = len(self.trials()) > 1, self.n_alpha_passes(corpus)
        n_first = min(1, self.n_refine_passes(corpus)) if several else n_alpha
        tried: list[Chosen] = []
        for init in inits:
            start = initial_topics(init.topics, init.proportions, n_folds, moments.settings.dtype)
            topics = refine_topics(run, start, how, n_first, trial, self.eta)
            tried.append(Chosen(init, topics, complete(run, topics.matrix, topics.shares, held)))
        best = run.rows(_best, tried, several, out=tried[0])
        if n_alpha > n_first:
            best = run.when(
                lambda: best.completion.n_tokens > 0, on_trial.further, best, n_alpha - n_first,
                otherwise=best,
            )  # fmt: skip
        if self.chooses_start(corpus):
            share = min(TRIAL_DOCUMENTS / n, part_of_positions(corpus), 1.0 - held.fraction)
            some = Selection(share, heldout=True, seed=held.seed, offset=held.fraction)
            on_part = replace(on_trial, documents=some)
            best = choose_start(run, best, n_alpha, on_part, not self.background)
        return best

    def _final_alpha(
        self, corpus: Corpus | MemoryCorpus, topics: Topics, completion: Completion | None
    ) -> np.ndarray:
        """Return the Dirichlet parameters with which new documents are read."""
        if completion is None or self.finds_alpha(corpus):
            return topics.shares if self.refine == "mixture" else topics.alpha
        shares = np.maximum(topics.shares, 1e-6)
        return np.asarray(completion.alpha.sum() * shares / shares.sum())


def _best(engine: Engine, tried: list[Chosen], several: bool) -> Chosen:
    """Return the trial that completes the held-out documents best."""
    best = max(tried, key=lambda t: t.completion.log_likelihood)
    if not best.completion.n_tokens:
        logger.warning(
            "no held-out document has enough words to compare initial topics: the first ones are used"
        )
        return replace(tried[0], completion=best.completion)
    if several:
        selection = {
            "init": best.init.name,
            "n_held_out": best.completion.n_documents,
            "perplexity": {each.init.name: each.completion.perplexity for each in tried},
        }
        return replace(best, selection=selection)
    return best


def _state_of(corpus: Any, init: Initial, topics: Topics, n_moment_words: int) -> TopicState:
    """Return the state of topics fitted to a corpus or to totals."""
    diagnostics = {
        **init.diagnostics,
        "init": init.name,
        "alpha0": init.alpha0,
        "n_moment_words": n_moment_words,
        "log_likelihoods": list(topics.log_likelihoods),
    }
    warn_of_sum_rules(diagnostics.get("sum_rules", {}))
    return TopicState(
        topics=np.array(to_columns(topics.matrix)),
        weights=topics.shares,
        alpha=topics.alpha,
        unigram=word_shares(corpus),
        diagnostics=diagnostics,
        selection=None,
    )


def held_out(corpus: Corpus | MemoryCorpus, seed: int) -> Selection:
    """Return the held-out documents on which initial topics are chosen."""
    share = min(HELD_OUT_SHARE, HELD_OUT_DOCUMENTS / max(1, corpus.n_documents))
    return Selection(share, heldout=True, seed=seed)
