"""Scans of the documents of a corpus: tasks add up groups of shards, and their sums are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distmom.clock import add_spent
from distmom.engine.deadly import reduce_groups
from distmom.engine.directory.events import GroupDone, GroupsFound, Observer, PassStarted
from distmom.engine.directory.run_directory import RunDirectory
from distmom.engine.environment import environment
from distmom.engine.executors.executor import Executor
from distmom.engine.passes import Pass, fingerprint
from distmom.engine.plan import LIMIT_SHARE, RESERVED_BYTES, PassPlan, frequent_rows_of, plan_pass
from distmom.engine.reports import Report, remove_others
from distmom.engine.results import Tallies
from distmom.engine.stored.arrays import StoredArray, StoredRows, release_maps
from distmom.engine.stored.held import Holding
from distmom.engine.stored.scratch import ScratchArray
from distmom.engine.sums.additive import Sums
from distmom.engine.sums.folded import Folded
from distmom.engine.sums.sparse import Runs
from distmom.engine.sums.tall import Partials
from distmom.engine.tasks import GroupTask, TallCut


@dataclass(frozen=True)
class Scans:
    """Adds up the documents of a corpus; commits nothing.

    Attributes
    ----------
    corpus : AnyCorpus
    directory : RunDirectory
        Directory of partial sums and rows.
    executor : Executor
        Runs the tasks.
    memory_limit : int or None
        Bytes that one worker may use.
    holding : Holding
        Which sums and rows stay in memory.
    observer : callable
        Called with every event.
    spent : dict of str to float
        Seconds by kind of work, to which those of all tasks are added.
    """

    corpus: Any
    directory: RunDirectory
    executor: Executor
    memory_limit: int | None
    holding: Holding
    observer: Observer
    spent: dict[str, float]

    def plan(self, pass_: Pass) -> PassPlan:
        """Return how a pass is cut with this memory limit and executor."""
        n_threads = self.directory.planned.given(self.executor.n_threads)
        return plan_pass(self.corpus, pass_, self.memory_limit, n_threads)

    @property
    def _n_counted(self) -> int:
        """Number of documents of all shards, in which one that is split across shards counts as its parts."""
        return sum(shard.n_documents for shard in self.corpus.shards)

    def _checked_plan(self, pass_: Pass) -> PassPlan:
        """Return the plan of a pass; a warning is logged if workers have less memory than it needs."""
        plan = self.plan(pass_)
        self.executor.check_memory(pass_.name, plan.task_bytes, RESERVED_BYTES, LIMIT_SHARE)
        return plan

    def add_up_tall(self, pass_: Pass, rows: dict[str, StoredRows], key: str) -> tuple[Tallies, Folded]:
        """Add all documents to partial tall sums in files; also return the report of the tasks."""
        files = self.directory.partials_of(pass_.name, key)
        plan = self._checked_plan(pass_)
        # Accumulators reuse the pages of earlier files, and later files those of accumulators.
        self.directory.partials.drop()
        release_maps()
        n_slabs = max(1, len(plan.columns))
        self.observer(PassStarted(pass_.name, self._n_counted, len(plan.groups), n_slabs))
        outputs = self.directory.rows_directory(pass_.name, key, "")
        frequent: dict[str, StoredArray] = {}
        tall = {name: spec for name, spec in pass_.specs().items() if spec.tall}
        if plan.single:
            axes = {str(spec.tall) for spec in tall.values() if not spec.sparse}
            frequent = {
                axis: self.directory.put(frequent_rows_of(self.corpus, axis, pass_.numbers)) for axis in axes
            }
        hold_sums, hold_rows = self._held(pass_, len(plan.groups) * n_slabs * plan.partial_bytes)
        places = [(i, j) for i in range(len(plan.groups)) for j in range(n_slabs)]
        cuts = [(i, plan.groups[i], j, plan.columns[j : j + 1], plan.single) for i, j in places]
        tasks = [
            GroupTask(
                self.corpus, plan.groups[i], pass_.for_columns(j, plan.columns) if plan.columns else pass_, rows,
                outputs, str(files), hold_sums, hold_rows, report, TallCut(frequent, plan.single, i, j),
            )
            for (i, j), report in zip(places, self._reports(files, key, cuts), strict=True)
        ]  # fmt: skip
        folded = self._fold(pass_, tasks, plan.fan_in, n_slabs)
        if folded.n_found:
            self.observer(GroupsFound(pass_.name, folded.n_found, len(tasks)))
        partials: dict[str, Partials] = {}
        runs: dict[str, Runs] = {}
        for name, spec in tall.items():
            n_rows, width = spec.shape
            if spec.sparse:
                parts = [run for i in range(len(plan.groups)) for run in folded.runs[name, i]]
                runs[name] = Runs(tuple(parts), n_rows, width)
                continue
            columns = (plan.columns if spec.separable else ()) or (slice(0, width),)
            slabs = range(len(columns))
            partials[name] = Partials(
                tuple(tuple(folded.tall[name, i, j] for j in slabs) for i in range(len(plan.groups))),
                n_rows, width, columns, frequent.get(str(spec.tall)),
            )  # fmt: skip
        return Tallies(folded.sums, partials, runs), folded

    def add_up(self, pass_: Pass, rows: dict[str, StoredRows], key: str) -> tuple[Sums, Folded]:
        """Add up all documents; return the total and the report of the tasks."""
        plan = self._checked_plan(pass_)
        files = self.directory.partials_of(pass_.name, key)
        self.directory.partials.release()
        release_maps()
        self.observer(PassStarted(pass_.name, self._n_counted, len(plan.groups), len(plan.slabs)))
        cuts = [(i, group, slab) for slab in plan.slabs for i, group in enumerate(plan.groups)]
        reports = self._reports(files, key, cuts)
        by_slab = [
            self._scan(
                replace(pass_, features=slab) if len(plan.slabs) > 1 else pass_, plan, rows, key, str(files),
                reports[j * len(plan.groups) : (j + 1) * len(plan.groups)],
            )
            for j, slab in enumerate(plan.slabs)
        ]  # fmt: skip
        if n_found := sum(folded.n_found for folded in by_slab):
            self.observer(GroupsFound(pass_.name, n_found, len(cuts)))
        in_files = tuple(file for folded in by_slab for file in folded.files)
        total = _join_slabs([_opened(folded.sums) for folded in by_slab], pass_)
        return total, replace(by_slab[-1], files=in_files)

    def _scan(
        self,
        pass_: Pass,
        plan: PassPlan,
        rows: dict[str, StoredRows],
        key: str,
        files: str,
        reports: Sequence[Report | None],
    ) -> Folded:
        """Add up all documents once."""
        outputs = self.directory.rows_directory(pass_.name, key, "")
        hold_sums, hold_rows = self._held(pass_, len(plan.groups) * plan.partial_bytes)
        tasks = [
            GroupTask(self.corpus, group, pass_, rows, outputs, files, hold_sums, hold_rows, report)
            for group, report in zip(plan.groups, reports, strict=True)
        ]
        return self._fold(pass_, tasks, plan.fan_in, len(plan.slabs))

    def _fold(self, pass_: Pass, tasks: Sequence[GroupTask], fan_in: int, n_scans: int) -> Folded:
        """Carry out tasks and merge their reports.

        Each of ``n_scans`` scans counts the share ``1 / n_scans`` of its documents, so that progress counts
        each document once.
        """
        if not tasks:
            return Folded(_small_sums(pass_), {})
        sizes = [sum(self.corpus.shards[i].n_documents for i in task.shards) for task in tasks]

        def on_done(index: int) -> None:
            self.observer(GroupDone(pass_.name, sizes[index] // n_scans))

        folded = reduce_groups(self.executor, tasks, fan_in, on_done, pass_.name, self._shards_named)
        self._account(pass_, folded)
        return folded

    def _held(self, pass_: Pass, n_bytes: int) -> tuple[bool, bool]:
        """Return whether the partial sums of a pass, ``n_bytes`` in total, and its rows are held in memory."""
        of_rows = self.corpus.n_documents * pass_.row_bytes
        return self.holding.holds_sums(n_bytes), self.holding.holds_states(of_rows)

    def _reports(self, directory: Path, key: str, cuts: Sequence[tuple[Any, ...]]) -> Sequence[Report | None]:
        """Return the path of the report on every task of a pass, and remove the other files found there.

        Reports are written if the run can be resumed. ``cuts`` are the parts of the pass that the tasks add up.
        """
        if not self.directory.partials.keeps_groups:
            return [None] * len(cuts)
        # The groups of a pass are added up by one version of the software.
        versions = environment().versions()
        reports = [
            Report(str(directory), fingerprint((key, cut, versions)), self._shards_named(cut[1]))
            for cut in cuts
        ]
        remove_others(directory, reports)
        return reports

    def _shards_named(self, group: Sequence[int]) -> str:
        """Return the name of a group of neighbouring shards, for messages."""
        first, last = (self.corpus.shards[i].id for i in (group[0], group[-1]))
        return f"shard {first}" if first == last else f"shards {first} to {last}"

    def _account(self, pass_: Pass, folded: Folded) -> None:
        """Count the seconds of the tasks of a pass, and record where they ran.

        A warning is logged if two attempts at a task gave different bits.
        """
        add_spent(self.spent, folded.spent)
        self.directory.record_environments(folded.environments)
        folded.warn_of_differing(pass_.name)


def _small_sums(pass_: Pass) -> Sums:
    """Return empty sums, without the tall ones."""
    specs = pass_.specs()
    return Sums({name: value for name, value in pass_.zero().items() if specs[name].tall is None})


def _opened(sums: Sums) -> Sums:
    """Return sums with those in files memory-mapped."""
    return Sums(
        {name: value.load() if isinstance(value, ScratchArray) else value for name, value in sums.items()}
    )


def _join_slabs(by_slab: list[Sums], pass_: Pass) -> Sums:
    if len(by_slab) == 1:
        return by_slab[0]
    total = Sums()
    for name, spec in pass_.specs().items():
        values = [sums[name] for sums in by_slab]
        if not spec.by_feature:
            # Every scan adds up these sums again; one of them is the total.
            total[name] = values[0]
        else:
            total[name] = np.concatenate(values)
    return total
