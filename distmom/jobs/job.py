"""A job on a Dask cluster: its state, its output, and its end or resumption, from any host."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed import Client, fire_and_forget

from distmom.corpus.files.storage import is_url
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import End
from distmom.engine.directory.observation import ENDED, Condition, Observation
from distmom.engine.executors.connections import certified, connected
from distmom.errors import ClusterError, UsageError
from distmom.jobs.places import JobPlace, open_place
from distmom.jobs.record import JobRecord
from distmom.jobs.remote import (
    check_versions,
    check_workers,
    driver_options,
    holders,
    on_scheduler,
    remove_task,
    restart,
    send_signal,
    signal_anywhere,
    start_driver,
    submit_to_slurm,
    supervise_driver,
)

#: seconds that a driver has to end by itself when its job is cancelled
GRACE_S = 10.0
#: exit code of a job that was lost
LOST = ClusterError.exit_code


class Job:
    """A command that runs, or has run, on a cluster in the background; made by `submit` or `open_job`.

    Attributes
    ----------
    place : JobPlace
        Its directory, which must be visible on the host that manages the job, or the URL of its published
        records.
    directory : Path
        Its directory; if its records are published, the directory on the host of the driver.
    record : JobRecord
        The submitted command, with its settings.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place: JobPlace = open_place(place)
        self.record: JobRecord = self.place.record()
        self.directory: Path = Path(self.record.run if is_url(place) else place).absolute()
        # The address in a directory was accepted when the job was submitted. One at a URL may have been changed
        # since then, and a scheduler can run code in the processes that connect to it.
        self._is_accepted: bool | None = None if self.record.url else True

    @property
    def id(self) -> str:
        """Unique name of the job."""
        return self.record.id

    def __repr__(self) -> str:
        return f"Job({self.place.name!r})"

    def status(self, patience_s: float | None = None) -> dict[str, Any]:
        """Return the state of the job, and everything known about it.

        Parameters
        ----------
        patience_s : float, optional
            Seconds without a beat after which a job whose driver is on another host counts as lost; 60 by default.

        Returns
        -------
        dict
            ``state`` is ``queued``, ``running``, ``lost`` (the driver is gone, or shows no sign of life),
            ``done``, ``failed`` or ``cancelled``. Also ``id``, ``directory``, ``command``, ``scheduler``,
            ``created`` and ``epoch``; once it has begun ``host``, ``pid`` and ``since``, and unless it is done
            ``pass``, ``n_done`` and ``n_tasks``; afterwards ``ended``, ``exit_code``, ``error`` and ``resume``.
        """
        return self.described(Observation(self.place.records, patience_s).decided())

    def described(self, found: Condition) -> dict[str, Any]:
        """Return a condition of the job as `status` does."""
        status: dict[str, Any] = {
            "id": self.id,
            "state": found.state,
            "directory": str(self.directory),
            **({"url": self.record.url} if self.record.url else {}),
            "command": self.record.arguments,
            "scheduler": self.record.scheduler,
            "created": self.record.created,
            "epoch": found.epoch,
        }
        if found.owner is not None:
            status |= {"host": found.owner.host, "pid": found.owner.pid, "since": found.owner.since}
        if found.state != "done" and found.beat is not None and found.beat.name:
            beat = found.beat
            status |= {"pass": beat.name, "n_done": beat.n_done, "n_tasks": beat.n_tasks}
        if found.state in ENDED and found.end is not None:
            status |= {"ended": found.end.time, "exit_code": found.end.exit_code}
            if found.end.text:
                status["error"] = ": ".join(filter(None, (found.end.error, found.end.text)))
        if found.state in ("lost", "failed", "cancelled"):
            status["resume"] = f"distmom jobs resume {shlex.quote(str(self.place.name))}"
        return status

    def logs(self, follow: bool = False) -> Iterator[str]:
        """Return the lines that the job has printed.

        Parameters
        ----------
        follow : bool, default False
            Wait for further lines until the job has ended.

        Returns
        -------
        iterator of str
            Lines without their ends.
        """
        observation = Observation(self.place.records)
        rest, start = b"", 0
        while True:
            # Observed before the output is read, so that all output of an ended job is read.
            is_over = not follow or observation.look().state in (*ENDED, "lost")
            while content := self.place.output(start):
                start += len(content)
                *lines, rest = (rest + content).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
            if is_over:
                break
            time.sleep(self.place.look_s)
        if rest:
            yield rest.decode(errors="replace")

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the job has ended or is lost, and return its exit code.

        Parameters
        ----------
        timeout : float, optional
            Seconds; no limit by default.

        Returns
        -------
        int
            Exit code of the command; 128 plus the number of the signal if a signal ended the driver before the
            command began, and 5 if the job was lost.

        Raises
        ------
        TimeoutError
            If the job has not ended in time.
        """
        observation, started = Observation(self.place.records), time.monotonic()
        while True:
            observed = observation.look()
            if observed.state in ENDED and observed.end is not None:
                return observed.end.shell_code
            if observed.state == "lost":
                return LOST
            left = self.place.look_s
            if timeout is not None:
                left = min(left, timeout - (time.monotonic() - started))
                if left <= 0:
                    raise TimeoutError(f"{self.id}: the job has not ended within {timeout:g} s")
            time.sleep(left)

    def cancel(
        self,
        now: bool = False,
        *,
        ca_file: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """End the job; its committed passes are kept, and it can be resumed.

        Nothing of the job remains queued. Tasks that are running on workers end by themselves.

        Parameters
        ----------
        now : bool, default False
            Restart the workers that run tasks of the job, with whatever else they run. They need nannies.
        ca_file, cert, key : str, optional
            PEM files as for `submit`; by default those that were given to it.

        Returns
        -------
        dict
            As for `status`.

        Raises
        ------
        ClusterError
            If the driver could not be reached: it ends when it reads the request, unless it is lost. Also if the
            job has ended, but workers that run its tasks could not be restarted.
        """
        problem, tls = "", self._certificates(ca_file, cert, key)
        observed = Observation(self.place.records).look()
        if observed.state in ENDED:
            return self.described(observed)
        self.place.request_cancel()
        if observed.epoch == 0:
            self.place.write_end(0, End("cancelled", 130, text="cancelled before it had begun"))
            self._withdraw(tls)
        elif observed.owner is not None and not observed.owner.is_gone:
            problem = self._stop(observed, now, tls)
        observed = Observation(self.place.records).look()
        if observed.state == "lost":
            # Nobody else will record it.
            self.place.write_end(observed.epoch, End("cancelled", 130, text="the driver was lost"))
        if problem:
            raise ClusterError(f"{self.id}: the job was cancelled, but {problem}")
        return self.described(Observation(self.place.records).look())

    def _withdraw(self, tls: dict[str, str | None]) -> None:
        """Remove a driver that waits for a worker from the scheduler, as far as that can be reached."""
        if self.record.driver != "worker":
            return
        # A driver that begins all the same finds that the job was cancelled.
        with (
            suppress(ClusterError, UsageError),
            certified(**tls),
            connected(self.record.scheduler, insecure=self._is_accepted) as client,
        ):
            remove_task(client, self._driver_key)

    @property
    def _driver_key(self) -> str:
        """Key of the task that starts the next driver beside a worker."""
        return f"distmom-driver-{self.id}-{self.place.records().epoch}"

    def _stop(self, observed: Condition, now: bool, tls: dict[str, str | None]) -> str:
        """End the driver of a job by signals, as far as it can be reached; return why workers stay as they are."""
        problem = ""
        assert observed.owner is not None
        address, accepted = self.record.scheduler, self._is_accepted
        try:
            with certified(**tls), connected(address, insecure=accepted) as client:
                busy: list[str] = []
                try:
                    if now:
                        busy = on_scheduler(client, holders, name=self.id)
                except ClusterError as error:
                    problem = f"no worker was restarted: {error}"
                for number in (signal.SIGTERM, signal.SIGKILL):
                    reached = signal_anywhere(client, str(self.directory), observed.owner, number)
                    if self._has_ended(observed.epoch) or not reached:
                        break
                if kept := restart(client, busy):
                    problem = (
                        f"workers that have no nanny, or do not answer, were not restarted: {', '.join(kept)}"
                    )
        except (ClusterError, UsageError):
            # The scheduler may be gone or refused, and the driver a process of this host.
            for number in (signal.SIGTERM, signal.SIGKILL):
                reached = send_signal(str(self.directory), observed.owner, number)
                if self._has_ended(observed.epoch) or not reached:
                    break
        if not reached and not self._has_ended(observed.epoch):
            raise ClusterError(
                f"{self.id}: process {observed.owner.pid} on host {observed.owner.host} could not be reached; "
                "it ends when it reads the request, unless it is lost"
            )
        return problem

    def _has_ended(self, epoch: int) -> bool:
        """Wait until an epoch has ended, or its process is gone; return whether it has within `GRACE_S`."""
        ends = time.monotonic() + GRACE_S
        while time.monotonic() < ends:
            found = Observation(self.place.records).look()
            if found.epoch != epoch or found.state in (*ENDED, "lost"):
                return True
            time.sleep(self.place.look_s / 5)
        return False

    def resume(
        self,
        scheduler: str | None = None,
        *,
        ca_file: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> Job:
        """Resume a job that was lost, has failed or was cancelled, after its last finished groups.

        A request to end the job is withdrawn. A job with the driver ``here`` continues when the command that
        carries it out is started again.

        Parameters
        ----------
        scheduler : str, optional
            Address of a scheduler; that of the job by default.
        ca_file, cert, key : str, optional
            PEM files as for `submit`, also for the driver unless the job is published; by default those that were
            given to `submit`.

        Returns
        -------
        Job
            This job.

        Raises
        ------
        UsageError
            If the job is running, or the scheduler is refused: one on another host without TLS that is given, or
            that the record at a URL names.
        ClusterError
            If no driver could be started, or the one that was started did not begin.
        """
        observed = Observation(self.place.records).decided()
        if observed.state == "done":
            return self
        if observed.state == "running":
            raise UsageError(f"{self.id}: the job is running")
        if self.record.driver == "here":
            self.place.forget_request()
            return self
        before = self.place.records()
        where, accepted = (
            (self.record.scheduler, self._is_accepted) if scheduler is None else (scheduler, None)
        )
        # A host that manages a job by its URL has other files.
        given = {} if self.record.url else {"ca_file": ca_file, "cert": cert, "key": key}
        with (
            certified(**self._certificates(ca_file, cert, key)),
            connected(where, insecure=accepted) as client,
        ):
            check_versions(client)
            self.place.forget_request()
            self.start(client, driver_options(scheduler, given))
        ends = time.monotonic() + epochs.START_S + epochs.LEASE_S
        while (records := self.place.records()).epoch == before.epoch and records.end == before.end:
            if time.monotonic() > ends:
                logs = f"distmom jobs logs {shlex.quote(str(self.place.name))}"
                raise ClusterError(f"{self.id}: no driver has begun: see {logs}")
            time.sleep(self.place.look_s)
        return self

    def start(self, client: Client, options: Sequence[str] = ()) -> None:
        """Start a driver where the job specifies, with options of ``distmom jobs run``."""
        # The directory of a published job is created where the driver runs.
        record = self.record.dump().decode() if self.record.url else ""
        arguments = {"run": str(self.directory), "options": list(options), "record": record}
        if self.record.driver == "slurm":
            submit_to_slurm(self.directory, self.id, options, record)
        elif self.record.driver == "worker":
            check_workers(client, str(self.directory), record)
            fire_and_forget(client.submit(supervise_driver, **arguments, key=self._driver_key, pure=False))
        else:
            on_scheduler(client, start_driver, **arguments)

    def _certificates(self, ca_file: str | None, cert: str | None, key: str | None) -> dict[str, str | None]:
        """Return certificates that are given, or else those of the record, as `certified` takes them."""
        given = {"ca_file": ca_file, "cert": cert, "key": key}
        return {name: self.record.tls.get(name) if path is None else path for name, path in given.items()}
