"""The plan of a pass: shards to groups, groups to a tree, vocabulary to slabs, and the memory it takes.

Groups and tree follow from the corpus and the pass alone, never from the workers, so the order of additions,
and with it every bit of the result, is the same on any cluster. Slabs may follow from the memory limit: each
row of a sum by feature is added in the same order whichever slab it lies in.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine.passes import Pass
from distmom.errors import UsageError

#: what all partial sums of one pass together may take before there are fewer groups
PARTIALS_BYTES = 1 << 30
MIN_GROUPS, MAX_GROUPS = 12, 128
#: what a worker needs before it holds any sum: the interpreter and the libraries
RESERVED_BYTES = 250 << 20
#: partial sums that one task may hold at once: its own, an operand and the result of a merge
LIVE_PARTIALS = 3


@dataclass(frozen=True)
class PassPlan:
    """How one pass is cut.

    Attributes
    ----------
    groups : tuple of tuple of int
        Shard indices of each group, in order.
    slabs : tuple of slice
        Slabs of the vocabulary; one scan over the shards is made for each.
    fan_in : int
        Children of a node of the tree of sums.
    partial_bytes : int
        Size of one partial sum (of the widest slab).
    task_bytes : int
        Projected peak of one task, the process included.
    """

    groups: tuple[tuple[int, ...], ...]
    slabs: tuple[slice, ...]
    fan_in: int
    partial_bytes: int
    task_bytes: int

    @property
    def n_tasks(self) -> int:
        """Number of group tasks and merges."""
        merges, level = 0, len(self.groups)
        while level > 1:
            level = -(-level // self.fan_in)
            merges += level
        return len(self.slabs) * (len(self.groups) + merges)


def plan_pass(corpus: Corpus | MemoryCorpus, pass_: Pass, memory_limit: int | None = None) -> PassPlan:
    """Cut a pass into tasks that fit a worker's memory.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    pass_ : Pass
    memory_limit : int or None
        Bytes that one worker may use.

    Raises
    ------
    UsageError
        If even a slab of one 64th of the vocabulary does not fit, with the numbers.
    """
    specs = pass_.specs().values()
    fixed = sum(s.projected_bytes for s in specs if not s.by_feature)
    by_feature = sum(s.projected_bytes for s in specs if s.by_feature)
    block = _block_bytes(corpus, pass_)

    def task_bytes(n_slabs: int) -> int:
        return RESERVED_BYTES + block + LIVE_PARTIALS * (fixed + -(-by_feature // n_slabs))

    n_slabs = 1
    while memory_limit is not None and task_bytes(n_slabs) > memory_limit:
        n_slabs *= 2
        if n_slabs > 64 or by_feature == 0:
            needed = task_bytes(64 if by_feature else 1)
            raise UsageError(
                f"pass {pass_.name}: a task needs {_mib(needed)} MiB ({_mib(RESERVED_BYTES)} for the process, "
                f"{_mib(block)} for a block of rows, {LIVE_PARTIALS} x {_mib(fixed)} for sums), the limit of a "
                f"worker is {_mib(memory_limit)} MiB; raise the memory limit or lower n_components"
            )
    partial = fixed + -(-by_feature // n_slabs)
    bound = max(MIN_GROUPS, min(MAX_GROUPS, PARTIALS_BYTES // max(1, fixed + by_feature)))
    n_groups = min(len(corpus.shards), bound)
    edges = [len(corpus.shards) * g // n_groups for g in range(n_groups + 1)] if n_groups else [0]
    width = -(-pass_.n_words // n_slabs)
    return PassPlan(
        groups=tuple(tuple(range(a, b)) for a, b in pairwise(edges)),
        slabs=tuple(
            slice(a, min(a + width, pass_.n_words)) for a in range(0, max(1, pass_.n_words), max(1, width))
        ),
        fan_in=8 if fixed + by_feature < 32 << 20 else 2,
        partial_bytes=partial,
        task_bytes=task_bytes(n_slabs),
    )


def _block_bytes(corpus: Corpus | MemoryCorpus, pass_: Pass) -> int:
    largest = max((s.nnz_words + s.nnz_labels for s in corpus.shards), default=0)
    documents = max((s.n_documents for s in corpus.shards), default=0)
    return 3 * 12 * largest + pass_.working_bytes(min(documents, pass_.block_rows))


def _mib(n_bytes: int) -> int:
    return -(-n_bytes // (1 << 20))
