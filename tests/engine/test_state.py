"""States on disk: the same digest however they were written, and damage found wherever it is."""

import numpy as np
import pytest

from distmom.engine.directory.run_directory import RunDirectory
from distmom.engine.stored.arrays import SLAB_ROWS, StoredArray, state_digest
from distmom.errors import StoreError


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.mark.parametrize("n_rows", [1, 100, SLAB_ROWS, SLAB_ROWS + 5, 3 * SLAB_ROWS + 20_000])
@pytest.mark.parametrize("width", [None, 7])
def test_written_chunk_by_chunk_a_state_is_the_same(directory, n_rows, width):
    shape = (n_rows,) if width is None else (n_rows, width)
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with directory.writer("float32", array.size, width) as writer:
        for start in range(0, n_rows, 9_999):
            writer.append(array[start : start + 9_999])
    assert writer.stored == directory.put(array)
    assert writer.stored.digest == state_digest(array)
    assert np.array_equal(writer.stored.load(), array)


@pytest.mark.parametrize("n_rows", [100, SLAB_ROWS, SLAB_ROWS + 5])
@pytest.mark.parametrize("where", [0, 0.5, 1])
def test_one_flipped_bit_is_found(directory, n_rows, where):
    array = np.random.default_rng(1).standard_normal((n_rows, 3))
    stored = directory.put(array)
    with open(stored.path, "r+b") as stream:
        header = len(stream.read()) - array.nbytes
        stream.seek(header + int(where * (array.nbytes - 1)))
        [byte] = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([byte ^ 4]))
    with pytest.raises(StoreError, match=r"stored array has changed: expected digest \w{12}, got \w{12}"):
        StoredArray(stored.path, stored.digest).load()
