"""Programs: the verbs of a run, which an `Execution` carries out and a `Ledger` writes down.

A program is a function of a `Run` that states the passes of a model once. It processes data only through the verbs
of the run, and branches only on what is known beforehand: sizes, parameters, and what a corpus declares. Branches
that depend on data use `Run.when` or `Run.attempt`. The ledger runs the same program with values that have a
shape but no content (`Unknown`); the passes that it records are the plan of the fit. An execution compares each
pass with the ledger before running it, so that a fit cannot differ from its plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from distmom.engine import Pass, PassPlan, PassResult, StoredRows, TallResult
from distmom.errors import NumericalError

_R = TypeVar("_R")
#: given a block of the corpus, returns the seconds that the whole work takes on one thread, from a trial of a part
Trial = Callable[[Any], float]

#: places where small moments are decomposed
PLACES = ("scheduler", "client")


class LedgerError(RuntimeError):
    """A program makes a pass that its plan does not list, or reads data outside the verbs of a run."""


class Decomposed:
    """Base of results of a decomposition; a ledger records their numbers of components."""

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
            f"the program reads data ({how}) outside the verbs small, apply, rows, when and attempt of its run"
        )


def unknown(*shape: int) -> Any:
    """Return an `Unknown`, in place of a value of any type."""
    return Unknown(*shape)


class Run(ABC):
    """The verbs of a program.

    Attributes
    ----------
    corpus : AnyCorpus
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
    def apply(self, function: Callable[..., _R], *arguments: Any, out: _R) -> _R:
        """Return ``function(*arguments)``, for steps from results to results that read no tall arrays.

        Parameters
        ----------
        function : callable
        *arguments
        out : object
            Placeholder that the ledger returns for the result.
        """

    @abstractmethod
    def rows(self, function: Callable[..., _R], *arguments: Any, out: _R, trial: Trial | None = None) -> _R:
        """Return ``function(engine, *arguments)``, for work on tall stored arrays.

        Parameters
        ----------
        function : callable
            Processes tall arrays slab by slab of rows (see `Engine.maps`), and makes no pass.
        *arguments
        out : object
            Placeholder that the ledger returns for the result.
        trial : callable, optional
            Measures the time of work that grows with the data but is not part of a pass, for a plan with times.
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
