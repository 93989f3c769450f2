"""Planning and execution of a program: each pass is compared with the plan before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from distmom.engine import Engine
from distmom.errors import interrupts_restored
from distmom.spectral.program.execution import Execution, stored_answer
from distmom.spectral.program.ledger import Ledger
from distmom.spectral.program.run import Run

_R = TypeVar("_R")


def execute(program: Callable[[Run], _R], engine: Engine) -> _R:
    """Run a program with an engine, every pass compared with the plan."""
    ledger = Ledger(engine.corpus, engine.plan, lambda pass_: stored_answer(engine, pass_))
    with interrupts_restored():
        program(ledger)
        return program(Execution(engine, ledger))
