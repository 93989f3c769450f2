"""Stacking: the probability that a document has a label, from the scores of all heads.

A logistic regression over pairs of a document and a label. The features of a pair are, for every input, the score
of the head and its curve (see `distmom.models.multilabel.blend.curves`). The inputs are scores of documents that
the heads were not fitted to, so the value is a log-odds that is calibrated on average, and ranks labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import map_on_cores, one_blas_thread
from distmom.models.multilabel.blend.covariates import Covariates, Effect, varied
from distmom.models.multilabel.blend.curves import add_input, add_varying_input, curve_of
from distmom.models.multilabel.blend.newton import Derivatives, minimise

#: largest number of pairs that the regression is fitted to; more documents are left out
FIT_PAIRS = 1_000_000
#: penalty of the squares of the coefficients of standardised features
PENALTY = 1.0
#: scores below this share of the largest are raised to it before their logarithm is taken
FLOOR_SHARE = 1e-4
#: log-odds below which wrong labels hardly matter; one of this many is used, with as many times the weight
NEGLIGIBLE, STRIDE = -4.6, 8


@dataclass(frozen=True)
class StackInput:
    """An input of the regression, and its coefficients.

    Attributes
    ----------
    name : str
        Name of the variant of a head, such as ``neighbors-75-3``.
    signed : bool
        Whether the curve is ``log sigmoid(2 s)``.
    floor : float
        Least score whose logarithm is taken; unused where the scores are signed.
    linear, curve : float
        Coefficients of the score and of its curve.
    """

    name: str
    signed: bool
    floor: float
    linear: float
    curve: float


@dataclass(frozen=True)
class Stack:
    """A fitted regression.

    Attributes
    ----------
    inputs : tuple of StackInput
    intercept : float
    effects : tuple of Effect, default ()
        How the coefficients change with documents and labels; those above are at the means of the covariates.
    """

    inputs: tuple[StackInput, ...]
    intercept: float
    effects: tuple[Effect, ...] = ()

    @property
    def has_covariates(self) -> bool:
        """Whether coefficients vary with covariates."""
        return bool(self.effects)

    def log_odds(self, scores: np.ndarray, covariates: Covariates | None = None) -> np.ndarray:
        """Return the log-odds of pairs, shape (...), from scores of the inputs, shape (n_inputs, ...).

        With effects, ``covariates`` are required, and the pairs are those of documents and all their labels.
        """
        if self.effects:
            assert covariates is not None
            parts = [self._varying_log_odds(scores[:, run], own) for run, own in covariates.runs()]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        out = np.full(scores.shape[1:], self.intercept, np.float32)
        flat = out.reshape(-1)
        for own, given in zip(scores, self.inputs, strict=True):
            add_input(own.reshape(-1), given.signed, given.floor, given.linear, given.curve, flat)
        return out

    def _varying_log_odds(self, scores: np.ndarray, covariates: Covariates) -> np.ndarray:
        n = len(self.inputs)
        found = varied(self.coefficients(), self.effects, covariates)
        # Rows that are contiguous for one document too have one compiled kernel.
        documents, labels = (np.ascontiguousarray(each.T) for each in found)
        out = np.asarray(documents[-1][:, None] + labels[-1], np.float32)
        for i, (own, given) in enumerate(zip(scores, self.inputs, strict=True)):
            own = np.ascontiguousarray(own)
            add_varying_input(
                own, given.signed, given.floor, documents[i], documents[n + i], labels[i], labels[n + i], out
            )
        return out

    def coefficients(self) -> np.ndarray:
        """Return all coefficients, (2 n_inputs + 1,): linear, curve, and the intercept."""
        linear, curve = ([getattr(each, name) for each in self.inputs] for name in ("linear", "curve"))
        return np.array([*linear, *curve, self.intercept])

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; ``effects`` only where there are some."""
        record = {"inputs": [asdict(each) for each in self.inputs], "intercept": self.intercept}
        return record | ({"effects": [asdict(each) for each in self.effects]} if self.effects else {})

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Stack:
        """Rebuild a regression from what `to_json` returned; a ValueError if a number is not finite."""
        inputs = tuple(StackInput(**each) for each in record["inputs"])
        effects = (Effect.from_json(each).checked(len(inputs)) for each in record.get("effects", ()))
        stack = cls(inputs, float(record["intercept"]), tuple(effects))
        numbers = [x for each in stack.inputs for x in (each.linear, each.curve, each.floor)]
        positive = bool(stack.inputs) and all(each.floor > 0 for each in stack.inputs)
        if not (positive and all(map(math.isfinite, [*numbers, stack.intercept]))):
            raise ValueError("expected finite coefficients and positive floors")
        return stack


