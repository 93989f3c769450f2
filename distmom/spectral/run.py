"""Programs and their two interpreters: an `Execution` runs the passes of a model, a `Ledger` measures them.

A program is a function of a `Run` that states the passes of a model once. It processes data only through the verbs
of the run, and branches only on what is known beforehand: sizes, parameters, and what a corpus declares. Branches
that depend on data use `Run.when` or `Run.attempt`. The ledger runs the same program with values that have a
shape but no content (`Unknown`); the passes that it records are the plan of the fit. An execution compares each
pass with the ledger before running it, so that a fit cannot differ from its plan.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np

from distmom.engine import (
    Engine,
    Pass,
    PassPlan,
    PassResult,
    StoredArray,
    StoredRows,
    Tallies,
    TallResult,
    fingerprint,
)
from distmom.engine.state import state_digest
from distmom.errors import NumericalError, UsageError
from distmom.spectral.plan import PlannedPass, planned_pass

_R = TypeVar("_R")
#: given a block of the corpus, returns the seconds that the whole work takes on one thread, from a trial of a part
Trial = Callable[[Any], float]

logger = logging.getLogger(__name__)

#: places where small moments are decomposed
PLACES = ("scheduler", "client")


class LedgerError(RuntimeError):
    """A program makes a pass that its plan does not list, or reads data outside the verbs of a run."""


class Decomposed:
    """Base of results of a decomposition, whose number of components a ledger notes."""

    @property
    def n_components(self) -> int:
        """Number of components, at most."""
        raise TypeError(f"{type(self).__name__} does not define its number of components")


class Unknown:
    """A value that only an execution computes.

    It can be passed on and has a shape where that is known; reading its content raises a `LedgerError`.

    Parameters
    ----------
    *shape : int
        Upper bounds of the sizes of an array; empty for other values.
    """

    def __init__(self, *shape: int) -> None:
        self._shape = shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Upper bounds of the sizes."""
        return self._shape

    def __len__(self) -> int:
        if not self._shape:
            raise self._refused("len")
        return self._shape[0]

    def __bool__(self) -> bool:
        raise self._refused("bool")

    def __float__(self) -> float:
        raise self._refused("float")

    def __iter__(self) -> Any:
        raise self._refused("iter")

    def __getitem__(self, key: Any) -> Any:
        raise self._refused(f"[{key!r}]")

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise self._refused("array")

    def __getattr__(self, name: str) -> Any:
        raise self._refused(name)

    @staticmethod
    def _refused(how: str) -> Exception:
        if how.startswith("__") or how == "load":
            # Python and the engine probe for these attributes.
            return AttributeError(how)
        return LedgerError(
            f"the program reads data ({how}) outside the verbs small, rows, when and attempt of its run"
        )


def unknown(*shape: int) -> Any:
    """Return an `Unknown`, in place of a value of any type."""
    return Unknown(*shape)


class Run(ABC):
    """The verbs of a program.

    Attributes
    ----------
    corpus : Corpus, MemoryCorpus or ViewCorpus
    name : str
        Part of the whole run, empty for the whole.
    """

    corpus: Any
    name: str

    @abstractmethod
    def part(self, name: str) -> Run:
        """Return the run of a named part of the program; its passes are reported under that name."""

    @abstractmethod
    def plan(self, pass_: Pass) -> PassPlan:
        """Return how a pass is cut into tasks; UsageError if a task cannot fit the memory limit."""

    @abstractmethod
    def fits(self, pass_: Pass) -> bool:
        """Return whether a pass fits the memory limit.

        An execution stores the answer in its run, so that a resume with another limit takes the same branch.
        """

    @abstractmethod
    def put(self, array: Any) -> Any:
        """Store an array that passes read, and return its handle."""

    @overload
    def scan(
        self, pass_: Pass, *, rows: Mapping[str, StoredRows] | None = None, trial: Trial | None = None
    ) -> PassResult: ...

    @overload
    def scan(
        self,
        pass_: Pass,
        finish: Callable[..., TallResult],
        *arguments: Any,
        out: TallResult,
        rows: Mapping[str, StoredRows] | None = None,
        trial: Trial | None = None,
    ) -> TallResult: ...

    @abstractmethod
    def scan(self, pass_: Pass, *arguments: Any, **options: Any) -> PassResult | TallResult:
        """Make one pass over the corpus.

        Parameters
        ----------
        pass_ : Pass
        finish : callable, optional
            ``finish(engine, tallies, *arguments)`` turns sums that are too tall for memory into stored arrays and
            numbers; both are committed as one step. Required for passes with such sums.
        *arguments
            Everything that ``finish`` depends on; part of the fingerprint of the step.
        out : TallResult
            Placeholder that the ledger returns for the result of ``finish``.
        rows : mapping of str to StoredRows, optional
            Stored rows that the pass reads; none by default.
        trial : callable, optional
            Measures the time of a pass that cannot be tried with random arrays, for a plan with times.

        Returns
        -------
        PassResult, or TallResult with ``finish``
        """

    @abstractmethod
    def small(
        self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any, where: str, out: _R
    ) -> _R:
        """Return ``function(load(), *arguments)`` for small moments.

        Parameters
        ----------
        function, load : callable
            ``load`` reads committed sums, on a worker where ``where`` is ``"scheduler"``.
        *arguments
        where : {"scheduler", "client"}
        out : object
            Placeholder that the ledger returns for the result.
        """

    @abstractmethod
    def rows(self, function: Callable[..., _R], *arguments: Any, out: _R, trial: Trial | None = None) -> _R:
        """Return ``function(engine, *arguments)``, for work on stored arrays and on results of passes.

        Parameters
        ----------
        function : callable
            Processes tall arrays slab by slab of rows (see `Engine.map_rows`), and makes no pass.
        *arguments
        out : object
            Placeholder that the ledger returns for the result.
        trial : callable, optional
            Measures the time of work that grows with the data beside that of the passes, for a plan with times.
        """

    @abstractmethod
    def when(
        self, condition: Callable[[], bool], function: Callable[..., _R], *arguments: Any, otherwise: _R
    ) -> _R:
        """Return ``function(run, *arguments)`` if a condition on data holds, else ``otherwise``.

        The ledger counts the passes of ``function``, and marks them as possible.
        """

    @abstractmethod
    def attempt(self, function: Callable[..., _R], *arguments: Any, required: bool) -> _R | NumericalError:
        """Return ``function(run, *arguments)``, or the NumericalError that it raises if it is not ``required``."""


