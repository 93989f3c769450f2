"""Files of partial sums: kept over epochs, released when their pass is committed."""

import uuid

import numpy as np
import pytest
from helpers import meanwhile

from distmom.engine.directory.partials import PartialFiles
from distmom.engine.stored.scratch import write_scratch

N_TRIALS = 2_000


def pass_files(files, name, report=True):
    """Write a partial sum of a pass, and a report on the group that has made it."""
    place = files.of_pass(name)
    made = write_scratch(str(place), np.ones(4))
    if report:
        (place / "group.json").write_text("{}")
    return place, made


def names_below(path):
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def test_finished_groups_of_the_latest_epoch_are_taken_over_unless_their_pass_is_committed(tmp_path):
    for epoch in (1, 2):
        files = PartialFiles(tmp_path, durable=True)
        files.take_over(epoch)
        for name in ("both", "done", f"only-{epoch}"):
            (pass_files(files, name)[0] / "group.json").write_text(str(epoch))
        pass_files(files, "unreported", report=False)
        # A driver that is killed leaves everything.
    (tmp_path / "passes" / "done").mkdir(parents=True)
    later = PartialFiles(tmp_path, durable=True)
    later.take_over(3)
    assert [path.name for path in (tmp_path / "partial").iterdir()] == ["0003"]
    found = {path.parent.name: path.read_text() for path in tmp_path.glob("partial/0003/*/group.json")}
    assert found == {"both": "2", "only-1": "1", "only-2": "2"}
    kept = names_below(tmp_path / "partial")
    later.release()
    assert names_below(tmp_path / "partial") == kept
    later.leave()
    assert names_below(tmp_path / "partial") == kept
    assert not later.keeps_groups


def test_a_committed_pass_releases_its_files_and_no_others(tmp_path):
    files = PartialFiles(tmp_path, durable=True)
    files.take_over(1)
    (first, of_first), (second, of_second) = pass_files(files, "first"), pass_files(files, "second")
    files.recycle([of_first, of_second])
    assert not files.spare.exists() or not list(files.spare.iterdir())
    files.committed("first", [of_first])
    assert (first.exists(), second.exists(), len(list(files.spare.iterdir()))) == (False, True, 1)
    files.release()
    assert (second.exists(), len(list(files.spare.iterdir()))) == (True, 1)
    files.keep_none()
    files.leave()
    assert list((tmp_path / "partial").iterdir()) == []


@pytest.mark.parametrize(("durable", "is_held"), [(True, False), (False, True)])
def test_nothing_is_kept_that_nobody_takes_over(tmp_path, durable, is_held):
    files = PartialFiles(tmp_path, durable)
    if is_held:
        files.take_over(1)
    place, made = pass_files(files, "pass")
    assert not files.keeps_groups
    files.release([made])
    assert (place.exists(), len(list(files.spare.iterdir()))) == (False, 1)
    files.drop()
    assert list((tmp_path / "partial").iterdir()) == []


def test_a_driver_that_ends_does_not_disturb_one_that_makes_its_directory(tmp_path):
    ends = PartialFiles(tmp_path, durable=True)
    ends.take_over(1)
    with meanwhile(ends.drop):
        for number in range(N_TRIALS):
            (place := tmp_path / "partial" / "0002" / str(number)).mkdir(parents=True)
            place.rmdir()
            place.parent.rmdir()


def test_a_directory_of_a_driver_without_an_epoch_is_never_taken_for_one_of_an_epoch(tmp_path, monkeypatch):
    """A random name consists of decimal digits alone once in about 280 times."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0x12345678901234567890123456789012))
    pass_files(PartialFiles(tmp_path, durable=True), "pass")
    later = PartialFiles(tmp_path, durable=True)
    later.take_over(3)
    later.leave()
    assert list((tmp_path / "partial").iterdir()) == []
