"""Commands that submit work to a cluster and manage it: submit, jobs."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distmom.cli.exits import exit_code
from distmom.cli.options import Address, json_option, tls_options
from distmom.cli.run import interrupt
from distmom.cli.shared import show
from distmom.cli.terminal import plain, say
from distmom.errors import ClusterError, TakenOverError, UsageError

if TYPE_CHECKING:
    from distmom.jobs import Job

#: commands that can be submitted, as `distmom.jobs.record.COMMANDS`, whose import takes long
_COMMANDS = ("fit", "update", "moments", "ingest", "predict", "transform", "evaluate")
#: argument with the place of the model, or of the moments, that a command writes
_WRITTEN = {"fit": "model", "update": "dst", "moments": "dst"}
#: arguments of commands with the places that they read, apart from those that they write
_READ = ("corpus", "model", "src")
#: seconds before the first restart of a command; multiplied by the number of the restart, up to the second
#: value
RESTART_PAUSE_S, LONGEST_PAUSE_S = 10.0, 60.0
#: seconds without a beat after which the commands here report a job as lost
PATIENCE_S = 25.0


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", type=click.Choice(_COMMANDS))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--scheduler", type=Address(), required=True, help="Address of a running Dask scheduler.")
@click.option(
    "--run",
    "directory",
    type=click.Path(),
    default=None,
    help="Directory of the job. [default: one below $DISTMOM_JOBS, or distmom-jobs]",
)
@click.option(
    "--job",
    "url",
    metavar="URL",
    default=None,
    help="URL (s3://BUCKET/PREFIX) where the records of the job are published. [default: below $DISTMOM_JOBS if that is a URL]",
)
@click.option(
    "--folder",
    type=click.Path(),
    default=None,
    help="Directory on the cluster in which the command runs. [default: the current one]",
)
@click.option(
    "--share",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the cluster relative to other jobs.",
)
@click.option(
    "--priority", type=int, default=0, show_default=True, help="Jobs with a lower priority wait for this one."
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of restarts after a failure of the cluster (exit code 5).",
)
@click.option(
    "--driver",
    type=click.Choice(["scheduler", "worker", "slurm", "here"]),
    default="scheduler",
    show_default=True,
    help="Where the process of the command runs; with 'here', submit waits for it, and exits with its exit code.",
)
@tls_options(expose=True)
@json_option
def submit(
    command: str, arguments: tuple[str, ...], scheduler: str, directory: str | None, url: str | None,
    folder: str | None, share: float, priority: int, restarts: int, driver: str, ca_file: str | None,
    cert: str | None, key: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a command on a Dask cluster in the background.

    The command runs in its own process on the scheduler's host, or elsewhere with --driver, in the directory in
    which it was submitted. Its paths and the directory of the job must be visible there and to all workers.
    With --driver here and --run, the same command continues the job, so that a pod or a systemd unit may be
    restarted.

    \b
    Examples: distmom submit fit corpus model -k 100 --scheduler tcp://host:8786
              distmom submit predict model new.tsv out --scheduler tcp://host:8786 --share 0.5
              distmom jobs logs ID --follow
    """
    from distmom.corpus.files.storage import is_url
    from distmom.jobs import submit as submit_job
    from distmom.jobs.foreground import carry_out
    from distmom.spectral.saved.artifact import check_target

    parent = click.get_current_context().parent
    given = [*arguments, "--scheduler", scheduler]
    with _root().commands[command].make_context(command, given, parent=parent) as parsed:
        if parsed.params.get("workers") is not None:
            raise UsageError("--workers: expected none, as the job runs on the workers of the cluster")
    # A driver on this host reports a missing path itself. With another folder, paths may exist on the cluster
    # alone.
    if driver != "here" and folder is None:
        written = _WRITTEN.get(command, "")
        for read in _given_paths(parsed.params, [name for name in _READ if name != written]):
            if not is_url(read) and not os.path.lexists(read):
                raise UsageError(
                    f"{read}: there is no such file or directory; if only the cluster sees it, give the directory "
                    "on the cluster with --folder"
                )
        if written and not is_url(parsed.params[written]):
            check_target(parsed.params[written], parsed.params["overwrite"])
    options: dict[str, Any] = {
        "scheduler": scheduler, "directory": directory, "url": url, "folder": folder, "share": share,
        "priority": priority, "restarts": restarts, "ca_file": ca_file, "cert": cert, "key": key,
    }  # fmt: skip
    if driver == "here":
        sys.exit(carry_out([command, *arguments], **options))
    job = submit_job([command, *arguments], driver=driver, **options)
    show(_named(job), as_json)


