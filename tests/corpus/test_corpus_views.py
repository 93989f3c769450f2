import os
import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array, save_npz

from distmom.corpus import RowBlock, ViewCorpus, views
from distmom.engine import plan_pass
from distmom.errors import InputError, StoreError, UsageError
from distmom.moments.views.moments import ViewMomentsPass, ViewSketchPass

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5))
GROUPS = np.repeat([7, 3, 9, 1, 4, 5, 0], [3, 8, 1, 9, 6, 2, 11])


def groups_of(corpus):
    """Return the rows of every group, shard by shard."""
    found = []
    for index, shard in enumerate(corpus.shards):
        block = corpus.read_shard(index)
        assert (block.first, block.n_documents) == (shard.first, shard.n_documents)
        rows = block.rows.toarray() if hasattr(block.rows, "toarray") else block.rows
        assert rows.dtype == np.float64
        assert len(rows) == shard.n_rows == block.starts[-1]
        found += np.split(rows, block.starts[1:-1])
    assert len(found) == corpus.n_documents
    return found


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", ["array", "float32", "sparse", "file", "both"])
def test_groups_are_whole_and_in_the_order_of_their_first_row(kind, shuffled, tmp_path):
    order = np.random.default_rng(1).permutation(40) if shuffled else np.arange(40)
    rows, groups = X[order], GROUPS[order]
    given, of_rows = rows, groups
    if kind == "float32":
        given = rows = rows.astype(np.float32)
    elif kind == "sparse":
        given = csr_array(rows)
    elif kind in ("file", "both"):
        np.save(tmp_path / "X.npy", rows)
        given = tmp_path / "X.npy"
        if kind == "both":
            np.save(tmp_path / "groups.npy", groups)
            of_rows = str(tmp_path / "groups.npy")
    corpus = ViewCorpus(given, of_rows, shard_rows=12)
    assert (corpus.n_rows, corpus.n_words, corpus.n_documents, corpus.largest) == (40, 5, 7, 11)
    assert 3 <= len(corpus.shards) < 7
    labels = list(dict.fromkeys(groups.tolist()))
    for found, label in zip(groups_of(pickle.loads(pickle.dumps(corpus))), labels, strict=True):
        assert_array_equal(found, rows[groups == label])


def test_groups_may_be_names():
    corpus = ViewCorpus(X[:5], ["b", "a", "b", "c", "a"])
    assert [len(rows) for rows in groups_of(corpus)] == [2, 2, 1]
    assert_array_equal(groups_of(corpus)[0], X[[0, 2]])


