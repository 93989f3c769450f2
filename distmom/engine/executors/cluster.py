"""The executor of tasks on a Dask cluster.

Every task first checks that its process runs the same versions as the client.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import dask
import distributed
from distributed import Client
from distributed.client import ClosedClientError
from distributed.comm.core import CommClosedError
from distributed.protocol import pickle

from distmom.compiled import watched
from distmom.engine.environment import Environment, differing, environment
from distmom.engine.executors import watch as limits
from distmom.engine.executors.executor import (
    Merge,
    Notices,
    OnDone,
    Subject,
    no_subject,
)
from distmom.engine.executors.reduction import Node, Reduction
from distmom.engine.executors.remote import COMPILING, checked, done_on_scheduler, idle_timeout
from distmom.engine.executors.watch import Watch
from distmom.errors import ClusterError, DistmomError, WorkersLostError

logger = logging.getLogger(__name__)

_R = TypeVar("_R")

#: how often a task is submitted again after its worker died
MAX_ATTEMPTS = 3
#: more than the number of levels of a tree; tasks of upper levels are preferred within the priority of a job
LEVELS = 100


class OnCluster:
    """Runs tasks on the workers of a Dask client, in a sliding window.

    Parameters
    ----------
    client : distributed.Client
        Any client; it is not closed here.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        n_threads = Watch(client, "cluster").n_threads
        self.description: str = f"on {n_threads} threads of {client.scheduler.address}"
        self._share: float = dask.config.get("distmom.share", 1.0)
        self._priority: int = LEVELS * dask.config.get("distmom.priority", 0)
        self._versions = environment().versions()
        self._notices = Notices()
        self._warned_bytes = 0

    @property
    def n_threads(self) -> int:
        """Number of threads of all workers."""
        return max(1, Watch(self.client, "cluster").n_threads)

    @property
    def dashboard(self) -> str | None:
        """Address of the dashboard of the scheduler; None if it has none."""
        found: str | None = self.client.dashboard_link
        return found

    def _of_window(self, n_threads: int) -> int:
        """Return how many tasks are submitted at a time; jobs share a cluster in proportion to this."""
        return max(1, round(2 * max(1, n_threads) * self._share))

    def check(self) -> None:
        """Check that all present workers run the versions of this process.

        Raises
        ------
        ClusterError
            If a worker lacks distmom, or runs other versions than this process.
        """
        found = Watch(self.client, "cluster").call(
            self.client.run, environment, on_error="return", limit_s=limits.SILENCE_TIMEOUT_S
        )
        for worker, got in sorted(found.items()):
            if isinstance(got, OSError):
                # It has left meanwhile; if it comes back, its tasks check the versions.
                continue
            if not isinstance(got, Environment):
                raise ClusterError(f"worker {worker}: cannot run this distmom: {got}")
            if wrong := differing(self._versions, got.versions()):
                raise ClusterError(f"worker {worker}: other versions than the client: {wrong}")

    def check_memory(self, name: str, task_bytes: int, shared_bytes: int, usable_share: float) -> None:
        if task_bytes <= self._warned_bytes:
            return
        found = Watch(self.client, name).call(self.client.scheduler_info, n_workers=-1)["workers"]
        for worker, facts in sorted(found.items(), key=lambda each: each[1]["memory_limit"] or 0):
            needed = shared_bytes + facts["nthreads"] * (task_bytes - shared_bytes)
            # 0 means that the worker has no limit.
            memory = facts["memory_limit"]
            if memory and needed > usable_share * memory:
                self._warned_bytes = task_bytes
                logger.warning(
                    "pass %s: a worker may need %.0f MiB, but %s has %.0f MiB, of which it can use %.0f %% "
                    "before Dask spills, pauses or kills it; with --memory-limit, the pass is divided into "
                    "smaller tasks or refused",
                    name, needed / 2**20, worker, memory / 2**20, 100 * usable_share,
                )  # fmt: skip
                return

    def idle_timeout_s(self) -> float | None:
        """Return the seconds without a task after which the scheduler closes itself; None if unknown."""
        try:
            found: float | None = Watch(self.client, "cluster").call(
                self.client.run_on_scheduler, idle_timeout
            )
        except (ImportError, ValueError):
            # A scheduler needs distmom, and may not refuse calls, only where it decomposes tensors.
            return None
        return found

    def _submit(
        self, function: Callable[..., Any], *arguments: Any, results: tuple[Any, ...] = (), **options: Any
    ) -> distributed.Future:
        """Submit a call; the results of other tasks, or data on workers, follow the arguments."""
        priority = self._priority + options.pop("level", 0)
        # A worker that cannot read what Dask sends leaves the task waiting; bytes are read within the task.
        packed = pickle.dumps((function, arguments))
        return self.client.submit(
            checked, self._versions, packed, *results, pure=False, priority=priority, **options
        )

    def reduce(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        merge: Merge,
        fan_in: int,
        on_done: OnDone,
        name: str,
        subject: Subject = no_subject,
    ) -> Any:
        watch = Watch(self.client, name, self._notices.deliver)
        run_key = f"{name}-{uuid.uuid4().hex[:8]}"

        def submit(node: Node, parts: list[distributed.Future]) -> distributed.Future:
            key = f"{run_key}-L{node.level}-{node.index}-{node.attempt}"
            if node.level == 0:
                return self._submit(function, *arguments[node.index], key=key)
            return self._submit(merge, results=(parts,), key=key, level=node.level)

        tree = Reduction(len(arguments), fan_in, submit)
        with _released(*tree.ready, tree.flying), self._losses_reported(name, lambda: list(tree.flying)):
            while True:
                window = 0 if tree.suspects else self._of_window(watch.n_threads)
                if tree.suspects and not tree.flying:
                    while missing := tree.missing():
                        watch.finished(missing)
                    tree.submit_suspect()
                tree.submit_leaves(window)
                if not tree.flying:
                    break
                for future in watch.finished(tree.flying):
                    node = tree.flying.pop(future)
                    if future.status == "finished":
                        if node.level == 0:
                            on_done(node.index)
                        tree.finished(node, future)
                        continue
                    of_data = (subject(node.index), node.index) if node.level == 0 else ()
                    _raise_unless_worker_lost(future, watch, node.attempt, *of_data)
                    if any(part.cancelled() for part in tree.parts(node)):
                        raise ClusterError(
                            f"{name}: results of its tasks were cancelled, by another client or because all "
                            "workers were restarted"
                        )
                    logger.warning("%s: task %s lost its worker, submitted again", name, future.key)
                    tree.lost(node)
            return watch.call(tree.total.result, limit_s=limits.STALL_TIMEOUT_S)

    def map(self, function: Callable[[Any], _R], items: Iterable[Any]) -> Iterator[_R]:
        iterator = iter(items)
        window: list[tuple[distributed.Future, Any]] = []
        watch = Watch(self.client, "map", self._notices.deliver)

        def start(item: Any) -> distributed.Future:
            # Scattered, not passed as an argument: a chunk of text is too large for the task graph.
            data = item if isinstance(item, int) else watch.send(item)
            return self._submit(function, results=(data,))

        def submit() -> None:
            for item in iterator:
                window.append((start(item), item))
                return

        with self._losses_reported("map", lambda: [future for future, _ in window]):
            for _ in range(self._of_window(watch.n_threads)):
                submit()
            while window:
                future, item = window.pop(0)
                for attempt in range(MAX_ATTEMPTS + 1):
                    watch.finished([future])
                    if future.status == "finished":
                        # The result and the data of its task may be lost together before it is fetched.
                        with suppress(CancelledError):
                            result = watch.call(future.result, limit_s=limits.STALL_TIMEOUT_S)
                            break
                    _raise_unless_worker_lost(future, watch, attempt)
                    future = start(item)
                del future, item
                submit()
                yield result

    def compute(self, delayed: Sequence[Any], name: str) -> list[Any]:
        """Compute delayed values of Dask, and return them in order.

        Parameters
        ----------
        delayed : sequence of dask.delayed.Delayed
        name : str
            Name of the work for messages.

        Raises
        ------
        Exception
            The first error of a task; all others are cancelled.
        """
        watch = Watch(self.client, name, self._notices.deliver)
        futures: list[distributed.Future] = []
        try:
            with self._losses_reported(name, lambda: futures):
                futures += self.client.compute(list(delayed), priority=self._priority)
                waiting = list(futures)
                while waiting:
                    # All other tasks of a user's graph may have to end before the first of these.
                    for future in watch.finished(waiting, may_take_long=True):
                        waiting.remove(future)
                        if future.status != "finished":
                            _raise_unless_worker_lost(future, watch, MAX_ATTEMPTS)
                return list(watch.call(self.client.gather, futures, limit_s=limits.STALL_TIMEOUT_S))
        finally:
            # Dask refers to them until the next garbage collection.
            for future in futures:
                future.release()

    def on_scheduler(self, function: Callable[..., _R], load: Callable[[], Any], *arguments: Any) -> _R:
        watch, flying = Watch(self.client, "decomposition", self._notices.deliver), list[distributed.Future]()
        with self._losses_reported("decomposition", lambda: flying):
            future = self._submit(load, key=f"for-scheduler-{uuid.uuid4().hex[:8]}")
            flying.append(future)
            task = {"versions": self._versions, "work": function, "key": future.key, "arguments": arguments}
            for _ in range(MAX_ATTEMPTS + 1):
                watch.finished(flying)
                if future.status != "finished":
                    _raise_unless_worker_lost(future, watch, MAX_ATTEMPTS)
                try:
                    done: tuple[_R] | DistmomError | None = watch.call(
                        self.client.run_on_scheduler, done_on_scheduler, **task
                    )
                except ImportError as error:
                    raise ClusterError(f"the scheduler cannot run this distmom: {error}") from error
                if isinstance(done, DistmomError):
                    raise done
                if done is not None:
                    return done[0]
                # Dask computes it again.
                logger.warning("decomposition: %s was lost with its worker", future.key)
            raise ClusterError(
                f"decomposition: {future.key} was lost {MAX_ATTEMPTS + 1} times with its worker"
            )

    @contextmanager
    def _losses_reported(self, name: str, flying: Callable[[], list[distributed.Future]]) -> Iterator[None]:
        """Cancel the tasks of work that failed, and report a lost cluster as a ClusterError; a context manager.

        Parameters
        ----------
        name : str
            Name of the work for messages.
        flying : callable
            Returns the tasks that have not finished.
        """
        try:
            yield
        except BaseException as error:
            # A closed client has forgotten its tasks.
            with suppress(ClosedClientError):
                self.client.cancel(flying(), force=True)
            lost = (CommClosedError, CancelledError, ClosedClientError, ConnectionError, TimeoutError)
            if isinstance(error, lost) and not isinstance(error, DistmomError):
                raise ClusterError(f"{name}: the cluster was lost: {error}") from error
            raise

    def settle(self) -> None:
        return

    @contextmanager
    def compiling(self, report: Callable[[], None]) -> Iterator[None]:
        # Messages arrive on the event loop, where no call that waits for the cluster could be made.
        with (
            _subscribed(self.client, self._notices),
            self._notices.go_to(report),
            watched(self._notices.announce),
        ):
            yield


