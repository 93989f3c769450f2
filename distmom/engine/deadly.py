"""The sum over the groups of shards of a pass, and the search for a shard that kills its workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from distmom.engine.executors.executor import Executor, OnDone
from distmom.engine.sums.folded import Folded, merge_partials
from distmom.engine.tasks import GroupTask, fold
from distmom.errors import ClusterError, WorkersLostError

logger = logging.getLogger(__name__)


def reduce_groups(
    executor: Executor,
    tasks: Sequence[GroupTask],
    fan_in: int,
    on_done: OnDone,
    name: str,
    named: Callable[[Sequence[int]], str],
) -> Folded:
    """Carry out the tasks of a pass and merge their reports.

    If a task has lost its workers too often, its shards run one at a time.

    Parameters
    ----------
    executor : Executor
    tasks : sequence of GroupTask
    fan_in : int
        Reports that are merged at a time.
    on_done : callable
        Called with the number of every task that has ended.
    name : str
        Name of the pass.
    named : callable
        Returns the name of some neighbouring shards.

    Raises
    ------
    WorkersLostError
        If the workers of a task died; it names the first shard that kills them alone, or the group if none does.
    """

    def reduced(calls: Sequence[GroupTask], done: OnDone) -> Folded:
        found: Folded = executor.reduce(
            fold, [(task,) for task in calls], merge_partials, fan_in, done, name,
            lambda index: named(calls[index].shards),
        )  # fmt: skip
        return found

    try:
        return reduced(tasks, on_done)
    except WorkersLostError as error:
        if error.index is None or len(tasks[error.index].shards) == 1:
            raise
        lost, of_group = error, tasks[error.index]
    shards = of_group.shards
    logger.warning("%s; its %d shards run one at a time, to find the one that causes it", lost, len(shards))
    for shard in shards:
        try:
            reduced([replace(of_group, shards=(shard,), report=None)], lambda index: None)
        except WorkersLostError as error:
            raise error from lost
        except ClusterError as error:
            # The first error ended the pass, even if the cluster is lost during the search.
            raise lost from error
    raise WorkersLostError(f"{lost}; none of its shards causes it alone", lost.index) from lost