def test_a_pickled_corpus_does_not_contain_its_files(tmp_path):
    large = np.zeros((20_000, 10))
    np.save(tmp_path / "X.npy", large)
    for name, groups in (("sorted", np.arange(20_000) // 4), ("mixed", np.arange(20_000) % 5_000)):
        np.save(tmp_path / f"{name}.npy", groups)
        corpus = ViewCorpus(tmp_path / "X.npy", tmp_path / f"{name}.npy")
        assert len(pickle.dumps(corpus)) < 2_000


def test_blocks_return_selected_groups():
    block = ViewCorpus(X, GROUPS).read_shard(0)
    some = block.take(np.array([True, False, True, True, False, False, True]))
    assert some.sizes.tolist() == [3, 1, 9, 11]
    assert_array_equal(some.rows, X[np.isin(GROUPS, [7, 9, 1, 0])])
    middle = block.take(slice(2, 4))
    assert (middle.first, middle.sizes.tolist()) == (2, [1, 9])
    assert np.shares_memory(middle.rows, block.rows)
    assert_array_equal(block.of_words(np.array([-1, 0, -1, 1, -1])).rows, X[:, [1, 3]])
    weighted = RowBlock(X, block.starts, 0, np.arange(7.0)).take(np.array([1, 6]))
    assert weighted.weights.tolist() == [1.0, 6.0]
    assert block.take(np.zeros(7, bool)).n_documents == 0


def test_the_plan_counts_rows_not_groups(tmp_path):
    """A task holds the rows of its shard as stored and as float64, the latter twice if groups are left out."""
    np.save(tmp_path / "X.npy", np.zeros((40_000, 50), np.float32))
    groups = np.arange(40_000) // 8
    of_file = ViewCorpus(tmp_path / "X.npy", groups, shard_rows=10_000)
    assert len(of_file.shards) == 4
    assert of_file.shards[0].block_bytes == 10_000 * 50 * (4 + 8 + 8)
    pass_ = ViewMomentsPass(50, basis=np.zeros((50, 6)), rank=6)
    in_memory = ViewCorpus(np.zeros((40_000, 50)), groups, shard_rows=10_000)
    small = ViewCorpus(np.zeros((40_000, 50)), groups, shard_rows=1_000)
    difference = plan_pass(in_memory, pass_).task_bytes - plan_pass(small, pass_).task_bytes
    rows = 9_000 * 50 * 24
    assert difference == rows + pass_.working_bytes(10_000) - pass_.working_bytes(1_000)
    assert pass_.working_bytes(10_000) > 10_000 * 6 * 8
    with pytest.raises(UsageError, match="a task needs"):
        plan_pass(in_memory, ViewSketchPass(50, n_columns=6), memory_limit=64 << 20)


def test_digest_depends_on_values_and_groups(tmp_path):
    digest = ViewCorpus(X, GROUPS).digest
    assert ViewCorpus(X.copy(), list(GROUPS), shard_rows=5).digest == digest
    assert ViewCorpus(X + 1e-12, GROUPS).digest != digest
    assert ViewCorpus(X, np.arange(40) // 2).digest != digest
    np.save(tmp_path / "X.npy", X)
    first = ViewCorpus(tmp_path / "X.npy", GROUPS).digest
    assert ViewCorpus(tmp_path / "X.npy", GROUPS).digest == first


def test_a_file_that_changes_is_noticed(tmp_path):
    path = tmp_path / "X.npy"
    np.save(path, X)
    corpus = ViewCorpus(path, GROUPS)
    np.save(path, X[:39])
    os.utime(path, ns=(1, 1))
    with pytest.raises(StoreError, match=r"X\.npy: expected the file of"):
        corpus.read_shard(0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["array", "file", "sparse", "mixed"])
def test_a_value_that_is_not_finite_is_reported_with_its_position(kind, value, tmp_path):
    bad = X.copy()
    bad[33, 2] = value
    groups = GROUPS[::-1] if kind != "mixed" else np.arange(40) % 3
    given = bad
    if kind == "file":
        np.save(tmp_path / "X.npy", bad)
        given = tmp_path / "X.npy"
    elif kind == "sparse":
        given = csr_array(bad)
    corpus = ViewCorpus(given, groups, shard_rows=10)
    (problem,) = corpus.verify()
    assert f"value in row 33, column 2: expected a finite number, got {value}" in problem
    assert ("X.npy" in problem) == (kind == "file")
    assert ViewCorpus(np.full((2, 2), 1e308), [0, 0]).verify() == []


@pytest.mark.parametrize(
    ("rows", "groups", "error", "message"),
    [
        (X, GROUPS[:-1], InputError, "number of rows: expected 40 as in X, got 39"),
        (X, GROUPS[:, None], InputError, "expected one group for every row"),
        (X, np.where(GROUPS == 3, np.nan, GROUPS), InputError, "group of row 3: expected a number"),
        (X[0], GROUPS, InputError, "expected a matrix of rows and features"),
        (X.astype(complex), GROUPS, InputError, "expected real numbers, got complex128"),
        (X.astype(str), GROUPS, InputError, "expected real numbers"),
        ("/no/such/X.npy", GROUPS, InputError, r"X\.npy: cannot be read"),
        (__file__, GROUPS, InputError, "not an .npy or .npz file"),
    ],
)
def test_invalid_matrices_and_groups_are_refused(rows, groups, error, message):
    with pytest.raises(error, match=message):
        ViewCorpus(rows, groups)


def test_shards_have_at_least_one_row():
    with pytest.raises(UsageError, match="shard_rows: expected at least 1, got 0"):
        ViewCorpus(X, GROUPS, shard_rows=0)


def test_archives_hold_one_matrix_that_a_process_reads_once(tmp_path):
    views._read_archive.cache_clear()
    np.savez(tmp_path / "X.npz", X)
    save_npz(tmp_path / "sparse.npz", csr_array(X))
    np.savez_compressed(tmp_path / "groups.npz", GROUPS)
    expected = ViewCorpus(X, GROUPS, shard_rows=10)
    for name in ("X.npz", "sparse.npz"):
        corpus = ViewCorpus(tmp_path / name, tmp_path / "groups.npz", shard_rows=10)
        # Every process holds the whole archive.
        assert corpus.shards[0].block_bytes > X.nbytes
        for i in range(len(corpus.shards)):
            rows = corpus.read_shard(i).rows
            assert_array_equal(rows.toarray() if name == "sparse.npz" else rows, expected.read_shard(i).rows)
    assert views._read_archive.cache_info().hits >= 2 * (len(corpus.shards) - 1)
    for names, message in (((), "got none"), (("a", "b"), "got a, b")):
        np.savez(tmp_path / "more.npz", **dict.fromkeys(names, X))
        with pytest.raises(InputError, match=f"arrays: expected one, .* {message}"):
            ViewCorpus(tmp_path / "more.npz", GROUPS)
    content = bytearray((tmp_path / "X.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "X.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"X\.npz: not an \.npz file of numbers"):
        ViewCorpus(tmp_path / "X.npz", GROUPS)


def test_groups_have_names_in_the_order_of_the_corpus(tmp_path):
    groups = np.array(["b", "a", "b", "c", "a", "b"])
    np.save(tmp_path / "g.npy", groups)
    for given in (groups, tmp_path / "g.npy", list(groups)):
        assert ViewCorpus(np.ones((6, 2)), given).group_names.tolist() == ["b", "a", "c"]
    assert ViewCorpus(np.ones((6, 2)), np.sort(groups)).group_names.tolist() == ["a", "b", "c"]
