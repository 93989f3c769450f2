"""Liveness checks of a Dask cluster: waiting that ends when the cluster is dead, stalled or does not answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import distributed
from distributed import Client
from distributed.client import ClosedClientError
from distributed.comm import parse_address
from distributed.comm.core import CommClosedError, connect
from distributed.core import send_recv

from distmom.engine.executors.stalled import restart_stalled
from distmom.errors import ClusterError, UsageError

_R = TypeVar("_R")

logger = logging.getLogger(__name__)

#: seconds without any finished task after which a cluster is considered stalled
STALL_TIMEOUT_S = 900.0
#: seconds without any finished task, and twice, four times, ... as many, after which paused workers are reported
PAUSED_S = 30.0
#: seconds that a cluster may be without any worker
NO_WORKERS_TIMEOUT_S = 60.0
#: how often data may be lost with the worker that they are sent to
MAX_LOST = 3
#: seconds for which data that are on their way to a worker are waited for after an interruption
SETTLE_S = 3.0
#: seconds between checks for the first worker
NO_WORKERS_LOOK_S = 0.2
#: seconds that a scheduler may leave requests unanswered
SILENCE_TIMEOUT_S = 60.0
#: seconds after which a request is repeated
REQUEST_TIMEOUT_S = 5.0
#: largest number of seconds that count between two readings of the clock: a suspended process has not waited
LONGEST_LOOK_S = 10.0
#: parts of errors where a scheduler without TLS answers: after the greeting of TLS, and before it
_WITHOUT_TLS = ("WRONG_VERSION_NUMBER", "cannot convert to SSL")
#: seconds between keep-alive tasks for a scheduler whose idle timeout is unknown
KEEP_ALIVE_S = 10.0


class _Waited:
    """Seconds waited for something, without those in which the process or its machine was suspended."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._last: float | None = None
        self._reported = 0.0

    def look(self) -> float:
        """Return the seconds waited since the first look."""
        now = time.monotonic()
        if self._last is not None:
            self._seconds += min(now - self._last, LONGEST_LOOK_S)
        self._last = now
        return self._seconds

    def is_due(self, first_s: float) -> bool:
        """Return whether a report is due: after some seconds, and when they have doubled since the last one."""
        due = self._seconds > max(first_s, 2 * self._reported)
        if due:
            self._reported = self._seconds
        return due


