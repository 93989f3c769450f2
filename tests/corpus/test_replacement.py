"""Files and directories are replaced by whole ones, also where many replace them at once."""

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from distmom.corpus.files.commit import (
    commit_directory,
    put_directory,
    put_if_absent,
    replace_directory,
    restore_replaced,
    sync_tree,
    write_atomic,
)
from distmom.errors import StoreError, UsageError


@pytest.mark.parametrize("restores", [False, True])
def test_of_many_that_replace_a_directory_one_at_least_succeeds_and_all_others_are_refused(
    tmp_path, restores
):
    """Also if a process restores what it takes to be left."""
    final, n_writers, n_refused = tmp_path / "final", 8, 0
    write_tree("0", final)

    def replace(number):
        barrier.wait()
        if restores and number == 0:
            restore_replaced(final)
            return None
        try:
            put_directory(tmp_path / str(number), final, overwrite=True)
        except UsageError as error:
            return error
        return None

    with ThreadPoolExecutor(n_writers) as pool:
        for turn in range(600):
            # Further turns follow until one writer has met another, which on some systems is rare.
            if turn >= 60 and n_refused:
                break
            barrier = threading.Barrier(n_writers)
            contents = [f"{turn}-{number}" for number in range(n_writers)]
            for number, content in enumerate(contents):
                write_tree(content, tmp_path / str(number))
            errors = list(pool.map(replace, range(n_writers)))
            refused = [error for error in errors if error is not None]
            n_refused += len(refused)
            assert all("another process" in str(error) for error in refused)
            found = {path.name: path.read_text() for path in final.iterdir()}
            assert found.keys() == {"a", "b"}
            assert len(set(found.values())) == 1
            won = [content for content, error in zip(contents, errors, strict=True) if error is None]
            assert found["a"] in won[restores:]
            for number in range(n_writers):
                shutil.rmtree(tmp_path / str(number), ignore_errors=True)
            assert [path.name for path in tmp_path.iterdir()] == ["final"]
    # Otherwise nothing was raced.
    assert n_refused > 0


def test_a_directory_that_is_restored_while_it_is_replaced_is_replaced(tmp_path, monkeypatch):
    """A reader takes the old directory to be left between the two renames of a writer, as often as it looks."""
    write_tree("old", tmp_path / "final")
    write_tree("new", tmp_path / "new")
    rename, n_restored = os.rename, 0

    def watched(source, target):
        nonlocal n_restored
        rename(source, target)
        if source == tmp_path / "final" and n_restored < 3:
            n_restored += 1
            with monkeypatch.context() as change:
                change.setattr(os, "rename", rename)
                restore_replaced(tmp_path / "final")

    monkeypatch.setattr(os, "rename", watched)
    replace_directory(tmp_path / "new", tmp_path / "final", is_synced=True)
    assert n_restored == 3
    assert (tmp_path / "final" / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def write_tree(content, place):
    place.mkdir()
    for name in "ab":
        (place / name).write_text(content)


def test_a_replacement_that_fails_puts_the_old_directory_back(tmp_path):
    write_tree("old", tmp_path / "final")
    with pytest.raises(FileNotFoundError):
        replace_directory(tmp_path / "none", tmp_path / "final", is_synced=True)
    assert (tmp_path / "final" / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_write_atomic_keeps_the_old_content(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def breaks_off(stream):
        stream.write(b"new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, breaks_off)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seen", [True, False])
def test_put_directory_replaces_on_request_only(tmp_path, monkeypatch, seen):
    """Nor does it replace a directory that appears between its look and the renaming."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with monkeypatch.context() as change:
        if not seen:
            change.setattr(os.path, "lexists", lambda path: False)
        with pytest.raises(UsageError, match="b: another process has written there meanwhile"):
            put_directory(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "file").read_text() == "b"
    put_directory(tmp_path / "a", tmp_path / "b", overwrite=True)
    assert (tmp_path / "b" / "file").read_text() == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_of_two_processes_that_find_a_damaged_directory_the_faster_one_replaces_it(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "damaged").write_text("")

    def is_whole(target):
        if not (target / "damaged").exists():
            return True
        # The other one replaces the directory while this one reads it.
        target.rename(tmp_path / "aside")
        target.mkdir()
        (target / "of the other").write_text("")
        return False

    put_if_absent(tmp_path / "own", tmp_path / "final", is_whole)
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["of the other"]


def test_a_directory_that_cannot_be_listed_is_not_taken_for_flushed(tmp_path, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, "input/output error", str(path))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match="input/output error"):
        sync_tree(tmp_path)


def test_commit_directory_never_replaces(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    with pytest.raises(StoreError, match="already exists"):
        commit_directory(tmp_path / "a", tmp_path / "b")
