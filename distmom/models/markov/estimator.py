"""Hidden Markov models of sequences of symbols or dense steps, by the moments of windows of three steps.

The moments are those of `distmom.moments.sequences.moments`, and `distmom.models.markov.recovery` turns them
into a model. Baum-Welch passes may follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from distmom.errors import InputError, NumericalError, UsageError
from distmom.linalg import METHODS
from distmom.models.markov.chain import Chain
from distmom.models.markov.contexts import assign_symbols, unknown_contexts
from distmom.models.markov.fitted import FittedMarkov
from distmom.models.markov.fitting import DEGREES, SEQUENCES_PER_STATE, Fitting, frequency_of, standards
from distmom.models.markov.inputs import given_lengths, sequences_in_memory
from distmom.models.markov.passes import ExpectationPass, stored_edges
from distmom.models.markov.recovery import ROUTES, Recovered, load_windows, recover
from distmom.moments.sequences.moments import (
    ContextPass,
    WindowMoments,
    WindowMomentsPass,
    WindowSketchPass,
)
from distmom.moments.sequences.windows import N_STEPS, StepMeanPass, n_step_features
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import layer_parameter, place_parameter
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import Basis, range_basis
from distmom.spectral.steps.em import iterate

logger = logging.getLogger(__name__)

FEATURES = {name: degree for degree, name in DEGREES.items()}
#: what may find more states than the third moment of symbols (0) or values (1) carries
_REMEDIES = {
    0: "init='clusters' uses pairs of steps only, and can find as many states as there are frequent symbols",
    1: "features='squares' also finds states of equal means",
}
#: auto takes a singular value of the moment of steps two apart for noise if it is smaller than this many standard
#: errors of a product of two scaled values
NOISE_ERRORS = 5.0
INITS = ("tensor", "anchors", "clusters")
INITIAL = ("auto", "first", "stationary")


@dataclass(frozen=True, kw_only=True)
class MarkovState:
    """The state of a fitted model.

    Attributes
    ----------
    startprob : ndarray of shape (k,)
    transmat : ndarray of shape (k, k)
    emissionprob : ndarray of shape (k, d) or None
    means, variances : ndarray of shape (k, d) or None
    diagnostics : dict
    """

    startprob: np.ndarray = array("k", least=0.0)
    transmat: np.ndarray = array("k", "k", least=0.0)
    emissionprob: np.ndarray | None = array("k", "d", least=0.0, optional=True)
    means: np.ndarray | None = array("k", "d", optional=True)
    variances: np.ndarray | None = array("k", "d", least=0.0, optional=True)
    diagnostics: dict[str, Any] = value()


class HiddenMarkov(FittedMarkov):
    """Hidden Markov model of sequences of symbols, or of dense steps with independent Gaussian coordinates.

    Attributes
    ----------
    startprob_ : ndarray of shape (n_components,)
        Distribution of the first state of a sequence.
    transmat_ : ndarray of shape (n_components, n_components)
        Entry (i, j) is the probability of state j after state i; rows sum to one.
    emissionprob_ : ndarray of shape (n_components, n_symbols) or None
        Probabilities of the symbols in each state; None for dense steps.
    means_, variances_ : ndarray of shape (n_components, n_features) or None
        Means and variances of dense steps in each state; None for symbols.
    diagnostics_ : dict
        ``disagreement`` is the average distance in total variation between three estimates of the rows of the
        transition matrix: small if the model holds (see docs/hmm.md).
    vocabulary_ : list of str
        Names of the symbols or features.
    n_features_in_ : int
        Number of symbols, or of values of a dense step.
    n_documents_ : int
        Number of sequences.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> states = np.cumsum(rng.random(20000) < 0.1) % 2
    >>> X = np.where(states == 0, rng.integers(0, 3, 20000), rng.integers(2, 6, 20000))
    >>> model = HiddenMarkov(2).fit(X)
    >>> bool(np.abs(model.transmat_ - [[0.9, 0.1], [0.1, 0.9]]).max() < 0.05)
    True
    """

    State = MarkovState
    reads = ("symbols", "dense")
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = ("sum_weights", "asymmetry", "residual", "disagreement", "features", "clipped", "log_likelihoods")

    n_components: int = parameter("Number of hidden states.", default=10, least=1, kw_only=False)
    init: str = parameter(
        "Initial model: by decomposing the third moment (tensor), or, for symbols only, by one anchor per state, "
        "a symbol that other states hardly emit (anchors), or by one cluster per state of symbols with similar "
        "neighbours (clusters). The latter two use pairs of steps only, and suit data that do not follow the "
        "model closely.", default="tensor", choices=INITS,
    )  # fmt: skip
    transition: str = parameter(
        "Route to the transition matrix: by pairs of neighbouring steps (pairs), or by pairs two steps "
        "apart, forward or backward in time.", default="pairs", choices=ROUTES,
    )  # fmt: skip
    initial: str = parameter(
        "Distribution of the first state: from the first steps of sequences (first), or the stationary one of the "
        "transition matrix (stationary); auto uses first steps where there are at least "
        f"{SEQUENCES_PER_STATE} sequences per state.", default="auto", choices=INITIAL,
    )  # fmt: skip
    features: str = parameter(
        "Features of dense steps in the moments: their values (linear), which allow one state more than there are "
        "values, or also the squares of the values (squares), which separate states of equal means. auto uses "
        "squares where values allow, or turn out to carry, fewer states than requested.",
        default="auto", choices=("auto", *FEATURES),
    )  # fmt: skip
    smoothing: float = parameter(
        "Observations added to each state: symbols in proportion to their frequencies, and transitions "
        "and first states evenly.", default=1.0, least=0.0,
    )  # fmt: skip
    min_variance: float = parameter(
        "Smallest variance of a value of a dense step in a state, as a share of the variance of all steps.",
        default=1e-3, least=0.0,
    )  # fmt: skip
    n_em_iter: int = parameter(
        "Number of Baum-Welch (EM) passes after the moments, each one scan, or two where sequences are split "
        "across shards.", default=10, least=0,
    )  # fmt: skip
    decomposition: str = parameter(
        "Method for the whitened third moment.", default="joint", choices=tuple(METHODS)
    )
    n_oversamples: int = parameter("Columns of the sketch beyond the states.", default=10, least=0)
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
    layer: str | None = layer_parameter()
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    def fit(self, X: Any, y: Any = None, *, lengths: Any = None) -> Self:
        """Fit sequences in memory.

        Parameters
        ----------
        X : array_like of shape (n_steps,) or (n_steps, n_features)
            Symbols, integers from 0, or dense steps; a column of integers is read as symbols, a column of floats
            as dense steps. All sequences, one after the other.
        y : array_like of shape (n_sequences,), optional
            The lengths, where they are given by position, as in ``fit(X, lengths)``.
        lengths : array_like of shape (n_sequences,), optional
            Number of steps of each sequence; by default all steps are one sequence.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid or does not suit the sequences, or the lengths are given twice.
        InputError
            If a value is not finite or not a symbol, the lengths do not match, or no sequence has three
            steps.
        NumericalError
            If the moments carry fewer states than requested.
        """
        return self.fit_corpus(sequences_in_memory(X, given_lengths(y, lengths)))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError or InputError otherwise."""
        super().check(corpus)
        k, d = self.n_components, corpus.n_words
        if corpus.largest < N_STEPS:
            raise InputError(
                f"HiddenMarkov: expected a sequence of at least {N_STEPS} steps, got {corpus.largest} as the "
                f"longest of {corpus.n_documents}"
            )
        if corpus.layers[0].kind == "symbols":
            if k > d:
                raise UsageError(f"n_components: expected at most {d}, the number of symbols, got {k}")
        else:
            if self.init != "tensor":
                raise UsageError(f"init={self.init!r}: expected symbols, got dense steps; use init='tensor'")
            most = n_step_features(d, self._degree(d))
            if k > most:
                hint = "; features='squares' allows more" if self.features == "linear" else ""
                raise UsageError(
                    f"n_components: expected at most {most} for steps of {d} values with "
                    f"features={self.features!r}, got {k}{hint}"
                )

    def program(self, run: Run) -> MarkovState:
        """Fit the model by the passes of a run and return its state."""
        d = run.corpus.n_words
        if run.corpus.layers[0].kind == "symbols":
            fields: dict[str, Any] = {"degree": 0}
            first = self._by_moments if self.init == "tensor" else self._by_contexts
            return self._finished(run, *first(run, fields), fields)
        counted = run.scan(StepMeanPass(d))
        origin, scale = run.apply(standards, counted, out=(unknown(d), unknown(d)))
        fields = {"degree": self._degree(d), "origin": origin, "scale": scale}
        if self.features != "auto" or fields["degree"] == FEATURES["squares"]:
            return self._finished(run, *self._by_moments(run, fields), fields)
        windows, least = self._windows(run, fields), NOISE_ERRORS / np.sqrt(max(run.corpus.n_rows, 1))
        found = run.attempt(self._recovered, fields, *windows, least, required=False)
        refused = partial(isinstance, found, NumericalError)
        found = run.when(refused, self._by_squares, fields, *windows, otherwise=found)
        assert not isinstance(found, NumericalError)
        return self._finished(run, *found, fields)

    def _by_contexts(self, run: Run, fields: dict[str, Any]) -> tuple[Chain, Any]:
        """Find a first model of symbols by the contexts of the symbols."""
        corpus, k = run.corpus, self.n_components
        d, basis = corpus.n_words, self._basis(run, fields, None)
        contexts = ContextPass(d, basis=basis.matrix, rank=basis.rank)
        symbols = run.scan(
            contexts, assign_symbols, basis.matrix, basis.rank, k, self.init, self._seed,
            out=unknown_contexts(d, k),
        )  # fmt: skip
        out = (_unknown_chain(d, k, False), unknown())
        return run.apply(self._fitting.contextual, corpus, symbols, out=out)

    def _by_moments(self, run: Run, fields: dict[str, Any]) -> tuple[Chain, Any]:
        """Find a first model by the moments of windows."""
        return self._recovered(run, fields, *self._windows(run, fields))

    def _by_squares(
        self, run: Run, fields: dict[str, Any], basis: Basis, load: Callable[[], WindowMoments]
    ) -> tuple[Chain, Any]:
        """Use squares; if these carry too few states, too, use the moments of values even if they may be noise."""
        found = run.attempt(self._by_moments, {**fields, "degree": FEATURES["squares"]}, required=False)
        refused = partial(isinstance, found, NumericalError)
        found = run.when(refused, self._recovered, fields, basis, load, otherwise=found)
        assert not isinstance(found, NumericalError)
        return found

    def _windows(self, run: Run, fields: dict[str, Any]) -> tuple[Basis, Callable[[], WindowMoments]]:
        """Add up the moments of windows in a basis; return the basis, and what loads the moments."""
        corpus, degree = run.corpus, fields["degree"]
        # Symbols are scaled so that rare ones have the same sampling noise as frequent ones.
        basis = self._basis(run, fields, None if degree else run.put(frequency_of(corpus)[:, None] ** -0.5))
        p = n_step_features(corpus.n_words, degree)
        pass_ = WindowMomentsPass(p, **fields, basis=basis.matrix, rank=basis.rank)
        return basis, partial(load_windows, run.scan(pass_).directory)

    def _basis(self, run: Run, fields: dict[str, Any], row_scale: Any) -> Basis:
        p = n_step_features(run.corpus.n_words, fields["degree"])
        n_columns = min(self.n_components + self.n_oversamples, p)
        sketch = WindowSketchPass(p, **fields, n_columns=n_columns, seed=self._seed)
        n_slabs = run.plan(sketch).n_mapped
        return range_basis(
            run, sketch, self.n_power_iter, "float64", n_slabs, indefinite=False, scale=row_scale
        )  # fmt: skip

    def _recovered(
        self,
        run: Run,
        fields: dict[str, Any],
        basis: Basis,
        load: Callable[[], WindowMoments],
        least: float = 0.0,
    ) -> tuple[Chain, Any]:
        """Decompose the moments of windows, and map the model back to symbols or values."""
        corpus, k, degree = run.corpus, self.n_components, fields["degree"]
        # With auto, squares are tried in any case.
        remedy = "" if degree and self.features == "auto" else _REMEDIES.get(degree, "")
        found = run.small(
            recover, load, k, self.decomposition, remedy, least, where=self.decompose_on,
            out=Recovered.upto(basis.rank, k),
        )  # fmt: skip
        out = (_unknown_chain(corpus.n_words, k, fields["degree"] > 0), unknown())
        return run.apply(self._fitting.from_moments, corpus, basis, found, fields, out=out)

    def _degree(self, n_values: int) -> int:
        """Return the largest power of the values of a dense step among its features."""
        if self.features != "auto":
            return FEATURES[self.features]
        linear = FEATURES["linear"]
        return linear if self.n_components <= n_step_features(n_values, linear) else FEATURES["squares"]

    @property
    def _fitting(self) -> Fitting:
        is_refined = self.n_em_iter > 0
        is_spread = self.init == "clusters" and is_refined
        return Fitting(
            self.transition, self.initial, self.smoothing, self.min_variance, is_spread, is_refined
        )

    def _finished(self, run: Run, chain: Chain, notes: Any, fields: dict[str, Any]) -> MarkovState:
        """Make the Baum-Welch passes, and return the state."""
        d, k, dense = run.corpus.n_words, self.n_components, fields["degree"] > 0

        def expect(chain: Chain) -> tuple[Any, ...]:
            rows = stored_edges(run, chain, dense, paths=False)
            step = ExpectationPass(d, chain=chain, n_states=k, dense=dense, origin=fields.get("origin"))
            return run.corpus, run.scan(step, rows=rows), fields

        chain, logs = iterate(run, chain, self.n_em_iter, expect, self._fitting.maximised)
        state: MarkovState = run.apply(_state, chain, notes, logs, out=unknown())
        return state


def _unknown_chain(d: int, k: int, dense: bool) -> Chain:
    tall = unknown(d, k)
    return Chain(unknown(k), unknown(k, k), *((None, tall, tall) if dense else (tall,)))


def _state(chain: Chain, notes: dict[str, Any], logs: list[float]) -> MarkovState:
    n_clipped = np.count_nonzero(notes.get("clipped", ())) if chain.means is not None else 0
    if n_clipped and not logs:
        logger.warning(
            "the moments gave %d of %d states variances below min_variance: likelihoods and states of steps need "
            "Baum-Welch passes (n_em_iter)", n_clipped, len(chain.start),
        )  # fmt: skip

    def rows(matrix: np.ndarray | None) -> np.ndarray | None:
        return None if matrix is None else np.ascontiguousarray(matrix.T)

    return MarkovState(
        startprob=chain.start,
        transmat=chain.transition,
        emissionprob=rows(chain.table),
        means=rows(chain.means),
        variances=rows(chain.variances),
        diagnostics={**notes, "log_likelihoods": list(logs)},
    )