def _given_paths(given: dict[str, Any], names: list[str]) -> list[str]:
    """Return the paths among the arguments of a command, of which one may have several."""
    values = [given[name] for name in names if given.get(name) is not None]
    return [path for value in values for path in (value if isinstance(value, tuple) else [value])]


def _named(job: Job) -> dict[str, str]:
    where = {"url": job.record.url} if job.record.url else {}
    return {"id": job.id, "directory": str(job.directory), **where}


@click.group()
def jobs() -> None:
    """List, follow, cancel and resume jobs that were submitted.

    JOB is the directory of a job, the URL where its records are published, or its id in $DISTMOM_JOBS or distmom-jobs.

    \b
    Example: distmom jobs list
    """


@jobs.command("list")
@click.argument("directory", type=click.Path(), default=None, required=False)
@click.option(
    "--scheduler", type=Address(), default=None, help="Also list jobs that this scheduler knows of."
)
@tls_options()
@json_option
def list_command(directory: str | None, scheduler: str | None, as_json: bool) -> None:
    """List the jobs in a directory or below a URL, by default $DISTMOM_JOBS or distmom-jobs.

    \b
    Example: distmom jobs list --scheduler tcp://host:8786
    """
    from distmom.jobs import list_jobs
    from distmom.jobs.submission import statuses

    found = statuses(list_jobs(directory, scheduler), PATIENCE_S)
    if as_json:
        click.echo(json.dumps(found))
        return
    lines = [
        [each["id"], each["state"], each["created"], _progress(each), " ".join(each["command"])]
        for each in found
    ]
    lines.insert(0, ["id", "state", "created", "progress", "command"])
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line[:4], widths, strict=True)]
        say("  ".join([*cells, line[4]]))


def _progress(status: dict[str, Any]) -> str:
    if "pass" in status and status["state"] == "running":
        return f"{status['pass']} {status['n_done']}/{status['n_tasks']}"
    return f"exit code {status['exit_code']}" if "exit_code" in status else ""


@jobs.command()
@click.argument("job")
@json_option
def status(job: str, as_json: bool) -> None:
    """Report the state of a job: queued, running, lost, done, failed or cancelled.

    \b
    Example: distmom jobs status fit-20260107-101500-3fa2b1
    """
    from distmom.jobs import open_job

    found = open_job(job).status(PATIENCE_S)
    show(found if as_json else {**found, "command": " ".join(found["command"])}, as_json)


@jobs.command()
@click.argument("job")
@click.option("--follow", is_flag=True, help="Wait for further lines until the job has ended.")
def logs(job: str, follow: bool) -> None:
    """Print the output of a job.

    \b
    Example: distmom jobs logs fit-20260107-101500-3fa2b1 --follow
    """
    from distmom.jobs import open_job

    for line in open_job(job).logs(follow):
        click.echo(plain(line))


@jobs.command()
@click.argument("job")
@click.option("--now", is_flag=True, help="Restart the workers that run tasks of the job.")
@tls_options(expose=True)
@json_option
def cancel(
    job: str, now: bool, ca_file: str | None, cert: str | None, key: str | None, as_json: bool
) -> None:
    """End a job; its committed passes are kept.

    Nothing of the job remains queued. Tasks that workers are running end by themselves, or with --now by the restart
    of these workers, which ends tasks of other jobs there too.

    \b
    Example: distmom jobs cancel fit-20260107-101500-3fa2b1
    """
    from distmom.jobs import open_job

    found = open_job(job).cancel(now, ca_file=ca_file, cert=cert, key=key)
    show(found if as_json else {**found, "command": " ".join(found["command"])}, as_json)


@jobs.command()
@click.argument("job")
@click.option(
    "--timeout", type=click.FloatRange(min=0.0), default=None, help="Seconds to wait. [default: no limit]"
)
def wait(job: str, timeout: float | None) -> None:
    """Wait until a job has ended, and exit with its exit code, or with 5 if it was lost.

    \b
    Example: distmom jobs wait fit-20260107-101500-3fa2b1 && distmom report model report.html
    """
    from distmom.jobs import open_job

    try:
        code = open_job(job).wait(timeout)
    except TimeoutError as error:
        raise ClusterError(str(error)) from error
    sys.exit(code)


