"""Jobs in the foreground: this process starts the driver and waits for it, as in a pod or a systemd unit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import dask

from distmom.engine.directory import epochs
from distmom.errors import UsageError
from distmom.jobs.places import ObjectPlace
from distmom.jobs.record import JobRecord, new_record, read_record, write_record
from distmom.jobs.remote import await_end, driver_options, started

#: added to the number of a signal that has ended the driver, as shells do
_SIGNALLED = 128
#: bytes of the output that are copied at once
_COPY_BYTES = 1 << 20


def carry_out(
    arguments: Sequence[str],
    *,
    scheduler: str,
    directory: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    url: str | None = None,
    share: float = 1.0,
    priority: int = 0,
    restarts: int = 0,
    ca_file: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> int:
    """Carry out a command of distmom as a job on this host, and wait for its end.

    The driver is a child of this process, and its output is copied to the standard output. If the directory
    already holds this job, the job continues, except that a finished job is left as it is, and a cancelled one
    ends again.

    Parameters
    ----------
    arguments, scheduler, directory, folder, url, share, priority, restarts, ca_file, cert, key
        As for `distmom.jobs.submit`.

    Returns
    -------
    int
        Exit code of the command; 128 and the number of the signal if one has ended the driver.

    Raises
    ------
    UsageError
        If the command cannot be a job, or the directory holds something else.
    """
    tls = {"ca_file": ca_file, "cert": cert, "key": key}
    record = new_record(arguments, scheduler, share, priority, restarts, "here", tls, directory, folder, url)
    run = Path(record.run)
    _write_or_continue(run, record)
    # The driver has another configuration of Dask, made from its environment.
    allowed = {"DASK_DISTMOM__INSECURE": "True"} if dask.config.get("distmom.insecure", False) else {}
    with open(run / "out.txt", "ab+") as printed:
        driver = started(run, driver_options(scheduler, tls), **allowed)
        try:
            while driver.poll() is None:
                try:
                    _copy(printed)
                    time.sleep(epochs.LOOK_S / 4)
                except KeyboardInterrupt:
                    # From SIGINT or SIGTERM. The driver has a session of its own, so it has received neither.
                    driver.terminate()
            _copy(printed)
        finally:
            if driver.poll() is None:
                driver.terminate()
            code = await_end(driver, run)
    if code >= 0:
        return code
    recorded = _recorded_code(run, driver.pid)
    return _SIGNALLED - code if recorded is None else recorded


def _recorded_code(run: Path, pid: int) -> int | None:
    """Return the exit code that is recorded for a driver that a signal has ended; None if there is none."""
    epoch = epochs.latest_epoch(run)
    owner, end = epochs.owner_of(run, epoch), epochs.end_of(run, epoch)
    if owner is None or owner.pid != pid or end is None or end.restarted:
        return None
    return end.shell_code


def _write_or_continue(run: Path, new: JobRecord) -> None:
    """Write the record of a new job, or check that the directory holds the same job; a UsageError otherwise."""
    if is_new := not (run / "job.json").exists():
        write_record(run, new)
    record = read_record(run)
    if (record.arguments, record.folder) != (new.arguments, new.folder):
        raise UsageError(f"{run}: is the directory of another job: {' '.join(record.arguments)}")
    if record.url:
        try:
            ObjectPlace(record.url).create(record.dump())
        except UsageError:
            if is_new:
                (run / "job.json").unlink()
            raise


def _copy(printed: BinaryIO) -> None:
    """Copy the output of the driver since the last call to the standard output."""
    while content := printed.read(_COPY_BYTES):
        sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
