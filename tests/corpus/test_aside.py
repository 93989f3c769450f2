"""Temporary directories beside a path: those of processes that have ended are removed, and no others."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distmom.corpus.files import aside

ENDED = """
import os, sys
from pathlib import Path
from distmom.corpus.files.aside import make_aside
(make_aside(Path(sys.argv[1])) / "part").write_text("half")
os._exit(9)
"""


@pytest.fixture
def left(tmp_path):
    """A directory that a process has left beside ``tmp_path / "m"`` when it ended."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", ENDED, str(tmp_path / "m")], env=environment, check=False)
    assert done.returncode == 9
    [found] = tmp_path.iterdir()
    return found


def test_what_an_ended_process_has_left_is_removed(left, tmp_path):
    own, others = aside.make_aside(tmp_path / "m"), aside.make_aside(tmp_path / "m-1")
    similar = tmp_path / f"{left.name}.kept"
    similar.mkdir()
    aside.recover(tmp_path / "m")
    assert sorted(tmp_path.iterdir()) == sorted([own, others, similar])


def test_what_a_process_of_another_host_or_boot_has_left_is_kept(left, tmp_path, monkeypatch):
    monkeypatch.setattr(aside, "this_boot", lambda: "another")
    aside.recover(tmp_path / "m")
    assert list(tmp_path.iterdir()) == [left]


def test_an_id_of_a_process_that_was_given_again_is_no_sign_of_life(left, tmp_path):
    before = left.name.split("-")
    again = [*before[:-3], str(os.getpid()), "1", before[-1]]
    left.rename(tmp_path / "-".join(again))
    aside.recover(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_discarded_is_gone_at_once(left, tmp_path, monkeypatch):
    place = left.rename(tmp_path / "m")
    removed = []
    monkeypatch.setattr(aside.shutil, "rmtree", lambda path, **_: removed.append(path))
    aside.discard(place)
    assert list(tmp_path.iterdir()) == removed
    assert (removed[0].name.startswith(".tmp-m-"), (removed[0] / "part").read_text()) == (True, "half")


def test_a_directory_that_cannot_be_renamed_is_discarded_too(left, tmp_path, monkeypatch):
    def fails(source, target):
        raise OSError("a mount")

    monkeypatch.setattr(os, "rename", fails)
    aside.discard(left)
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_directory_is_kept_and_its_directory_emptied(tmp_path):
    (tmp_path / "disk" / "passes").mkdir(parents=True)
    (tmp_path / "disk" / "run.json").write_text("{}")
    (tmp_path / "disk" / "outside").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    (tmp_path / "m.run").symlink_to(tmp_path / "disk")
    aside.discard(tmp_path / "m.run")
    assert list((tmp_path / "m.run").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "kept", "m.run"]


def test_a_directory_that_is_made_anew_while_two_processes_discard_the_old_one_is_kept(tmp_path, monkeypatch):
    (tmp_path / "m.run").mkdir()

    def rename(source, target, rename=os.rename):
        monkeypatch.setattr(os, "rename", rename)
        aside.discard(tmp_path / "m.run")
        try:
            rename(source, target)
        finally:
            (tmp_path / "m.run").mkdir()
            (tmp_path / "m.run" / "run.json").write_text("{}")

    monkeypatch.setattr(os, "rename", rename)
    aside.discard(tmp_path / "m.run")
    assert (tmp_path / "m.run" / "run.json").exists()


def test_a_removal_that_fails_is_reported_and_tried_again_by_the_next_command(
    left, tmp_path, monkeypatch, caplog
):
    place = left.rename(tmp_path / "m")

    def fails(path, **options):
        raise OSError(errno.EIO, "the disk fails", path)

    with monkeypatch.context() as change:
        change.setattr(os, "unlink", fails)
        aside.discard(place)
    [kept] = tmp_path.iterdir()
    [message] = caplog.messages
    assert message == (
        f"{kept}: the temporary directory could not be removed: the disk fails; "
        f"the next command that writes to {place} tries again"
    )
    monkeypatch.setattr(aside, "is_alive", lambda pid, born: False)
    aside.recover(place)
    assert list(tmp_path.iterdir()) == []
    assert len(caplog.messages) == 1


def test_a_directory_that_another_process_removes_at_the_same_time_is_not_reported(
    tmp_path, monkeypatch, caplog
):
    aside.remove_temporary(tmp_path / "gone", tmp_path / "m")
    (place := tmp_path / "place").mkdir()
    (place / "part").write_bytes(b"")

    def removed_before(path, **options):
        unlink(path, **options)
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    unlink = os.unlink
    monkeypatch.setattr(os, "unlink", removed_before)
    aside.remove_temporary(place, tmp_path / "m")
    assert not place.exists()
    assert caplog.messages == []


def test_parents_of_both_are_made(tmp_path):
    made = aside.make_aside(tmp_path / "a" / "b" / "m")
    assert made.parent == tmp_path / "a" / "b"
    assert list(Path(made).iterdir()) == []
    aside.recover(tmp_path / "c" / "m")
