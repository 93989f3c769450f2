import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from helpers import random_corpus

from distmom.corpus.files.npy import mapped_file
from distmom.engine import Engine, Pass, RunDirectory, SumSpec, open_engine
from distmom.engine.stored.scratch import SPARE, cleared, pour, scratch_file, write_scratch
from distmom.errors import StoreError


def content(file):
    return file.read(0, file.shape[0])


def test_a_spare_file_is_written_over_and_cut(tmp_path):
    spare = tmp_path / SPARE
    spare.mkdir()
    (spare / "large").write_bytes(b"x" * 1000)
    (spare / "near").write_bytes(b"x" * 90)
    inode = (spare / "near").stat().st_ino
    file = write_scratch(tmp_path / "pass", np.arange(7.0))
    assert content(file).tolist() == list(range(7))
    status = os.stat(file.path)
    # The numbers, and the checksum of their one block.
    assert (status.st_ino, status.st_size) == (inode, 56 + 4)
    assert [path.name for path in spare.iterdir()] == ["large"]


def test_without_a_spare_file_of_about_the_size_one_is_made(tmp_path):
    spare = tmp_path / SPARE
    for _ in range(2):
        file = write_scratch(tmp_path / "pass", np.arange(2.0))
        assert content(file).tolist() == [0.0, 1.0]
        spare.mkdir(exist_ok=True)
        (spare / "large").write_bytes(b"x" * 1000)
    assert (spare / "large").stat().st_size == 1000


def test_attempts_of_one_task_write_to_files_of_their_own(tmp_path):
    files = {write_scratch(tmp_path / "pass", np.ones(3)).path for _ in range(3)}
    assert len(files) == 3


def test_after_an_error_nothing_is_there(tmp_path):
    def fail():
        with scratch_file(tmp_path / "pass", (10,), "float64") as writer:
            writer.write(np.zeros(10))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not list((tmp_path / "pass").iterdir())


@pytest.mark.parametrize("block_bytes", [8, 40, 1 << 16])
def test_ranges_are_read_in_whole_blocks(tmp_path, block_bytes):
    array = np.random.default_rng(0).standard_normal(33).astype(np.float32)
    file = write_scratch(tmp_path / "pass", array, block_bytes)
    for start in range(34):
        for stop in range(start, 34):
            assert file.read(start, stop).tobytes() == array[start:stop].tobytes()
    assert file.load().tobytes() == array.tobytes()
    # The pages of an array whose file is known can be released, also from a view.
    mapped = mapped_file(file.load()[:1])
    assert mapped is not None
    assert mapped.path == file.path


@pytest.mark.parametrize("shape", [(7, 3), (4, 2, 5), (3,), (5, 0), (0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_rows_have_the_shape_and_type_that_were_written(tmp_path, shape, dtype):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    file = write_scratch(tmp_path / "pass", array, 24)
    for start in range(len(array) + 1):
        for stop in range(start, len(array) + 1):
            rows = file.read(start, stop)
            assert rows.dtype == dtype
            assert rows.tobytes() == array[start:stop].tobytes()
            assert rows.shape == array[start:stop].shape
    assert file.flat().read(0, array.size).tolist() == array.ravel().tolist()


def test_an_array_that_was_not_written_whole_is_not_reported(tmp_path):
    def write_half():
        with scratch_file(tmp_path / "pass", (10,), "float64") as writer:
            writer.write(np.zeros(5))

    with pytest.raises(ValueError, match="expected 80 bytes to be written, got 40"):
        write_half()
    assert not list((tmp_path / "pass").iterdir())


def test_every_flipped_bit_is_found_when_it_is_read(tmp_path):
    array = np.arange(12.0)
    file = write_scratch(tmp_path / "pass", array, 40)
    whole = bytearray(Path(file.path).read_bytes())
    assert len(whole) == 96 + 3 * 4
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        # A new name: what this process has read of a file, it does not read again.
        path = tmp_path / "pass" / str(position)
        path.write_bytes(damaged)
        altered = replace(file, path=str(path))
        with pytest.raises(StoreError, match=r"expected CRC-32C \w{8}, got \w{8}"):
            altered.read(0, 12)
        with pytest.raises(StoreError, match="a partial sum has changed since it was written"):
            altered.load()
    # Other blocks than those that are read may be damaged.
    damaged = bytearray(whole)
    damaged[95] ^= 1
    path.write_bytes(damaged)
    assert altered.read(0, 5).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_sum_gives_up_its_pages_while_it_is_written(tmp_path):
    total = cleared((3_000_001, 1), "float64")
    assert not total.any()
    total[:, 0] = np.arange(len(total))
    expected = total.copy()
    with open(tmp_path / "sum", "wb") as stream:
        pour(total, stream)
    assert np.array_equal(np.fromfile(tmp_path / "sum").reshape(-1, 1), expected)
    assert not total.any()


def test_any_other_array_is_written_and_kept(tmp_path):
    array = np.arange(12.0).reshape(3, 4).T
    with open(tmp_path / "sum", "wb") as stream:
        pour(array, stream)
    assert np.array_equal(np.fromfile(tmp_path / "sum").reshape(4, 3), array)
    assert array[3, 2] == 11.0


@dataclass(frozen=True)
class WidePass(Pass):
    """A sum in a file."""

    factor: float = 1.0

    def specs(self):
        return {"wide": SumSpec((1 << 20,))}

    def add(self, sums, block, rows):
        sums["wide"] += self.factor * block.n_documents


def test_an_attempt_that_was_given_up_changes_no_later_sum(tmp_path, monkeypatch):
    """A task whose worker is presumed dead continues to write while the next passes reuse the files."""
    monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", 0)
    corpus = random_corpus()
    run = RunDirectory(tmp_path)
    engine = Engine(corpus, run)
    engine.run(WidePass(corpus.n_words))
    n_spare = len(list(run.partials.spare.iterdir()))
    stalled = scratch_file(run.partials.place("wide-0"), (1 << 20,), "float64")
    writer = stalled.__enter__()
    # It has taken a file of the pass before, as any task does.
    assert len(list(run.partials.spare.iterdir())) == n_spare - 1
    writer.write(np.ones(1 << 19))
    writer._stream.flush()
    for factor in (2.0, 3.0):
        total = engine.run(WidePass(corpus.n_words, factor=factor)).sums["wide"]
        assert set(total.tolist()) == {factor * corpus.n_documents}
        writer.write(np.ones(1 << 18))
        writer._stream.flush()
    stalled.__exit__(None, None, None)
    assert set(total.tolist()) == {3.0 * corpus.n_documents}
    assert not [
        path
        for path in run.partials.spare.parent.rglob("*")
        if path.parent != run.partials.spare and path.is_file()
    ]


def test_tasks_of_an_earlier_driver_change_nothing(tmp_path):
    """A client is killed; the next one resumes while a task of the first is writing."""
    corpus = random_corpus()
    first = RunDirectory(tmp_path)
    Engine(corpus, first).run(WidePass(corpus.n_words))
    stalled = scratch_file(first.partials.place("wide-0"), (1 << 20,), "float64")
    writer = stalled.__enter__()
    writer.write(np.ones(1 << 19))
    with open_engine(corpus, tmp_path) as engine:
        for factor in (2.0, 3.0):
            total = engine.run(WidePass(corpus.n_words, factor=factor)).sums["wide"]
            writer.write(np.ones(1 << 18))
            writer._stream.flush()
            assert set(total.tolist()) == {factor * corpus.n_documents}
    stalled.__exit__(None, None, None)
    assert list((tmp_path / "partial").iterdir()) == []
