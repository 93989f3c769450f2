"""Topics with any correlations, from second moments and the sparsity of topics alone.

Source: Anandkumar, Hsu, Javanmard, Kakade, "Learning Topic Models and Latent Bayesian Networks Under Expansion
Constraints" (arXiv:1209.5350), theorem 3.2 and section 4. The second moment of word pairs is
``A E[hh'] A'`` whatever the distribution of the shares h. Its range is found out of core, its sparse vectors are
the topics (see `distmom.linalg.expansion.sparse`), and these give the moments of the shares.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, StoredColumns
from distmom.engine.sums.tall import Tall, read_rows
from distmom.errors import NumericalError, UsageError
from distmom.linalg.expansion.sparse import sparse_columns
from distmom.models.topics.committed import CommittedMoments, fit_moments, moment_words
from distmom.models.topics.fitted import FittedTopics, TopicState
from distmom.models.topics.initial import word_shares
from distmom.models.topics.recovery import scaled_rows, store_topics
from distmom.models.topics.refine import ETA, initial_topics, refine_topics
from distmom.models.topics.steps import Topics
from distmom.moments.documents.word_moments import word_moments
from distmom.moments.small import SmallMoments
from distmom.spectral.capabilities import Capability
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import array
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.core import added_sums, warn_of_sum_rules
from distmom.spectral.steps.recovery import to_columns

logger = logging.getLogger(__name__)

#: words whose probability is fixed in a program, words in the norm of a program, and random starts, per topic
CONSTRAINTS, PROGRAM_WORDS, STARTS = 6, 40, 4
#: least and largest sum of the Dirichlet parameters with which documents are read
ALPHA_RANGE = (0.1, 50.0)


@dataclass(frozen=True, kw_only=True)
class SparseState(TopicState):
    """The state of fitted sparse topics, in the shapes stored on disk.

    Attributes
    ----------
    shares_moment : ndarray of shape (k, k)
    shares_third : ndarray of shape (k, k, k) or None
    """

    shares_moment: np.ndarray = array("k", "k")
    shares_third: np.ndarray | None = array("k", "k", "k", optional=True)


@dataclass(frozen=True)
class LatentMoments:
    """Moments of the shares of topics, normalised to sum to one.

    Attributes
    ----------
    first : ndarray of shape (k,)
    second : ndarray of shape (k, k)
    third : ndarray of shape (k, k, k) or None
    sums : tuple of float
        Sums before normalisation, 1 for an exact population whose words are all in the moments.
    """

    first: np.ndarray
    second: np.ndarray
    third: np.ndarray | None
    sums: tuple[float, ...]


@dataclass(frozen=True)
class SparseTopicsFound:
    """Topics from the moments.

    Attributes
    ----------
    topics : StoredColumns
        (d, k), columns sum to one; zero for words that are not in the moments.
    weights : ndarray of shape (k,)
        Shares of the topics in the corpus.
    latent : LatentMoments
    moments : SmallMoments
    diagnostics : dict
        JSON values.
    """

    topics: StoredColumns
    weights: np.ndarray
    latent: Any
    moments: Any
    diagnostics: dict[str, Any]


class SparseTopics(FittedTopics):
    """Topics with any correlations, from second moments and the sparsity of topics alone.

    Attributes
    ----------
    n_components_ : int
        Number of topics; less than requested if the second moment has a smaller rank.
    components_ : ndarray of shape (n_components_, n_words)
        Word probabilities of the topics; rows sum to one.
    weights_ : ndarray of shape (n_components_,)
        Shares of the topics in the corpus.
    shares_moment_ : ndarray of shape (n_components_, n_components_)
        ``E[h h']`` for the shares h of a document; sums to one.
    shares_third_ : ndarray of shape (n_components_, n_components_, n_components_) or None
        ``E[h (x) h (x) h]``, with ``third_moment="full"``.
    alpha_ : ndarray of shape (n_components_,)
        Parameters of the Dirichlet distribution with which documents are read: its mean is `weights_`, and its
        second moment has the trace of `shares_moment_`.
    diagnostics_ : dict
        ``spectrum`` has the eigenvalues of the second moment, ``noise_level`` the level of noise; ``zeros``
        the words on which each topic was solved for, ``leaks`` how well they determine it, from 0 (fully) to 1,
        ``exact`` whether the zeros are exact; ``negative_mass`` the share of each topic that was negative;
        ``shares_sums`` the sums of the moments of shares before normalisation, and ``n_programs`` the number of
        linear programs (docs/expansion.md).
    vocabulary_, label_names_ : list of str
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> topics = np.kron(np.eye(3), np.full(10, 0.1))
    >>> amounts = np.exp(rng.multivariate_normal(np.zeros(3), [[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1]], 2000))
    >>> shares = amounts / amounts.sum(axis=1, keepdims=True)
    >>> X = np.stack([rng.multinomial(60, share @ topics) for share in shares])
    >>> model = SparseTopics(3, max_df=1.0, max_count=None).fit(X)
    >>> bool(np.abs(np.sort(model.components_.max(axis=1)) - 0.1).max() < 0.02)
    True
    """

    State = SparseState
    capabilities = frozenset({Capability.DOCUMENTS, Capability.SHARES, Capability.TOPICS})
    #: method of refinement
    refine = "em"

    n_components: int = parameter("Number of topics.", default=10, least=1, kw_only=False)
    third_moment: str = parameter(
        "Whether the third moment of shares is estimated too (full), from triples of words.",
        default="none", choices=("none", "full"),
    )  # fmt: skip
    n_refine: int = parameter(
        "Number of passes of refinement by EM, which also give probabilities to words left out of the moments. 0 "
        "returns the topics estimated from moments.", default=0, least=0,
    )  # fmt: skip
    n_constraints: int | None = parameter(
        "Largest number of words with a linear program of their own; with more words, those with large and "
        "independent rows of the basis.",
        default=None, kind=int, least=1, none=True, unset=f"{CONSTRAINTS} per topic",
    )  # fmt: skip
    n_program_words: int | None = parameter(
        "Largest number of words in the objective of a linear program; with more words, drawn by their leverage.",
        default=None, kind=int, least=1, none=True, unset=f"{PROGRAM_WORDS} per topic",
    )  # fmt: skip
    n_starts: int | None = parameter(
        "Number of random starts of the search, in addition to the solutions of linear programs.",
        default=None, kind=int, least=0, none=True, unset=f"{STARTS} per topic",
    )  # fmt: skip

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Check that the parameters are valid and suit a corpus of counts; else a UsageError or InputError."""
        super().check(corpus)
        for name, least in (("n_constraints", 1), ("n_program_words", 2)):
            number = getattr(self, name)
            if number is not None and number < least * self.n_components:
                raise UsageError(
                    f"{name}: expected at least {least * self.n_components} for {self.n_components} topics, "
                    f"got {number}"
                )

    def program(self, run: Run) -> SparseState:
        """Fit the model by the passes of a run and return its state."""
        k = self.n_components
        words, numbers = moment_words(run, k, self.min_df, self.max_df, self.scale_words)
        settings = self.moment_settings(k, self.third_moment)
        moments = fit_moments(run, settings, words, None, None)
        upto = SparseTopicsFound(
            unknown_columns(run.corpus.n_words, k), unknown(k), unknown(), unknown(), unknown()
        )
        found = run.rows(self._found, moments, numbers, out=upto)
        initial = initial_topics(found.topics, found.weights, dtype=settings.dtype)
        topics = refine_topics(run, initial, self.refine, self.n_refine, eta=ETA)
        state: SparseState = run.rows(self._assembled, moments, numbers, found, topics, out=unknown())
        return state

    def _found(self, engine: Engine, moments: CommittedMoments, numbers: np.ndarray) -> SparseTopicsFound:
        """Find the sparse vectors in the range of the second moment, and the moments of shares."""
        k = self.n_components
        settings, n_words = moments.settings, moments.words.n_words
        basis, scale = moments.basis.matrix, moments.words.scale
        with one_blas_thread():
            sums = added_sums(moments.directories)
            small = word_moments(sums, settings.kind, basis)
            values, vectors = np.linalg.eigh(small.m2)
            values, vectors = values[::-1], vectors[:, ::-1]
            level = moments.basis.noise * max(float(values[0]), 0.0)
            n_usable = int((values > max(level, 1e-12 * float(values[0]))).sum())
            carried = int((values > 1e-12 * float(values[0])).sum()) if values[0] > 0.0 else 0
            if not carried:
                raise NumericalError("the second moment has no positive eigenvalue: it carries no topic")
            if n_usable < k:
                logger.warning("only %d of %d eigenvalues of the second moment exceed its noise", n_usable, k)
            if carried < k:
                logger.warning("the moments carry %d of the %d topics requested", carried, k)
                k = carried
            vectors = vectors[:, :k]
            stored = np.asarray(read_rows(basis, slice(0, n_words)), np.float64)
            # The stored basis includes the scale, without which its columns are orthonormal.
            scales = np.ones((n_words, 1)) if scale is None else np.asarray(scale.load())
            orthonormal = (stored / scales) @ vectors
            sparse = sparse_columns(
                orthonormal,
                n_constraints=self.n_constraints or CONSTRAINTS * k,
                n_program_rows=self.n_program_words or PROGRAM_WORDS * k,
                n_starts=STARTS * k if self.n_starts is None else self.n_starts,
                seed=self._seed,
            )
            mass = ((orthonormal @ sparse.coefficients) / scales).sum(axis=0)
            # A topic sums to one. Moments of shares are those of topics that are not clipped, which is unbiased.
            coefficients = vectors @ sparse.coefficients / np.where(np.abs(mass) > 0.0, mass, 1.0)
            latent = latent_moments(coefficients, small)
            order = np.argsort(-latent.first, kind="stable")
            coefficients, latent = coefficients[:, order], reordered(latent, order)
        inputs: tuple[Tall, ...] = (basis,) if scale is None else (basis, scale)
        topics, masses = store_topics(engine, moments, numbers, inputs, scaled_rows, (coefficients,), k)
        warn_of_sum_rules(small.sum_rules)
        diagnostics = {
            **small.lengths,
            "sum_rules": small.sum_rules,
            "init": "sparse",
            "alpha0": None,
            "n_moment_words": n_words,
            "spectrum": [float(x) for x in values],
            "noise_level": level,
            "n_usable_eigenvalues": n_usable,
            "zeros": [int(x) for x in sparse.zeros[order]],
            "leaks": [float(x) for x in sparse.leaks[order]],
            "exact": [bool(x) for x in sparse.exact[order]],
            "negative_mass": [float(x) for x in masses.negative_share],
            "shares_sums": list(latent.sums),
            "n_programs": sparse.n_programs,
        }
        return SparseTopicsFound(topics, latent.first, latent, small, diagnostics)

    def _assembled(
        self,
        engine: Engine,
        moments: CommittedMoments,
        numbers: np.ndarray,
        found: SparseTopicsFound,
        topics: Topics,
    ) -> SparseState:
        matrix = np.array(to_columns(topics.matrix))
        latent: LatentMoments = found.latent
        if self.n_refine:
            with one_blas_thread():
                stored = np.asarray(
                    read_rows(moments.basis.matrix, slice(0, moments.words.n_words)), np.float64
                )
                latent = latent_moments(stored.T @ matrix[numbers >= 0].astype(np.float64), found.moments)
        return SparseState(
            topics=matrix,
            weights=topics.shares,
            alpha=dirichlet_parameters(topics.shares, latent.second),
            unigram=word_shares(engine.corpus),
            shares_moment=latent.second,
            shares_third=latent.third,
            diagnostics={
                **found.diagnostics,
                "shares_sums": list(latent.sums),
                "log_likelihoods": list(topics.log_likelihoods),
            },
            selection=None,
        )

    def correlations(self) -> np.ndarray:
        """Return the correlations of the shares of topics in a document, (k, k).

        Shares sum to one, so independent amounts have slightly negative correlations.
        """
        check_is_fitted(self, "components_")
        moment = self.shares_moment_.astype(np.float64)
        first = moment.sum(axis=1)
        covariance = moment - np.outer(first, first)
        # Sampling noise may make a variance negative.
        spread = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
        return np.asarray(np.clip(covariance / np.outer(spread, spread), -1.0, 1.0))


def latent_moments(columns: np.ndarray, moments: SmallMoments) -> LatentMoments:
    """Return the moments of h from those of ``A h`` (section 4.2): ``A^+ M2 A^+'``, and so for other orders.

    Parameters
    ----------
    columns : ndarray of shape (r, k)
        A in the basis of the moments, ``Q'D A``: the product of the stored basis, which is D Q, and the topics.
    moments : SmallMoments
    """
    inverse = np.linalg.pinv(columns)
    first = np.maximum(inverse @ moments.m1, 0.0)
    second = inverse @ moments.m2 @ inverse.T
    second = (second + second.T) / 2.0
    third = None
    if moments.m3 is not None:
        third = np.einsum("abc,ia,jb,kc->ijk", moments.m3, inverse, inverse, inverse, optimize=True)
    sums = [float(x.sum()) for x in (first, second, third) if x is not None]
    if not min(sums[:2]) > 0.0:
        raise NumericalError("the moments of shares have no positive mass: the moments carry fewer topics")
    third = None if third is None else third / sums[2]
    return LatentMoments(first / sums[0], second / sums[1], third, tuple(sums))


def reordered(latent: LatentMoments, order: np.ndarray) -> LatentMoments:
    """Return the moments of topics in another order."""
    third = None if latent.third is None else latent.third[np.ix_(order, order, order)]
    return LatentMoments(latent.first[order], latent.second[np.ix_(order, order)], third, latent.sums)


def dirichlet_parameters(weights: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the parameters, (k,), of a Dirichlet distribution with given means and trace of the second moment."""
    trace, even = float(np.trace(second)), float((weights**2).sum())
    # The trace is (alpha0 even + 1) / (alpha0 + 1).
    least, most = ALPHA_RANGE
    alpha0 = most if trace <= even else float(np.clip((1.0 - trace) / (trace - even), least, most))
    shares = np.maximum(weights, 1e-6)
    return np.asarray(alpha0 * shares / shares.sum())
