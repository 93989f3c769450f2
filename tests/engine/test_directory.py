"""The directory of a run while other threads and late tasks write to it."""

import shutil
from contextlib import suppress

import pytest
from helpers import meanwhile

from distmom.engine.directory.run_directory import RunDirectory

N_TRIALS = 2_000


def test_files_are_recycled_in_the_background_while_the_next_pass_removes_them(tmp_path):
    with RunDirectory(tmp_path).held() as run, meanwhile(lambda: run.partials.recycle([])):
        for _ in range(N_TRIALS):
            run.partials.drop()
            run.partials.release()


def test_a_run_is_resumed_while_late_tasks_write_rows(tmp_path):
    run = RunDirectory(tmp_path, durable=False)
    place = tmp_path / "rows" / "project-1" / "projected"
    (place / ".tmp-left" / "c").mkdir(parents=True)
    (place / ".tmp-left" / "c" / "0").write_bytes(b"part")
    (place / ".tmp-file").write_bytes(b"part")

    def write():
        # A temporary directory that becomes the stored rows, unless it is removed before.
        with suppress(FileNotFoundError):
            (place / ".tmp-late" / "c").mkdir(parents=True, exist_ok=True)
            (place / ".tmp-late").rename(place / "s00000")
            shutil.rmtree(place / "s00000")

    with meanwhile(write):
        for _ in range(N_TRIALS // 20):
            with run.held():
                pass
    assert not (place / ".tmp-left").exists()
    assert not (place / ".tmp-file").exists()


def test_partial_sums_that_late_tasks_write_are_removed_at_the_end(tmp_path):
    run = RunDirectory(tmp_path)
    with run.held():
        own = run.partials.place("project-1")
    late = own.parents[1] / "0001" / "project-1" / "a"
    with run.held():
        late.parent.mkdir(parents=True)
        late.write_bytes(b"part")
    assert not late.parents[1].exists()

    def stopped():
        with run.held():
            late.parent.mkdir(parents=True)
            raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        stopped()
    assert not late.parents[1].exists()