def probability(log_odds: np.ndarray) -> np.ndarray:
    """Return ``1 / (1 + exp(-z))``, float32."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-log_odds.astype(np.float64))), np.float32)


def negative_log_likelihood(log_odds: np.ndarray, truth: np.ndarray) -> float:
    """Return the negative log-likelihood of events, given in ``truth`` whether each has occurred."""
    z = log_odds.astype(np.float64)
    return float((np.logaddexp(0.0, z) - truth * z).sum())


def informative(log_odds: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the events that a regression is fitted to, and their weights.

    Events that are known to be unlikely, and did not occur, have a small share of the information. Only every
    `STRIDE`-th of them is used, with the weight of all of them.

    Parameters
    ----------
    log_odds : ndarray of any shape
        Estimates.
    truth : ndarray of the same shape
        1 for the events that occurred, else 0.

    Returns
    -------
    (ndarray of int, ndarray)
        Numbers in the flattened arrays, and weights.
    """
    matters = (log_odds > NEGLIGIBLE) | (truth > 0)
    easy = np.flatnonzero(~matters)
    used = easy[::STRIDE]
    chosen = np.concatenate([np.flatnonzero(matters), used])
    weights = np.ones(len(chosen))
    weights[len(chosen) - len(used) :] = len(easy) / max(1, len(used))
    return chosen, weights


