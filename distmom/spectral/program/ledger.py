"""The ledger of a program: it records the passes, which make up the plan, and computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from distmom.engine import Pass, PassPlan, PassResult
from distmom.engine.stored.arrays import state_digest
from distmom.errors import NumericalError, UsageError
from distmom.spectral.program.plan import PlannedPass, planned_pass
from distmom.spectral.program.run import Decomposed, LedgerError, Run, Trial, Unknown

_R = TypeVar("_R")


class Ledger(Run):
    """The interpreter that records the passes of a program and computes nothing.

    Parameters
    ----------
    corpus : AnyCorpus
    plan : callable
        Plans a pass (see `distmom.engine.plan_pass`).
    known : callable, optional
        Returns the answer that an execution has stored for `Run.fits` of a pass, or None. By default always None.

    Attributes
    ----------
    entries : list of PlannedPass
        In the order of the program.
    passes : list of Pass
        The passes of these entries, as the program created them.
    trials : list of callable or None
        One per pass, which measures its time; None for a pass that is tried with random arrays.
    work : list of callable
        Trials of work outside the passes.
    decomposed : list of int
        Number of components of every decomposition.
    """

    def __init__(
        self,
        corpus: Any,
        plan: Callable[[Pass], PassPlan],
        known: Callable[[Pass], bool | None] = lambda pass_: None,
    ) -> None:
        self.corpus, self.name = corpus, ""
        self.entries: list[PlannedPass] = []
        self.passes: list[Pass] = []
        self.trials: list[Trial | None] = []
        self.work: list[Trial] = []
        self.decomposed: list[int] = []
        self._plan, self._known, self._possible = plan, known, False
        self._left: list[PlannedPass] | None = None

    def part(self, name: str) -> Ledger:
        return self._variant(name, self._possible)

    def _variant(self, name: str, possible: bool) -> Ledger:
        other = Ledger(self.corpus, self._plan, self._known)
        other.name, other._possible = name, possible
        other.entries, other.passes, other.decomposed = self.entries, self.passes, self.decomposed
        other.trials, other.work = self.trials, self.work
        return other

    def plan(self, pass_: Pass) -> PassPlan:
        return self._plan(pass_)

    def fits(self, pass_: Pass) -> bool:
        known = self._known(pass_)
        return fits_memory(self._plan, pass_) if known is None else known

    def put(self, array: Any) -> Any:
        return array if isinstance(array, Unknown) else _Held(array)

    def scan(self, pass_: Pass, *arguments: Any, **options: Any) -> Any:
        cut = self._plan(pass_)
        self.entries.append(planned_pass(self.corpus, pass_, cut, self.name, self._possible))
        self.passes.append(pass_)
        self.trials.append(options.get("trial"))
        return options["out"] if arguments else PassResult(_NoSums(), _NoRows(), Unknown())  # type: ignore[arg-type]

    def small(
        self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any, where: str, out: _R
    ) -> _R:
        for each in out if isinstance(out, list) else [out]:
            if isinstance(each, Decomposed):
                self.decomposed.append(each.n_components)
        return out

    def apply(self, function: Callable[..., _R], *arguments: Any, out: _R) -> _R:
        return out

    def rows(self, function: Callable[..., _R], *arguments: Any, out: _R, trial: Trial | None = None) -> _R:
        if trial is not None:
            self.work.append(trial)
        return out

    def when(
        self, condition: Callable[[], bool], function: Callable[..., _R], *arguments: Any, otherwise: _R
    ) -> _R:
        return function(self._variant(self.name, True), *arguments)

    def attempt(self, function: Callable[..., _R], *arguments: Any, required: bool) -> _R | NumericalError:
        return function(self if required else self._variant(self.name, True), *arguments)

    def check(self, done: PlannedPass) -> None:
        """Remove the entry of a pass that is about to run; a LedgerError if no remaining entry has its size."""
        if self._left is None:
            self._left = list(self.entries)
        for i, entry in enumerate(self._left):
            same = (entry.part, entry.name) == (done.part, done.name)
            fits = entry.task_bytes >= done.task_bytes and entry.sums_bytes >= done.sums_bytes
            if same and (fits or entry.estimated):
                del self._left[i]
                return
        raise LedgerError(
            f"pass {done.name} of part {done.part!r}, {done.task_bytes} bytes per task and {done.sums_bytes} of "
            f"sums: expected one of the passes left in the plan, {[vars(entry) for entry in self._left]}"
        )


@dataclass(frozen=True)
class _Held:
    """An array that is known before the program runs, in place of a stored array."""

    array: np.ndarray

    @property
    def digest(self) -> str:
        return state_digest(self.array)

    def load(self) -> np.ndarray:
        return self.array


class _NoSums(Unknown):
    """The sums of a pass that was not made."""


class _NoRows(dict[str, Any]):
    """The stored rows of a pass that was not made."""

    def __missing__(self, name: str) -> Unknown:
        return Unknown()


def fits_memory(plan: Callable[[Pass], PassPlan], pass_: Pass) -> bool:
    try:
        plan(pass_)
    except UsageError:
        return False
    return True
