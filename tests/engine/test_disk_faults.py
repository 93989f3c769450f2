"""Disks that fail or are full end in one error with the path, or in the same bits when work is resumed."""

import errno
import os
import shutil
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from clusters import threads
from disks import needs_mount, small_disk
from helpers import content

from distmom.cli.main import main
from distmom.corpus import ingest, open_corpus
from distmom.corpus.files.lock import Lock
from distmom.corpus.files.space import held_bytes, space_explained
from distmom.engine import InProcess, OnCluster, RunDirectory
from distmom.engine.executors import attempts
from distmom.engine.executors.threads import on_threads
from distmom.errors import InputError, OutOfSpaceError, StoreError

MODEL = ("-k", "3", "--head", "posterior", "--workers", "0", "--quiet")


def fail(place, times, error, is_cause=False):
    """Fail for the first times, and note every call with its time."""
    with Path(place).open("a") as stream:
        stream.write(f"{time.monotonic()}\n")
    if Path(place).read_text().count("\n") <= times:
        if is_cause:
            raise StoreError("a shard cannot be read") from error
        raise error
    return 7


def called(place):
    """Return the seconds between the calls."""
    return np.diff([float(line) for line in place.read_text().split()])


@pytest.fixture(params=["in process", "on threads", "on a cluster"])
def anywhere(request, monkeypatch):
    """An executor of every kind, with shorter pauses."""
    monkeypatch.setattr(attempts, "PAUSES_S", (0.1, 0.4))
    with ExitStack() as stack:
        if request.param == "in process":
            yield InProcess()
        elif request.param == "on threads":
            yield stack.enter_context(on_threads(2))
        else:
            yield OnCluster(stack.enter_context(threads())[1])


def carried_out(executor, way, *arguments):
    """Let a task be one of a pass, or one of work on slabs or sources."""
    if way == "map":
        return next(executor.map(partial(apply, fail), iter([arguments])))
    return executor.reduce(fail, [arguments], sum, 2, lambda index: None, "pass")


def apply(function, arguments):
    return function(*arguments)


@pytest.mark.parametrize("way", ["reduce", "map"])
@pytest.mark.parametrize("is_cause", [False, True])
def test_an_error_of_the_disk_that_passes_is_followed_by_another_attempt(anywhere, tmp_path, way, is_cause):
    error = OSError(errno.ESTALE, "Stale file handle", "/mnt/shard")
    assert carried_out(anywhere, way, tmp_path / "calls", 2, error, is_cause) == 7
    first, second = called(tmp_path / "calls")
    assert first >= 0.1
    assert second >= 0.4


@pytest.mark.parametrize("way", ["reduce", "map"])
def test_an_error_of_the_disk_that_stays_names_the_path(anywhere, tmp_path, way):
    error = OSError(errno.EIO, "Input/output error", "/mnt/shard")
    with pytest.raises(OSError, match="/mnt/shard") as caught:
        carried_out(anywhere, way, tmp_path / "calls", 99, error)
    assert caught.value.errno == errno.EIO
    assert len(called(tmp_path / "calls")) == 2


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), StoreError("a chunk has changed"), InputError("x:3")]
)  # fmt: skip
def test_an_error_that_does_not_pass_is_raised_at_once(anywhere, tmp_path, error):
    with pytest.raises(type(error)):
        carried_out(anywhere, "reduce", tmp_path / "calls", 99, error)
    assert len(called(tmp_path / "calls")) == 0


def test_a_run_that_cannot_be_written_is_refused_before_work(corpus, tmp_path, capsys):
    for place in ("/proc/none/run", "/dev/null/run"):
        assert main(["fit", str(corpus.path), str(tmp_path / "m"), *MODEL, "--run", place]) == 2
        assert place.rpartition("/")[0] in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@needs_mount
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_run_on_a_full_disk_ends_with_its_path_and_resumes_with_the_same_bits(
    corpus, tmp_path, capsys, share
):
    """It becomes full while partial sums, stored arrays or passes are written."""
    fit = ["fit", str(corpus.path)]
    assert main([*fit, str(tmp_path / "calm"), *MODEL, "--run", str(tmp_path / "run")]) == 0
    needed = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    with small_disk(tmp_path / "disk", int(share * needed)) as resize:
        run = tmp_path / "disk" / "run"
        assert main([*fit, str(tmp_path / "m"), *MODEL, "--run", str(run)]) == 1
        error = capsys.readouterr().err
        assert f"{run}: no space left on device" in error
        assert f"to resume: distmom resume {run}" in error
        assert not (tmp_path / "m").exists()
        resize(4 * needed + (1 << 20))
        assert main(["resume", str(run), "--workers", "0"]) == 0
        assert RunDirectory(run).verify() == []
    assert content(tmp_path / "m") == content(tmp_path / "calm")


