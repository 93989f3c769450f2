"""The tasks of a pass: stream a group of shards through accumulators, and merge partial sums."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from distmom.blas import one_blas_thread
from distmom.clock import add_spent, spend, taken
from distmom.corpus import AnyCorpus, RowBlock
from distmom.engine.passes import Pass, cut_block, resolve
from distmom.engine.scratch import ScratchArray
from distmom.engine.sparse import SparsePart, SparseSum
from distmom.engine.state import StoredArray, StoredRows, release_maps, write_rows
from distmom.engine.sums import Sums, large_to_files, merge
from distmom.engine.tall import TallPart, write_partial


@dataclass
class Folded:
    """The report of tasks on some shards.

    Attributes
    ----------
    sums : Sums
    row_digests : dict of str to dict
        Digests of the stored rows, by output and shard.
    spent : dict of str to float
        Seconds by kind of work.
    tall : dict of (str, int, int) to TallPart
        Tall accumulators in files, by name of the sum, group and slab of columns.
    runs : dict of (str, int) to tuple of SparsePart
        Runs of sparse sums, by name of the sum and group.
    files : tuple of ScratchArray
        Sums in files, including those merged already.
    """

    sums: Sums
    row_digests: dict[str, dict[str, str]]
    spent: dict[str, float] = field(default_factory=dict)
    tall: dict[tuple[str, int, int], TallPart] = field(default_factory=dict)
    runs: dict[tuple[str, int], tuple[SparsePart, ...]] = field(default_factory=dict)
    files: tuple[ScratchArray, ...] = ()

    def all_files(self) -> list[ScratchArray]:
        """Return all reported files."""
        files = list(self.files)
        for part in self.tall.values():
            files += [part.single, part.double]
        for runs in self.runs.values():
            for run in runs:
                files += run.files()
        return files


def fold_group(
    corpus: AnyCorpus,
    shards: tuple[int, ...],
    pass_: Pass,
    rows: Mapping[str, StoredRows],
    outputs: str,
    files: str,
) -> Folded:
    """Stream the shards of one group through an accumulator, and write its large dense sums to files.

    BLAS runs with one thread, as the number of threads would change the bits of the sums.
    """
    with one_blas_thread():
        taken()
        opened = resolve(pass_)
        sums = opened.zero()
        digests = _accumulate(corpus, shards, opened, sums, rows, outputs)
        release_maps()
        with spend("write"):
            left = large_to_files(sums, files)
        return Folded(left, digests, taken(), files=_files_of(left))


def _files_of(sums: Sums) -> tuple[ScratchArray, ...]:
    return tuple(value for value in sums.values() if isinstance(value, ScratchArray))


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
) -> Folded:
    """Stream the shards of one group into tall accumulators, write them to files, and return the other sums."""
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
        digests = _accumulate(corpus, shards, opened, sums, rows, outputs)
        tall: dict[tuple[str, int, int], TallPart] = {}
        runs: dict[tuple[str, int], tuple[SparsePart, ...]] = {}
        with spend("write"):
            for name in [name for name in sums if name not in small]:
                if isinstance(sums[name], SparseSum):
                    runs[name, group] = sums[name].finish()
                else:
                    tall[name, group, slab] = write_partial(files, sums[name])
        release_maps()
        # Every slab of columns reads all documents; the small sums are taken from the first slab alone.
        own = Sums({name: sums[name] if slab == 0 else np.zeros_like(sums[name]) for name in small})
        return Folded(own, digests, taken(), tall, runs)


def _accumulate(
    corpus: AnyCorpus,
    shards: tuple[int, ...],
    opened: Pass,
    sums: Sums,
    rows: Mapping[str, StoredRows],
    outputs: str,
) -> dict[str, dict[str, str]]:
    """Add shards to sums block by block and return the digests of the stored rows."""
    digests: dict[str, dict[str, str]] = {}
    for index in shards:
        shard = corpus.read_shard(index)
        if isinstance(shard, RowBlock):
            shard = shard.with_context(opened.halo)
        stored = {name: handle.read(index) for name, handle in rows.items()}
        axes = {name: handle.axis for name, handle in rows.items()}
        written: dict[str, list[np.ndarray]] = {}
        for start in range(0, shard.n_documents, opened.block_rows):
            window = slice(start, min(start + opened.block_rows, shard.n_documents))
            block, block_rows = cut_block(shard, stored, axes, window)
            if opened.selection is not None:
                mask = opened.selection.mask(shard.first + window.start, window.stop - window.start)
                block, block_rows = cut_block(block, block_rows, axes, mask)
            if opened.numbers is not None:
                block = block.of_words(opened.numbers)
            with spend("kernels"):
                added = opened.add(sums, block, block_rows) or {}
            for name, value in added.items():
                written.setdefault(name, []).append(value)
        for name, values in written.items():
            with spend("write"):
                digest = write_rows(f"{outputs}/{name}", index, np.concatenate(values))
            digests.setdefault(name, {})[str(index)] = digest
    return digests


def merge_partials(parts: Iterable[Folded]) -> Folded:
    """Add partial sums in the given order."""
    digests: dict[str, dict[str, str]] = {}
    spent: dict[str, float] = {}
    tall: dict[tuple[str, int, int], TallPart] = {}
    runs: dict[tuple[str, int], tuple[SparsePart, ...]] = {}
    files: tuple[ScratchArray, ...] = ()
    started = time.perf_counter()

    def sums() -> Iterator[Sums]:
        nonlocal files
        for part in parts:
            tall.update(part.tall)
            runs.update(part.runs)
            files += part.files
            for name, of_shard in part.row_digests.items():
                digests.setdefault(name, {}).update(of_shard)
            add_spent(spent, part.spent)
            yield part.sums

    total = merge(sums())
    add_spent(spent, {"merge": time.perf_counter() - started})
    return Folded(total, digests, spent, tall, runs, files + _files_of(total))
