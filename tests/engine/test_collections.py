"""Dask collections become corpora, one shard per partition, with and without a cluster."""

import os
import time

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from clusters import threads, wait_until
from distributed import Client, LocalCluster

from distmom.engine.collections import ingest_collection
from distmom.engine.executors import cluster, watch
from distmom.errors import ClusterError, InputError, UsageError, WorkersLostError


def rows_of(corpus):
    return np.concatenate([corpus.read_shard(i).rows for i in range(len(corpus.shards))])


def test_an_array_becomes_rows(tmp_path):
    X = np.random.default_rng(0).standard_normal((50, 6))
    array = da.from_array(X, chunks=(20, 3))
    corpus = ingest_collection(array, tmp_path / "corpus", names=list("abcdef"))
    assert (len(corpus.shards), corpus.vocabulary) == (3, list("abcdef"))
    np.testing.assert_array_equal(rows_of(corpus), X)
    assert corpus.verify() == []


def test_symbols_and_an_empty_partition(tmp_path):
    x = np.arange(40) % 7
    array = da.from_array(x, chunks=20)
    corpus = ingest_collection(array[array < 3], tmp_path / "corpus", n_symbols=7)
    assert (corpus.n_words, corpus.layers[0].kind) == (7, "symbols")
    np.testing.assert_array_equal(rows_of(corpus), x[x < 3])
    few = da.from_array(np.array([0, 1, 1, 5, 6, 5]), chunks=3)
    corpus = ingest_collection(few[few > 4], tmp_path / "few")
    assert [shard.n_rows for shard in corpus.shards] == [0, 3]
    np.testing.assert_array_equal(rows_of(corpus), [5, 6, 5])
    assert corpus.verify() == []


