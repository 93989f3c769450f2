"""One process at a time writes to a location, and a lock whose holder has ended is taken over."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest
from helpers import meanwhile
from scipy.sparse import csr_array

from distmom.corpus import from_arrays, open_corpus
from distmom.corpus.files import lock
from distmom.corpus.files.lock import Holder, Lock
from distmom.errors import TakenOverError, UsageError

CHILD = "import os, sys; from distmom.corpus.files.lock import Lock; Lock(sys.argv[1]).acquire(); os._exit(9)"


def elsewhere(**changes):
    """A holder on another host."""
    return replace(Holder.this(), host="elsewhere", pid=1, since="then", **changes)


def write(path, holder):
    # At once: a file that is empty for an instant would have a holder without a name.
    written = path.with_name("written")
    written.write_text(json.dumps(asdict(holder)))
    written.replace(path)


def test_a_live_process_is_named(tmp_path):
    with Lock(tmp_path / "lock"), pytest.raises(UsageError, match=rf"process {os.getpid()} on host .* since"):
        Lock(tmp_path / "lock").acquire()
    assert not (tmp_path / "lock").exists()


def test_the_lock_of_a_dead_process_is_taken_over_at_once(tmp_path, caplog):
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "lock")], check=False)
    assert child.returncode == 9
    with Lock(tmp_path / "lock"):
        assert "no longer running" in caplog.text
        assert "waiting" not in caplog.text


def test_a_file_without_a_readable_owner_is_left(tmp_path):
    number = '{"host": "x", "pid": Infinity, "born": 1, "since": ""}'
    for content in ("[]", "{}", "[" * 4000, number, '{"host": "x", "pid": 1, "born": "y", "since": ""}'):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(UsageError, match="with an unreadable owner"):
            Lock(tmp_path / "lock").acquire()
        assert (tmp_path / "lock").read_text() == content


@pytest.mark.parametrize("content", ["", '{"host": "x", "pid": 1, "bo'])
def test_a_cut_file_is_taken_over_unless_its_holder_writes_its_name(tmp_path, monkeypatch, caplog, content):
    (tmp_path / "lock").write_text(content)
    with (
        meanwhile(lambda: write(tmp_path / "lock", Holder.this()), 0.2),
        pytest.raises(UsageError, match=rf"process {os.getpid()} on host"),
    ):
        Lock(tmp_path / "lock").acquire()
    monkeypatch.setattr(lock, "LEASE_S", 0.1)
    (tmp_path / "lock").write_text(content)
    with Lock(tmp_path / "lock"):
        assert "the lock of a process that has not written its name, which has shown no sign" in caplog.text
    assert not (tmp_path / "lock").exists()


def test_a_file_that_was_made_anew_while_it_was_found_stale_is_left(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    path.write_text("")

    def wait(descriptor, operation):
        # Another process has been faster meanwhile, and is about to write its name.
        path.unlink()
        path.write_text("")
        threading.Timer(0.2, write, (path, Holder.this())).start()

    monkeypatch.setattr(lock, "LEASE_S", 1.0)
    monkeypatch.setattr(lock.fcntl, "flock", wait)
    with pytest.raises(UsageError, match=f"is held by process {os.getpid()}"):
        Lock(path).acquire()


def test_a_number_that_no_process_can_have_is_that_of_an_ended_one(tmp_path):
    write(tmp_path / "lock", replace(Holder.this(), pid=10**30))
    with Lock(tmp_path / "lock"):
        pass


def test_the_holder_touches_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_S", 0.01)
    with Lock(tmp_path / "lock"):
        first, ends = os.stat(tmp_path / "lock").st_mtime_ns, time.monotonic() + 30
        while os.stat(tmp_path / "lock").st_mtime_ns == first and time.monotonic() < ends:
            time.sleep(0.01)
        assert os.stat(tmp_path / "lock").st_mtime_ns > first


@pytest.mark.parametrize("changes", [{}, {"host": "this", "boot": "another"}])
def test_a_holder_elsewhere_that_gives_no_sign_of_life_is_followed(tmp_path, monkeypatch, caplog, changes):
    monkeypatch.setattr(lock, "LEASE_S", 0.5)
    holder = elsewhere()
    if changes:
        # Another boot of this host, or another namespace of processes.
        holder = replace(holder, host=Holder.this().host, boot=changes["boot"])
    write(tmp_path / "lock", holder)
    with Lock(tmp_path / "lock") as own:
        assert own.is_held()
    assert "it is not known whether process 1 on host" in caplog.text
    assert "which has shown no sign of life" in caplog.text


def test_a_holder_elsewhere_that_is_running_is_named(tmp_path):
    write(tmp_path / "lock", elsewhere())
    started = time.monotonic()
    with (
        meanwhile(lambda: os.utime(tmp_path / "lock"), 0.2),
        pytest.raises(UsageError, match="process 1 on host elsewhere since then; wait for it to finish"),
    ):
        Lock(tmp_path / "lock").acquire()
    assert time.monotonic() - started < lock.LEASE_S / 2


def test_a_holder_elsewhere_without_beats_is_never_taken_to_have_ended(tmp_path, monkeypatch):
    """Earlier versions did not touch their files."""
    monkeypatch.setattr(lock, "LEASE_S", 0.1)
    (tmp_path / "lock").write_text(json.dumps({"host": "elsewhere", "pid": 1, "born": None, "since": "then"}))
    with pytest.raises(UsageError, match="process 1 on host elsewhere since then"):
        Lock(tmp_path / "lock").acquire()


def test_whoever_was_followed_notices_and_leaves_the_file(tmp_path):
    own = Lock(tmp_path / "lock")
    own.acquire()
    write(tmp_path / "lock", elsewhere())
    with pytest.raises(TakenOverError, match="it was taken over by process 1 on host elsewhere"):
        own.check()
    own.release()
    assert (tmp_path / "lock").exists()
    other = Lock(tmp_path / "other")
    other.acquire()
    (tmp_path / "other").unlink()
    with pytest.raises(TakenOverError, match="the file was removed"):
        other.check()
    other.release()


def test_a_writer_that_was_followed_commits_nothing(tmp_path):
    words, labels = csr_array([[1, 0], [0, 2], [1, 1]]), csr_array([[1], [0], [1]])
    expected = from_arrays(tmp_path / "whole", words, labels).digest
    place = tmp_path / "c.lock"
    check = Lock.check

    def taken_over_before_the_end(self):
        write(place, elsewhere())
        check(self)

    with pytest.MonkeyPatch.context() as change:
        change.setattr(Lock, "check", taken_over_before_the_end)
        with pytest.raises(TakenOverError, match=r"c\.lock: this process was taken to have ended"):
            from_arrays(tmp_path / "c", words, labels)
    assert not (tmp_path / "c").exists()
    assert (tmp_path / "c.partial").exists()
    with pytest.MonkeyPatch.context() as change:
        change.setattr(lock, "LEASE_S", 0.1)
        from_arrays(tmp_path / "c", words, labels)
    assert open_corpus(tmp_path / "c").digest == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "whole"]
