"""The execution of a program by an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from distmom.engine import Engine, Pass, PassPlan, StoredArray, fingerprint
from distmom.errors import NumericalError
from distmom.spectral.program.ledger import Ledger, fits_memory
from distmom.spectral.program.plan import planned_pass
from distmom.spectral.program.run import Run, Trial

_R = TypeVar("_R")


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
        self.engine: Engine = engine
        self.corpus: Any = engine.corpus
        self.name: str = name
        self._ledger = ledger

    def part(self, name: str) -> Execution:
        return Execution(self.engine, self._ledger, name)

    def plan(self, pass_: Pass) -> PassPlan:
        return self.engine.plan(pass_)

    def fits(self, pass_: Pass) -> bool:
        known = stored_answer(self.engine, pass_)
        if known is None:
            known = fits_memory(self.engine.plan, pass_)
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
        return self.engine.run(pass_, rows, finish=partial(finish, self.engine), parameters=tuple(rest))

    def small(
        self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any, where: str, out: _R
    ) -> _R:
        if where == "scheduler":
            return self.engine.on_scheduler(function, load, *arguments)
        return function(load(), *arguments)

    def apply(self, function: Callable[..., _R], *arguments: Any, out: _R) -> _R:
        return function(*arguments)

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


def stored_answer(engine: Engine, pass_: Pass) -> bool | None:
    """Return the answer that an execution has stored for `Run.fits` of a pass; None if there is none."""
    found = engine.directory.load_pass("fits", fingerprint((engine.corpus.digest, pass_)))
    return None if found is None else bool(found[1]["fits"])
