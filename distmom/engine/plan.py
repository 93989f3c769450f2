"""The plan of a pass: groups of shards, tree of sums, slabs of features or columns, and memory.

Groups and tree depend on the corpus and the pass alone, never on the workers, so that the order of additions, and
with it every bit of the result, is the same on any cluster. Slabs may depend on the memory limit: each row of a
sum by feature is added in the same order, whichever slab it is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distmom.corpus import AnyCorpus
from distmom.engine.passes import Pass
from distmom.engine.sums.additive import FILE_BYTES, SumSpec
from distmom.engine.sums.sparse import RUN_ENTRIES
from distmom.engine.sums.tall import frequent_rows
from distmom.errors import UsageError

#: bytes of all partial sums of a pass together beyond which fewer groups are made
PARTIALS_BYTES = 1 << 29
#: children of a node of the tree of sums
FAN_IN = 8
MIN_GROUPS, MAX_GROUPS = 12, 128
#: largest number of slabs of features, or of columns of a stored matrix
MAX_SLABS = 64
#: tall sums up to this size are added in float64 throughout
SMALL_TALL_BYTES = 64 << 20
#: bytes of the products of a sparse sum, with their column numbers, that are kept before they are written to a
#: file
SPARSE_BYTES = 8 * RUN_ENTRIES
#: share of a worker's memory limit that a task may use: Dask spills and pauses above it
LIMIT_SHARE = 0.7
#: memory of a worker without sums and blocks: interpreter, libraries, compiled kernels, freed memory that is kept
RESERVED_BYTES = 384 << 20
#: partial sums that a task may hold in memory at once: its own, an operand and the result of a merge
LIVE_PARTIALS = 3


@dataclass(frozen=True)
class PassPlan:
    """How one pass is cut into tasks.

    Attributes
    ----------
    groups : tuple of tuple of int
        Shard indices of each group, in order.
    slabs : tuple of slice
        Slabs of features; each takes one scan over the shards.
    fan_in : int
        Children of a node of the tree of sums.
    partial_bytes : int
        Size of one partial sum (of the widest slab), in bytes.
    task_bytes : int
        Projected peak memory of a task, including the process, in bytes.
    columns : tuple of slice
        Slabs of columns of separable tall sums; each takes one scan. Empty by default.
    n_mapped : int
        Number of slabs of columns into which stored matrices must be cut, to be read one after the other;
        default 1.
    single : bool
        Whether tall sums are in float32 except for the frequent rows; default False.
    """

    groups: tuple[tuple[int, ...], ...]
    slabs: tuple[slice, ...]
    fan_in: int
    partial_bytes: int
    task_bytes: int
    columns: tuple[slice, ...] = ()
    n_mapped: int = 1
    single: bool = False

    @property
    def n_tasks(self) -> int:
        """Number of group tasks and merges."""
        merges, level = 0, len(self.groups)
        while level > 1:
            level = -(-level // self.fan_in)
            merges += level
        return max(1, len(self.columns)) * len(self.slabs) * (len(self.groups) + merges)


def plan_pass(
    corpus: AnyCorpus, pass_: Pass, memory_limit: int | None = None, n_workers: int = 1
) -> PassPlan:
    """Cut a pass into tasks that fit a worker's memory.

    Parameters
    ----------
    corpus : AnyCorpus
    pass_ : Pass
    memory_limit : int or None
        Bytes that one worker may use; no limit by default.
    n_workers : int, default 1
        Number of workers; more slabs of columns are made where there would be fewer tasks than workers.

    Raises
    ------
    UsageError
        If even the narrowest slab does not fit; the message has the numbers.
    """
    if any(spec.tall for spec in pass_.specs().values()):
        return _plan_tall(corpus, pass_, memory_limit, n_workers)
    specs = pass_.specs().values()
    fixed = sum(s.projected_bytes for s in specs if not s.by_feature)
    by_feature = sum(s.projected_bytes for s in specs if s.by_feature)
    base = RESERVED_BYTES + _block_bytes(corpus, pass_)
    mapped = pass_.mapped_bytes
    usable = None if memory_limit is None else int(LIMIT_SHARE * memory_limit)

    def held(spec: SumSpec, n_slabs: int) -> int:
        size = -(-spec.projected_bytes // n_slabs) if spec.by_feature else spec.projected_bytes
        return size if size > FILE_BYTES else LIVE_PARTIALS * size

    def task_bytes(n_slabs: int, n_mapped: int) -> int:
        folding = base + -(-mapped // n_mapped) + sum(held(s, n_slabs) for s in specs)
        return max(folding, RESERVED_BYTES + pass_.finish_bytes)

    n_slabs, n_mapped = 1, pass_.n_stored_slabs
    while usable is not None and task_bytes(n_slabs, n_mapped) > usable:
        # Reading a matrix slab by slab takes little time, another scan for every slab of features much.
        if n_mapped < MAX_SLABS and mapped // n_mapped > RESERVED_BYTES // 4:
            n_mapped *= 2
        elif n_slabs < MAX_SLABS and by_feature:
            n_slabs *= 2
        else:
            raise _too_large(pass_, task_bytes(n_slabs, n_mapped), base, memory_limit or 0)
    partial = fixed + -(-by_feature // n_slabs)
    bound = max(MIN_GROUPS, min(MAX_GROUPS, PARTIALS_BYTES // max(1, fixed + by_feature)))
    width = -(-pass_.n_features // n_slabs)
    return PassPlan(
        groups=_groups(corpus, bound),
        slabs=tuple(
            slice(a, min(a + width, pass_.n_features))
            for a in range(0, max(1, pass_.n_features), max(1, width))
        ),
        fan_in=FAN_IN,
        partial_bytes=partial,
        task_bytes=task_bytes(n_slabs, n_mapped),
        n_mapped=n_mapped,
    )


def _plan_tall(corpus: AnyCorpus, pass_: Pass, memory_limit: int | None, n_workers: int) -> PassPlan:
    """Plan a pass with tall sums.

    Each group adds its entries, and its partial sum is then written and read again. The number of groups is
    kept so small that the latter takes little time; more slabs of columns are made where this would leave
    workers idle.
    """
    specs = pass_.specs().values()
    tall = [spec for spec in specs if spec.tall and not spec.sparse]
    sparse = [spec for spec in specs if spec.sparse]
    small = sum(s.projected_bytes for s in specs if not s.tall)
    single = sum(s.projected_bytes for s in tall) > SMALL_TALL_BYTES and all(
        s.dtype == "float32" for s in tall
    )
    n_features, n_targets = sum(s.n_entries for s in corpus.shards), sum(s.n_targets for s in corpus.shards)
    # Numbers of additions to rows, by axis: every word of a document is looked up among the entries.
    nnz = {"features": n_features, "targets": n_targets, "entries": n_features}
    axes = {str(s.tall) for s in tall} if single else set()
    n_frequent = {axis: len(frequent_rows_of(corpus, axis, pass_.numbers)) for axis in axes}

    def tall_bytes(spec: SumSpec, width: int) -> int:
        n_rows = spec.shape[0]
        n_wide = n_frequent[str(spec.tall)] if single else n_rows
        return 4 * n_rows + width * (4 * n_rows * single + 8 * n_wide)

    width = max((s.shape[1] for s in tall if s.separable), default=0)
    apart = sum(tall_bytes(s, s.shape[1]) for s in tall if not s.separable)
    # The products in memory, and their sum.
    apart += sum(2 * min(s.projected_bytes, SPARSE_BYTES) for s in sparse)
    base = RESERVED_BYTES + _block_bytes(corpus, pass_) + LIVE_PARTIALS * small + apart

    def task_bytes(n_columns: int) -> int:
        held = sum(tall_bytes(s, -(-width // n_columns)) for s in tall if s.separable)
        return base + held + -(-pass_.mapped_bytes // n_columns)

    if sum(s.projected_bytes for s in tall) <= SMALL_TALL_BYTES:
        bound = MIN_GROUPS
    else:
        bound = min(nnz[str(s.tall)] // (pass_.entries_per_row * max(1, s.shape[0])) for s in tall)
        bound = max(2, min(MAX_GROUPS, bound))
    if sparse:
        bound = max(bound, min(MAX_GROUPS, -(-max(s.projected_bytes for s in sparse) // SPARSE_BYTES)))
    groups = _groups(corpus, bound)
    usable = None if memory_limit is None else int(LIMIT_SHARE * memory_limit)
    most = width if width else MAX_SLABS
    n_columns = 1
    if width and groups:
        # A task whose columns differ from those of a stored slab would have to map several slabs.
        idle = -(-n_workers // len(groups)) if pass_.has_exact_columns else 1
        n_columns = min(width, max(pass_.n_stored_slabs, idle))
    while usable is not None and task_bytes(n_columns) > usable:
        if n_columns >= most:
            raise _too_large(pass_, task_bytes(n_columns), base, memory_limit or 0)
        n_columns += 1
    step = -(-width // n_columns) if width else 0
    columns = tuple(slice(a, min(a + step, width)) for a in range(0, width, step)) if width else ()
    return PassPlan(
        groups=groups,
        slabs=(slice(0, pass_.n_features),),
        fan_in=FAN_IN,
        partial_bytes=task_bytes(n_columns) - base + apart,
        task_bytes=task_bytes(n_columns),
        columns=columns,
        n_mapped=max(n_columns, len(columns)),
        single=single,
    )


def frequent_rows_of(corpus: AnyCorpus, axis: str, numbers: Any = None) -> np.ndarray:
    """Return the frequent rows of tall sums on an axis (see `TallSum`); entries have none.

    Parameters
    ----------
    corpus : AnyCorpus
    axis : {"features", "targets", "entries"}
    numbers : ndarray or StoredArray, optional
        Numbers of the features in the pass (see `Pass`); all by default.
    """
    if axis == "entries":
        return np.zeros(0, np.int64)
    if axis == "targets":
        return frequent_rows(corpus.label_frequency)
    frequency = np.asarray(corpus.document_frequency)
    if numbers is not None:
        opened = numbers.load() if hasattr(numbers, "load") else numbers
        frequency = frequency[opened >= 0]
    return frequent_rows(frequency)


def _groups(corpus: AnyCorpus, bound: int) -> tuple[tuple[int, ...], ...]:
    n_groups = min(len(corpus.shards), bound)
    edges = [len(corpus.shards) * g // n_groups for g in range(n_groups + 1)] if n_groups else [0]
    return tuple(tuple(range(a, b)) for a, b in pairwise(edges))


def _too_large(pass_: Pass, needed: int, base: int, memory_limit: int) -> UsageError:
    return UsageError(
        f"pass {pass_.name}: a task needs {_mib(needed)} MiB ({_mib(base)} for the process and a block of rows, "
        f"the rest for sums and matrices), but a worker of {_mib(memory_limit)} MiB can use only "
        f"{_mib(int(LIMIT_SHARE * memory_limit))} without spilling; raise the memory limit or lower n_components"
    )


def _block_bytes(corpus: AnyCorpus, pass_: Pass) -> int:
    largest = max((s.block_bytes for s in corpus.shards), default=0)
    n_rows = max((s.n_rows for s in corpus.shards), default=0)
    return largest + pass_.working_bytes(min(n_rows, pass_.block_rows))


def _mib(n_bytes: int) -> int:
    return -(-n_bytes // (1 << 20))
