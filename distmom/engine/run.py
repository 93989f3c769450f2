"""The engine, which runs passes over a corpus and commits their results, or returns committed ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from distmom.clock import add_spent
from distmom.engine.directory.events import KernelsMissing, Observer, PassDone
from distmom.engine.directory.run_directory import RunDirectory
from distmom.engine.executors.executor import Executor, InProcess
from distmom.engine.maps import Maps
from distmom.engine.passes import Pass, fingerprint
from distmom.engine.plan import PassPlan
from distmom.engine.results import PassResult, TallResult, Timing
from distmom.engine.scans import Scans
from distmom.engine.stored.arrays import StoredArray, StoredRows
from distmom.engine.stored.held import HeldRows, Holding
from distmom.engine.sums.additive import Sums
from distmom.engine.sums.folded import Folded
from distmom.errors import StoreError

_R = TypeVar("_R")

logger = logging.getLogger(__name__)

#: part of all fingerprints; to be changed with the way sums are added or arrays digested, so that older results
#: are not used
KERNEL_VERSION = 7


@dataclass
class Engine:
    """Runs passes over one corpus in one run directory.

    Attributes
    ----------
    corpus : AnyCorpus
    directory : RunDirectory
        Directory of stored arrays, totals and rows.
    executor : Executor, default InProcess()
        Runs the tasks.
    memory_limit : int or None
        Bytes that one worker may use; no limit by default.
    observer : callable
        Called with every event (see `distmom.engine.directory.events`), in any thread; ignores them by default.
    timings : list of Timing
        One entry per pass.
    spent : dict of str to float
        Seconds of all tasks so far, by kind of work, and of work on the scheduler node, ``decomposition``.
    """

    corpus: Any
    directory: RunDirectory
    executor: Executor = field(default_factory=InProcess)
    memory_limit: int | None = None
    observer: Observer = lambda event: None
    timings: list[Timing] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    #: directory of the partial sums of the pass whose total is being worked on, if they are kept
    _kept: Path | None = field(default=None, init=False, repr=False)

    @property
    def _holding(self) -> Holding:
        in_process = isinstance(self.executor, InProcess)
        return Holding(in_process, self.directory.durable, self.memory_limit)

    @property
    def maps(self) -> Maps:
        """Work on rows of tall matrices and on sparse matrices, in the same directory and by the same executor."""
        return Maps(self.directory, self.executor, self._holding, self.spent, self._kept)

    @property
    def _scans(self) -> Scans:
        return Scans(
            self.corpus,
            self.directory,
            self.executor,
            self.memory_limit,
            self._holding,
            self.observer,
            self.spent,
        )

    @property
    def _origin(self) -> tuple[Any, ...]:
        """The values other than the pass on which the bits of every sum depend."""
        return KERNEL_VERSION, self.corpus.digest, [s.n_documents for s in self.corpus.shards]

    def put(self, array: np.ndarray) -> StoredArray:
        """Store an array for passes to read, and return its handle."""
        return self.directory.put(array)

    def plan(self, pass_: Pass) -> PassPlan:
        """Return how a pass is cut with this memory limit and executor."""
        return self._scans.plan(pass_)

    @overload
    def run(self, pass_: Pass, rows: Mapping[str, StoredRows] | None = None) -> PassResult: ...

    @overload
    def run(
        self,
        pass_: Pass,
        rows: Mapping[str, StoredRows] | None = None,
        *,
        finish: Callable[..., TallResult],
        parameters: tuple[Any, ...] = (),
    ) -> TallResult: ...

    def run(
        self,
        pass_: Pass,
        rows: Mapping[str, StoredRows] | None = None,
        *,
        finish: Callable[..., TallResult] | None = None,
        parameters: tuple[Any, ...] = (),
    ) -> PassResult | TallResult:
        """Run one pass over all shards, or return its committed result.

        Parameters
        ----------
        pass_ : Pass
        rows : mapping of str to StoredRows, optional
            Stored rows that the pass reads.
        finish : callable, optional
            Required for passes with tall sums. A function, or a partial of one. Called with the sums and
            ``parameters``, returns stored arrays and numbers, which are committed; the tall sums are removed. A
            pass that stores rows must have no separable sums.
        parameters : tuple, default ()
            Everything other than the pass that ``finish`` depends on.

        Returns
        -------
        PassResult, or TallResult with ``finish``

        Raises
        ------
        UsageError
            If a task cannot fit the memory limit.
        StoreError
            If a shard, a stored array or a committed total is damaged.
        ClusterError
            If the cluster fails.
        """
        started, before = time.monotonic(), dict(self.spent)
        rows = dict(rows or {})
        finished = () if finish is None else (_name_of(finish), parameters)
        key = fingerprint((*self._origin, pass_, *finished, rows))
        committed = self._committed(pass_, key)
        result: PassResult | TallResult
        with self._compilation_observed(pass_.name):
            if finish is None:
                result = self._run_small(pass_, rows, key, committed)
            else:
                result = self._run_tall(pass_, rows, key, committed, finish, parameters)
        self._done(pass_, started, before, committed is not None)
        return result

    def _run_small(
        self,
        pass_: Pass,
        rows: dict[str, StoredRows],
        key: str,
        committed: tuple[Sums, dict[str, Any]] | None,
    ) -> PassResult:
        if committed is None:
            sums, folded = self._scans.add_up(pass_, rows, key)
            if folded.rows:
                # Sums in memory are lost with this process, so there is nothing to resume.
                total = Sums({name: np.array(value) for name, value in sums.items()})
                self.directory.partials.release(folded.all_files())
                return PassResult(total, _held_rows(pass_, folded), "")
            self.directory.commit_pass(
                pass_.name, key, sums, {"rows": folded.row_digests}, files=folded.all_files()
            )
            committed = self.directory.load_pass(pass_.name, key)
            assert committed is not None
        total, record = committed
        stored = self._stored_rows(pass_, key, record["rows"])
        return PassResult(total, stored, str(self.directory.pass_path(pass_.name, key)))

    def _run_tall(
        self,
        pass_: Pass,
        rows: dict[str, StoredRows],
        key: str,
        committed: tuple[Sums, dict[str, Any]] | None,
        finish: Callable[..., TallResult],
        parameters: tuple[Any, ...],
    ) -> TallResult:
        if committed is None:
            tallies, folded = self._scans.add_up_tall(pass_, rows, key)
            digests = folded.row_digests
            with self._total_kept(pass_, key):
                result = finish(tallies, *parameters)
            result.rows = self._stored_rows(pass_, key, digests) | _held_rows(pass_, folded)
            self.directory.commit_pass(
                pass_.name, key, {}, {"rows": digests, **result.to_json()}, result.stored_arrays(),
                folded.all_files(),
            )  # fmt: skip
        else:
            result = TallResult.from_json(committed[1], self.directory.states)
            result.rows = self._stored_rows(pass_, key, committed[1]["rows"])
        return result

    @contextmanager
    def _total_kept(self, pass_: Pass, key: str) -> Iterator[None]:
        """Let work on the total of a pass be kept until it is committed, as its groups are; a context manager."""
        if self.directory.partials.keeps_groups:
            self._kept = self.directory.partials_of(pass_.name, key)
        try:
            yield
        finally:
            self._kept = None

    def _committed(self, pass_: Pass, key: str) -> tuple[Sums, dict[str, Any]] | None:
        """Return the committed sums and record of a pass; None if it is not committed or damaged."""
        try:
            committed = self.directory.load_pass(pass_.name, key)
            if committed is not None:
                record = committed[1]
                if "states" in record:
                    for stored in TallResult.from_json(record, self.directory.states).stored_arrays():
                        stored.load()
                for rows in self._stored_rows(pass_, key, record["rows"]).values():
                    for shard in rows.digests:
                        rows.read(int(shard))
        except StoreError as error:
            logger.warning("pass %s is run again, as its committed result is damaged: %s", pass_.name, error)
            self.directory.discard_pass(pass_.name, key)
            return None
        return committed

    def _done(self, pass_: Pass, started: float, before: Mapping[str, float], resumed: bool) -> None:
        seconds, n_documents = time.monotonic() - started, self.corpus.n_documents
        spent = {kind: total - before.get(kind, 0.0) for kind, total in self.spent.items()}
        self.timings.append(Timing(pass_.name, seconds, n_documents, resumed, spent))
        self.observer(PassDone(pass_.name, n_documents, seconds, resumed))

    def _stored_rows(self, pass_: Pass, key: str, digests: dict[str, Any]) -> dict[str, StoredRows]:
        return {
            name: StoredRows(self.directory.rows_directory(pass_.name, key, name), of_shards, pass_.row_axis)
            for name, of_shards in digests.items()
        }

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        """Call ``function(load(), *arguments)`` on the scheduler node; ``load`` runs on a worker."""
        started = time.monotonic()
        try:
            with self._compilation_observed("decomposition"):
                return self.executor.on_scheduler(function, load, *arguments)
        finally:
            add_spent(self.spent, {"decomposition": time.monotonic() - started})

    @contextmanager
    def _compilation_observed(self, name: str) -> Iterator[None]:
        """Emit one event if a kernel has to be compiled; a context manager."""
        reported = threading.Lock()

        def report() -> None:
            if reported.acquire(blocking=False):
                self.observer(KernelsMissing(name))

        with self.executor.compiling(report):
            try:
                yield
            finally:
                # A worker's report may arrive later than its result.
                reported.acquire(blocking=False)


def _name_of(finish: Callable[..., Any]) -> str:
    """Return the name of a function, or of that of a partial; models finish the same pass in different ways."""
    function: Any = finish.func if isinstance(finish, partial) else finish
    return f"{function.__module__}.{function.__qualname__}"


def _held_rows(pass_: Pass, folded: Folded) -> dict[str, StoredRows]:
    """Return the rows that tasks hold in memory."""
    return {name: HeldRows("", axis=pass_.row_axis, arrays=arrays) for name, arrays in folded.rows.items()}
