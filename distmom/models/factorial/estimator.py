"""Sequences of dense steps that depend on several independent hidden chains of two states.

Source: see `distmom.models.factorial.recovery`. The moments are those of `distmom.moments.sequences.factorial`,
and decoding is that of `distmom.models.factorial.joint`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import RowBlock
from distmom.digits import significant
from distmom.engine import StoredRows
from distmom.errors import InputError, UsageError
from distmom.models.factorial.fitting import FactorialState, maximised, state_of, with_constant
from distmom.models.factorial.joint import (
    JointDecodePass,
    check_decodable,
    joint_chain,
    joint_values,
    stored_chain,
    unknown_joint_chain,
)
from distmom.models.factorial.pictures import pictures_of
from distmom.models.factorial.recovery import Canonical, load_chains, recover
from distmom.models.markov.chain import Chain, Edges, Steps, best_path, posterior, unit_log_likelihoods
from distmom.models.markov.fitting import standards
from distmom.models.markov.inputs import given_lengths, sequences_in_memory
from distmom.models.markov.passes import ExpectationPass, stored_edges
from distmom.moments.sequences.factorial import ChainMomentsPass, ChainSketchPass
from distmom.moments.sequences.windows import N_STEPS, StepMeanPass, n_step_features
from distmom.spectral.bases import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import SpectralEstimator, layer_parameter, place_parameter
from distmom.spectral.inputs.checks import check_n_features
from distmom.spectral.inputs.tables import check_column_names
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import Basis, range_basis, unknown_columns

WINDOWS = ("first", "all")
#: Baum-Welch passes by default, and the largest number of chains for which they are made: the time of a step grows
#: with 4^k, and that of sequences that are split across shards with 8^k
_N_EM_ITER, _MOST_REFINED = 10, 6


class FactorialHMM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SpectralEstimator):
    """Factorial hidden Markov model: dense steps that depend linearly on independent chains of two states.

    Every chain is -1 or +1 at each step, and the mean of a step given its chains h is
    ``intercept_ + h @ components_``.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Half the difference that each chain makes to the values of a step, one row per chain. Chains are in the
        order of descending share of the variance of the scaled values, and signs are such that +1 is the rarer
        state, both as found before EM.
    intercept_ : ndarray of shape (n_features,)
        Offset of the steps; zero without ``fit_intercept``.
    variances_ : ndarray of shape (n_features,)
        Variances of the values of a step given its chains.
    startprob_ : ndarray of shape (n_components,)
        Probability that a chain is +1 at the first step.
    fall_, rise_ : ndarray of shape (n_components,)
        Probabilities that a chain changes from +1 to -1, and from -1 to +1, from one step to the next.
    diagnostics_ : dict
        ``memory`` and ``skewness`` of the chains with the levels below which they are not distinguished from zero,
        and checks of the fit (see docs/factorial.md).
    vocabulary_ : list of str
        Names of the values of a step.
    n_features_in_ : int
        Number of values of a step.
    n_documents_ : int
        Number of sequences.

    Examples
    --------
    >>> import numpy as np
    >>> from distmom.simulate.chains import FactorialChains
    >>> rng = np.random.default_rng(0)
    >>> start, fall, rise = np.array([[0.2, 0.3], [0.4, 0.3], [0.1, 0.1]])
    >>> chains = FactorialChains(rng.normal(size=(2, 6)), np.zeros(6), start, fall, rise)
    >>> drawn = chains.sample(20_000, 3, noise=0.3)
    >>> model = FactorialHMM(2).fit(drawn.X, drawn.lengths)
    >>> model.components_.shape, model.transform(drawn.X, drawn.lengths).shape
    ((2, 6), (60000, 2))
    """

    State = FactorialState
    reads = ("dense",)
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = ("memory", "skewness", "asymmetry", "coupling", "disagreement", "drift", "log_likelihoods")

    n_components: int = parameter("Number of chains.", default=2, least=1, kw_only=False)
    windows: str = parameter(
        "Windows of three steps in the moments: the first of every sequence (first), for any distribution of the "
        "first states, or all of them (all), for chains that are stationary.", default="first", choices=WINDOWS,
    )  # fmt: skip
    fit_intercept: bool = parameter(
        "Whether steps have an offset, which is found from the skewness of the chains; without one, the means of "
        "the chains follow from those of the steps.", default=True,
    )  # fmt: skip
    min_variance: float = parameter(
        "Smallest variance of a value of a step given its chains, as a share of the variance of that value over "
        "all steps.",
        default=1e-3, least=0.0,
    )  # fmt: skip
    n_em_iter: int | None = parameter(
        "Number of Baum-Welch (EM) passes over the joint states of the chains after the moments, each one scan, "
        "or two where sequences are split across shards.",
        default=None, kind=int, least=0, none=True,
        unset=f"{_N_EM_ITER}, and 0 with more than {_MOST_REFINED} chains",
    )  # fmt: skip
    n_oversamples: int = parameter("Columns of the sketch beyond the chains.", default=10, least=0)
    n_power_iter: int = parameter("Power passes of the sketch.", default=2, least=0)
    layer: str | None = layer_parameter()
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    def fit(self, X: Any, y: Any = None, *, lengths: Any = None) -> Self:
        """Fit sequences in memory.

        Parameters
        ----------
        X : array_like of shape (n_steps, n_features)
            Steps of all sequences, one after the other.
        y : array_like of shape (n_sequences,), optional
            The lengths, where they are given by position, as in ``fit(X, lengths)``.
        lengths : array_like of shape (n_sequences,), optional
            Number of steps of each sequence; by default all steps are one sequence, which needs ``windows="all"``.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid or does not suit the sequences, or the lengths are given twice.
        InputError
            If a value is not finite, the lengths do not match, or no sequence has three steps.
        NumericalError
            If the moments carry fewer chains than requested, or chains cannot be identified.
        """
        return self.fit_corpus(sequences_in_memory(X, given_lengths(y, lengths), dense=True))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; raise a UsageError or InputError otherwise."""
        super().check(corpus)
        k, d = self.n_components, corpus.n_words
        if corpus.largest < N_STEPS:
            raise InputError(
                f"FactorialHMM: expected a sequence of at least {N_STEPS} steps, got {corpus.largest} as the "
                f"longest of {corpus.n_documents}"
            )
        if k > d:
            raise UsageError(f"n_components: expected at most {d}, the number of values of a step, got {k}")
        if self.n_em_iter:
            check_decodable(k, "n_em_iter")
        if self.windows == "first" and corpus.n_documents <= k:
            raise UsageError(
                f"windows='first': expected more than {k} sequences, the number of chains, got "
                f"{corpus.n_documents}; windows='all' uses all steps of long sequences"
            )

    def program(self, run: Run) -> FactorialState:
        """Fit the model by the passes of a run and return its state."""
        d, k = run.corpus.n_words, self.n_components
        p, first = n_step_features(d, 1), self.windows == "first"
        scaling = run.apply(standards, run.scan(StepMeanPass(d)), out=(unknown(d), unknown(d)))
        fields: dict[str, Any] = {"degree": 1, "origin": scaling[0], "scale": scaling[1], "first": first}
        # The constant feature has a direction in addition to those of the chains.
        r = min(k + 1 + self.n_oversamples, p)
        sketch = ChainSketchPass(p, **fields, n_columns=r, seed=self._seed)
        n_slabs = run.plan(sketch).n_mapped
        found = range_basis(run, sketch, self.n_power_iter, "float64", n_slabs, indefinite=False)
        out = Basis(unknown_columns(p, found.rank + 1), found.rank + 1, unknown())
        basis = run.rows(with_constant, found, k, out=out)
        moments = run.scan(ChainMomentsPass(p, **fields, basis=basis.matrix, rank=basis.rank))
        canonical = run.small(
            recover, partial(load_chains, moments.directory), k, not first, where=self.decompose_on,
            out=Canonical.upto(basis.rank - 1, k, d),
        )  # fmt: skip
        options = (scaling, self.fit_intercept, self.min_variance)
        state: FactorialState = run.apply(state_of, basis, canonical, *options, out=unknown())
        for _ in range(self._n_em_iter):
            chain = run.apply(joint_chain, state, out=unknown_joint_chain(d, k))
            rows = stored_edges(run, chain, True, paths=False)
            step = ExpectationPass(d, chain=chain, n_states=2**k, dense=True, origin=scaling[0])
            state = run.apply(maximised, state, run.scan(step, rows=rows), *options, first, out=unknown())
        return state

    @property
    def _n_em_iter(self) -> int:
        if self.n_em_iter is None:
            return _N_EM_ITER if self.n_components <= _MOST_REFINED else 0
        return self.n_em_iter

    # Using a fitted model

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Decode the sequences of the corpus of a run, including those that are split across shards.

        Parameters
        ----------
        run : Run
            Run of a corpus with the values of the fit.

        Returns
        -------
        dict of str to StoredRows
            Along rows: ``states`` (n, n_components), int8, the chains on the most probable path of each sequence,
            -1 and +1, and ``means`` (n, n_components), float32, their means given the whole sequence.
        """
        chain, d = self._chain(), run.corpus.n_words
        check_n_features(d, self.n_features_in_, type(self).__name__)
        pass_ = JointDecodePass(
            d,
            chain=stored_chain(run, chain),
            n_states=chain.n_states,
            dense=True,
            n_chains=len(self.startprob_),
        )
        return run.scan(pass_, rows=stored_edges(run, chain, True, paths=True)).rows

    def _chain(self) -> Chain:
        check_is_fitted(self)
        check_decodable(len(self.startprob_), type(self).__name__)
        return joint_chain(self._state())

    def _steps(self, X: Any, lengths: Any) -> tuple[Steps, Chain]:
        chain = self._chain()
        check_column_names(self, X)
        corpus = sequences_in_memory(X, lengths, shard_rows=1 << 62, dense=True)
        if corpus.layers[0].kind != "dense":
            raise UsageError(f"FactorialHMM: expected dense steps, got {corpus.layers[0].kind}")
        check_n_features(corpus.n_words, self.n_features_in_, type(self).__name__)
        if not corpus.n_rows:
            raise InputError.at("X", None, "number of steps", "at least 1", "0")
        block: RowBlock = corpus.read_shard(0)
        return Steps(block, chain), chain

    def transform(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Return the means of the chains at every step, given its whole sequence.

        They follow from the probabilities of the 2^n_components joint states, by an exact forward and backward
        recursion, with independent Gaussian noise of variances ``variances_``.

        Parameters
        ----------
        X : array_like of shape (n_steps, n_features)
        lengths : array_like of shape (n_sequences,), optional
            Number of steps of each sequence; by default all steps are one sequence.

        Returns
        -------
        ndarray of shape (n_steps, n_components), float64
            Between -1 and +1; the probability of +1 is ``(1 + mean) / 2``.

        Raises
        ------
        UsageError
            If steps have another number of values than those of the fit, or there are more than 8 chains.
        InputError
            If a value is not finite, or the lengths do not match.
        """
        steps, chain = self._steps(X, lengths)
        values = joint_values(len(self.startprob_))
        return posterior(steps, chain, Edges.none(chain.n_states), "float64", values)[1]

    def fit_transform(self, X: Any, y: Any = None, *, lengths: Any = None) -> Any:  # type: ignore[override]
        """Fit sequences, and return the means of the chains at every step (see `fit` and `transform`)."""
        lengths = given_lengths(y, lengths)
        return self.fit(X, lengths).transform(X, lengths)

    def predict(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Return the most probable path of the chains of every sequence, (n_steps, n_components) int8, -1 and +1.

        Parameters and errors are those of `transform`.
        """
        steps, chain = self._steps(X, lengths)
        values = joint_values(len(self.startprob_)).astype(np.int8)
        return np.asarray(values[best_path(steps, chain, Edges.none(chain.n_states))])

    def score_samples(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Return the log-likelihood of every sequence, (n_sequences,); parameters as for `transform`."""
        return unit_log_likelihoods(*self._steps(X, lengths))

    def score(self, X: Any, lengths: Any = None) -> float:
        """Return the log-likelihood of all sequences together; parameters as for `transform`."""
        return float(self.score_samples(X, lengths).sum())

    def pictures(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the pictures of a report: probabilities and memory of the chains, and their effects on values.

        Parameters
        ----------
        n_top : int, default 10
            Number of values.

        Returns
        -------
        list of dict
            JSON values, as for `SphericalMixture.pictures`.
        """
        check_is_fitted(self)
        return pictures_of(self, n_top)

    def summary(self) -> dict[str, Any]:
        check_is_fitted(self)
        laws = {"startprob": self.startprob_, "fall": self.fall_, "rise": self.rise_}
        return super().summary() | {name: significant(law) for name, law in laws.items()}
