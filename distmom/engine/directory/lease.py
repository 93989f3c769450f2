"""The hold of a process on a run: it begins an epoch, beats, and stops when another process has taken over.

The hold keeps two drivers from spending time on the same run. Numbers do not depend on it: whatever a driver
still writes after it was taken over is named by its content, or lies below its own epoch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from distmom.corpus.files.commit import write_atomic
from distmom.corpus.files.lock import Lock, this_boot
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import EPOCH, LEASE, Beat, End, Owner
from distmom.engine.directory.events import Event, GroupDone, PassStarted
from distmom.engine.directory.observation import Observation
from distmom.errors import (
    CancelledError,
    DistmomError,
    TakenOverError,
    UsageError,
    exit_code_of,
    interrupts_restored,
)

logger = logging.getLogger(__name__)

#: ids under which this process owns runs at present; those of ended epochs or of an earlier program are left out
_OWN: set[str] = set()
#: the lease that a command in this context joins, if it carries out the same run
_SHARED: ContextVar[Lease | None] = ContextVar("distmom_lease", default=None)


class Lease:
    """An epoch of a run, held by this process; made by `leased`.

    Attributes
    ----------
    epoch : int
    result : dict of str to str or None
        The result of the run, for the record of its end.
    """

    def __init__(
        self, run: Path, *, durable: bool, interrupt: Callable[[], None] | None, heeds_request: bool
    ) -> None:
        self.run: Path = run
        self.epoch: int = 0
        self.result: dict[str, str] | None = None
        self._durable, self._interrupt, self._heeds_request = durable, interrupt, heeds_request
        self._owner = Owner.this()
        self._n_beats = 0
        self._progress = ("", 0, 0)
        self._stop: DistmomError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="distmom-lease", daemon=True)

    def acquire(self) -> None:
        """Begin the next epoch, once no other process carries the run out.

        Raises
        ------
        UsageError
            If a process that is running carries it out.
        """
        try:
            self._begin()
        except BaseException as error:
            # An interrupt may come once the epoch has begun, whose end is to be recorded too.
            if self._has_begun():
                self.release(error)
            raise

    def _begin(self) -> None:
        (self.run / "epochs").mkdir(parents=True, exist_ok=True)
        if (old := self.run / "lock").exists():
            # Of a version without epochs.
            with Lock(old):
                pass
        while True:
            last = epochs.latest_epoch(self.run)
            if last and epochs.end_of(self.run, last) is None and not self._may_follow(last):
                continue
            content = EPOCH.dump(asdict(replace(self._owner, since=epochs.now())))
            _OWN.add(self._owner.id)
            if not self._heeds_request:
                # An earlier request was meant for the last owner; only requests from now on count.
                epochs.forget_request(self.run)
            if epochs.put_once(epochs.file_of(self.run, last + 1), content, durable=self._durable):
                break
        self.epoch = last + 1
        self._beat()
        self._thread.start()

    def _has_begun(self) -> bool:
        """Whether this lease has begun an epoch, as its record says."""
        last = epochs.latest_epoch(self.run)
        owner = epochs.owner_of(self.run, last) if last else None
        if owner is None or owner.id != self._owner.id:
            return False
        self.epoch = last
        return True

    def _may_follow(self, epoch: int) -> bool:
        """Wait until the owner of an epoch that has not ended is known to be gone, or the records change."""
        owner = epochs.owner_of(self.run, epoch)
        if owner is not None and owner.is_here and owner.pid == os.getpid() and owner.id not in _OWN:
            # This process has replaced its program, or could not record the end of the epoch.
            return True
        watch, announced = Observation(partial(epochs.records_of, self.run)), False
        while (found := watch.look()).state == "unknown" and found.epoch == epoch:
            if not announced:
                logger.warning(
                    "%s: waiting for at most %.0f s, as it is not known whether %s is still running",
                    self.run, epochs.LEASE_S, _described(owner),
                )  # fmt: skip
                announced = True
            time.sleep(min(epochs.LOOK_S, epochs.LEASE_S / 10))
        if found.epoch != epoch or found.end is not None:
            return False
        if found.state == "running":
            raise UsageError(
                f"{self.run}: is held by {_described(owner)}; wait for it to finish, or stop that process"
            )
        if owner is not None and owner.is_gone:
            logger.warning(
                "%s: taking over the run of process %d, which is no longer running", self.run, owner.pid
            )
        else:
            logger.warning(
                "%s: taking over the run of %s, which has shown no sign of life for %.0f s",
                self.run, _described(owner), epochs.LEASE_S,
            )  # fmt: skip
        return True

    def release(self, error: BaseException | None) -> None:
        """Stop beating, and record how the epoch ended."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if error is None:
            end = End("done", 0, result=self.result)
        else:
            asked = isinstance(error, CancelledError | KeyboardInterrupt) and epochs.is_cancelled(self.run)
            notes = getattr(error, "__notes__", [])
            end = End(
                "cancelled" if asked else "failed", exit_code_of(error), type(error).__name__, str(error),
                next(iter(notes), ""),
            )  # fmt: skip
        # A refused or temporary run may have been removed. Where a run has failed, as on a full disk, its own
        # error is reported, and this process may begin another epoch without the record.
        try:
            with suppress(FileNotFoundError if error is None else OSError):
                epochs.write_end(self.run, self.epoch, end)
        finally:
            _OWN.discard(self._owner.id)

    def check(self) -> None:
        """Check that the run is still to be carried out by this process.

        Raises
        ------
        TakenOverError
            If another process has begun an epoch.
        CancelledError
            If the end of the run has been requested.
        """
        self._look()
        if self._stop is not None:
            raise self._stop

    def fence(self) -> None:
        """Check before a commit that this process still holds the run; a TakenOverError otherwise.

        Results computed before a request to end the run are still committed.
        """
        self._look()
        if isinstance(self._stop, TakenOverError):
            raise self._stop

    def note(self, event: Event) -> None:
        """Note the progress that an event reports, for the next beat; errors as in `check`."""
        if isinstance(event, PassStarted):
            self._look()
            self._progress = (event.name, 0, event.n_groups * event.n_slabs)
        elif isinstance(event, GroupDone):
            name, n_done, n_tasks = self._progress
            self._progress = (name, n_done + 1, n_tasks)
        if self._stop is not None:
            raise self._stop

    def mark_saving(self, digest: str) -> None:
        """Record that the model with a digest is about to be put in its place; errors as in `fence`."""
        self.fence()
        place = epochs.file_of(self.run, self.epoch, ".saving")
        write_atomic(place, digest.encode(), survives_power_failure=self._durable)

    def restarted(self, error: DistmomError) -> None:
        """Record that this epoch failed and that this process is about to begin another one."""
        end = End("failed", error.exit_code, type(error).__name__, str(error), restarted=True)
        epochs.write_end(self.run, self.epoch, end)

    def _look(self) -> None:
        if isinstance(self._stop, TakenOverError):
            return
        if (last := epochs.latest_epoch(self.run)) != self.epoch:
            owner = epochs.owner_of(self.run, last) if last else None
            by = "its directory was removed" if owner is None else f"it was taken over by {_described(owner)}"
            self._stop = TakenOverError(f"{self.run}: this process was taken to have ended: {by}")
        elif self._stop is None and epochs.is_cancelled(self.run):
            self._stop = CancelledError(f"{self.run}: cancelled")

    def _keep(self) -> None:
        written = time.monotonic()
        while not self._ended.wait(min(epochs.LOOK_S, epochs.BEAT_S)):
            # Commits report a file system that fails for a while.
            with suppress(OSError):
                running = self._stop is None
                self._look()
                if running and self._stop is not None and self._interrupt is not None:
                    self._interrupt()
                if isinstance(self._stop, TakenOverError):
                    return
                if time.monotonic() - written >= epochs.BEAT_S:
                    self._beat()
                    written = time.monotonic()

    def _beat(self) -> None:
        self._n_beats += 1
        beat = Beat(self.epoch, self._n_beats, this_boot(), time.monotonic(), time.time(), *self._progress)
        write_atomic(self.run / "lease.json", LEASE.dump(asdict(beat)), survives_power_failure=False)


