"""Standard errors of the components of a model, from fits that each leave out one part of the units.

With theta_g of the fit without part g of G, the squared standard error is ``(G - 1) / G sum_g (theta_g -
mean)^2`` (Efron, "The Jackknife, the Bootstrap and Other Resampling Plans", 1982, equation 3.5). This needs
no formula for a model, as the program of any model can be run without a part of the units.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from distmom.engine import Observer, Pass, PassPlan, Selection, open_engine, open_executor
from distmom.errors import NumericalError, UsageError
from distmom.spectral.parameters import Parameter
from distmom.spectral.program.execute import execute
from distmom.spectral.program.run import Run, Trial
from distmom.spectral.saved.fields import ArrayField, declared_fields
from distmom.spectral.saved.layout import FLOATS

if TYPE_CHECKING:
    from distmom.spectral.estimator import SpectralEstimator

logger = logging.getLogger(__name__)

_R = TypeVar("_R")


class Jackknife:
    """Collects the components of fits without one of G parts, and computes their spread.

    Parameters
    ----------
    features : ndarray of shape (k, m)
        One row for each component of the fit to all units. Components of other fits are matched to these
        rows, so that the sum of the squared distances is least.
    arrays : mapping of str to ndarray of shape (k, ...)
        Parameters of these components.
    """

    def __init__(self, features: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        self._features = np.asarray(features, np.float64)
        self._whole = {name: np.asarray(values, np.float64) for name, values in arrays.items()}
        # Deviations from the fit to all units, which keep their digits where parameters are far from zero.
        self._sums = {name: np.zeros((2, *values.shape)) for name, values in self._whole.items()}
        self._counts = np.zeros(len(self._features), np.int64)

    def add(self, features: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Add the components of one more fit, which may be fewer and in any order."""
        found = np.asarray(features, np.float64)
        # The squared distance of two rows.
        cost = (
            -2.0 * self._features @ found.T
            + (self._features**2).sum(axis=1)[:, None]
            + (found**2).sum(axis=1)
        )
        of, matched = linear_sum_assignment(cost)
        self._counts[of] += 1
        for name, total in self._sums.items():
            deviation = np.asarray(arrays[name], np.float64)[matched] - self._whole[name][of]
            total[0, of] += deviation
            total[1, of] += deviation**2

    def attempt(
        self,
        units: str,
        fit: Callable[..., tuple[np.ndarray, Mapping[str, np.ndarray]]],
        *arguments: Any,
    ) -> None:
        """Add the components of one more fit, or leave it out if it raises a NumericalError.

        Parameters
        ----------
        units : str
            Name of the units of which the fit leaves out a part, for the warning.
        fit : callable
            ``fit(*arguments)`` returns the arguments of `add`.
        *arguments
        """
        try:
            features, arrays = fit(*arguments)
        except NumericalError as error:
            logger.warning("standard errors leave out a part of the %s: %s", units, error)
        else:
            self.add(features, arrays)

    def errors(self) -> dict[str, np.ndarray] | None:
        """Return the standard errors of all parameters, float64, in the shapes of the arrays.

        None if there were fewer than two fits; NaN for components found by fewer than two fits.
        """
        if self._counts.max(initial=0) < 2:
            return None
        n = np.where(self._counts > 1, self._counts, np.nan).astype(np.float64)
        return {
            name: np.sqrt((n - 1.0) * np.maximum(s[1].T / n - (s[0].T / n) ** 2, 0.0)).T
            for name, s in self._sums.items()
        }


@dataclass(frozen=True)
class Without(Selection):
    """All units except one part, restricted further by the selection of a pass if it has one."""

    within: Selection | None = None

    def mask(self, first: int, n_documents: int) -> np.ndarray:
        """Return which of the documents ``first, first + 1, ...`` are selected, a bool array."""
        found = super().mask(first, n_documents)
        return found if self.within is None else found & self.within.mask(first, n_documents)


