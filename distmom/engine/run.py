"""Run passes over a corpus: fold groups of shards, merge them up the tree, commit the total."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import vstack
from threadpoolctl import threadpool_limits

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine.executors import Executor, InProcess
from distmom.engine.passes import Pass, fingerprint, resolve
from distmom.engine.plan import PassPlan, plan_pass
from distmom.engine.state import RunDirectory, StoredArray, StoredRows, write_rows
from distmom.engine.sums import Sums, merge

_R = TypeVar("_R")

#: changes when the way of adding changes, so that no total of an older way is taken
KERNEL_VERSION = 1


@dataclass(frozen=True)
class PassStarted:
    """A pass begins."""

    name: str
    n_documents: int
    n_groups: int
    n_slabs: int


@dataclass(frozen=True)
class GroupDone:
    """A group of shards has been added."""

    name: str
    n_documents: int


@dataclass(frozen=True)
class PassDone:
    """A pass is committed, or was found committed (``resumed``)."""

    name: str
    n_documents: int
    seconds: float
    resumed: bool


Event = PassStarted | GroupDone | PassDone
Observer = Callable[[Event], None]


@dataclass
class PassResult:
    """What a pass leaves behind.

    Attributes
    ----------
    sums : Sums
        The total, memory-mapped.
    rows : dict of str to StoredRows
        The stored row outputs.
    directory : str
        Where the total is committed.
    """

    sums: Sums
    rows: dict[str, StoredRows]
    directory: str


@dataclass
class Timing:
    """How long one pass took."""

    name: str
    seconds: float
    n_documents: int
    resumed: bool


@dataclass
class Engine:
    """Everything that passes run with.

    Attributes
    ----------
    corpus : Corpus or MemoryCorpus
    directory : RunDirectory
        Where states, totals and rows are kept.
    executor : Executor
        Where tasks run.
    memory_limit : int or None
        Bytes that one worker may use.
    observer : callable
        Receives `PassStarted`, `GroupDone` and `PassDone`.
    timings : list of Timing
        One entry a pass.
    """

    corpus: Corpus | MemoryCorpus
    directory: RunDirectory
    executor: Executor = field(default_factory=InProcess)
    memory_limit: int | None = None
    observer: Observer = lambda event: None
    timings: list[Timing] = field(default_factory=list)

    def put(self, array: np.ndarray) -> StoredArray:
        """Store an array that passes will read."""
        return self.directory.put(array)

    def run(self, pass_: Pass, rows: Mapping[str, StoredRows] | None = None) -> PassResult:
        """Run one pass over all shards, or take its committed total.

        Parameters
        ----------
        pass_ : Pass
        rows : mapping of str to StoredRows, optional
            Stored rows that the pass reads.

        Raises
        ------
        UsageError
            If a task cannot fit into the memory limit.
        StoreError
            If a shard, a state or a committed total is damaged.
        ClusterError
            If the cluster cannot finish.
        """
        started = time.monotonic()
        rows = dict(rows or {})
        key = fingerprint((KERNEL_VERSION, self.corpus.digest, pass_, rows))
        n_documents = self.corpus.n_documents
        committed = self.directory.load_pass(pass_.name, key)
        if committed is None:
            sums, digests = self._compute(pass_, rows, key)
            self.directory.commit_pass(pass_.name, key, sums, {"rows": digests})
            loaded = self.directory.load_pass(pass_.name, key)
            assert loaded is not None
            resumed = False
        else:
            loaded, resumed = committed, True
        total, record = loaded
        seconds = time.monotonic() - started
        self.timings.append(Timing(pass_.name, seconds, n_documents, resumed))
        self.observer(PassDone(pass_.name, n_documents, seconds, resumed))
        stored = {
            name: StoredRows(self.directory.rows_directory(pass_.name, key, name), digests)
            for name, digests in record["rows"].items()
        }
        return PassResult(total, stored, str(self.directory.path / "passes" / f"{pass_.name}-{key[:16]}"))

    def _compute(self, pass_: Pass, rows: dict[str, StoredRows], key: str) -> tuple[Sums, dict[str, Any]]:
        plan = plan_pass(self.corpus, pass_, self.memory_limit)
        self.observer(PassStarted(pass_.name, self.corpus.n_documents, len(plan.groups), len(plan.slabs)))
        by_slab: list[Sums] = []
        digests: dict[str, Any] = {}
        for slab in plan.slabs:
            part = replace(pass_, features=slab) if len(plan.slabs) > 1 else pass_
            result = self._scan(part, plan, rows, key)
            by_slab.append(result.sums)
            digests = result.row_digests
        return _join_slabs(by_slab, pass_), digests

    def _scan(self, pass_: Pass, plan: PassPlan, rows: dict[str, StoredRows], key: str) -> _Partial:
        if not plan.groups:
            return _Partial(pass_.zero(), {})
        outputs = self.directory.rows_directory(pass_.name, key, "")
        sizes = [sum(self.corpus.shards[i].n_documents for i in group) for group in plan.groups]

        def on_done(index: int) -> None:
            self.observer(GroupDone(pass_.name, sizes[index] // len(plan.slabs)))

        arguments = [(self.corpus, group, pass_, rows, outputs) for group in plan.groups]
        result: _Partial = self.executor.reduce(
            fold_group, arguments, merge_partials, plan.fan_in, on_done, pass_.name
        )
        return result

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        """Call ``function(load(), *arguments)`` on the scheduler node; ``load`` runs on a worker."""
        return self.executor.on_scheduler(function, load, *arguments)


@contextmanager
def open_engine(
    corpus: Corpus | MemoryCorpus,
    directory: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
) -> Iterator[Engine]:
    """Open an engine on a run directory, or on a temporary one that is removed afterwards."""
    options: dict[str, Any] = {"executor": executor or InProcess(), "memory_limit": memory_limit}
    if observer is not None:
        options["observer"] = observer
    if directory is not None:
        yield Engine(corpus, RunDirectory(directory), **options)
        return
    with tempfile.TemporaryDirectory(prefix="distmom-") as temporary:
        yield Engine(corpus, RunDirectory(temporary), **options)


@dataclass
class _Partial:
    """Sums over some shards, and the digests of the rows stored for them."""

    sums: Sums
    row_digests: dict[str, dict[str, str]]


def fold_group(
    corpus: Corpus | MemoryCorpus,
    shards: tuple[int, ...],
    pass_: Pass,
    rows: Mapping[str, StoredRows],
    outputs: str,
) -> _Partial:
    """Stream the shards of one group through one accumulator.

    BLAS runs on one thread: the number of threads would change the bits of the sums.
    """
    with threadpool_limits(limits=1):
        opened = resolve(pass_)
        sums = opened.zero()
        digests: dict[str, dict[str, str]] = {}
        for index in shards:
            shard = corpus.read_shard(index)
            stored = {name: handle.read(index) for name, handle in rows.items()}
            written: dict[str, list[np.ndarray]] = {}
            for start in range(0, shard.n_documents, opened.block_rows):
                window = slice(start, min(start + opened.block_rows, shard.n_documents))
                block = shard.take(window)
                block_rows = {name: value[window] for name, value in stored.items()}
                if opened.selection is not None:
                    mask = opened.selection.mask(shard.first + window.start, window.stop - window.start)
                    block = block.take(mask)
                    block_rows = {name: value[mask] for name, value in block_rows.items()}
                for name, value in (opened.add(sums, block, block_rows) or {}).items():
                    written.setdefault(name, []).append(value)
            for name, values in written.items():
                digest = write_rows(f"{outputs}/{name}", index, np.concatenate(values))
                digests.setdefault(name, {})[str(index)] = digest
        return _Partial(sums, digests)


def merge_partials(parts: Iterable[_Partial]) -> _Partial:
    """Add partial sums in the order given."""
    digests: dict[str, dict[str, str]] = {}

    def sums() -> Iterator[Sums]:
        for part in parts:
            for name, of_shard in part.row_digests.items():
                digests.setdefault(name, {}).update(of_shard)
            yield part.sums

    return _Partial(merge(sums()), digests)


def _join_slabs(by_slab: list[Sums], pass_: Pass) -> Sums:
    if len(by_slab) == 1:
        return by_slab[0]
    total = Sums()
    for name, spec in pass_.specs().items():
        values = [sums[name] for sums in by_slab]
        if not spec.by_feature:
            # Every scan counts these anew; one count is the sum.
            total[name] = values[0]
        else:
            total[name] = vstack(values, format="csr") if spec.sparse else np.concatenate(values)
    return total
