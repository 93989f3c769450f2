"""The sum over the groups of shards of a pass, and the search for a shard that kills its workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from distmom.engine.executors.executor import Executor, OnDone
from distmom.engine.sums.folded import Folded, merge_partials
from distmom.errors import ClusterError, WorkersLostError

logger = logging.getLogger(__name__)


def reduce_groups(
    executor: Executor,
    fold: Callable[..., Folded],
    arguments: Sequence[tuple[Any, ...]],
    fan_in: int,
    on_done: OnDone,
    name: str,
    named: Callable[[Sequence[int]], str],
) -> Folded:
    """Call ``fold`` for every group of shards and merge the reports.

    If a task has lost its workers too often, its shards run one at a time.

    Parameters
    ----------
    executor : Executor
    fold : callable
        `fold_group` or `fold_tall`.
    arguments : sequence of tuple
        Arguments of every call: the corpus, the shards, further ones, and the report or None.
    fan_in : int
        Reports that are merged at a time.
    on_done : callable
        Called with the number of every call that has ended.
    name : str
        Name of the pass.
    named : callable
        Returns the name of some neighbouring shards.

    Raises
    ------
    WorkersLostError
        If the workers of a task died; it names the first shard that kills them alone, or the group if none does.
    """

    def reduced(calls: Sequence[tuple[Any, ...]], done: OnDone) -> Folded:
        found: Folded = executor.reduce(
            fold, calls, merge_partials, fan_in, done, name, lambda index: named(calls[index][1])
        )
        return found

    try:
        return reduced(arguments, on_done)
    except WorkersLostError as error:
        if error.index is None or len(arguments[error.index][1]) == 1:
            raise
        lost, of_group = error, arguments[error.index]
    corpus, shards, *others, _ = of_group
    logger.warning("%s; its %d shards run one at a time, to find the one that causes it", lost, len(shards))
    for shard in shards:
        try:
            reduced([(corpus, (shard,), *others, None)], lambda index: None)
        except WorkersLostError as error:
            raise error from lost
        except ClusterError as error:
            # A cluster that is lost meanwhile is not what ended the pass.
            raise lost from error
    raise WorkersLostError(f"{lost}; none of its shards causes it alone", lost.index) from lost