class Watch:
    """Waits for tasks and requests, and raises an error when a cluster is dead, stalled or does not answer.

    Parameters
    ----------
    client : distributed.Client
    name : str
        Name of the work for messages.
    tick : callable, optional
        Called about once a second, and after each wait, in the thread that waits.
    """

    def __init__(self, client: Client, name: str, tick: Callable[[], None] = lambda: None) -> None:
        self.client = client
        self.name = name
        self._tick = tick
        self._n_threads = 1
        self._silent = _Waited()
        self._without_workers = _Waited()
        self._ask()

    @property
    def n_threads(self) -> int:
        """Number of threads of all workers at the last request."""
        return self._n_threads

    def finished(
        self, flying: Iterable[distributed.Future], *, may_take_long: bool = False
    ) -> list[distributed.Future]:
        """Wait until at least one task has ended or was lost, and return all that have.

        Parameters
        ----------
        flying : iterable of distributed.Future
        may_take_long : bool, default False
            Whether tasks may take any time. Otherwise, where none ends for a while, the workers that have them
            are restarted once.

        Raises
        ------
        ClusterError
            If no task ends, there are no workers, or the scheduler does not answer.
        """
        futures, stalled, restarted = list(flying), _Waited(), False
        while True:
            try:
                # wait() needs a current client, and this one is deliberately not the default.
                with self.client.as_current():
                    return list(distributed.wait(futures, timeout=1.0, return_when="FIRST_COMPLETED").done)
            except TimeoutError as error:
                # Dask's waiting function refers to its error, which would keep the tasks, and with them their
                # results, until the next garbage collection.
                error.__traceback__ = None
            except CancelledError:
                # Their data went with a worker, unless the connection to the scheduler is lost.
                self._ask()
                if gone := [future for future in futures if future.done()]:
                    return gone
                raise
            finally:
                self._tick()
            self._check_workers()
            waited_s = stalled.look()
            if not may_take_long and waited_s > STALL_TIMEOUT_S:
                if restarted or not self._restarts([future.key for future in futures]):
                    raise ClusterError(
                        f"{self.name}: no task has finished for {STALL_TIMEOUT_S:.0f} s{self._paused()}"
                    )
                stalled, restarted = _Waited(), True
            self._report_paused(stalled, "finished a task")

    def call(
        self, function: Callable[..., _R], *arguments: Any, limit_s: float | None = None, **options: Any
    ) -> _R:
        """Call a function that waits for the cluster, while the scheduler answers.

        Parameters
        ----------
        function : callable
            Called with ``arguments`` and ``options``.
        limit_s : float, optional
            Seconds that the call may take; no limit by default.

        Raises
        ------
        ClusterError
            If the scheduler does not answer, the connection is lost, or the limit is exceeded.
        """
        try:
            return self._call(limit_s, function, *arguments, **options)
        except CommClosedError as error:
            raise ClusterError(f"{self.name}: the cluster was lost: {error}") from error

    def send(self, data: Any) -> distributed.Future:
        """Send data to a worker, and again if the worker is lost meanwhile.

        Raises
        ------
        ClusterError
            As for `call`, or if there are no workers, or none receives the data.
        """
        stalled, n_lost = _Waited(), 0
        while True:
            if not self._n_threads:
                self._wait_for_worker()
            try:
                # Data that arrive after the client has left would stay on their worker.
                return self._call(
                    STALL_TIMEOUT_S, self.client.scatter, data, hash=False, timeout=REQUEST_TIMEOUT_S,
                    settle_s=SETTLE_S,
                )  # fmt: skip
            except (CommClosedError, KeyError) as error:
                # The scheduler closes the connection to the client as well when the one to the worker is lost.
                self._check_workers()
                n_lost += 1
                if n_lost > MAX_LOST:
                    raise ClusterError(
                        f"{self.name}: data were lost {n_lost} times on their way to a worker"
                    ) from error
                logger.warning(
                    "%s: data were lost with the worker that they were sent to, sent again", self.name
                )
                time.sleep(1.0)
            except TimeoutError as error:
                # Dask has waited for a worker that is not paused.
                self._check_workers()
                if stalled.look() > STALL_TIMEOUT_S:
                    raise ClusterError(
                        f"{self.name}: no worker has received data for {STALL_TIMEOUT_S:.0f} s{self._paused()}"
                    ) from error
                self._report_paused(stalled, "received data")

    def _wait_for_worker(self) -> None:
        """Wait for the first worker."""
        # A cluster that adapts to its load starts workers for tasks alone.
        task = touch(self.client)
        while not self._n_threads:
            self._tick()
            time.sleep(NO_WORKERS_LOOK_S)
            self._check_workers()
        task.release()

    def _call(
        self,
        limit_s: float | None,
        function: Callable[..., _R],
        *arguments: Any,
        settle_s: float = 0.0,
        **options: Any,
    ) -> _R:
        """Call a function as `call` does; on an error, give one that has not ended ``settle_s`` seconds to end."""
        future, waited = _in_thread(function, *arguments, **options), _Waited()
        try:
            while True:
                try:
                    if wait([future], timeout=1.0).done:
                        return future.result()
                finally:
                    self._tick()
                self._ask()
                if limit_s is not None and waited.look() > limit_s:
                    raise ClusterError(f"{self.name}: a worker has not answered for {limit_s:.0f} s")
        except BaseException:
            wait([future], timeout=settle_s)
            raise

    def _check_workers(self) -> None:
        """Check that the scheduler answers and has recently had workers."""
        self._ask()
        if not self._n_threads and self._without_workers.look() > NO_WORKERS_TIMEOUT_S:
            raise ClusterError(f"{self.name}: the cluster has had no worker for {NO_WORKERS_TIMEOUT_S:.0f} s")

    def _restarts(self, keys: list[str]) -> bool:
        """Restart the workers on which tasks are stalled; return whether there are any."""
        try:
            return bool(restart_stalled(self.client, keys, self.name, _in_thread))
        except (TimeoutError, OSError):
            return False

    def _report_paused(self, stalled: _Waited, what: str) -> None:
        """Log a warning that names paused workers, if it is due and there are any."""
        if stalled.is_due(PAUSED_S) and (paused := self._paused()):
            logger.warning("%s: no worker has %s for %.0f s%s", self.name, what, stalled.look(), paused)

    def _paused(self) -> str:
        """Return a clause that names the paused workers; empty if there are none, or the scheduler is silent."""
        try:
            info = _in_thread(self.client.scheduler_info, n_workers=-1).result(timeout=REQUEST_TIMEOUT_S)
        except (TimeoutError, OSError):
            return ""
        paused = [worker for worker, facts in info["workers"].items() if facts.get("status") == "paused"]
        return f", as workers are paused until they have memory: {', '.join(paused)}" if paused else ""

    def _ask(self) -> None:
        """Request the number of threads from the scheduler."""
        if self.client.status not in ("running", "connecting"):
            raise ClusterError(f"{self.name}: the connection to the scheduler is {self.client.status}")
        self._silent.look()
        try:
            found = _in_thread(self.client.nthreads).result(timeout=REQUEST_TIMEOUT_S)
        except TimeoutError:
            if self._silent.look() > SILENCE_TIMEOUT_S:
                raise ClusterError(
                    f"{self.name}: the scheduler has not answered for {SILENCE_TIMEOUT_S:.0f} s"
                ) from None
            return
        except OSError as error:
            raise ClusterError(f"{self.name}: the cluster was lost: {error}") from error
        self._silent = _Waited()
        self._n_threads = sum(found.values())
        if self._n_threads:
            self._without_workers = _Waited()
        else:
            self._without_workers.look()


