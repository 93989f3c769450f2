"""The condition of a run as its records show it: running, lost, or how it ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import Beat, End, Owner, Records, records_of
from distmom.errors import CancelledError

#: states of a run that has ended
ENDED = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Condition:
    """The condition of a run as its records show it.

    Attributes
    ----------
    state : str
        ``queued`` (no driver has begun), ``running``, ``lost``, ``done``, ``failed`` or ``cancelled``; ``unknown``
        while it is not decided between ``running`` and ``lost``.
    epoch : int
    owner : Owner or None
        Who began the epoch; of epoch 0, the process that was started to begin the first one, if that is known.
    end : End or None
    beat : Beat or None
        Last beat of the last epoch.
    """

    state: str
    epoch: int
    owner: Owner | None
    end: End | None
    beat: Beat | None


class Observation:
    """Reads the condition of a run repeatedly.

    Parameters
    ----------
    read : callable
        Reads the records of the run, as `epochs.records_of`.
    patience_s : float, default `epochs.LEASE_S`
        Seconds without a beat after which the run counts as lost.
    """

    def __init__(self, read: Callable[[], Records], patience_s: float | None = None) -> None:
        self._read = read
        self.patience_s: float = epochs.LEASE_S if patience_s is None else patience_s
        self._seen: tuple[int, int] | None = None
        self._since = time.monotonic()
        self._has_moved = False

    def look(self) -> Condition:
        """Read the records."""
        found = self._read()
        epoch, owner, end, beat = found.epoch, found.owner, found.end, found.beat
        if epoch == 0:
            return Condition(self._start(owner) if end is None else end.state, 0, owner, end, None)
        if beat is not None and beat.epoch != epoch:
            beat = None
        if end is not None and not end.restarted:
            return Condition(end.state, epoch, owner, end, beat)
        state = self._liveness(epoch, owner, beat)
        if state == "lost" and end is not None and found.is_cancelled:
            # The driver was ended after it had recorded the restart, and before it began another epoch.
            state, code = "cancelled", CancelledError.exit_code
            text = "the driver was ended while it restarted"
            end = replace(end, state=state, exit_code=code, error="", text=text, restarted=False)
        return Condition(state, epoch, owner, end, beat)

    def _start(self, owner: Owner | None) -> str:
        """Return the state of a run of which no epoch has begun."""
        if owner is None or (owner.is_here and not owner.is_gone):
            return "queued"
        # The process that started the driver records that it ended, unless both are gone.
        limit = epochs.RECORD_S if owner.is_here else epochs.START_S + self.patience_s
        if self._seen != (0, owner.pid):
            self._seen, self._since = (0, owner.pid), time.monotonic()
        return "lost" if time.monotonic() - self._since >= limit else "unknown"

    def _liveness(self, epoch: int, owner: Owner | None, beat: Beat | None) -> str:
        if owner is not None and owner.is_gone:
            return "lost"
        seen = (epoch, -1 if beat is None else beat.count)
        if seen != self._seen:
            self._has_moved = self._seen is not None
            self._seen, self._since = seen, time.monotonic()
        age = None if beat is None else beat.age_s
        is_fresh = self._has_moved or age is not None
        if age is None:
            age = time.monotonic() - self._since
        if is_fresh and age < 2 * epochs.BEAT_S:
            return "running"
        return "lost" if age >= self.patience_s else "unknown"

    def decided(self) -> Condition:
        """Return the condition as soon as it is known whether a driver is running."""
        while (found := self.look()).state == "unknown":
            time.sleep(min(epochs.LOOK_S, self.patience_s / 4))
        return found


def condition(run: str | os.PathLike[str], patience_s: float | None = None) -> Condition:
    """Return the condition of a run; waits for the next beat where the driver is on another host."""
    return Observation(partial(records_of, Path(run)), patience_s).decided()
