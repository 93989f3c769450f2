"""Rows and sequences in memory as a corpus: shards, cuts, context, layers, and what is refused."""

import numpy as np
import pytest
from scipy import sparse

from distmom.corpus import RowCorpus
from distmom.corpus.layers import CONTEXT_ROWS, cut_units
from distmom.errors import InputError, UsageError


def joined(corpus):
    """Rows and lengths of all units, put together from the shards without their context."""
    rows, lengths = [], np.zeros(corpus.n_documents, int)
    for index in range(len(corpus.shards)):
        block = corpus.read_shard(index).with_context(0)
        part = block.rows
        rows.append(part.toarray() if sparse.issparse(part) else part)
        np.add.at(lengths, np.arange(block.first, block.first + block.n_documents), block.sizes)
    return np.concatenate(rows), lengths


@pytest.mark.parametrize("kind", ["dense", "csr", "symbols"])
def test_shards_hold_all_rows_once(kind):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 30)
    n = lengths.sum()
    X = (
        rng.integers(0, 9, n)
        if kind == "symbols"
        else rng.standard_normal((n, 5)) * (rng.random((n, 5)) < 0.5)
    )
    given = sparse.csr_array(X) if kind == "csr" else X
    corpus = RowCorpus(given, lengths, shard_rows=16)
    assert [corpus.layers[0].kind, corpus.n_documents, corpus.n_rows] == [kind, 30, n]
    assert max(shard.n_rows for shard in corpus.shards) <= 16
    rows, found = joined(corpus)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(found, lengths)
    assert corpus.largest == lengths.max()


def test_a_cut_unit_has_context_and_keeps_its_position():
    corpus = RowCorpus(np.arange(50), [5, 40, 5], shard_rows=16)
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    assert [(b.first, b.n_documents) for b in blocks] == [(0, 1), (1, 1), (1, 1), (1, 2)]
    assert [b.continued for b in blocks] == [False, False, True, True]
    assert [b.continues for b in blocks] == [False, True, True, False]
    assert [b.context for b in blocks] == [0, 0, CONTEXT_ROWS, CONTEXT_ROWS]
    for block in blocks[2:]:
        np.testing.assert_array_equal(np.diff(block.rows), 1)
        assert block.with_context(2).context == 2
        assert block.with_context(2).rows[2] == block.rows[CONTEXT_ROWS]


def test_context_stays_with_the_first_unit():
    block = RowCorpus(np.arange(33), [20, 4, 9], shard_rows=16).read_shard(1)
    assert (block.context, block.sizes.tolist(), block.continued) == (8, [4, 4], True)
    first, second = block.take(slice(0, 1)), block.take(np.array([False, True]))
    assert (first.context, first.continued, first.rows[0]) == (8, True, 8)
    assert (second.context, second.continued, second.rows.tolist()) == (0, False, [20, 21, 22, 23])
    both = block.take(np.array([0, 1]))
    np.testing.assert_array_equal(both.rows, block.rows)


def test_context_never_reaches_into_the_unit_before():
    cuts = list(cut_units(np.array([0, 3, 30]), 10))
    assert [cut.context(np.array([0, 3, 30])) for cut in cuts] == [0, 0, 8, 8]
    cuts = list(cut_units(np.array([0, 9, 20]), 10))
    assert [(cut.first, cut.start, cut.stop) for cut in cuts] == [(0, 0, 9), (1, 9, 19), (1, 19, 20)]


@pytest.mark.parametrize(
    ("X", "lengths", "message"),
    [
        (np.array([[1.0, np.nan]]), None, "value in row 0, column 1: expected a finite number, got nan"),
        (sparse.csr_array([[0.0, np.inf]]), None, "row 0, column 1"),
        (np.array([1, -2]), None, "symbol of row 1: expected 0 to 134217727, got -2"),
        (np.array([["a"]]), None, "real numbers"),
        (np.zeros((2, 2, 2)), None, "a matrix of rows and columns"),
        (np.zeros((3, 2)), [1, 1], "sum of the lengths: expected 3, the number of rows, got 2"),
        (np.zeros((3, 2)), [3, 0], "length of unit 1: expected at least 1, got 0"),
        (
            np.zeros((3, 2)),
            [1.5, 1.5],
            "lengths: shape and type: expected a vector of whole numbers, got float64",
        ),
    ],
)
def test_what_is_wrong_is_named(X, lengths, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        RowCorpus(X, lengths)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_rows_are_not_changed(dtype):
    data, columns = np.arange(1.0, 7.0).astype(dtype), np.array([5, 4, 4, 2, 1, 0], np.int32)
    X = sparse.csr_array((data, columns, np.array([0, 4, 6], np.int32)), shape=(2, 6))
    for array in (X.data, X.indices, X.indptr):
        array.flags.writeable = False
    rows, _ = joined(RowCorpus(X))
    np.testing.assert_array_equal(rows, [[0, 0, 4, 0, 5, 1], [6, 5, 0, 0, 0, 0]])


def test_small_shards_are_refused():
    with pytest.raises(UsageError, match="shard_rows: expected at least 8, got 3"):
        RowCorpus(np.zeros((4, 2)), shard_rows=3)


def test_symbols_that_do_not_occur_have_names():
    corpus = RowCorpus(np.array([0, 1, 0]), names=["a", "b", "c"])
    assert (corpus.n_words, corpus.document_frequency.tolist()) == (3, [2, 1, 0])
    with pytest.raises(InputError, match="symbol of row 1: expected 0 to 0, got 1"):
        RowCorpus(np.array([0, 1, 0]), names=["a"])


def test_the_digest_is_that_of_the_content():
    X = np.arange(20.0).reshape(10, 2)
    assert RowCorpus(X).digest == RowCorpus(X.copy(), shard_rows=8).digest
    assert RowCorpus(X).digest != RowCorpus(X, [5, 5]).digest
    assert RowCorpus(X).digest != RowCorpus(X + 1e-9).digest
