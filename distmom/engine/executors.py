"""Where tasks run: in this process, or on a Dask cluster that is given or opened here.

This is the only module that talks to Dask. Both executors evaluate the same tree of sums in the same order.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import dask
import distributed
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError
from distributed.protocol.serialize import Serialized, merge_and_deserialize

from distmom.errors import ClusterError, DistmomError, UsageError

logger = logging.getLogger(__name__)

_R = TypeVar("_R")
Merge = Callable[[Iterable[Any]], Any]
OnDone = Callable[[int], None]

#: What glibc keeps of freed memory in the workers of our own LocalCluster. Dask's setting gives all back at
#: once, and the kernel then clears every page of every large temporary array anew.
WORKER_ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": 128 << 20, "MALLOC_MMAP_THRESHOLD_": 32 << 20}
#: times that a task may be submitted again after its worker died
MAX_ATTEMPTS = 3
#: seconds without any finished task after which a cluster is given up
STALL_TIMEOUT_S = 900.0
#: seconds that a cluster may be without any worker
NO_WORKERS_TIMEOUT_S = 60.0


class Executor(Protocol):
    """What the engine asks of the place where tasks run."""

    description: str

    @property
    def n_threads(self) -> int:
        """Number of tasks that run at a time."""
        ...

    def reduce(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        merge: Merge,
        fan_in: int,
        on_done: OnDone,
        name: str,
    ) -> Any:
        """Call ``function`` on every argument tuple and merge the results up a fixed tree."""
        ...

    def map(self, function: Callable[[Any], _R], items: Iterable[Any]) -> Iterator[_R]:
        """Call ``function`` on every item, some at a time, and yield the results in order."""
        ...

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        """Call ``function(load(), *arguments)`` on the scheduler node; the loaded value comes from a worker."""
        ...


def tree_node_children(index: int, fan_in: int, n_below: int) -> range:
    """Children of a node of the tree, as indices on the level below."""
    return range(index * fan_in, min((index + 1) * fan_in, n_below))


def tree_levels(n_leaves: int, fan_in: int) -> list[int]:
    """Number of nodes on every level of the tree, leaves first."""
    levels = [n_leaves]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // fan_in))
    return levels


class InProcess:
    """Run every task here, one after the other, holding no more partial sums than the tree is deep."""

    description = "in this process"
    n_threads = 1

    def reduce(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        merge: Merge,
        fan_in: int,
        on_done: OnDone,
        name: str,
    ) -> Any:
        levels = tree_levels(len(arguments), fan_in)

        def node(level: int, index: int) -> Any:
            if level == 0:
                result = function(*arguments[index])
                on_done(index)
                return result
            children = tree_node_children(index, fan_in, levels[level - 1])
            if len(children) == 1:
                return node(level - 1, children[0])
            return merge(node(level - 1, child) for child in children)

        return node(len(levels) - 1, 0)

    def map(self, function: Callable[[Any], _R], items: Iterable[Any]) -> Iterator[_R]:
        return map(function, items)

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        return function(load(), *arguments)


class OnCluster:
    """Run tasks on the workers of a Dask client, a sliding window of them at a time.

    Parameters
    ----------
    client : distributed.Client
        Any client; it is not closed here.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.description = f"on {_n_threads(client)} threads of {client.scheduler.address}"

    @property
    def n_threads(self) -> int:
        """Number of threads of all workers."""
        return max(1, _n_threads(self.client))

    def reduce(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        merge: Merge,
        fan_in: int,
        on_done: OnDone,
        name: str,
    ) -> Any:
        levels = tree_levels(len(arguments), fan_in)
        watch = _Watch(self.client, name)
        run_key = f"{name}-{uuid.uuid4().hex[:8]}"
        ready: list[dict[int, distributed.Future]] = [{} for _ in levels]
        flying: dict[distributed.Future, tuple[int, int, int]] = {}
        waiting = iter(range(len(arguments)))

        def submit(level: int, index: int, attempt: int) -> None:
            key = f"{run_key}-L{level}-{index}-{attempt}"
            if level == 0:
                future = self.client.submit(function, *arguments[index], key=key, retries=2, pure=False)
            else:
                below = ready[level - 1]
                parts = [below[c] for c in tree_node_children(index, fan_in, levels[level - 1])]
                future = self.client.submit(merge, parts, key=key, retries=2, pure=False, priority=level)
            flying[future] = (level, index, attempt)

        def settle(level: int, index: int, future: distributed.Future) -> None:
            ready[level][index] = future
            if level + 1 == len(levels):
                return
            parent = index // fan_in
            children = tree_node_children(parent, fan_in, levels[level])
            if not all(child in ready[level] for child in children):
                return
            if len(children) == 1:
                settle(level + 1, parent, future)
            else:
                submit(level + 1, parent, 0)

        try:
            while True:
                while sum(level == 0 for level, _, _ in flying.values()) < 2 * max(1, watch.n_threads()):
                    index = next(waiting, None)
                    if index is None:
                        break
                    submit(0, index, 0)
                if not flying:
                    break
                for future in watch.finished(flying):
                    level, index, attempt = flying.pop(future)
                    if future.status == "finished":
                        if level == 0:
                            on_done(index)
                        else:
                            for child in tree_node_children(index, fan_in, levels[level - 1]):
                                ready[level - 1].pop(child)
                        settle(level, index, future)
                        continue
                    _raise_unless_worker_lost(future, name, attempt)
                    logger.warning("%s: task %s lost its worker, submitted again", name, future.key)
                    submit(level, index, attempt + 1)
            return ready[-1][0].result()
        except BaseException as error:
            self.client.cancel(list(flying), force=True)
            _raise_if_lost(error, name)
            raise

    def map(self, function: Callable[[Any], _R], items: Iterable[Any]) -> Iterator[_R]:
        iterator = iter(items)
        window: list[tuple[distributed.Future, Any]] = []
        watch = _Watch(self.client, "map")

        def submit() -> None:
            for item in iterator:
                # Scattered, not passed: a chunk of text is too large for the graph.
                data = self.client.scatter(item, hash=False) if not isinstance(item, int) else item
                window.append((self.client.submit(function, data, pure=False), item))
                return

        try:
            for _ in range(2 * max(1, watch.n_threads())):
                submit()
            while window:
                future, item = window.pop(0)
                for attempt in range(MAX_ATTEMPTS + 1):
                    watch.wait_for(future)
                    if future.status == "finished":
                        break
                    _raise_unless_worker_lost(future, "map", attempt)
                    future = self.client.submit(function, self.client.scatter(item, hash=False), pure=False)
                result = future.result()
                del future, item
                submit()
                yield result
        except BaseException as error:
            self.client.cancel([f for f, _ in window], force=True)
            _raise_if_lost(error, "map")
            raise

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        future = self.client.submit(load, pure=False, key=f"for-scheduler-{uuid.uuid4().hex[:8]}")
        watch = _Watch(self.client, "decomposition")
        watch.wait_for(future)
        if future.status != "finished":
            _raise_unless_worker_lost(future, "decomposition", MAX_ATTEMPTS)
        try:
            return self.client.run_on_scheduler(  # type: ignore[no-any-return]
                _on_scheduler, work=function, key=future.key, arguments=arguments
            )
        except Exception as error:
            _raise_if_lost(error, "decomposition")
            raise