@dataclass(frozen=True)
class Pairs:
    """Scores of candidate labels of held-out documents, and which of them are true.

    Attributes
    ----------
    names : tuple of str
        Names of the inputs.
    signed : tuple of bool
    scores : ndarray of shape (n_inputs, n, c), float32
    truth : ndarray of shape (n, c), uint8
    known : ndarray of shape (n, c), bool
        Which candidates are labels.
    covariates : Covariates, optional
        Covariates of the documents, and of the labels where all are candidates.
    """

    names: tuple[str, ...]
    signed: tuple[bool, ...]
    scores: np.ndarray
    truth: np.ndarray
    known: np.ndarray
    covariates: Covariates | None = None

    def of(self, documents: np.ndarray) -> Pairs:
        """Return the pairs of some documents."""
        return Pairs(
            self.names, self.signed, self.scores[:, documents], self.truth[documents], self.known[documents],
            None if self.covariates is None else self.covariates.of(documents),
        )  # fmt: skip

    def only(self, inputs: Sequence[int]) -> Pairs:
        """Return the pairs with some of the inputs."""
        chosen = list(inputs)
        names, signed = tuple(self.names[i] for i in chosen), tuple(self.signed[i] for i in chosen)
        return Pairs(names, signed, self.scores[chosen], self.truth, self.known, self.covariates)

    def some(self, n_pairs: int) -> Pairs:
        """Return the pairs of evenly spaced documents, about ``n_pairs`` at most."""
        stride = -(-self.truth.size // n_pairs)
        return self if stride <= 1 else self.of(np.arange(0, len(self.truth), stride))


@dataclass(frozen=True)
class StackFit:
    """A fitted regression, and the loss without each input.

    Attributes
    ----------
    stack : Stack
    losses : ndarray of shape (n_inputs,)
        Increase of the negative log-likelihood, to second order, if the input is left out.
    """

    stack: Stack
    losses: np.ndarray


def fit_stack(pairs: Pairs, start: Stack | None = None) -> StackFit:
    """Fit the regression by Newton's method.

    Parameters
    ----------
    pairs : Pairs
        At least one pair.
    start : Stack, optional
        Coefficients to start from, of the same inputs; by default those of the mean.
    """
    return _Design.of(pairs.some(FIT_PAIRS)).fit(range(len(pairs.names)), start)


@dataclass(frozen=True)
class _Design:
    """Features of pairs, from which regressions with some of the inputs are fitted.

    Attributes
    ----------
    names : tuple of str
    signed : tuple of bool
    floors : tuple of float
        Floors of all inputs.
    x : ndarray of shape (m, 2 n_inputs + 1)
        Standardised score and curve of every input, and ones.
    truth : ndarray of shape (m,)
    centre, scale : ndarray of shape (2 n_inputs,)
        Means and standard deviations of the features.
    """

    names: tuple[str, ...]
    signed: tuple[bool, ...]
    floors: tuple[float, ...]
    x: np.ndarray
    truth: np.ndarray
    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, pairs: Pairs) -> _Design:
        """Return the features of pairs."""
        truth = pairs.truth[pairs.known].astype(np.float64)
        floors = tuple(max(FLOOR_SHARE * float(own.max()), 1e-30) for own in pairs.scores)
        x = np.ones((len(truth), 2 * len(floors) + 1))
        centre, scale = np.zeros(2 * len(floors)), np.ones(2 * len(floors))

        def of_input(i: int) -> None:
            s = pairs.scores[i][pairs.known].astype(np.float64)
            for at, feature in ((2 * i, s), (2 * i + 1, curve_of(s, pairs.signed[i], floors[i]))):
                mean, spread = feature.mean(), feature.std()
                centre[at] = mean
                scale[at] = spread if spread > 1e-9 * max(abs(mean), 1e-9) else 1.0
                x[:, at] = (feature - mean) / scale[at]

        map_on_cores(of_input, range(len(floors)))
        return cls(pairs.names, pairs.signed, floors, x, truth, centre, scale)

    def fit(self, kept: Sequence[int], start: Stack | None) -> StackFit:
        """Fit the regression with some of the inputs, from the coefficients of ``start`` or of the mean."""
        columns = np.array([c for i in kept for c in (2 * i, 2 * i + 1)] + [self.x.shape[1] - 1])
        centre, scale = self.centre[columns[:-1]], self.scale[columns[:-1]]
        b = _start(start, float(self.truth.mean()), centre, scale)
        ridge = np.append(np.full(len(centre), PENALTY), 1e-9)
        with one_blas_thread():
            b, hessian = minimise(partial(self._of_piece, columns), len(self.truth), b, ridge)
            covariance = np.linalg.inv(hessian)
        coefficients = b[:-1] / scale
        inputs, losses = [], []
        for at, i in enumerate(kept):
            own = [2 * at, 2 * at + 1]
            losses.append(0.5 * b[own] @ np.linalg.solve(covariance[np.ix_(own, own)], b[own]))
            linear, curve = (float(coefficients[j]) for j in own)
            inputs.append(StackInput(self.names[i], bool(self.signed[i]), self.floors[i], linear, curve))
        return StackFit(Stack(tuple(inputs), float(b[-1] - coefficients @ centre)), np.array(losses))

    def _of_piece(self, columns: np.ndarray, b: np.ndarray, piece: slice) -> Derivatives:
        """Return the negative log-likelihood of some pairs, its gradient and its Hessian."""
        own, truth = self.x[piece], self.truth[piece]
        if len(columns) < own.shape[1]:
            own = own[:, columns]
        z = own @ b
        # exp(-|z|) serves both the probability and the logarithm.
        small = np.exp(-np.abs(z))
        p = np.where(z >= 0, 1.0, small) / (1.0 + small)
        value = float((np.maximum(z, 0.0) + np.log1p(small) - truth * z).sum())
        # A matrix times its own transpose is half of the work.
        root = own * np.sqrt(p * (1.0 - p))[:, None]
        return value, own.T @ (p - truth), root.T @ root


def _start(start: Stack | None, mean: float, centre: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return coefficients of standardised features to start from."""
    b = np.zeros(len(centre) + 1)
    if start is None:
        mean = min(max(mean, 1e-9), 1.0 - 1e-9)
        b[-1] = math.log(mean / (1.0 - mean))
        return b
    raw = np.array([c for each in start.inputs for c in (each.linear, each.curve)])
    return np.append(raw * scale, start.intercept + raw @ centre)


def select_inputs(pairs: Pairs) -> tuple[list[int], StackFit]:
    """Return the inputs that a regression needs, by Akaike's criterion, and the regression of these.

    One input after the other is left out, as long as two coefficients gain less than two units of log-likelihood.
    """
    design = _Design.of(pairs.some(FIT_PAIRS))
    kept = list(range(len(pairs.names)))
    fit = design.fit(kept, None)
    while len(kept) > 1:
        least = int(np.argmin(fit.losses))
        if fit.losses[least] > 2.0:
            break
        del kept[least]
        rest = tuple(each for i, each in enumerate(fit.stack.inputs) if i != least)
        fit = design.fit(kept, Stack(rest, fit.stack.intercept))
    return kept, fit
