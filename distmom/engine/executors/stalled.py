"""Restart of workers on which no task ends, after their call stacks have been logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

from distributed import Client

logger = logging.getLogger(__name__)

#: seconds that a worker has to report its call stack
REPORT_TIMEOUT_S = 10.0
#: seconds within which a worker is stopped and another has taken its place
RESTART_TIMEOUT_S = 60.0


def restart_stalled(
    client: Client, keys: Collection[str], name: str, in_thread: Callable[..., Future[Any]]
) -> list[str]:
    """Log the call stacks of the workers that have some tasks, and restart them.

    A worker is left alone if it has tasks of other clients too, or has no nanny to start it again.

    Parameters
    ----------
    client : distributed.Client
    keys : collection of str
        Keys of the tasks, none of which has ended for a long time.
    name : str
        Name of the work for messages.
    in_thread : callable
        Calls a function in a thread of its own; returns its future.

    Returns
    -------
    list of str
        Addresses of the workers that have been restarted. Their tasks are carried out again.

    Raises
    ------
    TimeoutError
        If the scheduler does not answer.
    """
    stalled, own = set(keys), set(client.futures)
    processing = in_thread(client.processing).result(timeout=REPORT_TIMEOUT_S)
    having = {worker: set(tasks) for worker, tasks in processing.items() if stalled & set(tasks)}
    for worker, tasks in having.items():
        stacks = _call_stacks(client, sorted(stalled & tasks), in_thread)
        logger.warning("%s: worker %s: %s", name, worker, stacks)
    known = client.scheduler_info(n_workers=-1)["workers"]
    chosen = [
        worker for worker, tasks in having.items() if tasks <= own and known.get(worker, {}).get("nanny")
    ]
    if not chosen:
        return []
    restart = in_thread(
        client.restart_workers, chosen, timeout=0.8 * RESTART_TIMEOUT_S, raise_for_error=False
    )
    found = restart.result(timeout=RESTART_TIMEOUT_S)
    restarted = [worker for worker, outcome in found.items() if outcome == "OK"]
    logger.warning("%s: restarted as no task had finished: %s", name, ", ".join(restarted) or "no worker")
    return restarted


def _call_stacks(client: Client, keys: list[str], in_thread: Callable[..., Future[Any]]) -> str:
    """Return the call stacks of the tasks that a worker runs."""
    try:
        stacks = in_thread(client.call_stack, keys=keys).result(timeout=REPORT_TIMEOUT_S)
    except TimeoutError:
        return f"it has not reported its call stack within {REPORT_TIMEOUT_S:.0f} s"
    lines = [f"{key}:\n{''.join(stack)}" for tasks in stacks.values() for key, stack in tasks.items()]
    return "\n".join(lines) or "it runs none of its tasks"
