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
    n_workers : int or None
        Number of workers that the times are for; None for a plan without times.
    has_third_moment : bool
        Whether the model adds up a third moment, whole or by slices.
    """

    passes: tuple[PlannedPass, ...]
    seconds: tuple[Seconds, ...] | None = None
    n_workers: int | None = None
    has_third_moment: bool = False

    def __str__(self) -> str:
        """Return the plan as a table with one line per pass, followed by the totals."""
        heading = (
            f"{'pass':<10} {'scans':>5} {'tasks':>6} {'slabs':>5} {'worker MiB':>10} {'sums MiB':>9}  part"
        )
        lines = [heading, *map(_row, self.grouped())]
        if self.has_third_moment:
            whole = "added up whole" if self.third_moment == "full" else "by slices, in a pass of its own"
            lines.append(f"third moment: {whole} (--third-moment {self.third_moment})")
        lines.append(
            f"in all: {self.scans}, {self.n_tasks} tasks, at most {self.worker_bytes / 2**20:.0f} MiB per worker, "
            f"{self.disk_bytes / 2**20:.0f} MiB of disk"
        )
        total = self.total_seconds
        if total is not None:
            plural = "" if self.n_workers == 1 else "s"
            lines.append(f"time: {total.low:.1f} to {total.high:.1f} s with {self.n_workers} worker{plural}")
        return "\n".join(lines)

    @property
    def scans(self) -> str:
        """The number of scans in words, a range if some depend on the data."""
        most, n_possible = len(self.passes), self.n_possible_scans
        return f"{most - n_possible} to {most} scans" if n_possible else f"{most} scans"

    @property
    def n_possible_scans(self) -> int:
        """Number of scans that are made only where data require them."""
        return sum(p.possible for p in self.passes)

    @property
    def n_tasks(self) -> int:
        """Number of tasks of all scans."""
        return sum(p.n_tasks for p in self.passes)

    @property
    def disk_bytes(self) -> int:
        """Size of all sums and stored rows, in bytes."""
        return sum(p.sums_bytes + p.rows_bytes for p in self.passes)

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
            "n_possible_scans": self.n_possible_scans,
            "n_tasks": self.n_tasks,
            "worker_bytes": self.worker_bytes,
            "disk_bytes": self.disk_bytes,
            **({} if total is None else {"seconds": [total.low, total.high]}),
        }


def _row(entry: PlannedPass) -> str:
    """Return one pass as a line of the table."""
    part = ", ".join(filter(None, (entry.part, "only if needed" if entry.possible else "")))
    line = (
        f"{entry.name:<10} {entry.n_scans:>5} {entry.n_tasks:>6} {entry.n_slabs:>5} "
        f"{entry.task_bytes / 2**20:>10.0f} {entry.sums_bytes / 2**20:>9.1f}  {part}"
    )
    return line.rstrip()
