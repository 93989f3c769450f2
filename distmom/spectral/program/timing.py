"""The time of a fit, as a range: each pass of its plan is tried on one real block, and the disk is measured.

Passes are tried with random arrays in place of those that the fit computes; large arrays are made for the words
of the block only. A pass that cannot be tried in this way has a trial of its own, or is estimated from the
passes that can (residuals of fitted weights). Work outside the passes that grows with the data has a trial too.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus import Block, RowBlock
from distmom.engine import Columns, Pass, StoredColumns, StoredRows
from distmom.engine.passes import transform_fields
from distmom.engine.stored.arrays import write_rows
from distmom.engine.sums.additive import FILE_BYTES
from distmom.engine.sums.tall import PIECE_ROWS
from distmom.linalg import compose, decompose
from distmom.spectral.program.ledger import Ledger
from distmom.spectral.program.plan import Seconds
from distmom.spectral.program.run import Unknown

#: factors on the estimate that make up the range
RANGE = (0.4, 2.5)
#: the same for a pass that cannot be tried, whose estimate is the mean cost of the passes that can
RANGE_UNTRIED = (0.3, 6.0)
#: number of bytes that are written and read to measure the disk, and stored as rows
DISK_BYTES, ROWS_BYTES = 32 << 20, 4 << 20
#: seconds that a pass takes in addition to its work, and that a task takes on a cluster
PASS_S, TASK_S = 0.03, 0.01
#: largest number of seconds that a worker process takes to load compiled kernels
WARM_S = 3.0
#: number of entries of an array, features times columns, up to which a pass is tried on all features; above it,
#: the pass is tried on the features of a block
WHOLE_ENTRIES = 1 << 26
#: largest number of rows of a block that are tried
MAX_ROWS = 8192
#: number of components up to which a decomposition is timed as it is; above it, the time grows as its fourth power
TIMED_COMPONENTS = 40


class _CannotBeTriedError(Exception):
    """The pass needs arrays whose content cannot be random."""


@dataclass(frozen=True)
class Machine:
    """Measurements made once for all passes.

    Attributes
    ----------
    read_s : float
        Seconds to read and decompress one entry of the corpus.
    write_s : float
        Seconds to write one byte to the disk, and to read it again.
    row_s : float
        Seconds to store one byte of rows for a later pass, and to read it again.
    """

    read_s: float
    write_s: float
    row_s: float


def estimate(ledger: Ledger, n_workers: int) -> list[Seconds]:
    """Return the seconds of every pass, and last those of all other work.

    Parameters
    ----------
    ledger : Ledger
    n_workers : int
        Threads of all workers.
    """
    corpus = ledger.corpus
    if not corpus.shards or not ledger.passes:
        return [Seconds(0.0, 0.0)] * (len(ledger.passes) + 1)
    machine, block, n_entries = _measure(corpus)
    tried: dict[str, float] = {}
    costs: list[float | None] = []
    for pass_, trial in zip(ledger.passes, ledger.trials, strict=True):
        # Passes that differ only in the content of their arrays take the same time.
        key = (
            f"{type(pass_).__name__} {sorted((n, s.shape) for n, s in pass_.specs().items())} {_shape(pass_)}"
        )
        if key not in tried:
            try:
                share = max(_share(pass_), 1e-9)
                tried[key] = _try(pass_, block) if trial is None else trial(block) / (share * n_entries)
            except _CannotBeTriedError:
                tried[key] = np.nan
        costs.append(None if np.isnan(tried[key]) else tried[key])
    known = [
        cost for cost, trial in zip(costs, ledger.trials, strict=True) if cost is not None and trial is None
    ]
    usual = float(np.mean(known)) if known else 0.0
    finished: dict[tuple[int, int], float] = {}
    found = []
    for entry, pass_, cost in zip(ledger.entries, ledger.passes, costs, strict=True):
        per_entry = machine.read_s + _share(pass_) * (usual if cost is None else cost)
        n_groups = entry.n_tasks // max(1, entry.n_slabs)
        moved = entry.rows_bytes * machine.row_s
        for spec in pass_.specs().values():
            # Every group writes its dense sums, and its own entries of sparse ones; tall sums are read twice.
            dense = not spec.sparse and (spec.tall or spec.projected_bytes > FILE_BYTES)
            moved += 2.0 * (n_groups if dense else 1) * spec.projected_bytes * machine.write_s
            if spec.tall and not spec.sparse:
                sizes = (spec.shape[1], n_groups)
                if sizes not in finished:
                    finished[sizes] = _finish_s(*sizes)
                moved += spec.shape[0] * finished[sizes]
        seconds = (n_entries * per_entry + moved) / n_workers
        overhead = PASS_S + (TASK_S * entry.n_tasks / n_workers if n_workers > 1 else 0.0)
        low, high = RANGE if cost is not None else RANGE_UNTRIED
        found.append(Seconds(low * seconds + 0.5 * overhead, high * seconds + 3.0 * overhead))
    other = sum(_decomposition_s(k) for k in ledger.decomposed) + sum(trial(block) for trial in ledger.work)
    warm = WARM_S if n_workers > 1 else 0.0
    return [*found, Seconds(RANGE[0] * other, RANGE[1] * other + warm)]


def _measure(corpus: Any) -> tuple[Machine, Any, int]:
    """Read two shards, timing the second one, and write files."""
    largest = max(range(len(corpus.shards)), key=lambda i: int(corpus.shards[i].n_rows))
    corpus.read_shard((largest + 1) % len(corpus.shards))
    started = time.perf_counter()
    shard = corpus.read_shard(largest)
    read = time.perf_counter() - started
    n_read = _entries(shard)
    n_entries = n_read * sum(s.n_rows for s in corpus.shards) / max(1, int(corpus.shards[largest].n_rows))
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="distmom-") as place:
        content = rng.bytes(DISK_BYTES)
        started = time.perf_counter()
        (Path(place) / "timed").write_bytes(content)
        (Path(place) / "timed").read_bytes()
        write = time.perf_counter() - started
        rows = rng.uniform(size=(ROWS_BYTES // 400, 100)).astype(np.float32)
        started = time.perf_counter()
        StoredRows(f"{place}/rows", {"0": write_rows(f"{place}/rows", 0, rows)}).read(0)
        store = time.perf_counter() - started
    machine = Machine(read / max(1, n_read), write / DISK_BYTES, store / rows.nbytes)
    return machine, shard.take(slice(0, MAX_ROWS)), int(n_entries)


def _finish_s(width: int, n_parts: int) -> float:
    """Return the seconds per row to add, orthonormalise and store partial tall sums, excluding access to files.

    Both rounds over the rows add the parts; the first multiplies the total with itself and with the old basis, the
    second with the coefficients of the new one.
    """
    rng = np.random.default_rng(0)
    part = rng.uniform(size=(PIECE_ROWS, width)).astype(np.float32)
    coefficients = rng.uniform(size=(width, width))
    with one_blas_thread():
        started = time.perf_counter()
        for second in (False, True):
            total = np.zeros((PIECE_ROWS, width))
            for _ in range(n_parts):
                total += part
            if second:
                (total @ coefficients).astype(np.float32)
            else:
                total.T @ total
                total.T @ part.astype(np.float64)
        return (time.perf_counter() - started) / PIECE_ROWS


def _entries(block: Any) -> int:
    if isinstance(block, RowBlock):
        return math.prod(map(int, block.rows.shape))
    n_words: int = block.words.nnz + block.n_documents
    return n_words


def _unknowns(pass_: Pass) -> list[Unknown]:
    """Return the arrays of a pass that a fit computes."""
    found: list[Unknown] = []

    def visit(leaf: Any) -> Any:
        parts = leaf.parts if isinstance(leaf, StoredColumns) else (leaf,)
        found.extend(part for part in parts if isinstance(part, Unknown))
        return leaf

    transform_fields(pass_, visit)
    return found


def _share(pass_: Pass) -> float:
    """Return the share of the documents that a pass adds."""
    selection = pass_.selection
    if selection is None:
        return 1.0
    return selection.fraction if selection.heldout else 1.0 - selection.fraction


def _shape(pass_: Pass) -> str:
    return ",".join(f"{name}={value}" for name, value in vars(pass_).items() if isinstance(value, int | str))


def _try(pass_: Pass, block: Any) -> float:
    """Return the seconds of `Pass.add` for one entry of a block, the best of two runs."""
    if isinstance(block, RowBlock):
        block = block.with_context(pass_.halo)
    numbers = pass_.numbers.load() if hasattr(pass_.numbers, "load") else pass_.numbers
    if numbers is not None:
        block = block.of_words(numbers)
    words = None
    widths = [n for leaf in _unknowns(pass_) for n in leaf.shape[1:]]
    if isinstance(block, Block) and pass_.n_features * max(widths, default=1) > WHOLE_ENTRIES:
        # Arrays of all features would take longer to make than the pass on a few documents.
        words = np.unique(block.words.indices)
        renumbered = np.full(pass_.n_features, -1, np.int32)
        renumbered[words] = np.arange(len(words), dtype=np.int32)
        block = block.of_words(renumbered)
    rng = np.random.default_rng(0)
    dtype = "float32" if getattr(pass_, "single", False) else "float64"

    def made(leaf: Any) -> Any:
        if isinstance(leaf, StoredColumns):
            return Columns(tuple(made(part) for part in leaf.parts))
        if isinstance(leaf, Unknown):
            if not leaf.shape:
                raise _CannotBeTriedError
            sizes = [len(words) if words is not None and n == pass_.n_features else n for n in leaf.shape]
            return rng.uniform(0.1, 1.0, sizes).astype(dtype)
        value = leaf.load() if hasattr(leaf, "load") else leaf
        if words is not None and isinstance(value, np.ndarray) and len(value) == pass_.n_features:
            return value[words]
        return value

    n = pass_.n_features if words is None else len(words)
    concrete = replace(transform_fields(replace(pass_, numbers=None, selection=None), made), n_features=n)
    best = np.inf
    with one_blas_thread():
        for _ in range(2):
            sums = concrete.zero()
            started = time.perf_counter()
            for first in range(0, block.n_documents, concrete.block_rows):
                part = slice(first, min(first + concrete.block_rows, block.n_documents))
                concrete.add(sums, block.take(part), {})
            best = min(best, time.perf_counter() - started)
    return best / max(1, _entries(block))


def _decomposition_s(k: int) -> float:
    """Return the seconds of the joint diagonalisation of a tensor of k components with a little noise."""
    own = min(k, TIMED_COMPONENTS)
    rng = np.random.default_rng(0)
    tensor = compose(rng.uniform(1.0, 3.0, own), np.linalg.qr(rng.standard_normal((own, own)))[0])
    noise = rng.standard_normal((own, own, own)) * 1e-3
    tensor = tensor + sum(noise.transpose(order) for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)))
    with one_blas_thread():
        started = time.perf_counter()
        decompose((tensor + tensor.transpose(1, 0, 2)) / 2.0, "joint", random_state=0)
        return (time.perf_counter() - started) * (k / own) ** 4