@jobs.command("resume")
@click.argument("job")
@click.option(
    "--scheduler", type=Address(), default=None, help="Address of a scheduler. [default: that of the job]"
)
@tls_options(expose=True)
@json_option
def resume_command(
    job: str, scheduler: str | None, ca_file: str | None, cert: str | None, key: str | None, as_json: bool
) -> None:
    """Continue a job that was lost, has failed or was cancelled, after its last finished groups.

    \b
    Example: distmom jobs resume fit-20260107-101500-3fa2b1 --scheduler tcp://other:8786
    """
    from distmom.jobs import open_job

    resumed = open_job(job).resume(scheduler, ca_file=ca_file, cert=cert, key=key)
    show(_named(resumed), as_json)
    if resumed.record.driver == "here" and not as_json:
        say("the job continues when the command that runs it is started again")


@jobs.command("run")
@click.argument("directory", type=click.Path())
@click.option("--scheduler", type=Address(), default=None, help="Address of a scheduler.")
@click.option("--restarted", type=int, default=0, hidden=True)
@click.option("--published", is_flag=True, hidden=True)
@tls_options(expose=True)
def run_command(
    directory: str, scheduler: str | None, restarted: int, published: bool, ca_file: str | None,
    cert: str | None, key: str | None,
) -> None:  # fmt: skip
    """Run a job in this process; 'distmom submit' starts this command on the scheduler's host.

    Nothing happens if the job is done, so a batch system may run the same command again.

    \b
    Example: distmom jobs run distmom-jobs/fit-20260107-101500-3fa2b1
    """
    from distmom.engine.directory import epochs
    from distmom.engine.directory.lease import leased, shared
    from distmom.engine.executors.connections import certified, insecure_allowed, sharing
    from distmom.jobs.publisher import publishing
    from distmom.jobs.record import read_record
    from distmom.jobs.remote import driver_options

    run = Path(directory).absolute()
    record = read_record(run)
    # The command runs in another directory.
    given = {
        name: None if path is None else os.path.abspath(path)
        for name, path in (("ca_file", ca_file), ("cert", cert), ("key", key))
    }
    line = ["jobs", "run", str(run), *driver_options(scheduler, given), "--restarted"]
    if record.url and not published:
        # Messages about errors are published, too.
        with publishing(run, record.url, interrupt):
            code = exit_code(partial(_run_line, [*line, str(restarted), "--published"]))
        sys.exit(code)
    end = epochs.end_of(run, epochs.latest_epoch(run))
    if end is not None and end.state == "done":
        say(f"{run}: the job is done", err=True)
        return
    try:
        os.chdir(record.folder)
    except OSError as error:
        raise UsageError(f"{record.folder}: {error.strerror}: the job was submitted there") from error
    tls = {name: path or record.tls.get(name) for name, path in given.items()}
    with (
        leased(run, interrupt=interrupt, heeds_request=True) as lease,
        shared(lease),
        sharing(record.id, record.share, record.priority),
        certified(**tls),
        # The address was checked when the job was submitted, except for a driver on this host, which checks it
        # now.
        nullcontext() if record.driver == "here" else insecure_allowed(),
    ):
        lease.check()
        try:
            _run_line(record.command_line(run, scheduler))
        except click.Abort as error:
            # Click turns an interrupt into this error.
            raise (error.__cause__ or KeyboardInterrupt()) from None
        except TakenOverError:
            raise
        except ClusterError as error:
            if restarted >= record.restarts:
                raise
            pause = min(RESTART_PAUSE_S * (restarted + 1), LONGEST_PAUSE_S)
            say(f"error: {error}", err=True)
            say(f"restart {restarted + 1} of {record.restarts} in {pause:.0f} s", err=True)
            time.sleep(pause)
            lease.check()
            lease.restarted(error)
            again = [*line, str(restarted + 1)]
            os.execv(sys.executable, [sys.executable, "-m", "distmom.cli.main", *again])


def _root() -> click.Group:
    """Return the command line that the current command belongs to."""
    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group)
    return root


def _run_line(arguments: list[str]) -> None:
    """Run another command in this process."""
    _root().main(args=arguments, prog_name="distmom", standalone_mode=False)
