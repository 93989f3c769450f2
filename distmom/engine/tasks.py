"""The tasks of a pass: stream a group of shards through accumulators, and make sparse matrices of its total."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.blas import one_blas_thread
from distmom.clock import add_spent, spend, taken
from distmom.corpus import AnyCorpus, RowBlock
from distmom.engine.directory.abandoned import Requests
from distmom.engine.environment import environment
from distmom.engine.passes import Pass, cut_block, resolve
from distmom.engine.reports import Report
from distmom.engine.shards import read_shard
from distmom.engine.stored.arrays import StoredArray, StoredRows, release_maps, write_rows
from distmom.engine.stored.held import HeldSum
from distmom.engine.sums.additive import Sums, large_to_files
from distmom.engine.sums.folded import Folded
from distmom.engine.sums.sparse import SparsePart, SparseSum
from distmom.engine.sums.tall import TallPart, write_partial


@dataclass(frozen=True)
class TallCut:
    """The part of the tall sums of a pass that a task adds up.

    Attributes
    ----------
    frequent : mapping of str to StoredArray
        Rows that stay in double precision, by axis, if ``single``.
    single : bool
        Whether all other rows are accumulated in single precision.
    group, slab : int
        Numbers of the group of shards and of the slab of columns.
    """

    frequent: Mapping[str, StoredArray]
    single: bool
    group: int
    slab: int


@dataclass(frozen=True)
class GroupTask:
    """A task of a pass: it adds up a group of shards, and stores the rows that the pass makes of them.

    Attributes
    ----------
    corpus : AnyCorpus
    shards : tuple of int
    pass_ : Pass
        The pass, or that of one slab of its sums.
    rows : mapping of str to StoredRows
        What earlier passes have stored.
    outputs, files : str
        Directories of the rows, and of large sums.
    hold_sums, hold_rows : bool
        Whether large sums, and rows, stay in memory in place of files, as in the process that reads them.
    report : Report or None
        Place of the report on the group; None where none is kept.
    tall : TallCut or None
        The part of the tall sums; None for a pass without them.
    """

    corpus: AnyCorpus
    shards: tuple[int, ...]
    pass_: Pass
    rows: Mapping[str, StoredRows]
    outputs: str
    files: str
    hold_sums: bool = False
    hold_rows: bool = False
    report: Report | None = None
    tall: TallCut | None = None


def fold(task: GroupTask) -> Folded:
    """Carry out a task: stream its shards through accumulators, and return the sums or their files.

    If there is an intact report on the group, it is returned instead; otherwise one is written. BLAS runs with
    one thread, as the number of threads would change the bits of the sums.
    """
    report = task.report
    if report is not None:
        hold_sums = task.hold_sums or task.tall is not None
        found = report.read(task.outputs, hold_sums=hold_sums, hold_tall=task.hold_sums)
        if found is not None:
            return found
    with one_blas_thread():
        taken()
        opened = resolve(task.pass_)
        sums = opened.zero() if task.tall is None else _tall_zero(opened, task.tall, task.files)
        kept: dict[str, dict[str, np.ndarray]] | None = {} if task.hold_rows else None
        digests = _accumulate(task, opened, sums, kept)
        with spend("write"):
            folded = _folded(task, sums) if task.tall is None else _tall_folded(task, task.tall, opened, sums)
            own = frozenset({environment()})
            folded = replace(folded, row_digests=digests, rows=kept or {}, environments=own)
        release_maps()
        return _reported(folded, report)


def write_runs(
    function: Callable[..., Sequence[csr_array]],
    arguments: tuple[Any, ...],
    directory: str,
    reports: Sequence[Report | None],
    index: int,
) -> Folded:
    """Write the matrices that ``function(index, *arguments)`` returns to files of a directory, and return these.

    If there is an intact report on the item, it is returned instead; otherwise one is written.
    """
    report = reports[index]
    if report is not None and (found := report.read("", hold_sums=False, hold_tall=False)) is not None:
        return found
    with one_blas_thread():
        taken()
        with spend("kernels"):
            matrices = function(index, *arguments)
        with spend("write"):
            folded = Folded(Sums(), {}, environments=frozenset({environment()}))
            for number, matrix in enumerate(matrices):
                folded.runs[str(number), index] = (SparsePart.write(directory, matrix),)
        release_maps()
        return _reported(folded, report)


def _reported(folded: Folded, report: Report | None) -> Folded:
    """Write the report on a task, if it is wanted, and note the seconds spent."""
    if report is not None:
        with spend("write"):
            report.write(folded)
    add_spent(folded.spent, taken())
    return folded


def _folded(task: GroupTask, sums: Sums) -> Folded:
    """Return sums, the large ones in files unless the task holds them."""
    left = sums if task.hold_sums else large_to_files(sums, task.files)
    return Folded(left, {}, files=left.files())


def _tall_zero(opened: Pass, cut: TallCut, files: str) -> Sums:
    """Return the empty accumulators of a task with tall sums."""
    frequent = {axis: stored.load() for axis, stored in cut.frequent.items()} if cut.single else None
    sums, specs = opened.zero(frequent, files), opened.specs()
    if cut.slab > 0:
        # Sums that are not separable are accumulated by the first slab.
        for name in [name for name in sums if specs[name].tall and not specs[name].separable]:
            del sums[name]
    return sums


def _tall_folded(task: GroupTask, cut: TallCut, opened: Pass, sums: Sums) -> Folded:
    """Return the tall sums of a task in files, unless it holds them, and its small sums."""
    specs = opened.specs()
    small = [name for name in sums if specs[name].tall is None]
    tall: dict[tuple[str, int, int], TallPart] = {}
    runs: dict[tuple[str, int], tuple[SparsePart, ...]] = {}
    for name in [name for name in sums if name not in small]:
        if isinstance(sums[name], SparseSum):
            runs[name, cut.group] = sums[name].finish(task.hold_sums)
        elif task.hold_sums:
            part = TallPart(HeldSum(sums[name].single), HeldSum(sums[name].double))
            tall[name, cut.group, cut.slab] = part
        else:
            tall[name, cut.group, cut.slab] = write_partial(task.files, sums[name])
    # Every slab of columns reads all documents; the small sums are taken from the first slab alone.
    own = Sums({name: sums[name] if cut.slab == 0 else np.zeros_like(sums[name]) for name in small})
    return Folded(own, {}, tall=tall, runs=runs)


def _accumulate(
    task: GroupTask, opened: Pass, sums: Sums, kept: dict[str, dict[str, np.ndarray]] | None
) -> dict[str, dict[str, str]]:
    """Add the shards of a task to sums block by block and return the digests of the stored rows.

    Rows are added to ``kept`` in place of being stored, unless it is None.
    """
    digests: dict[str, dict[str, str]] = {}
    block: Any = None
    requests = Requests(task.files)
    for index in task.shards:
        # The rows of the last shard must not stay in memory while the next is read.
        shard = block = None
        shard = read_shard(task.corpus, index)
        if isinstance(shard, RowBlock):
            shard = shard.with_context(opened.halo)
        stored = {name: handle.read(index) for name, handle in task.rows.items()}
        axes = {name: handle.axis for name, handle in task.rows.items()}
        written: dict[str, list[np.ndarray]] = {}
        for start in range(0, shard.n_documents, opened.block_rows):
            requests.check()
            window = slice(start, min(start + opened.block_rows, shard.n_documents))
            block, block_rows = cut_block(shard, stored, axes, window)
            if opened.selection is not None:
                mask = opened.selection.mask(shard.first + window.start, window.stop - window.start)
                block, block_rows = cut_block(block, block_rows, axes, mask)
            if opened.numbers is not None:
                block = block.of_words(opened.numbers)
            # Whatever reads a total refuses one that is not finite, with a message of its own.
            with spend("kernels"), np.errstate(over="ignore", invalid="ignore"):
                added = opened.add(sums, block, block_rows) or {}
            for name, value in added.items():
                written.setdefault(name, []).append(value)
        # The directory of an abandoned task is being removed.
        requests.check()
        for name, values in written.items():
            if kept is not None:
                kept.setdefault(name, {})[str(index)] = np.concatenate(values)
                continue
            with spend("write"):
                digest = write_rows(f"{task.outputs}/{name}", index, np.concatenate(values))
            digests.setdefault(name, {})[str(index)] = digest
    return digests