def _described(owner: Owner | None) -> str:
    if owner is None:
        return "a process that has left no record"
    return f"process {owner.pid} on host {owner.host} since {owner.since}"


@contextmanager
def leased(
    run: Path,
    *,
    durable: bool = True,
    interrupt: Callable[[], None] | None = None,
    heeds_request: bool = False,
) -> Iterator[Lease]:
    """Hold a run, or join a process that holds it for this command; a context manager.

    Parameters
    ----------
    run : Path
        Directory of the run.
    durable : bool, default True
        Whether the epoch is on disk before work begins.
    interrupt : callable, optional
        Called in another thread when the run is cancelled or taken over, to interrupt what the process does.
        Without it, that is noticed at the next event or commit.
    heeds_request : bool, default False
        Whether an earlier request to end the run is heeded; by default it is removed.

    Raises
    ------
    UsageError
        If another process that is running holds the run.
    TakenOverError
        On exit with an error, if the run was taken over before.
    """
    outer = _SHARED.get()
    if outer is not None and outer.run == run:
        yield outer
        return
    lease = Lease(run, durable=durable, interrupt=interrupt, heeds_request=heeds_request)
    lease.acquire()
    error: BaseException | None = None
    try:
        with interrupts_restored():
            yield lease
    except BaseException as caught:
        error = _explained(lease, caught)
        if error is caught:
            raise
        raise error from caught
    finally:
        lease.release(error)


def _explained(lease: Lease, error: BaseException) -> BaseException:
    """Return the reason for an error: the run was taken over, or what went wrong."""
    try:
        lease.check()
    except TakenOverError as stopped:
        return stopped
    except CancelledError:
        pass
    return error


@contextmanager
def shared(lease: Lease) -> Iterator[None]:
    """Let a command that is called in this context join a lease; a context manager."""
    token = _SHARED.set(lease)
    try:
        yield
    finally:
        _SHARED.reset(token)
