"""The tasks of a pass: stream a group of shards through accumulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.clock import add_spent, spend, taken
from distmom.corpus import AnyCorpus, RowBlock
from distmom.engine.directory.abandoned import Requests
from distmom.engine.passes import Pass, cut_block, resolve
from distmom.engine.reports import Report
from distmom.engine.shards import read_shard
from distmom.engine.stored.arrays import StoredArray, StoredRows, release_maps, write_rows
from distmom.engine.stored.held import HeldSum
from distmom.engine.sums.additive import Sums, large_to_files
from distmom.engine.sums.folded import Folded
from distmom.engine.sums.sparse import SparsePart, SparseSum
from distmom.engine.sums.tall import TallPart, write_partial


def fold_group(
    corpus: AnyCorpus,
    shards: tuple[int, ...],
    pass_: Pass,
    rows: Mapping[str, StoredRows],
    outputs: str,
    files: str,
    held: tuple[bool, bool],
    report: Report | None = None,
) -> Folded:
    """Stream the shards of one group through an accumulator.

    The large dense sums, and the rows that the pass stores, are written to files; in a task of the process that
    reads them, ``held`` states for each of the two whether they stay in memory. BLAS runs with one thread, as the
    number of threads would change the bits of the sums. An intact ``report`` on the group is returned in place of
    that, and otherwise written.
    """
    hold_sums, hold_rows = held
    found = None if report is None else report.read(outputs, hold_sums=hold_sums, hold_tall=False)
    if found is not None:
        return found
    with one_blas_thread():
        taken()
        opened = resolve(pass_)
        sums = opened.zero()
        kept: dict[str, dict[str, np.ndarray]] | None = {} if hold_rows else None
        digests = _accumulate(corpus, shards, opened, sums, rows, outputs, files, kept)
        release_maps()
        with spend("write"):
            left = sums if hold_sums else large_to_files(sums, files)
        folded = Folded(left, digests, files=left.files(), rows=kept or {})
        return _reported(folded, report)


def fold_tall(
    corpus: AnyCorpus,
    shards: tuple[int, ...],
    pass_: Pass,
    frequent: Mapping[str, StoredArray],
    single: bool,
    rows: Mapping[str, StoredRows],
    outputs: str,
    files: str,
    group: int,
    slab: int,
    held: tuple[bool, bool],
    report: Report | None = None,
) -> Folded:
    """Stream the shards of one group into tall accumulators, and return the other sums.

    The accumulators, and the rows that the pass stores, are written to files; in a task of the process that reads
    them, ``held`` states for each of the two whether they stay in memory. An intact ``report`` on the group is
    returned in place of that, and otherwise written.
    """
    hold_sums, hold_rows = held
    found = None if report is None else report.read(outputs, hold_sums=True, hold_tall=hold_sums)
    if found is not None:
        return found
    with one_blas_thread():
        taken()
        opened = resolve(pass_)
        apart = {axis: stored.load() for axis, stored in frequent.items()} if single else None
        specs = opened.specs()
        sums = opened.zero(apart, files)
        small = [name for name in sums if specs[name].tall is None]
        if slab > 0:
            # Sums that are not separable are accumulated by the first slab.
            for name in [name for name in sums if specs[name].tall and not specs[name].separable]:
                del sums[name]
        kept: dict[str, dict[str, np.ndarray]] | None = {} if hold_rows else None
        digests = _accumulate(corpus, shards, opened, sums, rows, outputs, files, kept)
        tall: dict[tuple[str, int, int], TallPart] = {}
        runs: dict[tuple[str, int], tuple[SparsePart, ...]] = {}
        with spend("write"):
            for name in [name for name in sums if name not in small]:
                if isinstance(sums[name], SparseSum):
                    runs[name, group] = sums[name].finish(hold_sums)
                elif hold_sums:
                    tall[name, group, slab] = TallPart(HeldSum(sums[name].single), HeldSum(sums[name].double))
                else:
                    tall[name, group, slab] = write_partial(files, sums[name])
        release_maps()
        # Every slab of columns reads all documents; the small sums are taken from the first slab alone.
        own = Sums({name: sums[name] if slab == 0 else np.zeros_like(sums[name]) for name in small})
        return _reported(Folded(own, digests, tall=tall, runs=runs, rows=kept or {}), report)


def _reported(folded: Folded, report: Report | None) -> Folded:
    """Write the report on a group, if it is wanted, and note the seconds spent."""
    if report is not None:
        with spend("write"):
            report.write(folded)
    add_spent(folded.spent, taken())
    return folded


def _accumulate(
    corpus: AnyCorpus,
    shards: tuple[int, ...],
    opened: Pass,
    sums: Sums,
    rows: Mapping[str, StoredRows],
    outputs: str,
    files: str,
    kept: dict[str, dict[str, np.ndarray]] | None,
) -> dict[str, dict[str, str]]:
    """Add shards to sums block by block and return the digests of the stored rows.

    Rows are added to ``kept`` in place of being stored, unless it is None.
    """
    digests: dict[str, dict[str, str]] = {}
    block: Any = None
    requests = Requests(files)
    for index in shards:
        # The rows of the last shard must not stay in memory while the next is read.
        shard = block = None
        shard = read_shard(corpus, index)
        if isinstance(shard, RowBlock):
            shard = shard.with_context(opened.halo)
        stored = {name: handle.read(index) for name, handle in rows.items()}
        axes = {name: handle.axis for name, handle in rows.items()}
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
            # What reads a total refuses one that is not finite, with a message of its own.
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
                digest = write_rows(f"{outputs}/{name}", index, np.concatenate(values))
            digests.setdefault(name, {})[str(index)] = digest
    return digests
