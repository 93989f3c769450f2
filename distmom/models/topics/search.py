"""Search for single topics from words or documents about them, without learning the other topics.

Source: Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018), section 3.2. The
moments of a corpus are added up and whitened once; every search then solves one small eigenvalue problem. Side
information is projected onto the basis of the moments, which preserves its products with the topics.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, NoReturn, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.engine import merge
from distmom.errors import NumericalError, UsageError
from distmom.linalg import Whitening
from distmom.linalg.search.component import (
    SEARCHES,
    SIDES,
    Found,
    WhitenedMoments,
    conditioned,
    search,
    whitens,
)
from distmom.models.topics.base import TopicEstimator
from distmom.models.topics.kept import TopicMoments
from distmom.models.topics.sums import MomentSums, add_up
from distmom.moments.documents.dirichlet import corrected_slices
from distmom.moments.documents.word_moments import word_moments
from distmom.moments.small import SmallMoments
from distmom.spectral.capabilities import Capability
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run
from distmom.spectral.refit import all_or_nothing
from distmom.spectral.steps.core import CoreSettings, warn_of_sum_rules, whiten_words


@dataclass(frozen=True)
class FoundTopic:
    """A topic found by a search.

    Attributes
    ----------
    topic : ndarray of shape (n_words,)
        Word probabilities, zero for words that are not in the moments.
    share : float
        Share of the topic in the corpus.
    gap : float
        Preference of the side information for this topic, less its preference for the next topic; negative if the
        method found another topic than the preferred one.
    noise : float
        Sampling error of a preference, estimated from two halves of the corpus.
    n_documents_needed : float
        Number of documents like those of the corpus at which the noise, which decreases with the square root of
        that number, would equal the gap; infinite if the gap is not positive.
    preferences : ndarray of shape (k,)
        Preference of the side information for this topic, then for the others in descending order.
    negative_mass : float
        Share of the topic's absolute mass that was negative and set to zero.
    """

    topic: np.ndarray
    share: float
    gap: float
    noise: float
    n_documents_needed: float
    preferences: np.ndarray
    negative_mass: float

    @property
    def informative(self) -> bool:
        """Whether the gap is larger than the noise."""
        return self.gap > self.noise


class TopicSearch(TopicEstimator):
    """Find single topics of a corpus from words or documents that are about them.

    Attributes
    ----------
    n_documents_ : int
    spectrum_ : ndarray of shape (r,)
        Eigenvalues of the second moment in the basis.
    whitened_ : WhitenedMoments
        The whitened moments in which searches are made (see `distmom.linalg.search.component`).
    diagnostics_ : dict
        Number and lengths of the documents, and ``sum_rules`` as in `SpectralLDA`.
    vocabulary_ : list of str
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> topics = rng.dirichlet(np.full(30, 0.1), 3)
    >>> X = np.stack([rng.multinomial(60, rng.dirichlet([0.2] * 3) @ topics) for _ in range(2000)])
    >>> found = TopicSearch(3, alpha0=0.6, max_df=1.0, max_count=None).fit(X).search([int(topics[1].argmax())])
    >>> bool(np.abs(found.topic - topics[1]).sum() < 0.2)
    True
    """

    State = MomentSums
    capabilities = frozenset({Capability.DOCUMENTS, Capability.MOMENTS})

    n_components: int = parameter(
        "Approximate number of topics of the corpus: the rank of the moments.",
        default=100, least=1, kw_only=False,
    )  # fmt: skip
    alpha0: float = parameter(
        "Sum of the Dirichlet parameters of the topics; 0 means one topic per document.", default=1.0, least=0
    )
    method: str = parameter(
        "whitening and cancellation find the topic without the others; cancellation-bisection, -threshold and "
        "-norm find the multiple of the side information in other ways, and cancellation-pair uses the third "
        "moment along the side information in place of the second moment. fast-tpm runs the tensor power method "
        "once, from the side information. tpm (power method with restarts and deflation) and joint (joint "
        "diagonalisation) find all topics once for all searches, and return the preferred topic, as does random, "
        "which takes the eigenvectors of the third moment along one random vector.",
        default="whitening", choices=tuple(SEARCHES),
    )  # fmt: skip
    side: str = parameter(
        "Project words and documents onto the span of the topics (project), or multiply them by the inverse of "
        "the second moment (whiten), so that topics need not have equal norms. auto whitens documents, and takes "
        "words as they are.",
        default="auto", choices=SIDES,
    )  # fmt: skip

    def program(self, run: Run) -> MomentSums:
        """Add up the moments, in two parts, by the passes of a run and return them."""
        return add_up(run, self, self.n_components, n_parts=2)

    def _keep(self, state: MomentSums) -> None:
        self._take(state, self.moment_settings(self.n_components, "full"))

    @all_or_nothing
    def fit_moments(self, moments: TopicMoments) -> Self:
        """Prepare searches in kept moments, without the documents.

        Parameters
        ----------
        moments : TopicMoments
            Moments in at least two parts. Its parameters for the words and the weights of documents apply;
            those of this estimator are ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the moments were made for fewer topics, or are in a single part, from which noise cannot be
            estimated.
        """
        started = time.monotonic()
        self._draw_seed()
        totals: Any = moments.totals()
        self.check(totals)
        moments.check_components(self.n_components)
        self._describe(totals)
        self._take(moments.sums_, moments.settings)
        self.timings_, self.spent_ = [], {}
        self.fit_seconds_ = time.monotonic() - started
        return self

    def save(self, path: Any, *, overwrite: bool = False) -> NoReturn:
        """Raise a UsageError: the sums of a search are saved with `TopicMoments`.

        Raises
        ------
        UsageError
            Always.
        """
        raise UsageError(
            f"{type(self).__name__}: cannot be saved; save the moments, with "
            "TopicMoments(n_parts=2), and search in these with fit_moments"
        )

    def _take(self, sums: MomentSums, settings: CoreSettings) -> None:
        """Whiten sums that were made with some settings, for later searches."""
        settings = replace(settings, n_states=self.n_components, alpha0=self.alpha0)
        with one_blas_thread():
            finish = partial(word_moments, kind=settings.kind, basis=sums.basis)
            halves = sums.halves()
            whole = finish(merge(halves))
            self.diagnostics_ = {**whole.lengths, "sum_rules": whole.sum_rules}
            warn_of_sum_rules(whole.sum_rules)
            white = whiten_words(whole, settings, sums.noise_level)
            # The matrix A of the paper is (alpha0 + 1) M2, with weights that sum to one.
            factor = np.sqrt(self.alpha0 + 1.0)
            white = replace(
                white, W=white.W / factor, B=white.B * factor, eigenvalues=white.eigenvalues * factor**2
            )
            slices = whitened_slices(white, whole, self.alpha0)
            self.whitened_: WhitenedMoments = WhitenedMoments(white, whole.m1, slices, self._seed)
            first, second = (whitened_slices(white, finish(half), self.alpha0) for half in halves)
            # Half of the difference of two halves estimates the error of their mean.
            self._noise = replace(self.whitened_, slices=(first - second) / 2.0)
        self._stored = sums.basis.astype(np.float64)
        self._numbers = sums.numbers
        self._scale = np.ones((len(self._stored), 1)) if sums.scale is None else sums.scale
        self._columns = {word: i for i, word in enumerate(self.vocabulary_)}
        self.n_documents_ = sums.n_documents
        self.spectrum_ = white.eigenvalues

    def search(
        self, words: Sequence[str | int] | None = None, documents: Any = None, *, force: bool = False
    ) -> FoundTopic:
        """Find the topic that words, or documents, are about, without a pass over the corpus.

        Parameters
        ----------
        words : sequence of str or int, optional
            Words, or their column numbers, that have a larger probability in the topic than in any other topic.
            Several words count by the sum of their probabilities.
        documents : array or sparse matrix of shape (n, n_words), optional
            Counts of documents that are mostly about the topic, instead of words.
        force : bool, default False
            Return a topic even if the side information does not determine it.

        Returns
        -------
        FoundTopic

        Raises
        ------
        UsageError
            If a word is unknown, or not exactly one of words and documents is given.
        NumericalError
            If the gap is not larger than the noise and ``force`` is False.
        """
        check_is_fitted(self, "spectrum_")
        if (words is None) == (documents is None):
            raise UsageError("search: specify either words or documents")
        with one_blas_thread():
            return self._search(self._along(words, documents), force)

    def search_all(self, targets: Sequence[Any], *, force: bool = False) -> list[FoundTopic]:
        """Find a topic for each of several targets, with the results of separate calls of `search`.

        Parameters
        ----------
        targets : sequence
            Each is a sequence of words or column numbers, or documents as a two-dimensional array or sparse
            matrix.
        force : bool, default False
            Return a topic even if the side information does not determine it (see `FoundTopic.informative`).

        Returns
        -------
        list of FoundTopic

        Raises
        ------
        UsageError, NumericalError
            As in `search`; the message has the number of the target, from 0.
        """
        check_is_fitted(self, "spectrum_")
        found = []
        with one_blas_thread():
            for i, target in enumerate(targets):
                try:
                    of_documents = getattr(target, "ndim", 1) == 2
                    along = self._along(None, target) if of_documents else self._along(target, None)
                    found.append(self._search(along, force))
                except (UsageError, NumericalError) as error:
                    raise type(error)(f"target {i}: {error}") from error
        return found

    def _along(self, words: Sequence[str | int] | None, documents: Any) -> np.ndarray:
        """Return side information, projected or whitened, in the basis."""
        labelled = words is None
        numbers, values = self._of_documents(documents) if words is None else self._of_words(words)
        if not whitens(self.side, labelled):
            # The basis scales topics, so a vector that multiplies them is divided by the scale.
            values = values / self._scale[numbers, 0] ** 2
        along = np.asarray(values @ self._stored[numbers])
        return conditioned(self.whitened_.white, along, self.side, labelled=labelled)

    def _search(self, along: np.ndarray, force: bool) -> FoundTopic:
        """Search for a vector in the basis."""
        found = search(self.method, self.whitened_, along)
        # The spectral norm of a symmetric matrix.
        noise = float(np.abs(np.linalg.eigvalsh(self._noise.along(along))).max())
        topic = self._topic(found, noise)
        if not (force or topic.informative):
            more = f", or about {topic.n_documents_needed:,.0f} documents in all" if topic.gap > 0.0 else ""
            raise NumericalError(
                f"the side information does not determine a topic: it prefers one by {topic.gap:.3g}, but the "
                f"sampling error is {noise:.3g}; give other words, more of them, or documents about "
                f"it{more}"
            )
        return topic

    def _of_words(self, words: Sequence[str | int]) -> tuple[Any, np.ndarray]:
        """Return the numbers of words in the moments, and how often each counts."""
        if isinstance(words, str):
            raise UsageError(f"search: expected a list of words, got the word {words!r}")
        numbers = []
        if len(words) == 0:
            raise UsageError("search: no word was given")
        for word in words:
            if not isinstance(word, str | Integral):
                raise UsageError(
                    f"search: expected words or their column numbers, got {word!r:.60}; give a matrix of "
                    "documents by name (documents=...)"
                )
            column = self._columns.get(word, -1) if isinstance(word, str) else int(word)
            if not 0 <= column < self.n_features_in_:
                raise UsageError(f"search: {word!r} is not in the vocabulary")
            number = int(self._numbers[column])
            if number < 0:
                raise UsageError(
                    f"search: {word!r} is left out of the moments, as too few or too many documents contain it: "
                    "change min_df or max_df"
                )
            numbers.append(number)
        return numbers, np.ones(len(numbers))

    def _of_documents(self, documents: Any) -> tuple[Any, np.ndarray]:
        """Return the mean frequencies in some documents of all words of the moments."""
        block = self._block(documents, 1).words
        length = np.asarray(block.sum(axis=1)).ravel()
        if not (length > 0).any():
            raise UsageError("search: the documents have no words")
        frequency = np.asarray(block.T @ (1.0 / np.maximum(length, 1))) / (length > 0).sum()
        return slice(None), frequency[self._numbers >= 0]

    def _topic(self, found: Found, noise: float) -> FoundTopic:
        values = (self._stored @ found.component) / self._scale[:, 0] ** 2
        positive, negative = np.maximum(values, 0.0), -np.minimum(values, 0.0).sum()
        total = float(positive.sum())
        if not total > 0.0:
            raise NumericalError("the topic found has no positive mass")
        topic = np.zeros(self.n_features_in_)
        topic[self._numbers >= 0] = positive / total
        needed = self.n_documents_ * (noise / found.gap) ** 2 if found.gap > 0.0 else np.inf
        return FoundTopic(
            topic, found.weight, found.gap, noise, needed, found.values, float(negative / (total + negative))
        )


def whitened_slices(white: Whitening, moments: SmallMoments, alpha0: float) -> np.ndarray:
    """Return ``sum p_i (W'mu_i) (W'mu_i) mu_i`` in the basis, (k, k, r), from the whole third moment."""
    W = white.W
    assert moments.m3 is not None
    # Contracting the first axis puts the new one last.
    slices = np.tensordot(np.tensordot(moments.m3, W, axes=(0, 0)), W, axes=(0, 0)).transpose(1, 2, 0)
    across = W.T @ moments.m2
    corrected = corrected_slices(W.T @ moments.m1, across @ W, slices, moments.m1, across, alpha0)
    return np.ascontiguousarray((alpha0 + 1.0) * (alpha0 + 2.0) / 2.0 * corrected)
