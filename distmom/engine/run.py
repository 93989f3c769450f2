"""The engine, which runs passes over a corpus: folds groups of shards, merges sums, commits the total."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from scipy.sparse import csr_array

from distmom.clock import add_spent
from distmom.engine.csr import Csr, MixedRows
from distmom.engine.deadly import reduce_groups
from distmom.engine.directory import RunDirectory
from distmom.engine.environment import environment
from distmom.engine.events import GroupDone, GroupsFound, KernelsMissing, Observer, PassDone, PassStarted
from distmom.engine.executors import Executor, InProcess
from distmom.engine.folded import Folded
from distmom.engine.held import HELD_STATE_BYTES, HELD_SUM_BYTES, HeldOutput, HeldRows, may_hold
from distmom.engine.passes import Pass, fingerprint
from distmom.engine.plan import PassPlan, frequent_rows_of, plan_pass
from distmom.engine.reports import Report, planned_threads, remove_others
from distmom.engine.results import PassResult, Tallies, TallResult, Timing
from distmom.engine.scratch import ScratchArray
from distmom.engine.sparse import (
    SAMPLE_ENTRIES,
    Pruning,
    Runs,
    SparsePart,
    Term,
    add_slab,
    join_pieces,
    row_slabs,
    square_slab,
    stored_terms,
    write_runs,
)
from distmom.engine.state import SLAB_ROWS, StoredArray, StoredRows, release_maps
from distmom.engine.sums import Sums
from distmom.engine.tall import PIECE_ROWS, Partials, RowFunction, RowOutput, Tall, map_task
from distmom.engine.tasks import fold_group, fold_tall
from distmom.errors import StoreError

_R = TypeVar("_R")

logger = logging.getLogger(__name__)

#: part of all fingerprints; to be changed with the way sums are added or arrays digested, so that older results
#: are not used
KERNEL_VERSION = 7
#: tasks per thread into which slabs of rows are divided: with fewer workers are idle, with more they wait for
#: the client
MAPS_PER_THREAD = 8
#: largest number of slabs of a task, which holds the small sums of each
MAX_TOGETHER = 4


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
        Called with every event (see `distmom.engine.events`), in any thread; ignores them by default.
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

    @property
    def _origin(self) -> tuple[Any, ...]:
        """The values on which the bits of every sum depend beside the pass."""
        return KERNEL_VERSION, self.corpus.digest, [s.n_documents for s in self.corpus.shards]

    def put(self, array: np.ndarray) -> StoredArray:
        """Store an array for passes to read, and return its handle."""
        return self.directory.put(array)

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
            Required for passes with tall sums. Called with the sums and ``parameters``, returns stored arrays and
            numbers, which are committed; the tall sums are removed. A pass that stores rows must have no separable
            sums.
        parameters : tuple, default ()
            Everything that ``finish`` depends on beside the pass.

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
        key = fingerprint((*self._origin, pass_, *(() if finish is None else (parameters,)), rows))
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
            sums, folded = self._compute(pass_, rows, key)
            if folded.rows:
                # What is held is lost with this process, so there is nothing to resume.
                total = Sums({name: np.array(value) for name, value in sums.items()})
                self.directory.spare_partials(folded.all_files())
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
            tallies, folded = self._fold(pass_, rows, key)
            digests = folded.row_digests
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

    def _fold(self, pass_: Pass, rows: dict[str, StoredRows], key: str) -> tuple[Tallies, Folded]:
        """Add all documents to partial tall sums in files; also return the report of the tasks."""
        files = self.directory.partials_of(pass_.name, key)
        n_threads = planned_threads(files) or self.executor.n_threads
        plan = self._plan(pass_, n_threads)
        # Accumulators reuse the pages of earlier files, and later files those of accumulators.
        self.directory.drop_partials()
        release_maps()
        n_slabs = max(1, len(plan.columns))
        self.observer(PassStarted(pass_.name, self.corpus.n_documents, len(plan.groups), n_slabs))
        outputs = self.directory.rows_directory(pass_.name, key, "")
        frequent: dict[str, StoredArray] = {}
        tall = {name: spec for name, spec in pass_.specs().items() if spec.tall}
        if plan.single:
            axes = {str(spec.tall) for spec in tall.values() if not spec.sparse}
            frequent = {axis: self.put(frequent_rows_of(self.corpus, axis, pass_.numbers)) for axis in axes}
        sizes = [sum(self.corpus.shards[i].n_documents for i in group) for group in plan.groups]
        held = self._held(pass_, len(plan.groups) * n_slabs * plan.partial_bytes)
        tasks = [(i, j) for i in range(len(plan.groups)) for j in range(n_slabs)]
        cuts = [(i, plan.groups[i], j, plan.columns[j : j + 1], plan.single) for i, j in tasks]
        reports = self._reports(files, key, n_threads, cuts)
        arguments = [
            (self.corpus, plan.groups[i], pass_.for_columns(j, plan.columns) if plan.columns else pass_,
             frequent, plan.single, rows, outputs, str(files), i, j, held, report)
            for (i, j), report in zip(tasks, reports, strict=True)
        ]  # fmt: skip

        def on_done(index: int) -> None:
            self.observer(GroupDone(pass_.name, sizes[index // n_slabs] // n_slabs))

        folded = Folded(_small_sums(pass_), {})
        if arguments:
            folded = reduce_groups(
                self.executor, fold_tall, arguments, plan.fan_in, on_done, pass_.name, self._shards_named
            )
            self._account(pass_, folded)
            if folded.n_found:
                self.observer(GroupsFound(pass_.name, folded.n_found, len(tasks)))
        partials: dict[str, Partials] = {}
        runs: dict[str, Runs] = {}
        for name, spec in tall.items():
            n_rows, width = spec.shape
            if spec.sparse:
                parts = [run for i in range(len(plan.groups)) for run in folded.runs[name, i]]
                runs[name] = Runs(tuple(parts), n_rows, width)
                continue
            columns = (plan.columns if spec.separable else ()) or (slice(0, width),)
            slabs = range(len(columns))
            partials[name] = Partials(
                tuple(tuple(folded.tall[name, i, j] for j in slabs) for i in range(len(plan.groups))),
                n_rows, width, columns, frequent.get(str(spec.tall)),
            )  # fmt: skip
        return Tallies(folded.sums, partials, runs), folded

    def _reports(
        self, directory: Path, key: str, n_threads: int, cuts: Sequence[tuple[Any, ...]]
    ) -> Sequence[Report | None]:
        """Return the place of the report on every task of a pass, and remove what others have left there.

        Reports are written if the run can be resumed. ``cuts`` are the parts of the pass that the tasks add up.
        """
        if not self.directory.keeps_groups:
            return [None] * len(cuts)
        # The groups of a pass are added up by one version of the software.
        versions = environment().versions()
        reports = [
            Report(str(directory), fingerprint((key, cut, versions)), n_threads, self._shards_named(cut[1]))
            for cut in cuts
        ]
        remove_others(directory, reports)
        return reports

    def _shards_named(self, group: Sequence[int]) -> str:
        """Return the name of a group of neighbouring shards, for messages."""
        first, last = (self.corpus.shards[i].id for i in (group[0], group[-1]))
        return f"shard {first}" if first == last else f"shards {first} to {last}"

    def _holds(self, n_bytes: int, most: int) -> bool:
        """Return whether arrays that tasks make are held in memory; at most ``most`` bytes without a limit."""
        return isinstance(self.executor, InProcess) and may_hold(n_bytes, most, self.memory_limit)

    def _held(self, pass_: Pass, n_bytes: int) -> tuple[bool, bool]:
        """Return whether the partial sums of a pass, of ``n_bytes`` together, and its rows are held in memory."""
        of_rows = self.corpus.n_documents * pass_.row_bytes
        return self._holds(n_bytes, HELD_SUM_BYTES), self._holds_states(of_rows)

    def _holds_states(self, n_bytes: int) -> bool:
        """Return whether arrays that later passes read are held: only in a run that is not resumed."""
        return not self.directory.durable and self._holds(n_bytes, HELD_STATE_BYTES)

    def plan(self, pass_: Pass) -> PassPlan:
        """Return how a pass is cut with this memory limit and executor."""
        return self._plan(pass_, self.executor.n_threads)

    def _plan(self, pass_: Pass, n_threads: int) -> PassPlan:
        return plan_pass(self.corpus, pass_, self.memory_limit, n_threads)

    def map_rows(
        self,
        function: RowFunction,
        inputs: Sequence[Tall],
        n_rows: int,
        outputs: Mapping[str, tuple[int, str]],
        *arguments: Any,
        piece_rows: int = PIECE_ROWS,
    ) -> tuple[dict[str, StoredArray], Sums]:
        """Call a function on slabs of rows of tall matrices, on all workers.

        Parameters
        ----------
        function : callable
            Called with a slice of rows, these rows of every input and ``arguments``; returns the same rows of the
            outputs, and sums, which are added up in the order of the slabs.
        inputs : sequence of Partials, StoredArray, StoredColumns or ndarray
        n_rows : int
        outputs : mapping of str to (int, str)
            Width and type of every output.
        *arguments
            Further small arguments.
        piece_rows : int, default `PIECE_ROWS`
            Rows that are processed at a time; sums of pieces are added up.

        Returns
        -------
        outputs : dict of str to StoredArray
        sums : Sums
        """
        n_bytes = sum(n_rows * width * np.dtype(dtype).itemsize for width, dtype in outputs.values())
        held = self._holds_states(n_bytes)
        files: dict[str, RowOutput | HeldOutput] = {
            name: HeldOutput(n_rows, width, dtype)
            if held
            else RowOutput.create(self.directory.new_state(), n_rows, width, dtype, self.directory.spare)
            for name, (width, dtype) in outputs.items()
        }
        checksums: dict[str, list[str]] = {name: [] for name in files}
        total: Sums | None = None
        n_slabs = -(-n_rows // SLAB_ROWS)
        n_together = max(1, min(MAX_TOGETHER, n_slabs // (MAPS_PER_THREAD * self.executor.n_threads)))
        work = partial(map_task, function, tuple(inputs), files, n_rows, arguments, piece_rows, n_together)
        try:
            for slabs, spent in self.executor.map(work, range(-(-n_slabs // n_together))):
                add_spent(self.spent, spent)
                for written, sums in slabs:
                    for name, checksum in written.items():
                        checksums[name].append(checksum)
                    total = Sums(sums) if total is None else total + sums
            stored = {name: file.finish(n_rows, checksums[name]) for name, file in files.items()}
        except BaseException:
            for file in files.values():
                file.discard()
            raise
        return stored, total if total is not None else Sums()

    def map_runs(
        self,
        function: Callable[..., Sequence[csr_array]],
        n_items: int,
        shape: tuple[int, int],
        n_results: int,
        *arguments: Any,
    ) -> list[Runs]:
        """Call a function for every item, on all workers, and keep its sparse matrices in files.

        Parameters
        ----------
        function : callable
            Called with the number of an item and ``arguments``; returns ``n_results`` matrices.
        n_items : int
        shape : (int, int)
            Of every matrix.
        n_results : int
        *arguments
            Small arguments; large arrays are stored arrays.

        Returns
        -------
        list of Runs
            For every result, the matrices of all items in their order, to be added up by `combine` before the
            next pass begins.
        """
        files = str(self.directory.partial("runs"))
        found: list[list[SparsePart]] = [[] for _ in range(n_results)]
        for parts, spent in self.executor.map(
            partial(write_runs, function, files, arguments), range(n_items)
        ):
            add_spent(self.spent, spent)
            for own, part in zip(found, parts, strict=True):
                own.append(part)
        return [Runs(tuple(parts), *shape) for parts in found]

    def combine(self, terms: Sequence[Term], pruning: Pruning | None = None) -> Csr:
        """Add sparse matrices slab by slab of rows, on all workers, and store the sum.

        Parameters
        ----------
        terms : sequence of Term
            At least one; all of the same shape.
        pruning : Pruning, optional
            Entries to leave out; none by default.

        Returns
        -------
        Csr
            Stored arrays with sorted rows, float32.
        """
        return self._combine(terms, pruning, mixed=False).sparse

    def combine_mixed(self, terms: Sequence[Term], pruning: Pruning | None = None) -> MixedRows:
        """Add sparse matrices as `combine` does, with nearly full rows of the sum stored densely."""
        return self._combine(terms, pruning, mixed=True)

    def _combine(self, terms: Sequence[Term], pruning: Pruning | None, *, mixed: bool) -> MixedRows:
        terms = stored_terms(self.directory, terms)
        slabs, lengths = row_slabs(terms)
        if pruning is not None:
            pruning = pruning.for_rows(lengths)
        files = str(self.directory.partial("pieces"))
        stride = max(1, int(lengths.sum()) // SAMPLE_ENTRIES)
        work = partial(add_slab, terms, slabs, files, pruning, stride)
        pieces = []
        for piece, spent in self.executor.map(work, range(len(slabs))):
            add_spent(self.spent, spent)
            pieces.append(piece)
        return join_pieces(self.directory, pieces, terms[0].shape[1], pruning, mixed)

    def column_squares(self, terms: Sequence[Term]) -> np.ndarray:
        """Return the sums of squares of the columns of a sum of sparse matrices, which is not stored.

        Parameters
        ----------
        terms : sequence of Term
            At least one; all of the same shape.

        Returns
        -------
        ndarray of shape (n_columns,), float64
        """
        terms = stored_terms(self.directory, terms)
        slabs, _ = row_slabs(terms)
        squares = np.zeros(terms[0].shape[1])
        for of_slab, spent in self.executor.map(partial(square_slab, terms, slabs), range(len(slabs))):
            add_spent(self.spent, spent)
            squares += of_slab
        return squares

    def _compute(self, pass_: Pass, rows: dict[str, StoredRows], key: str) -> tuple[Sums, Folded]:
        """Return the total and the report of the tasks."""
        n_threads = self.executor.n_threads
        plan = self._plan(pass_, n_threads)
        files = self.directory.partials_of(pass_.name, key)
        self.directory.spare_partials()
        release_maps()
        self.observer(PassStarted(pass_.name, self.corpus.n_documents, len(plan.groups), len(plan.slabs)))
        cuts = [(i, group, slab) for slab in plan.slabs for i, group in enumerate(plan.groups)]
        reports = self._reports(files, key, n_threads, cuts)
        by_slab = [
            self._scan(
                replace(pass_, features=slab) if len(plan.slabs) > 1 else pass_, plan, rows, key, str(files),
                reports[j * len(plan.groups) : (j + 1) * len(plan.groups)],
            )
            for j, slab in enumerate(plan.slabs)
        ]  # fmt: skip
        if n_found := sum(folded.n_found for folded in by_slab):
            self.observer(GroupsFound(pass_.name, n_found, len(cuts)))
        in_files = tuple(file for folded in by_slab for file in folded.files)
        total = _join_slabs([_opened(folded.sums) for folded in by_slab], pass_)
        return total, replace(by_slab[-1], files=in_files)

    def _scan(
        self,
        pass_: Pass,
        plan: PassPlan,
        rows: dict[str, StoredRows],
        key: str,
        files: str,
        reports: Sequence[Report | None],
    ) -> Folded:
        if not plan.groups:
            return Folded(_small_sums(pass_), {})
        outputs = self.directory.rows_directory(pass_.name, key, "")
        sizes = [sum(self.corpus.shards[i].n_documents for i in group) for group in plan.groups]

        def on_done(index: int) -> None:
            self.observer(GroupDone(pass_.name, sizes[index] // len(plan.slabs)))

        held = self._held(pass_, len(plan.groups) * plan.partial_bytes)
        arguments = [
            (self.corpus, group, pass_, rows, outputs, files, held, report)
            for group, report in zip(plan.groups, reports, strict=True)
        ]
        result = reduce_groups(
            self.executor, fold_group, arguments, plan.fan_in, on_done, pass_.name, self._shards_named
        )
        self._account(pass_, result)
        return result

    def _account(self, pass_: Pass, folded: Folded) -> None:
        """Count the seconds of the tasks of a pass, and log a warning if two attempts at one gave other bits."""
        add_spent(self.spent, folded.spent)
        for each in folded.differing:
            logger.warning(
                "%s: two attempts at a task gave different bits: %s; the processors of the workers differ, or a "
                "computation depends on more than its input",
                pass_.name, each,
            )  # fmt: skip

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


def _held_rows(pass_: Pass, folded: Folded) -> dict[str, StoredRows]:
    """Return the rows that tasks hold in memory."""
    return {name: HeldRows("", axis=pass_.row_axis, arrays=arrays) for name, arrays in folded.rows.items()}


def _small_sums(pass_: Pass) -> Sums:
    """Return empty sums, without the tall ones."""
    specs = pass_.specs()
    return Sums({name: value for name, value in pass_.zero().items() if specs[name].tall is None})


def _opened(sums: Sums) -> Sums:
    """Return sums with those in files memory-mapped."""
    return Sums(
        {name: value.load() if isinstance(value, ScratchArray) else value for name, value in sums.items()}
    )


def _join_slabs(by_slab: list[Sums], pass_: Pass) -> Sums:
    if len(by_slab) == 1:
        return by_slab[0]
    total = Sums()
    for name, spec in pass_.specs().items():
        values = [sums[name] for sums in by_slab]
        if not spec.by_feature:
            # Every scan adds up these sums again; one of them is the total.
            total[name] = values[0]
        else:
            total[name] = np.concatenate(values)
    return total