#: notices of the work that uses a client, which has one handler for a topic
_subscribers: WeakKeyDictionary[Client, list[Notices]] = WeakKeyDictionary()
_subscribers_lock = threading.Lock()


@contextmanager
def _subscribed(client: Client, notices: Notices) -> Iterator[None]:
    """Announce compilations on the cluster of a client to notices; a context manager."""
    with _subscribers_lock, suppress(ClosedClientError):
        together = _subscribers.setdefault(client, [])
        together.append(notices)
        if len(together) == 1:
            client.subscribe_topic(COMPILING, partial(_announce_to, together))
    try:
        yield
    finally:
        with _subscribers_lock, suppress(ClosedClientError):
            together.remove(notices)
            if not together:
                client.unsubscribe_topic(COMPILING)


def _announce_to(together: list[Notices], event: object) -> None:
    for notices in tuple(together):
        notices.announce(event)


@contextmanager
def _released(*tasks: MutableMapping[Any, Any]) -> Iterator[None]:
    """Forget tasks at the end, and with them their results on the workers; a context manager.

    Functions that refer to each other keep what they refer to until the next garbage collection. If a worker died
    before that, Dask would carry out tasks of an earlier pass again.
    """
    try:
        yield
    finally:
        for each in tasks:
            each.clear()


def _raise_unless_worker_lost(
    future: distributed.Future, watch: Watch, attempt: int, subject: str = "", index: int | None = None
) -> None:
    name = f"{watch.name}: {subject}" if subject else watch.name
    if future.status == "error":
        error = watch.call(future.exception, limit_s=limits.STALL_TIMEOUT_S)
        if isinstance(error, ImportError):
            raise ClusterError(f"{watch.name}: a worker cannot run this distmom: {error}") from error
        if not isinstance(error, distributed.KilledWorker):
            raise error
        if attempt >= MAX_ATTEMPTS:
            raise WorkersLostError(
                f"{name}: the worker of task {future.key} died {attempt + 1} times; "
                "the task may need more memory than the worker's limit",
                index,
            ) from error
    elif attempt >= MAX_ATTEMPTS:
        raise ClusterError(f"{name}: task {future.key} was lost {attempt + 1} times ({future.status})")