class Execution(Run):
    """The interpreter that runs a program with an engine.

    Parameters
    ----------
    engine : Engine
    ledger : Ledger
        Ledger of the same program; a pass that it does not list raises a `LedgerError`.
    name : str
        Part of the whole run.
    """

    def __init__(self, engine: Engine, ledger: Ledger, name: str = "") -> None:
        self.engine, self.corpus, self.name = engine, engine.corpus, name
        self._ledger = ledger

    def part(self, name: str) -> Execution:
        return Execution(self.engine, self._ledger, name)

    def plan(self, pass_: Pass) -> PassPlan:
        return self.engine.plan(pass_)

    def fits(self, pass_: Pass) -> bool:
        known = stored_answer(self.engine, pass_)
        if known is None:
            known = _fits(self.engine.plan, pass_)
            key = fingerprint((self.corpus.digest, pass_))
            self.engine.directory.commit_pass("fits", key, {}, {"rows": {}, "fits": known})
        return known

    def put(self, array: np.ndarray) -> StoredArray:
        return self.engine.put(array)

    def scan(self, pass_: Pass, *arguments: Any, **options: Any) -> Any:
        self._ledger.check(planned_pass(self.corpus, pass_, self.plan(pass_), self.name, False))
        rows = options.get("rows")
        if not arguments:
            return self.engine.run(pass_, rows)
        finish, *rest = arguments

        def finished(tallies: Tallies) -> TallResult:
            result: TallResult = finish(self.engine, tallies, *rest)
            return result

        return self.engine.run(pass_, rows, finish=finished, parameters=tuple(rest))

    def small(
        self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any, where: str, out: _R
    ) -> _R:
        if where == "scheduler":
            return self.engine.on_scheduler(function, load, *arguments)
        return function(load(), *arguments)

    def rows(self, function: Callable[..., _R], *arguments: Any, out: _R, trial: Trial | None = None) -> _R:
        return function(self.engine, *arguments)

    def when(
        self, condition: Callable[[], bool], function: Callable[..., _R], *arguments: Any, otherwise: _R
    ) -> _R:
        return function(self, *arguments) if condition() else otherwise

    def attempt(self, function: Callable[..., _R], *arguments: Any, required: bool) -> _R | NumericalError:
        try:
            return function(self, *arguments)
        except NumericalError as error:
            if required:
                raise
            return error


class Ledger(Run):
    """The interpreter that records the passes of a program and computes nothing.

    Parameters
    ----------
    corpus : Corpus, MemoryCorpus or ViewCorpus
    plan : callable
        Plans a pass (see `distmom.engine.plan_pass`).
    known : callable, optional
        Returns the answer that an execution has stored for `Run.fits` of a pass, or None. By default always None.

    Attributes
    ----------
    entries : list of PlannedPass
        In the order of the program.
    passes : list of Pass
        The same, as the program has made them.
    trials : list of callable or None
        Of every pass, how its time is measured; None where it is tried with random arrays.
    work : list of callable
        Trials of work beside the passes.
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
        return _fits(self._plan, pass_) if known is None else known

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
        """Remove the entry of a pass that is about to run; a LedgerError if no entry is as large."""
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


def _fits(plan: Callable[[Pass], PassPlan], pass_: Pass) -> bool:
    try:
        plan(pass_)
    except UsageError:
        return False
    return True


def stored_answer(engine: Engine, pass_: Pass) -> bool | None:
    """Return the answer that an execution has stored for `Run.fits` of a pass; None if there is none."""
    found = engine.directory.load_pass("fits", fingerprint((engine.corpus.digest, pass_)))
    return None if found is None else bool(found[1]["fits"])


def execute(program: Callable[[Run], _R], engine: Engine) -> _R:
    """Run a program with an engine, every pass compared with the plan."""
    ledger = Ledger(engine.corpus, engine.plan, lambda pass_: stored_answer(engine, pass_))
    program(ledger)
    return program(Execution(engine, ledger))