def _in_thread(function: Callable[..., _R], *arguments: Any, **options: Any) -> Future[_R]:
    """Call a function in a daemon thread."""
    future: Future[_R] = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 (raised where the result is asked for)
            future.set_exception(error)

    threading.Thread(target=work, name="distmom-call", daemon=True).start()
    return future


def touch(client: Client) -> distributed.Future:
    """Submit a trivial task, by which the scheduler counts as busy."""
    return client.submit(int, key=f"distmom-alive-{uuid.uuid4().hex[:8]}", pure=False)


@contextmanager
def kept_alive(client: Client, idle_timeout_s: float | None) -> Iterator[None]:
    """Submit trivial tasks to a scheduler, so that it does not close itself while idle; a context manager.

    A scheduler counts only tasks: decomposing a tensor or joining results is idle time to it.

    Parameters
    ----------
    client : distributed.Client
    idle_timeout_s : float or None
        Seconds after which an idle scheduler closes itself; None if unknown.
    """
    period = KEEP_ALIVE_S if idle_timeout_s is None else min(KEEP_ALIVE_S, idle_timeout_s / 3)
    ended = threading.Event()

    def work() -> None:
        # The call that waits for the cluster reports a closed connection.
        with suppress(ClosedClientError):
            while not ended.wait(period) and client.status == "running":
                touch(client)

    thread = threading.Thread(target=work, name="distmom-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def check_address(address: str, timeout_s: float) -> None:
    """Check that a Dask scheduler listens at an address.

    Raises
    ------
    UsageError
        If the certificates or the key cannot be read, or do not belong together.
    ClusterError
        If nothing answers in time, something other than a scheduler does, or there are no certificates for TLS.
    """
    got = ", ".join(f"{option} {path}" for option, path in tls_files()) or "none"
    try:
        options = distributed.Security().get_connection_args("client")
    except OSError as error:
        # Errors of ssl name no file.
        raise UsageError(
            "TLS: expected PEM files with the certificate of the authority, that of the client and its key, got "
            f"{got}: {error.strerror or error}"
        ) from error
    if parse_address(address)[0] == "tls" and options.get("ssl_context") is None:
        raise ClusterError(
            f"no scheduler answers at {address}: TLS needs certificates: expected --tls-ca-file, --tls-cert and "
            f"--tls-key, or those of Dask's configuration (distributed.comm.tls), got {got}"
        )

    async def exchange() -> dict[str, Any]:
        comm = await connect(address, timeout=timeout_s, **options)
        try:
            return dict(await send_recv(comm, op="identity"))
        finally:
            comm.abort()

    async def bounded() -> dict[str, Any]:
        return await asyncio.wait_for(exchange(), timeout_s)

    try:
        # This thread may run an event loop of its own, as in a notebook.
        found = _in_thread(lambda: asyncio.run(bounded())).result()
    except TimeoutError:
        raise ClusterError(
            f"no scheduler answers at {address}: expected a Dask scheduler, got no reply within {timeout_s:.0f} s"
        ) from None
    except MemoryError:
        # The first bytes of another protocol, read as the size of a message.
        raise ClusterError(f"no scheduler answers at {address}: another service listens there") from None
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        # A connection that is closed may have no message.
        reason = str(error) or type(error).__name__
        if any(sign in f"{error} {error.__cause__}" for sign in _WITHOUT_TLS):
            reason = "expected a scheduler with TLS, got an answer without it"
        raise ClusterError(f"no scheduler answers at {address}: {reason}") from error
    # Subclasses of schedulers have other names, but all list their workers.
    if "workers" not in found:
        raise ClusterError(
            f"no scheduler answers at {address}: expected the address of a Dask scheduler, got that of a process "
            f"of type {found.get('type')}"
        )


def tls_files() -> list[tuple[str, str]]:
    """Return the files with certificates of this process and their key, with the options that name them."""
    security = distributed.Security()
    given = {
        "--tls-ca-file": security.tls_ca_file,
        "--tls-cert": security.tls_client_cert,
        "--tls-key": security.tls_client_key,
    }
    # Dask's configuration may have the content of a file in place of its path.
    return [(option, path) for option, path in given.items() if path and path.isprintable()]