@needs_mount
@pytest.mark.parametrize("n_kibibytes", [4, 8])
def test_a_run_on_a_disk_that_is_full_from_the_beginning_names_it(corpus, tmp_path, capsys, n_kibibytes):
    """No space for its directories, or for its record."""
    fit = ["fit", str(corpus.path), str(tmp_path / "m"), *MODEL]
    with small_disk(tmp_path / "disk", n_kibibytes << 10) as resize:
        run = tmp_path / "disk" / "run"
        assert main([*fit, "--run", str(run)]) == 1
        error = capsys.readouterr().err
        assert str(run) in error
        assert ": no space left on device: " in error
        assert "bytes are free" in error
        resize(1 << 24)
        # There is nothing to resume; the same command begins the run.
        assert "to resume" not in error
        assert main([*fit, "--run", str(run)]) == 0
    assert (tmp_path / "m" / "model.json").exists()


@needs_mount
def test_a_model_for_which_there_is_no_space_is_absent_and_saved_by_the_resumed_run(corpus, tmp_path, capsys):
    fit = ["fit", str(corpus.path)]
    assert main([*fit, str(tmp_path / "calm"), *MODEL]) == 0
    run = tmp_path / "run"
    with small_disk(tmp_path / "disk", 1 << 14) as resize:
        model = tmp_path / "disk" / "m"
        assert main([*fit, str(model), *MODEL, "--run", str(run)]) == 1
        error = capsys.readouterr().err
        assert "no space left on device" in error
        assert str(model.parent) in error
        assert f"to resume: distmom resume {run}" in error
        assert list(model.parent.iterdir()) == []
        resize(1 << 24)
        assert main(["resume", str(run), "--workers", "0"]) == 0
        assert content(model) == content(tmp_path / "calm")


@needs_mount
def test_an_ingest_on_a_full_disk_leaves_no_corpus_and_resumes(tmp_path, capsys):
    lines = (f"l{i % 7}\tword{i} word{i + 1} other{i}\n" for i in range(4000))
    (tmp_path / "texts.tsv").write_text("".join(lines))
    expected = ingest(tmp_path / "texts.tsv", tmp_path / "c", min_df=1).digest
    needed = sum(path.stat().st_size for path in (tmp_path / "c").rglob("*") if path.is_file())
    shutil.rmtree(tmp_path / "c")
    command = [
        "ingest",
        str(tmp_path / "texts.tsv"),
        str(tmp_path / "disk" / "c"),
        "--min-df",
        "1",
        *MODEL[-3:],
    ]
    with small_disk(tmp_path / "disk", needed) as resize:
        assert main(command) == 1
        error = capsys.readouterr().err
        assert f"{tmp_path / 'disk' / 'c'}: no space left on device" in error
        assert not (tmp_path / "disk" / "c").exists()
        resize(20 * needed)
        assert main(command) == 0
        assert open_corpus(tmp_path / "disk" / "c").digest == expected


def test_a_lock_that_could_not_be_written_is_not_left(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lock = Lock(tmp_path / "lock")
    with monkeypatch.context() as change:
        change.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            lock.acquire()
    assert not (tmp_path / "lock").exists()
    with lock:
        pass


@pytest.mark.parametrize("file", [None, "/mnt/part"])
def test_an_error_of_a_full_disk_has_its_path_and_the_bytes_that_are_free(tmp_path, file):
    expected = rf"^{file or tmp_path}: no space left on device: [\d,]+ of [\d,]+ bytes are free$"
    with pytest.raises(OutOfSpaceError, match=expected), space_explained(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    with pytest.raises(OSError, match="Input/output") as caught, space_explained(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), file)
    assert not isinstance(caught.value, OutOfSpaceError)


def test_files_that_vanish_while_a_directory_is_measured_are_left_out(tmp_path, monkeypatch):
    """Late tasks of an earlier driver write and rename files in the directory of a run."""
    (tmp_path / "stays").write_bytes(b"x" * 100)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "stays").write_bytes(b"x" * 20)
    (tmp_path / "part" / "vanishes").write_bytes(b"x" * 3)
    assert held_bytes(tmp_path) == 123
    listed = list(os.walk(tmp_path))
    (tmp_path / "part" / "vanishes").unlink()
    monkeypatch.setattr(os, "walk", lambda top: iter(listed))
    assert held_bytes(tmp_path) == 120


def test_a_directory_that_does_not_exist_holds_nothing(tmp_path):
    assert held_bytes(tmp_path / "none") == 0
