"""Models of sequences from the sums of passes: moments, contexts of symbols, or expected counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.engine import PassResult, TallResult
from distmom.engine.sums.tall import read_rows
from distmom.errors import NumericalError
from distmom.models.markov.chain import Chain
from distmom.models.markov.contexts import Contextual, contextual_model, joint_of
from distmom.models.markov.recovery import Recovered, stationary_law
from distmom.spectral.steps.basis import Basis

#: features of dense steps by the largest power of a value among them
DEGREES = {1: "linear", 2: "squares"}
#: share of a symbol that is spread over all states before Baum-Welch passes, which leave zeros as they are
SPREAD = 0.1
#: smallest variance with which passes begin in place of a clipped one, as a share of the variance of all steps
LEAST_WITHIN = 0.05
#: smallest number of sequences per state for which ``initial="auto"`` uses their first steps
SEQUENCES_PER_STATE = 10


@dataclass(frozen=True)
class Fitting:
    """Parameters that determine how a model is made from sums, as in `HiddenMarkov`.

    Attributes
    ----------
    transition, initial : str
    smoothing, min_variance : float
    is_spread : bool
        Whether a share of each symbol is spread over all states.
    is_refined : bool
        Whether Baum-Welch passes follow.
    """

    transition: str
    initial: str
    smoothing: float
    min_variance: float
    is_spread: bool
    is_refined: bool

    def contextual(self, corpus: Any, symbols: TallResult) -> tuple[Chain, dict[str, Any]]:
        """Return the model of symbols whose states are known by their contexts."""
        found = contextual_model(symbols, corpus.vocabulary)
        joint = joint_of(found, corpus.n_words)
        if self.is_spread:
            joint = (1.0 - SPREAD) * joint + SPREAD * joint.mean(axis=1, keepdims=True)
        table = self._smooth_symbols(corpus, joint * corpus.n_rows)
        return self._with_laws(corpus, found, dict(found.diagnostics), {"table": table})

    def _with_laws(
        self, corpus: Any, found: Recovered | Contextual, notes: dict[str, Any], emissions: dict[str, Any]
    ) -> tuple[Chain, dict[str, Any]]:
        """Return a model with smoothed distributions of states, given its emissions."""
        raw = found.transitions[self.transition]
        transition = self._smooth_rows(raw * (found.weights * corpus.n_rows)[:, None])
        notes["initial"] = self._initial(corpus, len(transition))
        if notes["initial"] == "first":
            start = self._smooth_rows((found.start * corpus.n_documents)[None])[0]
        else:
            start = stationary_law(transition)
        return Chain(start, transition, **emissions), notes

    def _initial(self, corpus: Any, k: int) -> str:
        """Return how the distribution of the first of k states is found."""
        if self.initial != "auto":
            return self.initial
        return "first" if corpus.n_documents >= SEQUENCES_PER_STATE * k else "stationary"

    def from_moments(
        self, corpus: Any, basis: Basis, found: Recovered, fields: dict[str, Any]
    ) -> tuple[Chain, dict[str, Any]]:
        """Map a model from the basis back to symbols or values."""
        Q = np.asarray(read_rows(basis.matrix, slice(0, basis.matrix.parts[0].load().shape[0])), np.float64)
        notes = dict(found.diagnostics)
        n_steps = found.weights * corpus.n_rows
        chain_of: dict[str, Any] = {}
        if fields["degree"] == 0:
            # The stored basis is D Q, and the conditional means of the scaled symbols are D O.
            raw = (Q @ found.means) * frequency_of(corpus)[:, None]
            kept = np.maximum(raw, 0.0)
            notes["clipped"] = [float(x) for x in 1.0 - kept.sum(axis=0) / np.abs(raw).sum(axis=0)]
            kept /= np.maximum(kept.sum(axis=0), 1e-300)
            chain_of["table"] = self._smooth_symbols(corpus, kept * n_steps)
        else:
            notes["features"] = DEGREES[fields["degree"]]
            d, origin, scale = corpus.n_words, fields["origin"], fields["scale"]
            means = Q[1 : d + 1] @ found.means / (Q[:1] @ found.means)
            assert found.squares is not None
            variances = found.squares - np.square(means)
            clipped = variances < self.min_variance
            notes["clipped"] = [float(x) for x in clipped.mean(axis=0)]
            if self.is_refined:
                # A state whose variance is too small would keep few steps in all passes.
                variances = np.where(clipped, _within(means, found.weights)[:, None], variances)
            chain_of["means"] = origin[:, None] + scale[:, None] * means
            chain_of["variances"] = self._floored(variances, scale)
        return self._with_laws(corpus, found, notes, chain_of)

    def maximised(self, corpus: Any, counts: PassResult, fields: dict[str, Any]) -> tuple[Chain, float]:
        """Turn expected counts into a model: the M-step."""
        sums = counts.sums
        chain_of: dict[str, Any] = {}
        if fields["degree"] == 0:
            chain_of["table"] = self._smooth_symbols(corpus, np.asarray(sums["counts"]))
        else:
            states = np.maximum(np.asarray(sums["states"]), 1e-300)
            means, squares = (np.asarray(part) / states[:, None] for part in sums["values"])
            scaled = (squares - np.square(means)).T / np.square(fields["scale"])[:, None]
            chain_of["means"] = fields["origin"][:, None] + means.T
            chain_of["variances"] = self._floored(scaled, fields["scale"])
        transition = self._smooth_rows(np.asarray(sums["pairs"]))
        if self._initial(corpus, len(transition)) == "first":
            start = self._smooth_rows(np.asarray(sums["first"])[None])[0]
        else:
            start = stationary_law(transition)
        return Chain(start, transition, **chain_of), float(sums["log_likelihood"] / sums["mass"])

    def _smooth_rows(self, counts: np.ndarray) -> np.ndarray:
        """Return distributions (n, k) from counts, smoothed evenly."""
        k = counts.shape[1]
        totals = counts.sum(axis=1, keepdims=True)
        smoothed = np.where(totals > 0.0, counts + self.smoothing / k, 1.0)
        return np.asarray(smoothed / np.where(totals > 0.0, totals + self.smoothing, k))

    def _smooth_symbols(self, corpus: Any, counts: np.ndarray) -> np.ndarray:
        """Return probabilities of symbols (d, k) from counts, smoothed by the symbols of the corpus."""
        frequency = frequency_of(corpus)
        counts = counts + self.smoothing * (frequency / frequency.sum())[:, None]
        totals = counts.sum(axis=0)
        return np.asarray(np.where(totals > 0.0, counts, 1.0) / np.where(totals > 0.0, totals, len(counts)))

    def _floored(self, variances: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return variances (d, k) in the units of the steps, given those of scaled steps."""
        least = max(self.min_variance, np.finfo(np.float64).eps)
        return np.asarray(np.maximum(variances, least) * np.square(scale)[:, None])


def _within(means: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the average variances (d,) of values in a state, of steps of variance 1, given the means (d, k)."""
    between = np.square(means) @ weights - np.square(means @ weights)
    return np.asarray(np.clip(1.0 - between, LEAST_WITHIN, 1.0))


def frequency_of(corpus: Any) -> np.ndarray:
    """Return the numbers of symbols, at least one, (n_symbols,) float64."""
    return np.maximum(np.asarray(corpus.document_frequency, np.float64), 1.0)


def standards(counted: PassResult) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and standard deviations of dense steps; the deviation of a constant value is set to 1."""
    mass = float(counted.sums["mass"])
    mean, square = (np.asarray(row) / mass for row in counted.sums["values"])
    if not np.isfinite(square).all():
        column = int(np.argmin(np.isfinite(square)))
        raise NumericalError(
            f"the squares of value {column} overflow, its mean is {mean[column]:.3g}: scale the steps"
        )
    variance = square - np.square(mean)
    usable = variance > 1e-12 * np.maximum(square, np.finfo(np.float64).tiny)
    return mean, np.sqrt(np.where(usable, variance, 1.0))
