"""The plan of a fit: its passes with their tasks, memory and disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from distmom.engine import Pass, PassPlan


@dataclass(frozen=True)
class PlannedPass:
    """One scan over a corpus that a fit makes.

    Attributes
    ----------
    part : str
        Part of the run, empty for the whole.
    name : str
        Name of the pass.
    n_scans : int
        Number of times that the corpus is read; more than 1 where equal passes are joined (see `Plan.grouped`).
    n_tasks : int
        Number of tasks of all scans.
    n_slabs : int
        Number of slabs of the vocabulary or of the columns.
    task_bytes : int
        Projected peak memory of a worker process, in bytes.
    sums_bytes : int
        Size of the sums, in bytes.
    rows_bytes : int
        Size of the stored rows, in bytes.
    possible : bool
        Whether the pass runs only where data require it.
    estimated : bool
        Whether the sizes are estimates because they depend on data.
    """

    part: str
    name: str
    n_scans: int
    n_tasks: int
    n_slabs: int
    task_bytes: int
    sums_bytes: int
    rows_bytes: int
    possible: bool = False
    estimated: bool = False


def planned_pass(corpus: Any, pass_: Pass, cut: PassPlan, part: str, possible: bool) -> PlannedPass:
    """Return the entry of the ledger for a pass that is cut into tasks."""
    by_row = pass_.row_axis == "rows"
    n_stored = sum(shard.n_rows if by_row else shard.n_documents for shard in corpus.shards)
    return PlannedPass(
        part, pass_.name, 1, cut.n_tasks, max(len(cut.slabs), len(cut.columns)), cut.task_bytes,
        sum(spec.projected_bytes for spec in pass_.specs().values()),
        n_stored * pass_.row_bytes, possible, pass_.estimated,
    )  # fmt: skip


@dataclass(frozen=True)
class Seconds:
    """A range of seconds."""

    low: float
    high: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.low + other.low, self.high + other.high)


@dataclass(frozen=True)
class Plan:
    """The passes of a fit.

    Attributes
    ----------
    passes : tuple of PlannedPass
        One entry per scan, in the order of the program.
    seconds : tuple of Seconds or None
        Time of every pass, and last that of all other work; None for a plan without times.
    """

    passes: tuple[PlannedPass, ...]
    seconds: tuple[Seconds, ...] | None = None

    @property
    def worker_bytes(self) -> int:
        """Projected peak memory of a worker process over all passes, in bytes."""
        return max((p.task_bytes for p in self.passes), default=0)

    @property
    def third_moment(self) -> str:
        """How the third moment is added up: "slices" where the plan has a pass for slices, else "full"."""
        return "slices" if any(p.name == "slices" for p in self.passes) else "full"

    @property
    def total_seconds(self) -> Seconds | None:
        """Seconds of the whole fit, if the plan has times; possible passes count only in the upper end."""
        if self.seconds is None:
            return None
        total = self.seconds[-1]
        for entry, own in zip(self.passes, self.seconds, strict=False):
            total += Seconds(0.0 if entry.possible else own.low, own.high)
        return total

    def grouped(self) -> list[PlannedPass]:
        """Return the passes with equal consecutive entries joined, their scans and tasks added up."""
        found: list[PlannedPass] = []
        for entry in self.passes:
            last = found[-1] if found else None
            if last is not None and replace(last, n_scans=1, n_tasks=entry.n_tasks) == entry:
                n_scans, n_tasks = last.n_scans + 1, last.n_tasks + entry.n_tasks
                found[-1] = replace(last, n_scans=n_scans, n_tasks=n_tasks)
            else:
                found.append(entry)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values with totals, which include the passes that depend on data."""
        total = self.total_seconds
        return {
            "passes": [vars(p) for p in self.grouped()],
            "third_moment": self.third_moment,
            "n_scans": len(self.passes),
            "n_possible_scans": sum(p.possible for p in self.passes),
            "n_tasks": sum(p.n_tasks for p in self.passes),
            "worker_bytes": self.worker_bytes,
            "disk_bytes": sum(p.sums_bytes + p.rows_bytes for p in self.passes),
            **({} if total is None else {"seconds": [total.low, total.high]}),
        }