def test_a_table_becomes_rows_with_ids(tmp_path):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"name": list("vwxyz"), "a": range(5), "b": np.linspace(0, 1, 5)})
    table = dd.from_pandas(frame, npartitions=2)
    corpus = ingest_collection(table, tmp_path / "corpus", id_column="name")
    np.testing.assert_array_equal(rows_of(corpus), frame[["a", "b"]].to_numpy())
    assert (corpus.vocabulary, corpus.read_ids(0) + corpus.read_ids(1)) == (["a", "b"], list("vwxyz"))
    with pytest.raises(UsageError, match="expected one named 'c', got name, a, b"):
        ingest_collection(table, tmp_path / "other", columns=["c"])
    with pytest.raises(InputError, match="partition 0: column 'name': expected numbers"):
        ingest_collection(table, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_bag_of_sequences_becomes_symbols(tmp_path):
    texts = ["a b a", "b c", "a a a d", "e"]
    bag = db.from_sequence(texts, npartitions=2)
    corpus = ingest_collection(bag, tmp_path / "corpus", min_count=2)
    assert corpus.vocabulary == ["a", "<rare>", "b"]
    found = [corpus.vocabulary[i] for i in rows_of(corpus)]
    assert found == ["a", "b", "a", "b", "<rare>", "a", "a", "a", "<rare>", "<rare>"]
    assert [corpus.read_shard(i).sizes.tolist() for i in (0, 1)] == [[3, 2], [4, 1]]
    same = ingest_collection(bag.map(str.split), tmp_path / "same", min_count=2)
    assert same.digest == corpus.digest


def test_a_bag_of_matrices_becomes_units_of_steps(tmp_path):
    rng = np.random.default_rng(0)
    steps = [rng.standard_normal((n, 3)) for n in (2, 5, 1)]
    corpus = ingest_collection(db.from_sequence(steps, npartitions=2), tmp_path / "corpus")
    np.testing.assert_array_equal(rows_of(corpus), np.concatenate(steps))
    assert (corpus.n_documents, corpus.largest) == (3, 5)
    with pytest.raises(InputError, match="item 0: expected a sequence of symbols, got ndarray"):
        ingest_collection(db.from_sequence([steps[0], "a b"], npartitions=1), tmp_path / "mixed")
    with pytest.raises(InputError, match="columns of steps: expected 2, got 3"):
        ingest_collection(db.from_sequence([steps[0], np.zeros((1, 2))], npartitions=1), tmp_path / "ragged")


def test_what_is_wrong_is_named(tmp_path):
    array = da.from_array(np.array([[1.0], [2.0], [np.nan]]), chunks=(2, 1))
    with pytest.raises(InputError, match=r"partition 1: value in row 0, column 0: expected a finite number"):
        ingest_collection(array, tmp_path / "corpus")
    with pytest.raises(UsageError, match=r"expected a Dask array, DataFrame or bag, got builtins\.list"):
        ingest_collection([1, 2], tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []


def test_partitions_without_rows(tmp_path):
    steps = [np.zeros((2, 3)), np.ones((5, 3)), np.zeros((9, 3))]
    bag = db.from_sequence(steps, npartitions=3).filter(lambda matrix: len(matrix) > 3)
    corpus = ingest_collection(bag, tmp_path / "bag")
    np.testing.assert_array_equal(rows_of(corpus), np.concatenate(steps[1:]))
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame({"a": range(5), "n": list("vwxyz")}), npartitions=2)
    corpus = ingest_collection(frame[frame.a > 2], tmp_path / "frame", id_column="n")
    assert [corpus.read_ids(i) for i in (0, 1)] == [[], ["y", "z"]]
    assert corpus.verify() == []


def test_an_array_of_unknown_size(tmp_path):
    X = np.arange(40.0).reshape(20, 2)
    array = da.from_array(X, chunks=(6, 1))
    corpus = ingest_collection(array[array[:, 0] > 20], tmp_path / "corpus", names=["a", "b"])
    np.testing.assert_array_equal(rows_of(corpus), X[X[:, 0] > 20])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"a": [1, None, 3]},
            {},
            "partition 0: row 1, column 'a': expected a finite number, got a missing value",
        ),
        ({"a": [1.0, 2.0], "n": ["x", None]}, {"id_column": "n"}, "row 1, column 'n': expected an id"),
        ({"n": ["x"]}, {"id_column": "n"}, "columns of numbers: expected at least one, got none"),
        ({"a": [1.0]}, {"columns": ["a", "a"]}, "expected a unique name"),
        (
            {"a": [1.0]},
            {"names": ["b"]},
            "names: does not apply to dataframe, which takes columns, id_column",
        ),
        ({"a": [1.0]}, {"layer": "a b"}, "layer: expected a name of at most 64 letters"),
    ],
)
def test_what_is_wrong_with_tables_is_named(tmp_path, columns, options, message):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    # Numbers that may be missing have types of pandas.
    frame = pd.DataFrame(columns).convert_dtypes()
    with pytest.raises((InputError, UsageError)) as caught:
        ingest_collection(dd.from_pandas(frame, npartitions=1), tmp_path / "corpus", **options)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_columns_of_any_type_of_number_are_read(tmp_path):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({0: pd.array([1, 2, 3], "Int64"), 1: [0.5, 1.0, 2.0], 2: [True, False, True]})
    corpus = ingest_collection(dd.from_pandas(frame, npartitions=2), tmp_path / "corpus")
    np.testing.assert_array_equal(rows_of(corpus), [[1, 0.5, 1], [2, 1, 0], [3, 2, 1]])
    assert corpus.vocabulary == ["0", "1", "2"]


@pytest.mark.parametrize("item", [None, 1, [[1.0, 2.0]], ["a", ["b"]], np.array([0.5])])
def test_items_of_bags_that_are_not_sequences(tmp_path, item):
    bag = db.from_sequence(["a b", item], npartitions=1)
    with pytest.raises(
        InputError, match="partition 0: item 1: expected a text, a list of symbols or a matrix"
    ):
        ingest_collection(bag, tmp_path / "corpus")


