import numpy as np
import pytest

from distmom.engine.scratch import cleared, pour, scratch_file, spare_of


def test_a_spare_file_is_written_over_and_cut(tmp_path):
    spare = tmp_path / "spare"
    spare.mkdir()
    (spare / "large").write_bytes(b"x" * 1000)
    (spare / "near").write_bytes(b"x" * 60)
    inode = (spare / "near").stat().st_ino
    target = tmp_path / "pass" / "sum"
    assert spare_of(target) == spare
    with scratch_file(target, 50, spare) as stream:
        assert not target.exists()
        stream.write(b"y" * 50)
    assert target.read_bytes() == b"y" * 50
    assert target.stat().st_ino == inode
    assert [path.name for path in spare.iterdir()] == ["large"]


def test_without_a_spare_file_of_about_the_size_one_is_made(tmp_path):
    spare = tmp_path / "spare"
    for _ in range(2):
        with scratch_file(tmp_path / "pass" / "sum", 5, spare) as stream:
            stream.write(b"12345")
        spare.mkdir(exist_ok=True)
        (spare / "large").write_bytes(b"x" * 1000)
    assert (tmp_path / "pass" / "sum").read_bytes() == b"12345"
    assert (spare / "large").stat().st_size == 1000


def test_after_an_error_nothing_is_there(tmp_path):
    def fail():
        with scratch_file(tmp_path / "pass" / "sum", 80, tmp_path / "spare") as stream:
            stream.write(np.zeros(10).data)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not list((tmp_path / "pass").iterdir())


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
