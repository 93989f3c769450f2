"""Mixtures of product distributions: given the component of a document, its words are present independently.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.1 and theorem 3.6. Words are put into three groups at random, which makes three views that are
independent given the component. With ``P_st = E[z_s z_t']``, ``(P_32 P_12^+) z_1`` and ``(P_31 P_21^+) z_2`` have
the conditional means of the third view, so that their second and third moments with it are ``sum_i w_i a_i a_i'``
and ``sum_i w_i a_i^(x3)``. Expectation-maximisation (EM) iterations start from there and use all words
together. Where thirds of the words do not distinguish all components, EM starts from moments of all words
(`distmom.models.product.together`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.blas import one_blas_thread
from distmom.engine import Engine, PassResult, StoredColumns, StoredRows
from distmom.errors import InputError, NumericalError, UsageError
from distmom.linalg import METHODS
from distmom.models.product.together import Probabilities, find_together
from distmom.moments.documents.product import (
    GroupMomentsPass,
    GroupSketchPass,
    PresenceAssignPass,
    PresenceEMPass,
    maximised,
    presence_logs,
    smoothed_rates,
)
from distmom.moments.three_views import N_GROUPS, GroupMoments
from distmom.spectral.capabilities import Capability
from distmom.spectral.densities import ComponentsOfRows
from distmom.spectral.estimator import SpectralEstimator, place_parameter
from distmom.spectral.inputs.checks import check_size
from distmom.spectral.parameters import parameter
from distmom.spectral.pictures import bars
from distmom.spectral.posteriors import normalise
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import Basis, range_basis, unknown_columns
from distmom.spectral.steps.recovery import Recovery, column_edges
from distmom.spectral.steps.three_views import (
    AlignedViews,
    align_views,
    load_moments,
    mean_rows,
    random_views,
)

#: least distance of the probability of a word from zero and from one when components of documents are inferred:
#: for probabilities of the moments, which are clipped, and for those of EM, which only rounding can make 0 or 1
_LEAST, _LEAST_OF_EM = 1e-6, 1e-15
#: share of the average over all documents in the probabilities with which EM starts: at 0 or 1, which the moments
#: reach by clipping, EM would stay
_START_SHARE = 0.1
#: number of documents that EM adds to each component (see `maximised`)
_ADDED = 1.0


@dataclass(frozen=True)
class ProductState:
    """The state of a fitted mixture, in the shapes stored on disk.

    Attributes
    ----------
    components : ndarray of shape (d, k)
        Probabilities that words are present.
    weights : ndarray of shape (k,)
    diagnostics : dict
    """

    components: np.ndarray = array("d", "k", least=0.0, transposed=True)
    weights: np.ndarray = array("k", least=0.0)
    diagnostics: dict[str, Any] = value()


class ProductMixture(ComponentsOfRows, SpectralEstimator):
    """Mixture of documents whose words are present independently, given the component of the document.

    Moments of words of different thirds give a first solution, which needs no random starts.
    Expectation-maximisation (EM) iterations then refine it with all words.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_words)
        Probability that a word is present in a document of the component.
    weights_ : ndarray of shape (n_components,)
        Probabilities of the components; they sum to one.
    diagnostics_ : dict
        ``log_likelihoods`` has the average per document before each EM pass. All others describe the moments:
        ``start`` is "thirds", or "documents" where thirds of the words do not distinguish all components;
        ``asymmetry`` is the relative asymmetry of the symmetrised second moment, zero for an exact population;
        ``coherence`` the largest leverage of a word, which must be small for a random split to work
        (proposition 3.2); ``clipped`` the share of the mass of each component that was outside [0, 1].
    vocabulary_ : list of str
        Words, in the order of the columns of ``components_``.
    n_features_in_ : int
        Number of words.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centers = rng.uniform(0.05, 0.95, (2, 30))
    >>> X = (rng.random((3000, 30)) < centers[rng.integers(0, 2, 3000)]).astype(int)
    >>> model = ProductMixture(2).fit(X)
    >>> error = min(np.abs(model.components_[order] - centers).max() for order in ([0, 1], [1, 0]))
    >>> bool(error < 0.04)
    True
    """

    State = ProductState
    matched_by = "components_"
    capabilities = frozenset({Capability.DOCUMENTS, Capability.TOPICS, Capability.COMPONENTS})
    shown = ("start", "asymmetry", "residual", "sum_weights", "coherence")

    n_components: int = parameter("Number of components.", default=10, least=1, kw_only=False)
    decomposition: str = parameter(
        "Method for the whitened third moment.", default="joint", choices=tuple(METHODS)
    )
    n_oversamples: int = parameter(
        "Columns of the sketch beyond three times the components.", default=10, least=0
    )
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
    n_em_iter: int = parameter(
        "Number of expectation-maximisation (EM) iterations after the moments, one pass each.",
        default=10,
        least=0,
    )
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit documents in memory.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            Texts, which are tokenized with the defaults of `distmom.corpus.text_corpus`, or nonnegative counts or
            weights; a word is present where its entry is not zero.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, or there are fewer than three words per component.
        InputError
            If a value is invalid, or no document has a word.
        NumericalError
            If the moments carry fewer components than requested.
        """
        return self.fit_corpus(self._corpus(X))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError or InputError otherwise."""
        super().check(corpus)
        if N_GROUPS * self.n_components > corpus.n_words:
            raise UsageError(
                f"n_components: expected at most {corpus.n_words // N_GROUPS}, a third of the {corpus.n_words} "
                f"words, got {self.n_components}"
            )
        if not np.any(corpus.word_frequency):
            raise InputError("X: expected documents with words, got none with a word of the vocabulary")

    def program(self, run: Run) -> ProductState:
        """Return the state of a model fitted by the passes of a run."""
        d, k = run.corpus.n_words, self.n_components
        views = random_views(d, 1, self._seed)[0]
        groups = run.put(np.asarray(views, np.uint8))
        r = min(N_GROUPS * k + self.n_oversamples, d)
        sketch = GroupSketchPass(d, groups=groups, n_columns=r, seed=self._seed)
        n_slabs = run.plan(sketch).n_mapped
        # Two thirds of the eigenvalues that matter are negative, so no shift may remove them.
        basis = range_basis(run, sketch, self.n_power_iter, "float64", n_slabs, indefinite=False)
        pass_ = GroupMomentsPass(d, groups=groups, basis=basis.matrix, rank=basis.rank)
        load = partial(load_moments, run.scan(pass_).directory)
        out: AlignedViews | str = AlignedViews(unknown(N_GROUPS, basis.rank, k), unknown(k), unknown())
        with_em = self.n_em_iter > 0
        found = run.small(_aligned, load, k, self.decomposition, with_em, where=self.decompose_on, out=out)
        other = self._by_all_words(run, found) if with_em else None
        state: ProductState = run.apply(_state, basis, views, found, other, out=unknown())
        if with_em:
            state = run.rows(_started, state, out=unknown())
            n_slabs = run.plan(PresenceEMPass(d, n_components=k)).n_mapped
        for _ in range(self.n_em_iter):
            logs = run.rows(_logs, state, n_slabs, out=(unknown_columns(d, k, n_slabs), unknown(k)))
            step = PresenceEMPass(d, log_odds=logs[0], constants=logs[1], n_components=k)
            state = run.apply(_maximised, state, run.scan(step), out=unknown())
        return state

    def _by_all_words(self, run: Run, found: AlignedViews | str) -> Probabilities | None:
        """Return a start of EM from moments of all words if thirds of the words do not suffice."""
        return run.when(
            lambda: isinstance(found, str), find_together, self.n_components, self.n_oversamples,
            self.n_power_iter, self.decomposition, self.decompose_on, self._seed, found, otherwise=None,
        )  # fmt: skip

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the components given documents.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            As in `fit`.

        Returns
        -------
        ndarray of shape (n_documents, n_components), float64
            Rows sum to one.
        """
        return self._posterior(X)[0]

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable component of every document, (n_documents,) int64."""
        return np.asarray(self.predict_proba(X).argmax(axis=1))

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-likelihood of every document, (n_documents,) float64; X as for `predict_proba`."""
        return self._posterior(X)[1]

    def score(self, X: Any, y: Any = None) -> float:
        """Return the log-likelihood of documents, on average per document.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            At least one document; an InputError otherwise.
        y : None
            Ignored.
        """
        return float(self._posterior(X, 1)[1].mean())

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Store the component and the posterior probabilities of every document of the corpus of a run.

        Parameters
        ----------
        run : Run
            Its corpus has the words of the model.

        Returns
        -------
        dict of str to StoredRows
            ``components`` (n,), int32, and ``probabilities`` (n, n_components), float32, along documents.
        """
        check_is_fitted(self)
        log_odds, constants = map(run.put, self._presence_logs())
        k = len(self.weights_)
        pass_ = PresenceAssignPass(
            self.n_features_in_, log_odds=log_odds, constants=constants, n_components=k
        )
        return run.scan(pass_).rows

    def _presence_logs(self) -> tuple[np.ndarray, np.ndarray]:
        lowest = _LEAST_OF_EM if "log_likelihoods" in self.diagnostics_ else _LEAST
        return presence_logs(self.components_.T, self.weights_, lowest)

    def _posterior(self, X: Any, least: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the component probabilities and log-likelihoods of documents, at least ``least`` of them."""
        check_is_fitted(self)
        present = self._block(X, least).words.astype(bool).astype(np.float64)
        log_odds, constants = self._presence_logs()
        probabilities = np.asarray(present @ log_odds + constants)
        logs = normalise(probabilities)
        return probabilities, logs

    def topics(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the most probable words of every component, components by descending weight.

        Parameters
        ----------
        n_top : int, default 10
            Number of words.

        Returns
        -------
        list of dict
            Keys ``state``, the number of the component, ``weight``, ``words``, a list of (word, probability), and
            ``labels``, an empty list.

        Raises
        ------
        UsageError
            If ``n_top`` is not a whole number from 0.
        """
        check_is_fitted(self)
        check_size("n_top", n_top)
        found = []
        for h, row in enumerate(self.components_):
            words = [(self.vocabulary_[i], float(row[i])) for i in np.argsort(-row, kind="stable")[:n_top]]
            found.append({"state": h, "weight": float(self.weights_[h]), "words": words, "labels": []})
        return found

    def pictures(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the pictures of a report: the weights, and the words of each component that set it apart."""
        check_is_fitted(self)
        names = [f"component {h}" for h in range(len(self.weights_))]
        average = self.weights_ @ self.components_
        found = [bars("Weights", "Probability of every component.", names, self.weights_)]
        caption = "Probability of the words that are present more often than in all documents."
        for name, row in zip(names, self.components_, strict=True):
            top = np.argsort(average - row, kind="stable")[:n_top]
            words = [self.vocabulary_[i] for i in top]
            found.append(bars(f"Words of {name}", caption, words, row[top]))
        return found


def _aligned(moments: GroupMoments, k: int, method: str, may_refuse: bool) -> AlignedViews | str:
    """Decompose the views; where ``may_refuse``, return the reason if they carry fewer components."""
    try:
        return align_views(moments, k, method)
    except NumericalError as error:
        if not may_refuse:
            raise
        return str(error)


def _state(
    basis: Basis, groups: np.ndarray, found: AlignedViews | str, other: Probabilities | None
) -> ProductState:
    """Map conditional means from the basis back to the words, or take those found from all words."""
    if isinstance(found, str):
        assert other is not None
        return _unclipped(other.components, other.weights, {"start": "documents", **other.diagnostics})
    d, k = len(groups), len(found.weights)
    components = Recovery((basis.matrix, groups), d, k, mean_rows, (found.means,)).whole()
    return _unclipped(components, found.weights, {"start": "thirds", **found.diagnostics})


def _unclipped(components: np.ndarray, weights: np.ndarray, diagnostics: dict[str, Any]) -> ProductState:
    """Return the state of estimates (d, k) that may be outside [0, 1], components by descending weight."""
    with one_blas_thread():
        leverage = (np.linalg.qr(components)[0] ** 2).sum(axis=1)
    kept = np.clip(components, 0.0, 1.0)
    clipped = np.abs(components - kept).sum(axis=0) / np.maximum(np.abs(components).sum(axis=0), 1e-300)
    order = np.argsort(-weights, kind="stable")
    measures = {"coherence": float(leverage.max()), "clipped": [float(x) for x in clipped[order]]}
    diagnostics = diagnostics | measures
    weights = np.maximum(weights[order], 0.0)
    return ProductState(np.ascontiguousarray(kept[:, order]), weights / weights.sum(), diagnostics)


def _started(engine: Engine, state: ProductState) -> ProductState:
    """Return the parameters with which EM starts."""
    corpus = engine.corpus
    rates = smoothed_rates(corpus.document_frequency, corpus.n_documents)
    components = (1.0 - _START_SHARE) * state.components + _START_SHARE * rates[:, None]
    return replace(state, components=components, diagnostics={**state.diagnostics, "log_likelihoods": []})


def _logs(engine: Engine, state: ProductState, n_slabs: int) -> tuple[StoredColumns, np.ndarray]:
    """Store the logarithms of the parameters, which an EM pass reads."""
    log_odds, constants = presence_logs(state.components, state.weights, _LEAST_OF_EM)
    edges = column_edges(log_odds.shape[1], n_slabs)
    return StoredColumns(tuple(engine.put(log_odds[:, cut]) for cut in edges)), constants


def _maximised(state: ProductState, found: PassResult) -> ProductState:
    """Return the state after an EM pass, components by descending weight."""
    components, weights, log_likelihood = maximised(found.sums, _ADDED)
    order = np.argsort(-weights, kind="stable")
    before = state.diagnostics
    diagnostics = {
        **before,
        "clipped": [before["clipped"][h] for h in order],
        "log_likelihoods": [*before["log_likelihoods"], log_likelihood],
    }
    return ProductState(np.ascontiguousarray(components[:, order]), weights[order], diagnostics)