def test_partitions_of_different_types_are_refused(tmp_path):
    steps = [np.zeros((2, 2), np.float32), np.zeros((2, 2))]
    with pytest.raises(InputError, match="in shard 1: expected 2 dense, float32, got 2 dense, float64"):
        ingest_collection(db.from_sequence(steps, npartitions=2), tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cluster_writes_the_same_corpus(tmp_path):
    X = np.random.default_rng(0).standard_normal((100, 4))
    array = da.from_array(X, chunks=(9, 4))
    alone = ingest_collection(array, tmp_path / "alone")
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        corpus = ingest_collection(array, tmp_path / "corpus", client=client)
    assert corpus.digest == alone.digest


def test_a_cluster_without_workers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "NO_WORKERS_TIMEOUT_S", 1.0)
    array = da.ones((40, 2), chunks=(10, 2))
    with (
        threads(n_workers=0) as (_, client),
        pytest.raises(ClusterError, match="ingest: the cluster has had no worker for 1 s"),
    ):
        ingest_collection(array, tmp_path / "corpus", client=client)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.cluster
def test_workers_that_die_or_run_another_distmom_are_errors_of_the_cluster(tmp_path, monkeypatch):
    def deadly(block):
        os._exit(1)

    array = da.ones((4, 2), chunks=(2, 2)).map_blocks(deadly, meta=np.ones((0, 2)))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as local,
        Client(local, set_as_default=False) as client,
    ):
        with pytest.raises(WorkersLostError, match=r"ingest: the worker of task .* died"):
            ingest_collection(array, tmp_path / "corpus", client=client)
        client.wait_for_workers(1, timeout=60)
        monkeypatch.setattr(cluster, "differing", lambda expected, got: "distmom: expected 1, got 2")
        with pytest.raises(ClusterError, match="other versions than the client: distmom"):
            ingest_collection(array, tmp_path / "corpus", client=client)


def test_a_collection_may_take_longer_than_the_tasks_of_a_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "STALL_TIMEOUT_S", 0.5)

    def slow(block):
        time.sleep(2.5)
        return block

    with threads() as (_, client):
        array = da.ones((4, 2), chunks=(2, 2)).map_blocks(slow, meta=np.ones((0, 2)))
        assert ingest_collection(array, tmp_path / "corpus", client=client).n_rows == 4


def test_tasks_of_a_collection_that_failed_are_cancelled_and_write_nothing_more(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 2))

    def slow(block, block_info=None):
        place = block_info[None]["chunk-location"][0]
        if place == 1:
            raise ValueError("of the user")
        time.sleep(0.5 * place)
        return -block

    array = da.from_array(X, chunks=(10, 2))
    with threads() as (local, client):
        failing = array.map_blocks(slow, dtype=float, meta=np.ones((0, 2)))
        with pytest.raises(ValueError, match="of the user"):
            ingest_collection(failing, tmp_path / "corpus", client=client)
        found = ingest_collection(array, tmp_path / "corpus", client=client)
        wait_until(lambda: not local.scheduler.tasks, 20)
    np.testing.assert_array_equal(rows_of(found), X)
    assert found.verify() == []
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.parametrize("other", [{"a": [8.0]}, {"c": [1.0], "a": [8.0], "b": [7.0]}])
def test_partitions_without_the_columns_of_their_table_are_refused(tmp_path, other):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    meta = pd.DataFrame({"a": [1.0], "b": [2.0]})
    parts = [
        dask.delayed(lambda columns: pd.DataFrame(columns))(own) for own in ({"a": [1.0], "b": [2.0]}, other)
    ]
    frame = dd.from_delayed(parts, meta=meta, verify_meta=False)
    with pytest.raises(InputError, match=r"partition 1: columns: expected '.' as number"):
        ingest_collection(frame, tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []
