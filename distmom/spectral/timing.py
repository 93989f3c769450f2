"""How long a fit takes, as a range: each pass of its plan is tried on one real block, and the disk is measured.

Passes are tried with random arrays in place of those that the fit computes, large ones for the words of the block
alone. A pass that cannot be tried so (residuals of fitted weights) is estimated from those that can.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus import Block, RowBlock
from distmom.engine import Columns, Pass, StoredColumns
from distmom.engine.passes import transform_fields
from distmom.linalg import compose, decompose
from distmom.spectral.plan import PlannedPass, Seconds
from distmom.spectral.run import Unknown

#: factors on the estimate that make up the range
RANGE = (0.4, 2.5)
#: the same for a pass that cannot be tried, on the mean cost of those that can
RANGE_UNTRIED = (0.3, 6.0)
#: bytes that are written and read to measure the disk
DISK_BYTES = 32 << 20
#: seconds that a pass costs beside its work, and a task on a cluster
PASS_S, TASK_S = 0.03, 0.01
#: seconds in which a worker process loads compiled kernels, at most
WARM_S = 3.0
#: features times columns of an array up to which a pass is tried on all features; above, on those of a block
WHOLE_ENTRIES = 1 << 26
#: rows of a block that are tried at most
MAX_ROWS = 8192
#: components up to which a decomposition is timed as it is; above, its time grows as their fourth power
TIMED_COMPONENTS = 40


class _CannotBeTriedError(Exception):
    """The pass needs arrays whose content cannot be random."""


@dataclass(frozen=True)
class Machine:
    """What was measured once for all passes.

    Attributes
    ----------
    read_s : float
        Seconds to read and decompress one entry of the corpus.
    write_s : float
        Seconds to write one byte to the disk, and to read it again.
    flop_s : float
        Seconds for one operation of a matrix product on one thread.
    """

    read_s: float
    write_s: float
    flop_s: float


def estimate(
    corpus: Any,
    planned: Sequence[tuple[PlannedPass, Pass]],
    decomposed: Sequence[int],
    n_workers: int,
) -> list[Seconds]:
    """Return the seconds of every pass, and last those of the decompositions.

    Parameters
    ----------
    corpus : AnyCorpus
    planned : sequence of (PlannedPass, Pass)
        From a ledger.
    decomposed : sequence of int
        Numbers of components of the decompositions.
    n_workers : int
        Threads of all workers.
    """
    if not corpus.shards or not planned:
        return [Seconds(0.0, 0.0)] * (len(planned) + 1)
    machine, block, n_entries = _measure(corpus)
    tried: dict[str, float] = {}
    costs: list[float | None] = []
    for _, pass_ in planned:
        # Passes that differ in their content alone take as long.
        key = (
            f"{type(pass_).__name__} {sorted((n, s.shape) for n, s in pass_.specs().items())} {_shape(pass_)}"
        )
        if key not in tried:
            try:
                tried[key] = _try(pass_, block)
            except _CannotBeTriedError:
                tried[key] = np.nan
        costs.append(None if np.isnan(tried[key]) else tried[key])
    known = [cost for cost in costs if cost is not None]
    usual = float(np.mean(known)) if known else 0.0
    found = []
    for (entry, pass_), cost in zip(planned, costs, strict=True):
        share = _share(pass_)
        per_entry = machine.read_s + share * (usual if cost is None else cost)
        # Sums are written, read and merged once per group; tall ones are orthonormalised or made to rows.
        moved = 2.0 * entry.sums_bytes * machine.write_s
        flops = sum(
            6.0 * spec.shape[0] * spec.shape[1] ** 2
            for spec in pass_.specs().values()
            if spec.tall and not spec.sparse
        )
        seconds = (n_entries * per_entry + moved + flops * machine.flop_s) / n_workers
        overhead = PASS_S + (TASK_S * entry.n_tasks / n_workers if n_workers > 1 else 0.0)
        low, high = RANGE if cost is not None else RANGE_UNTRIED
        found.append(Seconds(low * seconds + 0.5 * overhead, high * seconds + 3.0 * overhead))
    of_tensor = sum(_decomposition_s(k) for k in decomposed)
    warm = WARM_S if n_workers > 1 else 0.0
    return [*found, Seconds(RANGE[0] * of_tensor, RANGE[1] * of_tensor + warm)]


def _measure(corpus: Any) -> tuple[Machine, Any, int]:
    """Read two shards, the second by the clock, and write a file."""
    largest = max(range(len(corpus.shards)), key=lambda i: int(corpus.shards[i].n_rows))
    corpus.read_shard((largest + 1) % len(corpus.shards))
    started = time.perf_counter()
    shard = corpus.read_shard(largest)
    read = time.perf_counter() - started
    n_read = _entries(shard)
    n_entries = n_read * sum(s.n_rows for s in corpus.shards) / max(1, int(corpus.shards[largest].n_rows))
    with tempfile.TemporaryDirectory(prefix="distmom-") as place:
        content = np.random.default_rng(0).bytes(DISK_BYTES)
        started = time.perf_counter()
        (Path(place) / "timed").write_bytes(content)
        (Path(place) / "timed").read_bytes()
        write = time.perf_counter() - started
    matrix = np.ones((512, 512))
    with one_blas_thread():
        matrix @ matrix
        started = time.perf_counter()
        matrix @ matrix
        flop = (time.perf_counter() - started) / (2 * 512**3)
    machine = Machine(read / max(1, n_read), write / DISK_BYTES, flop)
    return machine, shard.take(slice(0, MAX_ROWS)), int(n_entries)


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
