"""What jobs keep on disk, and what is refused; nothing here needs a cluster."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers import planted_corpus

from distmom import jobs
from distmom.cli import jobs as cli_jobs
from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.corpus.files.lock import birth
from distmom.engine.directory import epochs
from distmom.engine.executors.connections import insecure_allowed
from distmom.errors import ClusterError, UsageError
from distmom.jobs import foreground, open_job, record, remote
from distmom.jobs.places import DirectoryPlace
from distmom.jobs.record import new_record, parse_record, write_record
from distmom.jobs.submission import statuses
from distmom.models import SingleTopic


def test_a_job_ends_when_it_is_cancelled_before_it_has_begun(tmp_path):
    place = tmp_path / "a job"
    write_record(place, new_record(["fit", "c", "m"], "tcp://127.0.0.1:1"))
    found = open_job(place)
    assert found.status()["state"] == "queued"
    assert found.cancel()["state"] == "cancelled"
    assert found.status()["error"] == "cancelled before it had begun"
    assert found.status()["resume"] == f"distmom jobs resume '{place}'"
    assert main(["jobs", "run", str(found.directory)]) == 130
    assert found.wait(1) == 130


def test_a_driver_that_a_signal_ends_before_it_begins_gives_the_exit_code_of_shells(tmp_path):
    write_record(tmp_path / "job", new_record(["fit", "c", "m"], "tcp://127.0.0.1:1"))
    (tmp_path / "job" / "epochs").mkdir()
    process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert remote.await_end(process, tmp_path / "job") == -9
    assert open_job(tmp_path / "job").wait(1) == 137
    assert main(["jobs", "wait", str(tmp_path / "job")]) == 137


def test_a_driver_whose_directory_was_removed_is_a_warning(tmp_path, monkeypatch, caplog):
    place = tmp_path / "job"
    code = f"import shutil; shutil.rmtree({str(place)!r})"
    monkeypatch.setattr(remote, "driver_line", lambda place, options: [sys.executable, "-c", code])
    place.mkdir()
    (place / "job.json").touch()
    remote.start_driver(None, str(place))
    for thread in threading.enumerate():
        if thread.name == "distmom-driver":
            thread.join(30.0)
    assert f"{place}: the end of the driver could not be recorded" in caplog.text


def test_records_of_version_1_are_read(tmp_path):
    new = new_record(["fit", "c", "m"], "tcp://127.0.0.1:1", share=0.5)
    written = {name: value for name, value in asdict(new).items() if name not in ("run", "url")}
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_bytes(record.JOB.dump(written, version=1))
    assert open_job(tmp_path / "job").record == replace(new, run=str(tmp_path / "job"))


def test_a_driver_may_end_at_the_request_before_it_is_signalled(tmp_path, monkeypatch):
    driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = replace(epochs.Owner.this(), pid=driver.pid, born=birth(driver.pid))
    assert not owner.is_gone

    def requested(run):
        driver.kill()
        driver.wait()

    monkeypatch.setattr(epochs, "request_cancel", requested)
    assert remote.send_signal(str(tmp_path), owner, signal.SIGTERM)
    assert owner.is_gone
    driver.stdin.close()


def test_many_lines_are_followed(tmp_path):
    write_record(tmp_path / "job", new_record(["fit", "c", "m"], "tcp://127.0.0.1:1"))
    found = open_job(tmp_path / "job")

    def write():
        with (found.directory / "out.txt").open("w") as out:
            for number in range(100_000):
                out.write(f"line {number}\n")
            out.write("without an end")
        (found.directory / "epochs").mkdir()
        epochs.write_end(found.directory, 0, epochs.End("done", 0))

    thread = threading.Thread(target=write)
    thread.start()
    lines = list(found.logs(follow=True))
    thread.join()
    assert lines == [*(f"line {number}" for number in range(100_000)), "without an end"]


def test_a_job_that_is_carried_out_here_is_continued_by_the_same_line(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    line = ["submit", "ingest", "none.tsv", "c", "--scheduler", "tcp://127.0.0.1:1", "--driver", "here"]
    line += ["--run", "job"]
    assert main(line) == 2
    found = open_job(tmp_path / "job")
    first = (tmp_path / "job" / "out.txt").read_bytes()
    assert first.startswith(b"error: none.tsv: there is no such file")
    assert capfdbinary.readouterr().out == first
    assert (found.status()["state"], found.status()["exit_code"], found.wait(1)) == ("failed", 2, 2)
    assert main(line) == 2
    assert capfdbinary.readouterr().out == first
    assert found.status()["epoch"] == 2
    assert main([*line, "--min-df", "2"]) == 2
    assert b"is the directory of another job: ingest none.tsv c" in capfdbinary.readouterr().err
    epochs.request_cancel(tmp_path / "job")
    assert main(line) == 130
    assert found.status()["state"] == "cancelled"
    assert main(["jobs", "resume", "job"]) == 0
    assert main(line) == 2
    assert found.status()["epoch"] == 4


def test_a_driver_that_was_killed_gives_the_exit_code_of_shells(tmp_path, monkeypatch):
    def started(place, scheduler, **variables):
        assert variables == {"DASK_DISTMOM__INSECURE": "True"}
        (place / "epochs").mkdir()
        return subprocess.Popen(["sh", "-c", "kill -9 $$"])

    monkeypatch.setattr(foreground, "started", started)
    with insecure_allowed():
        code = foreground.carry_out(
            ["fit", "c", "m"], scheduler="tcp://10.0.0.1:1", directory=tmp_path / "job"
        )
    assert code == 137
    status = open_job(tmp_path / "job").status()
    assert (status["state"], status["exit_code"]) == ("failed", -9)


def test_a_scheduler_without_tls_is_refused_where_nobody_has_accepted_it(tmp_path, capfd):
    block = planted_corpus(40, d=30, n_labels=4, k=2)[2].read_shard(0)
    from_arrays(tmp_path / "corpus", block.words, block.labels)
    line = ["submit", "fit", str(tmp_path / "corpus"), str(tmp_path / "m"), "-k", "2", "--driver", "here"]
    line += ["--run", str(tmp_path / "job"), "--scheduler", "tcp://10.255.255.1:8786", "--restarts", "1"]
    assert main(line) == 2
    refused = "error: tcp://10.255.255.1:8786: connections to other hosts without TLS are refused"
    assert refused in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "command: expected one of fit, .* got none"),
        (["serve", "m"], "got 'serve'"),
        ("fit c m", "arguments: expected a list of words, got the text 'fit c m'"),
        (["fit", "c", "m", "-k", 3], r"arguments: expected texts, got 3 \(int\)"),
        (["fit", "c", "m", "--run=x"], "--run: expected none, as the job"),
        (["fit", "c", "m", "--workers", "2"], "--workers: expected none, as the job"),
        (["fit", "s3://me:secret@bucket/c", "m"], "must not contain keys"),
        (["fit", "s3://bucket/c?key=secret", "m"], "must not contain keys"),
    ],
)
def test_what_cannot_be_submitted_is_refused(tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        new_record(arguments, "tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": "1"}, "share: expected more than 0 and at most 1, got '1'"),
        ({"share": np.nan}, "share: expected more than 0 and at most 1, got nan"),
        ({"priority": 1.5}, "priority: expected a whole number, got 1.5"),
        ({"restarts": "3"}, "restarts: expected a whole number, got '3'"),
        ({"restarts": -1}, "restarts: expected at least 0, got -1"),
    ],
)
def test_numbers_of_another_kind_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        new_record(["fit", "c", "m"], "tcp://127.0.0.1:1", **options)


def test_numbers_of_a_job_may_be_those_of_numpy():
    options = {"share": np.float32(0.5), "priority": np.int64(2), "restarts": np.int32(1)}
    record = new_record(["fit", "c", "m"], "tcp://127.0.0.1:1", **options)
    read = parse_record(record.dump(), "job.json")
    assert (read.share, read.priority, read.restarts) == (0.5, 2, 1)


def test_paths_are_arguments_and_a_scheduler_has_an_address():
    assert new_record(["fit", Path("c"), Path("m")], "tcp://127.0.0.1:1").arguments == ["fit", "c", "m"]
    with pytest.raises(UsageError, match="scheduler: expected the address of a Dask scheduler, got None"):
        new_record(["fit", "c", "m"], None)


def test_commands_that_can_be_submitted_are_listed(capsys):
    assert main(["submit", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "Choose from:\n  fit,\n  update," in capsys.readouterr().err


def test_wrong_options_are_refused_where_they_are_given(tmp_path, capsys):
    submit = ["submit", "fit", "c", "m", "--scheduler", "tcp://127.0.0.1:1"]
    assert main([*submit, "--no-such-option", "1"]) == 2
    assert "No such option" in capsys.readouterr().err
    assert main([*submit, "-k", "many"]) == 2
    assert main(["jobs", "status", str(tmp_path)]) == 2
    assert "there is no such job" in capsys.readouterr().err


@pytest.fixture
def submitted(monkeypatch):
    """The arguments of commands that were submitted, while no scheduler answers."""
    found = []

    def submit(arguments, **options):
        found.append(arguments)
        raise ClusterError("no scheduler answers")

    monkeypatch.setattr(jobs, "submit", submit)
    return found


@pytest.mark.parametrize(
    "command",
    [["fit", "none", "m"], ["update", "here", "none", "m"], ["update", "none", "here", "m"],
     ["moments", "none", "m"], ["ingest", "none", "c", "--format", "tsv"],
     ["ingest", "here", "none", "c", "--format", "tsv"], ["predict", "here", "none", "out"],
     ["transform", "none", "here", "out"], ["evaluate", "here", "none"]],
)  # fmt: skip
def test_a_source_that_is_not_there_is_refused_before_a_job_is_submitted(
    tmp_path, capsys, monkeypatch, submitted, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    line = ["submit", *command, "--scheduler", "tcp://127.0.0.1:1", "--quiet"]
    assert main(line) == 2
    assert "none: there is no such file or directory; if only the cluster sees it" in capsys.readouterr().err
    assert not submitted
    # The cluster may have it, as may a bucket.
    assert main([*line, "--folder", str(tmp_path / "cluster")]) == 5
    assert main([part if part != "none" else "s3://bucket/none" for part in line]) == 5
    assert len(submitted) == 2


@pytest.mark.parametrize("command", [["fit", "c"], ["update", "m", "c"], ["moments", "c"]])
def test_the_place_of_another_model_is_refused_before_a_job_is_submitted(
    tmp_path, capsys, monkeypatch, submitted, command
):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).poisson(0.3, (100, 20))
    SingleTopic(1, n_refine=0).fit(X).save("m")
    (tmp_path / "other").mkdir()
    (tmp_path / "c").mkdir()
    line = ["submit", *command, "--scheduler", "tcp://127.0.0.1:1", "--quiet"]
    for written, message in (
        (
            "m",
            "m: the model exists; choose another location or overwrite it (overwrite=True, or --overwrite)",
        ),
        ("other", "other: exists and is not a model"),
    ):
        assert main([*line, written]) == 2
        assert message in capsys.readouterr().err
    assert not submitted
    for more in (["m", "--overwrite"], ["m", "--folder", str(tmp_path / "other")], ["new"]):
        assert main([*line, *more]) == 5
    assert len(submitted) == 3


def test_a_job_without_a_run_is_described_and_checked(tmp_path, capsys):
    run = tmp_path / "job"
    write_record(run, new_record(["predict", "m", "c", "out"], "tcp://127.0.0.1:1"))
    capsys.readouterr()
    assert main(["info", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["state"], shown["command"]) == (
        "job",
        "queued",
        ["predict", "m", "c", "out"],
    )
    assert main(["verify", str(run)]) == 0
    content = (run / "job.json").read_bytes()
    (run / "job.json").write_bytes(content.replace(b"predict", b"predicT"))
    assert main(["verify", str(run)]) == 4
    assert main(["jobs", "status", str(run)]) == 4


def test_a_directory_belongs_to_one_job(tmp_path):
    record = new_record(["fit", "c", "m"], "tcp://127.0.0.1:1")
    write_record(tmp_path / "job", record)
    with pytest.raises(UsageError, match="exists and is not empty"):
        write_record(tmp_path / "job", record)


def test_a_scheduler_that_a_url_names_is_refused_without_tls(tmp_path, monkeypatch):
    """Whoever writes to the URL of a job may not choose whose code runs here."""
    new = new_record(
        ["fit", "c", "m"], "tcp://192.0.2.1:8786", directory=tmp_path / "job", url="s3://bucket/job"
    )
    write_record(tmp_path / "job", new)
    place, called = DirectoryPlace(tmp_path / "job"), []
    monkeypatch.setattr("distmom.jobs.job.GRACE_S", 0.1)
    monkeypatch.setattr("distmom.jobs.job.open_place", lambda found: place)
    monkeypatch.setattr(
        "distmom.engine.executors.connections.check_address", lambda *found: called.append(found)
    )
    owner = replace(epochs.Owner.this(), host="elsewhere")
    (tmp_path / "job" / "epochs").mkdir()
    epochs.put_once(epochs.file_of(tmp_path / "job", 1), epochs.EPOCH.dump(asdict(owner)))
    job = open_job("s3://bucket/job")
    with pytest.raises(ClusterError, match="could not be reached; it ends when it reads the request"):
        job.cancel()
    epochs.write_end(tmp_path / "job", 1, epochs.End("failed", 5))
    with pytest.raises(
        UsageError, match=r"192\.0\.2\.1:8786: connections to other hosts without TLS are refused"
    ):
        job.resume()
    assert called == []


def test_a_job_whose_directory_was_removed_is_not_waited_for(tmp_path):
    for name in ("kept", "removed"):
        given = new_record(["fit", "c", "m"], "tcp://127.0.0.1:1", directory=tmp_path / name)
        write_record(tmp_path / name, given)
    job, listed = open_job(tmp_path / "removed"), jobs.list_jobs(tmp_path)
    lines = job.logs(follow=True)
    shutil.rmtree(tmp_path / "removed")
    for look in (lambda: job.wait(5.0), job.status, job.cancel, lambda: next(lines)):
        with pytest.raises(UsageError, match="removed: is not the directory of a job"):
            look()
    assert not (tmp_path / "removed").exists()
    assert [each["directory"] for each in statuses(listed)] == [str(tmp_path / "kept")]


def test_a_driver_on_another_host_that_does_not_begin_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(epochs, "START_S", 0.5)
    write_record(tmp_path / "job", new_record(["fit", "c", "m"], "tcp://127.0.0.1:1"))
    owner = replace(epochs.Owner.this(), host="elsewhere", boot="other")
    (tmp_path / "job" / "epochs").mkdir()
    epochs.file_of(tmp_path / "job", 0).write_bytes(epochs.EPOCH.dump(asdict(owner)))
    found, started = open_job(tmp_path / "job"), time.monotonic()
    status = found.status(patience_s=0.5)
    assert time.monotonic() - started >= 1.0
    assert (status["state"], status["host"], status["epoch"]) == ("lost", "elsewhere", 0)
    assert found.cancel()["state"] == "cancelled"
    assert main(["jobs", "run", str(found.directory)]) == 130


def test_a_damaged_record_does_not_hide_the_other_jobs(tmp_path, caplog):
    for name in ("first", "second"):
        write_record(tmp_path / name, new_record(["fit", "c", "m"], "tcp://127.0.0.1:1"))
    content = (tmp_path / "first" / "job.json").read_bytes()
    (tmp_path / "first" / "job.json").write_bytes(content.replace(b"fit", b"fiT"))
    assert [job.directory for job in jobs.list_jobs(tmp_path)] == [tmp_path / "second"]
    assert f"a job is left out of the list: {tmp_path / 'first' / 'job.json'}: checksum" in caplog.text


def test_the_command_line_offers_the_commands_that_can_be_submitted():
    assert set(cli_jobs._COMMANDS) == set(record.COMMANDS)


def test_a_path_that_is_no_job_is_refused_where_jobs_are_published(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTMOM_JOBS", "s3://bucket/jobs")
    with pytest.raises(
        UsageError, match="there is no such job, neither as a directory nor in s3://bucket/jobs"
    ):
        open_job(tmp_path / "none")


@pytest.mark.parametrize("address", ["host", ""])
def test_an_address_without_a_port_is_refused(tmp_path, address):
    with pytest.raises(UsageError, match="scheduler: expected an address such as tcp://HOST:8786, got"):
        jobs.submit(["fit", "c", "m"], scheduler=address, directory=tmp_path / "job")
