"""The reports of tasks on some shards, and their merge."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from distmom.clock import add_spent
from distmom.engine.environment import Environment
from distmom.engine.stored.scratch import ScratchArray
from distmom.engine.sums.additive import Sums, merge
from distmom.engine.sums.sparse import SparsePart
from distmom.engine.sums.tall import TallPart

logger = logging.getLogger(__name__)


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
    rows : dict of str to dict
        Rows that are held in memory and not stored, by output and shard.
    n_found : int
        Number of tasks that an earlier driver had finished.
    differing : tuple of str
        Groups of which two attempts gave different bits, and the digests of both.
    environments : frozenset of Environment
        Environments of the processes that ran the tasks.
    """

    sums: Sums
    row_digests: dict[str, dict[str, str]]
    spent: dict[str, float] = field(default_factory=dict)
    tall: dict[tuple[str, int, int], TallPart] = field(default_factory=dict)
    runs: dict[tuple[str, int], tuple[SparsePart, ...]] = field(default_factory=dict)
    files: tuple[ScratchArray, ...] = ()
    rows: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    n_found: int = 0
    differing: tuple[str, ...] = ()
    environments: frozenset[Environment] = frozenset()

    def warn_of_differing(self, name: str) -> None:
        """Log a warning for every task of which two attempts gave different bits; ``name`` is that of the work."""
        for each in self.differing:
            logger.warning(
                "%s: two attempts at a task gave different bits: %s; the processors of the workers differ, or a "
                "computation depends on more than its input",
                name, each,
            )  # fmt: skip

    def all_files(self) -> list[ScratchArray]:
        """Return all reported files."""
        files = list(self.files)
        for part in self.tall.values():
            files += part.files()
        for runs in self.runs.values():
            for run in runs:
                files += run.files()
        return files


def merge_partials(parts: Iterable[Folded]) -> Folded:
    """Add partial sums in the given order."""
    digests: dict[str, dict[str, str]] = {}
    spent: dict[str, float] = {}
    tall: dict[tuple[str, int, int], TallPart] = {}
    runs: dict[tuple[str, int], tuple[SparsePart, ...]] = {}
    files: tuple[ScratchArray, ...] = ()
    rows: dict[str, dict[str, np.ndarray]] = {}
    n_found = 0
    differing: tuple[str, ...] = ()
    environments: set[Environment] = set()
    started = time.perf_counter()

    def sums() -> Iterator[Sums]:
        nonlocal files, n_found, differing
        for part in parts:
            tall.update(part.tall)
            runs.update(part.runs)
            files += part.files
            n_found += part.n_found
            differing += part.differing
            environments.update(part.environments)
            for name, of_shard in part.row_digests.items():
                digests.setdefault(name, {}).update(of_shard)
            for name, held in part.rows.items():
                rows.setdefault(name, {}).update(held)
            add_spent(spent, part.spent)
            yield part.sums

    total = merge(sums())
    add_spent(spent, {"merge": time.perf_counter() - started})
    return Folded(
        total,
        digests,
        spent,
        tall,
        runs,
        files + total.files(),
        rows,
        n_found,
        differing,
        frozenset(environments),
    )
