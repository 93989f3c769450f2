"""Functions that workers and the scheduler of a Dask cluster run for its executor.

Those that carry out work first check that their process runs the same versions as the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import distributed
from distributed.protocol import pickle
from distributed.protocol.serialize import Serialize, Serialized, merge_and_deserialize

from distmom.compiled import watched
from distmom.engine.environment import differing, environment
from distmom.engine.executors import watch as limits
from distmom.engine.executors.attempts import attempted
from distmom.errors import ClusterError, DistmomError

#: topic of the events of Dask with which workers and the scheduler report that they compile kernels
COMPILING = "distmom-compiling"


def checked(versions: Mapping[str, str], packed: bytes, *results: Any) -> Any:
    """Make a call that was packed by a client, if this process runs the versions of the client.

    Raises
    ------
    ClusterError
        If the versions differ, or the call cannot be read, as a module is missing here.
    """
    _check_versions(versions)
    try:
        function, arguments = pickle.loads(packed)
    except Exception as error:
        raise ClusterError(
            f"a process of the cluster cannot read a task: {type(error).__name__}: {error}"
        ) from error
    with watched(_announce):
        return attempted(function, *arguments, *results)


def _check_versions(versions: Mapping[str, str]) -> None:
    if wrong := differing(versions, environment().versions()):
        raise ClusterError(f"a process of the cluster runs other versions than the client: {wrong}")


def _announce() -> None:
    """Report to clients that this worker waits for the compilation of a kernel."""
    with suppress(ValueError):
        # The scheduler is no worker, and announces by itself.
        distributed.get_worker().log_event(COMPILING, None)


def idle_timeout(dask_scheduler: Any) -> float | None:
    """Return the seconds without a task after which a scheduler closes itself; runs on the scheduler."""
    timeout: float | None = dask_scheduler.idle_timeout
    return timeout


async def done_on_scheduler(
    dask_scheduler: Any,
    versions: Mapping[str, str],
    work: Callable[..., Any],
    key: str,
    arguments: tuple[Any, ...],
) -> tuple[Any] | DistmomError | None:
    """Fetch a worker's result and process it in a thread, so that the event loop is not blocked.

    Returns None if the result was lost with its worker. An error of the work is returned, as Dask prints the
    traceback of one that is raised.
    """
    reply = await asyncio.wait_for(dask_scheduler.gather([key]), limits.STALL_TIMEOUT_S)
    if reply["status"] != "OK":
        return None
    value = reply["data"][key]
    loop = asyncio.get_running_loop()

    def announce() -> None:
        loop.call_soon_threadsafe(dask_scheduler.log_event, COMPILING, None)

    def opened_and_done() -> Any:
        # The scheduler does not deserialise messages, so the fetched value is still serialised, or only wrapped
        # if it comes from a thread of this process.
        opened = value.data if isinstance(value, Serialize) else value
        if isinstance(value, Serialized):
            opened = merge_and_deserialize(value.header, value.frames)
        _check_versions(versions)
        with watched(announce):
            try:
                return (work(opened, *arguments),)
            except DistmomError as error:
                return error

    return await asyncio.to_thread(opened_and_done)