async def _on_scheduler(
    dask_scheduler: Any, work: Callable[..., Any], key: str, arguments: tuple[Any, ...]
) -> Any:
    """Fetch a worker's result and work on it in a thread, so that the event loop stays free."""
    reply = await dask_scheduler.gather([key])
    if reply["status"] != "OK":
        raise ClusterError(f"the scheduler could not fetch {key} from its worker: {reply.get('keys')}")
    value = reply["data"][key]

    def opened_and_done() -> Any:
        # The scheduler does not open what it passes on, so what it fetched is still in its wire form.
        wired = isinstance(value, Serialized)
        opened = merge_and_deserialize(value.header, value.frames) if wired else value
        return work(opened, *arguments)

    return await asyncio.to_thread(opened_and_done)


class _Watch:
    """Wait for tasks, and notice when a cluster has died or stands still."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._progress = time.monotonic()
        self._workers = time.monotonic()
        self._n_threads = _n_threads(client)

    def n_threads(self) -> int:
        return self._n_threads

    def finished(self, flying: Iterable[distributed.Future]) -> list[distributed.Future]:
        futures = list(flying)
        while True:
            try:
                # wait() asks for the current client, and ours is deliberately nobody's default.
                with self.client.as_current():
                    done = list(distributed.wait(futures, timeout=1.0, return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                done = []
            if done:
                self._progress = time.monotonic()
                return done
            self._check()

    def wait_for(self, future: distributed.Future) -> None:
        self.finished([future])

    def _check(self) -> None:
        now = time.monotonic()
        if self.client.status not in ("running", "connecting"):
            raise ClusterError(f"{self.name}: the connection to the scheduler is {self.client.status}")
        self._n_threads = _n_threads(self.client)
        if self._n_threads:
            self._workers = now
        elif now - self._workers > NO_WORKERS_TIMEOUT_S:
            raise ClusterError(f"{self.name}: no worker has been there for {NO_WORKERS_TIMEOUT_S:.0f} s")
        if now - self._progress > STALL_TIMEOUT_S:
            raise ClusterError(f"{self.name}: no task has finished for {STALL_TIMEOUT_S:.0f} s")


def _n_threads(client: Client) -> int:
    return sum(client.nthreads().values())


def _raise_unless_worker_lost(future: distributed.Future, name: str, attempt: int) -> None:
    if future.status == "error":
        error = future.exception()
        if not isinstance(error, distributed.KilledWorker):
            raise error
        if attempt >= MAX_ATTEMPTS:
            raise ClusterError(
                f"{name}: task {future.key} ended {attempt + 1} times with the death of its worker; "
                "it may need more memory than the worker's limit"
            ) from error
    elif attempt >= MAX_ATTEMPTS:
        raise ClusterError(f"{name}: task {future.key} was lost {attempt + 1} times ({future.status})")


def _raise_if_lost(error: BaseException, name: str) -> None:
    lost = (CommClosedError, distributed.client.FuturesCancelledError, OSError)
    if (
        isinstance(error, lost)
        and not isinstance(error, DistmomError)
        and not isinstance(error, FileNotFoundError)
    ):
        raise ClusterError(f"{name}: the cluster was lost: {error}") from error


@contextmanager
def open_executor(
    client: Client | Executor | None = None,
    *,
    scheduler: str | None = None,
    workers: int = 0,
    memory_limit: int | None = None,
    connect_timeout_s: float = 20.0,
) -> Iterator[Executor]:
    """Open a place to run tasks, and close what was opened here.

    Parameters
    ----------
    client : distributed.Client or Executor, optional
        Used as it is and left open.
    scheduler : str, optional
        Address of a running scheduler; only the connection is closed afterwards.
    workers : int
        Number of processes of a LocalCluster; 0 runs in this process.
    memory_limit : int, optional
        Bytes that each process of the LocalCluster may use.
    connect_timeout_s : float
        Seconds to wait for a scheduler.

    Raises
    ------
    UsageError
        If both a scheduler and a number of workers are asked for.
    ClusterError
        If the scheduler does not answer.
    """
    if isinstance(client, InProcess | OnCluster):
        yield client
    elif client is not None:
        yield OnCluster(client)
    elif scheduler is not None:
        if workers:
            raise UsageError("give either a scheduler or a number of workers, not both")
        try:
            remote = Client(scheduler, set_as_default=False, timeout=connect_timeout_s)
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterError(f"no scheduler answers at {scheduler}: {error}") from error
        with remote:
            yield OnCluster(remote)
    elif workers:
        environment = {**dask.config.get("distributed.nanny.pre-spawn-environ"), **WORKER_ENVIRONMENT}
        with (
            dask.config.set({"distributed.nanny.pre-spawn-environ": environment}),
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=memory_limit or "auto",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster, set_as_default=False) as local,
        ):
            yield OnCluster(local)
    else:
        yield InProcess()
