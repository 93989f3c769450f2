"""The program of all topic models: topics from a corpus, or from kept moments."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Selection
from distmom.errors import UsageError
from distmom.models.topics.choice import Chosen, choose, final_alpha, held_out
from distmom.models.topics.committed import CommittedMoments, extend_moments, fit_moments, moment_words
from distmom.models.topics.fitted import TopicState
from distmom.models.topics.initial import Initial, InitSettings, initials, word_shares
from distmom.models.topics.kept import TopicMoments
from distmom.models.topics.refine import initial_topics, refine_topics
from distmom.models.topics.settings import TopicSettings
from distmom.models.topics.steps import EM_ALPHA, Topics
from distmom.models.topics.sums import commit_sums
from distmom.spectral.program.jackknife import Jackknife
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.refit import all_or_nothing
from distmom.spectral.steps.core import warn_of_sum_rules
from distmom.spectral.steps.rank import Rank, find_rank, rank_settings, within_plan
from distmom.spectral.steps.recovery import to_columns


class TopicModel(TopicSettings):
    """Base class of the topic models; see `SpectralLDA` for parameters and attributes."""

    def program(self, run: Run) -> TopicState:
        """Fit the model by the passes of a run and return its state."""
        corpus, of_init = run.corpus, self.init_settings()
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
        of_basis = rest if len(of_init.trials) > 1 else None
        settings = replace(self.core_settings(most), kept=self.kept_documents(corpus))
        if auto:
            settings = within_plan(settings, words.n_words)
        moments = fit_moments(run, settings, words, rest, of_basis)
        chosen = None
        if held is not None:
            tried = initials(run, moments, numbers, of_init)
            chosen = choose(run.part("choose"), self, tried, held, settings.dtype)
            if len(of_init.trials) > 1:
                of_init = replace(of_init, trials=(chosen.init.alpha0,))
        of_all = partial(self._initial_of_all, moments=moments, numbers=numbers, of_init=of_init, held=held)
        if chosen is not None and self.tries_further(corpus):
            refined: Any = (chosen.init, chosen.further)
            init, initial = run.when(lambda: chosen.further is None, of_all, otherwise=refined)
        else:
            init, initial = of_all(run)
        method, n_passes = self.refine_method(corpus), self.n_refine_passes(corpus)
        topics = refine_topics(run, initial, method, n_passes, eta=self.eta)
        state: TopicState = run.rows(
            self._assembled, init, topics, words.n_words, rank, chosen, out=unknown()
        )
        return state

    def _initial_of_all(
        self,
        run: Run,
        moments: CommittedMoments,
        numbers: np.ndarray,
        of_init: InitSettings,
        held: Selection | None,
    ) -> tuple[Initial, Topics]:
        """Return initial topics from the moments of all documents, including those held out so far."""
        if held is not None:
            moments = extend_moments(run.part("extend"), moments, held)
        init = initials(run, moments, numbers, of_init)[0]
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
            diagnostics["refine"] = self.refine_method(corpus)
        if chosen is not None and chosen.perplexities:
            diagnostics |= {
                "trial_passes": chosen.n_passes,
                "trial_perplexity": chosen.perplexities,
                "background": chosen.background,
            }
        if rank is not None:
            diagnostics |= {
                "half_spectrum": [float(x) for x in rank.eigenvalues],
                "replicated_spectrum": [float(x) for x in rank.replicated],
            }
        return replace(
            state,
            alpha=final_alpha(self, corpus, topics, chosen),
            diagnostics=diagnostics,
            selection=None if chosen is None else chosen.selection,
        )

    def _share_of_common_words(self, corpus: Corpus | MemoryCorpus) -> float:
        """Return the share of the positions whose words exceed ``max_df``."""
        common = np.asarray(corpus.document_frequency) / corpus.n_documents > self.max_df
        frequency = np.asarray(corpus.word_frequency, np.float64)
        return float(frequency[common].sum() / max(1.0, frequency.sum()))

    @all_or_nothing
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
            numbers = moments.sums_.numbers
            init, topics = self._of_moments(run, committed, numbers, self.init_settings())
            state = _state_of(totals, init, topics, committed.words.n_words)
            jackknife = Jackknife(*_by_topic(topics))
            for sums in moments.sums_.without_parts():
                directory = commit_sums(run.engine, sums)
                part = replace(committed, directories=(directory,))
                # Frees the memory before the next sums are added up.
                del sums
                jackknife.attempt("documents", self._part_of_moments, run, part, numbers)
                shutil.rmtree(directory)
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

    def _of_moments(
        self, run: Run, moments: CommittedMoments, numbers: np.ndarray, of_init: InitSettings
    ) -> tuple[Initial, Topics]:
        init = initials(run, moments, numbers, of_init)[0]
        return init, initial_topics(init.topics, init.proportions, dtype=moments.settings.dtype)

    def _part_of_moments(
        self, run: Run, moments: CommittedMoments, numbers: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the topics from the moments of a part of the documents, for a jackknife."""
        # The fit to all documents has warned of too few topics.
        of_init = replace(self.init_settings(), is_requested=False)
        return _by_topic(self._of_moments(run, moments, numbers, of_init)[1])

    def _check_without_documents(self, moments: TopicMoments) -> None:
        wrong = None
        if self.n_components == "auto":
            wrong = "n_components: expected a number, got 'auto'"
        elif len(self.trials()) > 1:
            wrong = (
                "alpha0, init: expected a number and one initialisation, such as 1.0 and 'tensor', got "
                f"{self.alpha0!r} and {self.init!r}"
            )
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


def _by_topic(topics: Topics) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the rows by which topics of two fits are matched, (k, d), and their parameters with errors."""
    found = np.asarray(to_columns(topics.matrix)).T
    return np.sqrt(found), {"topics": found, "weights": topics.shares}


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
