"""Fitted hidden Markov models: the methods that decode, score and draw sequences, and the pictures of reports."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import RowBlock
from distmom.digits import significant
from distmom.engine import StoredRows
from distmom.errors import InputError, UsageError
from distmom.linalg.checks import generator
from distmom.models.markov.chain import Chain, Edges, Steps, best_path, posterior, unit_log_likelihoods
from distmom.models.markov.inputs import sequences_in_memory
from distmom.models.markov.kernels import draw_states
from distmom.models.markov.passes import DecodePass, stored_edges
from distmom.models.markov.pictures import pictures_of
from distmom.spectral.estimator import SpectralEstimator
from distmom.spectral.inputs.checks import check_n_features, check_size
from distmom.spectral.inputs.tables import check_column_names
from distmom.spectral.program.run import Run


class FittedMarkov(SpectralEstimator):
    """Base class of `HiddenMarkov` with the methods that use the parameters; see there for attributes."""

    startprob_: np.ndarray
    transmat_: np.ndarray
    emissionprob_: np.ndarray | None
    means_: np.ndarray | None
    variances_: np.ndarray | None

    def _chain(self) -> Chain:
        check_is_fitted(self)

        def transposed(matrix: np.ndarray | None) -> np.ndarray | None:
            return None if matrix is None else np.ascontiguousarray(matrix.T, np.float64)

        return Chain(
            np.asarray(self.startprob_, np.float64),
            np.asarray(self.transmat_, np.float64),
            transposed(self.emissionprob_),
            transposed(self.means_),
            transposed(self.variances_),
        )

    def assign(self, run: Run) -> dict[str, StoredRows]:
        """Decode the sequences of the corpus of a run, including those that are split across shards.

        Parameters
        ----------
        run : Run
            Run of a corpus with the symbols or features of the fit.

        Returns
        -------
        dict of str to StoredRows
            Along rows: ``states``, int32, those on the most probable path of each sequence, and
            ``probabilities`` (n, k), those of the states given the whole sequence, float32.
        """
        chain = self._chain()
        corpus = run.corpus
        self._check_layer(corpus.layers[0].kind, corpus.n_words)
        dense = chain.table is None
        pass_ = DecodePass(corpus.n_words, chain=chain, n_states=chain.n_states, dense=dense)
        found = run.scan(pass_, rows=stored_edges(run, chain, dense, paths=True)).rows
        return {name: found[name] for name in ("states", "probabilities")}

    def _check_layer(self, kind: str, width: int) -> None:
        wanted = "dense" if self.emissionprob_ is None else "symbols"
        name = type(self).__name__
        if kind != wanted:
            raise UsageError(f"{name}: expected steps of kind {wanted} as fitted, got {kind}")
        check_n_features(width, self.n_features_in_, name)

    def _steps(self, X: Any, lengths: Any) -> tuple[Steps, Chain, RowBlock]:
        chain = self._chain()
        n_symbols = None if chain.table is None else self.n_features_in_
        if n_symbols is None:
            check_column_names(self, X)
        corpus = sequences_in_memory(X, lengths, n_symbols, shard_rows=1 << 62, dense=n_symbols is None)
        self._check_layer(corpus.layers[0].kind, corpus.n_words)
        if not corpus.n_rows:
            raise InputError.at("X", None, "number of steps", "at least 1", "0")
        block = corpus.read_shard(0)
        return Steps(block, chain), chain, block

    def predict(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Return the most probable path of states of every sequence (Viterbi).

        Parameters
        ----------
        X : array_like of shape (n_steps,) or (n_steps, n_features)
            As for `fit`, at least one step.
        lengths : array_like of shape (n_sequences,), optional
            Number of steps of each sequence; by default all steps are one sequence.

        Returns
        -------
        ndarray of shape (n_steps,), int32

        Raises
        ------
        UsageError
            If the steps differ from those of the fit in kind or in their number of values.
        InputError
            If a value is not finite or not a symbol of the fit, or the lengths do not match.
        """
        steps, chain, _ = self._steps(X, lengths)
        return best_path(steps, chain, Edges.none(chain.n_states))

    def predict_proba(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Return the probabilities of the states of each step, given its whole sequence.

        Parameters
        ----------
        X, lengths
            As for `predict`.

        Returns
        -------
        ndarray of shape (n_steps, n_components), float64
            Rows sum to one.
        """
        steps, chain, _ = self._steps(X, lengths)
        return posterior(steps, chain, Edges.none(chain.n_states))[1]

    def score_samples(self, X: Any, lengths: Any = None) -> np.ndarray:
        """Return the log-likelihood of every sequence.

        Parameters
        ----------
        X, lengths
            As for `predict`.

        Returns
        -------
        ndarray of shape (n_sequences,), float64
            Minus infinity where no path of states can produce a sequence.
        """
        steps, chain, _ = self._steps(X, lengths)
        return unit_log_likelihoods(steps, chain)

    def score(self, X: Any, lengths: Any = None) -> float:
        """Return the log-likelihood of all sequences together, as hmmlearn does; parameters as for `predict`."""
        return float(self.score_samples(X, lengths).sum())

    def sample(self, n_steps: int = 1, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draw a sequence from the fitted model.

        Parameters
        ----------
        n_steps : int, default 1
            Number of steps, 0 or more.
        random_state : int, default 0
            Seed.

        Returns
        -------
        X : ndarray of shape (n_steps,), int64, or (n_steps, n_features), float64
        states : ndarray of shape (n_steps,), int64
            State of each step.

        Raises
        ------
        UsageError
            If ``n_steps`` or ``random_state`` is not a whole number from 0.
        """
        chain = self._chain()
        check_size("n_steps", n_steps)
        rng = generator(random_state)
        uniforms, states = rng.random(n_steps), np.empty(n_steps, np.int64)
        laws = np.cumsum(np.vstack([chain.transition, chain.start]), axis=1)
        laws /= laws[:, -1:]
        draw_states(laws, uniforms, states)
        if chain.table is None:
            noise = rng.standard_normal((n_steps, self.n_features_in_))
            return chain.means.T[states] + np.sqrt(chain.variances.T[states]) * noise, states
        X = np.empty(n_steps, np.int64)
        for h in range(chain.n_states):
            own = states == h
            X[own] = rng.choice(
                self.n_features_in_, int(own.sum()), p=chain.table[:, h] / chain.table[:, h].sum()
            )
        return X, states

    def pictures(self, n_top: int = 10) -> list[dict[str, Any]]:
        """Return the pictures of a report: the transition matrix, and the emissions of each state.

        Parameters
        ----------
        n_top : int, default 10
            Number of symbols per state.

        Returns
        -------
        list of dict
            JSON values, as for `SphericalMixture.pictures`; ``values``, ``rows`` and ``columns`` of a matrix.
        """
        check_is_fitted(self)
        return pictures_of(self, n_top)

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"startprob": significant(self.startprob_)}