class PartialRun(Run):
    """A run of a program whose passes all leave out a part of the units.

    Parameters
    ----------
    run : Run
    part : Without
    """

    def __init__(self, run: Run, part: Without) -> None:
        self.corpus, self.name = run.corpus, run.name
        self._run, self._part = run, part

    def part(self, name: str) -> Run:
        return PartialRun(self._run.part(name), self._part)

    def plan(self, pass_: Pass) -> PassPlan:
        return self._run.plan(self._without(pass_))

    def fits(self, pass_: Pass) -> bool:
        return self._run.fits(self._without(pass_))

    def put(self, array: Any) -> Any:
        return self._run.put(array)

    def scan(self, pass_: Pass, *arguments: Any, **options: Any) -> Any:
        return self._run.scan(self._without(pass_), *arguments, **options)

    def small(
        self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any, where: str, out: _R
    ) -> _R:
        return self._run.small(function, load, *arguments, where=where, out=out)

    def apply(self, function: Callable[..., _R], *arguments: Any, out: _R) -> _R:
        return self._run.apply(function, *arguments, out=out)

    def rows(self, function: Callable[..., _R], *arguments: Any, out: _R, trial: Trial | None = None) -> _R:
        return self._run.rows(function, *arguments, out=out, trial=trial)

    def when(
        self, condition: Callable[[], bool], function: Callable[..., _R], *arguments: Any, otherwise: _R
    ) -> _R:
        return self._run.when(condition, self._inside(function), *arguments, otherwise=otherwise)

    def attempt(self, function: Callable[..., _R], *arguments: Any, required: bool) -> _R | NumericalError:
        return self._run.attempt(self._inside(function), *arguments, required=required)

    def _without(self, pass_: Pass) -> Pass:
        return replace(pass_, selection=replace(self._part, within=pass_.selection))

    def _inside(self, function: Callable[..., _R]) -> Callable[..., _R]:
        return lambda run, *arguments: function(PartialRun(run, self._part), *arguments)


def standard_errors(
    model: SpectralEstimator,
    corpus: Any,
    *,
    n_parts: int = 8,
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
) -> dict[str, np.ndarray]:
    """Return the standard errors of the parameters of a fitted model, by a jackknife over parts of the corpus.

    The model is fitted again without each of ``n_parts`` random parts of the units, all steps from the first
    pass on, so that this takes as long as ``n_parts`` fits.

    Parameters
    ----------
    model : SpectralEstimator
        Fitted to the corpus; it is not changed. Its class states ``matched_by``.
    corpus : AnyCorpus
    n_parts : int, default 8
    client : distributed.Client or Executor, optional
        As in `fit_corpus`, like the other parameters.
    memory_limit : int, optional
    observer : callable, optional

    Returns
    -------
    dict of str to ndarray, float64
        For every fitted attribute with one entry or row per component, such as ``means_``: an array of the same
        shape. NaN for components that fewer than two of the fits have. The error over the standard error
        approximately follows Student's t distribution with ``n_parts - 1`` degrees of freedom.

    Raises
    ------
    UsageError
        If the components of the model cannot be matched, ``n_parts`` is not a whole number from 2, or
        the corpus does not suit the model.
    NumericalError
        If fewer than two of the fits succeed.
    """
    check_is_fitted(model)
    name = model.matched_by
    if name is None:
        raise UsageError(f"{type(model).__name__} does not state how components of two fits are matched")
    Parameter(8, "", int, least=2).check("n_parts", n_parts)
    corpus = model._read_layer(corpus)
    whole = _by_component(model._state())
    center, scale = whole[name].mean(axis=0), whole[name].std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    jackknife = Jackknife((whole[name] - center) / scale, whole)
    with open_executor(client) as executor:

        def fit(part: Without) -> tuple[np.ndarray, dict[str, np.ndarray]]:
            fresh = clone(model).set_params(random_state=model._seed)
            fresh.check(corpus)
            with open_engine(corpus, None, executor, memory_limit, observer) as engine:
                found = _by_component(execute(partial(_program_without, fresh, part), engine))
            return (found[name] - center) / scale, found

        for part in _parts(n_parts, model._seed):
            jackknife.attempt("units", fit, part)
    errors = jackknife.errors()
    if errors is None:
        raise NumericalError(f"fewer than two of {n_parts} fits without a part of the units succeeded")
    return errors


def _program_without(model: SpectralEstimator, part: Without, run: Run) -> Any:
    return model.program(PartialRun(run, part))


def _parts(n_parts: int, seed: int) -> list[Without]:
    """Return selections that each leave out one of ``n_parts`` disjoint parts."""
    # Halves and held-out documents of a fit have the seed itself; parts are independent of them.
    seed ^= 0x6A09E667F3BCC908
    return [
        Without(1.0 / n_parts, heldout=False, seed=seed, offset=part / n_parts) for part in range(n_parts)
    ]


def _by_component(state: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a state that have an axis of components, with that axis first, by name of attribute."""
    found = {}
    for name, declared, _ in declared_fields(state):
        values = getattr(state, name)
        if not isinstance(declared, ArrayField) or values is None or declared.array.types != FLOATS:
            continue
        shape = declared.array.shape
        if shape.count("k") == 1 and set(shape) <= {"k", "d"}:
            rows = np.moveaxis(np.asarray(values, np.float64), shape.index("k"), 0)
            found[declared.attribute_name(name)] = rows
    return found
