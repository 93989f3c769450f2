"""Parameters of the word moments of topics, shared by topic models, kept moments and topic search."""

from __future__ import annotations

from typing import Any, Self

from distmom.corpus import Corpus, MemoryCorpus
from distmom.errors import UsageError
from distmom.moments.weighting import WEIGHTINGS, MomentKind
from distmom.spectral.estimator import SpectralEstimator, precision_parameter
from distmom.spectral.inputs.checks import check_counts
from distmom.spectral.parameters import parameter
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.core import CoreSettings

#: length of a document with a quarter of the largest weight, for ``weighting="length"``
LENGTH_SCALE = 100.0


class TopicEstimator(SpectralEstimator):
    """Base class of estimators that use the word moments of topics."""

    min_df: float | str = parameter(
        "Words in a smaller share of documents are left out of the moments; refinement uses all words. auto "
        "is 0.005, or less where that leaves fewer than 30 positions per document on average.",
        default="auto", kind=float, least=0, auto=True,
    )  # fmt: skip
    max_df: float = parameter(
        "Words in a larger share of documents are left out of the moments.", default=0.5, least=0
    )
    max_count: int | None = parameter(
        "Counts of a word in a document are capped at this value in the moments.",
        default=2, kind=int, least=1, none=True, unset="no limit",
    )  # fmt: skip
    scale_words: bool = parameter(
        "Scale words in the moments by their frequency to the power -1/2.", default=True
    )
    weighting: str = parameter(
        "Weight of each document in the moments (see distmom.moments.weighting).",
        default="tokens", choices=tuple(WEIGHTINGS),
    )  # fmt: skip
    n_oversamples: int | None = parameter(
        "Columns of the sketch beyond the number of topics.",
        default=None, kind=int, least=0, none=True, unset="half of the number of topics, but at least 20",
    )  # fmt: skip
    n_power_iter: int = parameter("Number of power passes of the sketch.", default=4, least=0)
    precision: str = precision_parameter()
    random_state: Seed = seed_parameter()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to documents in memory.

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
            If the moments carry no topic, or too few for the estimator.
        """
        return self.fit_corpus(self._corpus(X))

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Check that the parameters are valid and suit a corpus of counts; else a UsageError or InputError."""
        super().check(corpus)
        min_df = 0.0 if isinstance(self.min_df, str) else self.min_df
        if not 0.0 <= min_df <= self.max_df <= 1.0:
            raise UsageError(
                f"min_df, max_df: expected 0 <= min_df <= max_df <= 1, got {self.min_df} and {self.max_df}"
            )
        if corpus.n_documents < 2 or corpus.n_words < 2:
            raise UsageError(
                f"topics: expected at least 2 documents and 2 words, got n_samples={corpus.n_documents} and "
                f"n_features={corpus.n_words}"
            )
        check_counts(corpus, type(self).__name__)

    def moment_settings(self, k: int, third_moment: str) -> CoreSettings:
        """Return the settings with which the moments of k topics are estimated."""
        return CoreSettings(
            n_states=k,
            kind=MomentKind(
                "distinct",
                self.weighting,
                binary=False,
                length_scale=LENGTH_SCALE,
                max_count=self.max_count,
                orders=2 if third_moment == "none" else 3,
            ),
            n_oversamples=max(20, k // 2) if self.n_oversamples is None else self.n_oversamples,
            n_power_iter=self.n_power_iter,
            third_moment=third_moment,
            seed=self._seed,
            single_precision=self.precision == "single",
            lower=True,
        )
