"""Opening an engine: a run directory that is held, the log of its events, and an executor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distmom.corpus import AnyCorpus
from distmom.corpus.files.aside import remove_temporary
from distmom.corpus.files.space import space_explained
from distmom.engine.directory.events import Event, EventLog, Observer
from distmom.engine.directory.run_directory import RunDirectory
from distmom.engine.executors.executor import Executor, InProcess
from distmom.engine.run import Engine
from distmom.engine.shards import keeping_shards
from distmom.engine.stored.arrays import forget_maps


@contextmanager
def open_engine(
    corpus: AnyCorpus,
    directory: str | os.PathLike[str] | RunDirectory | None = None,
    executor: Executor | None = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
) -> Iterator[Engine]:
    """Open an engine in a run directory and hold the run, or in a temporary directory; a context manager.

    Events are appended to the log of a run directory.

    Parameters
    ----------
    corpus : AnyCorpus
        If it has a method ``with_stored``, the corpus of the engine is the copy that this returns: its large
        arrays are stored, so that tasks do not carry them, and it may have no names.
    directory : path-like or RunDirectory, optional
        A temporary directory, removed on exit, by default. The caller holds a `RunDirectory`.
    executor : Executor, optional
        Tasks run in this process by default.
    memory_limit : int, optional
        Bytes that one worker may use; no limit by default.
    observer : callable, optional
        Called with every event of the engine; none by default.

    Raises
    ------
    UsageError
        If another process holds the run.
    TakenOverError
        If another process has taken the run over, as this one seemed to have ended.
    CancelledError
        If the end of the run has been requested.
    OutOfSpaceError
        On exit with an error, if the disk is full.
    """
    options: dict[str, Any] = {"executor": executor or InProcess(), "memory_limit": memory_limit}
    observers: list[Observer] = []
    with ExitStack() as stack:
        stack.enter_context(keeping_shards())
        if directory is None:
            temporary = Path(tempfile.mkdtemp(prefix="distmom-"))
            # An abandoned task may write to it while it is removed.
            stack.callback(remove_temporary, temporary)
            stack.callback(forget_maps, temporary)
            run = RunDirectory(temporary, durable=False)
        elif isinstance(directory, RunDirectory):
            run = directory
        else:
            run = stack.enter_context(RunDirectory(directory).held())
        if run.durable:
            # First, so that an event is in the log even if the observer raises.
            observers.append(stack.enter_context(EventLog(run.log)))
        if run.lease is not None:
            observers.append(run.lease.note)
        if observer is not None:
            observers.append(observer)

        def observe(event: Event) -> None:
            for each in observers:
                each(event)

        stack.enter_context(space_explained(run.path))
        try:
            with_stored = getattr(corpus, "with_stored", None)
            yield Engine(with_stored(run.put) if with_stored else corpus, run, observer=observe, **options)
        finally:
            options["executor"].settle()
            run.partials.drop()
            run.flush()
