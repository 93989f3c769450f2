"""Sources of rows as they come: unusual types, tables with quotes and gaps, and errors that name the place."""

import gzip
from importlib import import_module

import numpy as np
import pytest
import zarr
from scipy import sparse

from distmom.corpus import RowCorpus, ingest_rows, ingest_sentences
from distmom.corpus.layers import Layer
from distmom.corpus.stored.write_layers import LayerShard, LayerWriter
from distmom.errors import InputError, UsageError


def rows_of(corpus):
    """All rows, without context, of a corpus without damage."""
    assert corpus.verify() == []
    return np.concatenate([corpus.read_shard(i).with_context(0).rows for i in range(len(corpus.shards))])


def names_in(path):
    return sorted(p.name for p in path.iterdir())


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint64", "int8", ">i4"])
def test_symbols_of_any_whole_type(tmp_path, dtype):
    symbols = (np.arange(20) % 2).astype(dtype)
    np.save(tmp_path / "x.npy", symbols)
    corpus = ingest_rows(tmp_path / "x.npy", tmp_path / "corpus", shard_rows=np.int64(8))
    np.testing.assert_array_equal(rows_of(corpus), symbols)
    assert corpus.n_words == RowCorpus(symbols).n_words == 2


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("bool", "float64"),
        ("uint64", "float64"),
        ("float16", "float32"),
        (">f4", "float32"),
        (">f8", "float64"),
    ],
)
def test_dense_rows_of_any_real_type_and_order(tmp_path, dtype, stored):
    X = np.asfortranarray(np.arange(40.0).reshape(20, 2).astype(dtype))
    np.save(tmp_path / "x.npy", X)
    corpus = ingest_rows(tmp_path / "x.npy", tmp_path / "corpus", shard_rows=8)
    np.testing.assert_array_equal(rows_of(corpus), X)
    assert corpus.layers[0].dtype == stored


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([[1, 2], [3]], {}, "array: shape: expected rows of equal length, got lists of different lengths"),
        (sparse.coo_array(np.arange(4)), {}, "array: shape: expected a sparse matrix, got (4,)"),
        (np.ma.masked_greater(np.eye(2), 0.5), {}, "array: values: expected no masked ones, got 2"),
        (np.array([[1j]]), {}, "type of the values: expected real numbers, got complex128"),
        (np.array([2**31 + 5]), {}, "symbol of row 0: expected 0 to 134217727, got 2147483653"),
        (np.array([2**63 + 1], np.uint64), {}, "got 9223372036854775809"),
        (np.zeros(2, int), {"n_symbols": 2**33}, "n_symbols: expected 1 to 134217728, got 8589934592"),
        (np.zeros(2, int), {"n_symbols": 0}, "n_symbols: expected at least 1, got 0"),
        (np.zeros(2, int), {"n_symbols": 1.5}, "n_symbols: expected a whole number, got 1.5"),
        (
            np.array([0, 3]),
            {"names": ["a", "b"], "n_symbols": 5},
            "n_symbols: expected 2, the number of names, got 5",
        ),
        (np.zeros((3, 2)), {"names": ["a"]}, "array: names: number of entries: expected 2, got 1"),
        (np.zeros((3, 2)), {"names": ["a", "a"]}, "entry 1: expected a unique name"),
        (np.zeros((3, 2)), {"names": ["a", ""]}, "entry 1: expected a name that is not empty, got ''"),
        (np.zeros((3, 2)), {"names": ["a", "b\n"]}, "entry 1: expected text without control characters"),
        (np.zeros((2, 1)), {"lengths": [[1], [1, 2]]}, "lengths: shape: expected rows of equal length"),
        (
            np.zeros((2, 1)),
            {"lengths": np.array([2**63 - 1, 2**63 - 1, 4], np.uint64)},
            "length of unit 0: expected at most 2 rows, got 9223372036854775807",
        ),
        (np.zeros((6, 1)), {"layer": "starts", "lengths": [3, 3]}, "layer: expected another name"),
        (np.zeros((6, 1)), {"layer": "a" * 300}, "layer: expected a name of at most 64 letters"),
        (np.zeros((6, 1)), {"format": "npy"}, "format: expected none with rows in memory, got npy"),
        (np.zeros((6, 1)), {"columns": ["a"]}, "columns: does not apply to array"),
        (np.zeros((6, 1)), {"shard_rows": -1}, "shard_rows: expected at least 8, got -1"),
    ],
)
def test_what_is_wrong_with_arrays_is_named(tmp_path, source, options, message):
    with pytest.raises((InputError, UsageError)) as caught:
        ingest_rows(source, tmp_path / "corpus", **options)
    assert message in str(caught.value)
    assert names_in(tmp_path) == []


def broken_csr(path):
    own = {"data": np.ones(2), "indices": np.array([0, -1]), "indptr": np.array([0, 1, 2])}
    np.savez(path, format=np.array(b"csr"), shape=np.array([2, 2]), **own)


def plain_array(path):
    np.save(path.with_suffix(".npy"), np.zeros(2))
    path.with_suffix(".npy").rename(path)


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (lambda path: path.write_bytes(b""), {}, "not an .npz file of numbers: No data left in file"),
        (plain_array, {}, "got an array; use --format npy"),
        (broken_csr, {}, "x.npz: columns of values: expected 0 to 1, got -1 to 0"),
        (
            lambda path: np.savez(path, values=np.zeros((6, 2)), lengths=[2, 5]),
            {},
            "x.npz: sum of the lengths: expected 6, the number of rows, got 7",
        ),
        (
            lambda path: np.savez(path, values=np.zeros((6, 2)), lengths=[2, 4]),
            {"lengths": [6]},
            "x.npz: lengths: expected none, as the file has its own",
        ),
        (
            lambda path: np.savez(path, a=[1], b=[2]),
            {},
            "x.npz: arrays: expected values and lengths, one array, or a sparse matrix, got a, b",
        ),
    ],
)
def test_bad_archives_are_refused(tmp_path, write, options, message):
    write(tmp_path / "x.npz")
    with pytest.raises((InputError, UsageError)) as caught:
        ingest_rows(tmp_path / "x.npz", tmp_path / "corpus", format="rows-npz", **options)
    assert message in str(caught.value)
    assert names_in(tmp_path) == ["x.npz"]


def test_a_damaged_chunk_of_a_zarr_array_is_refused(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", data=np.ones((40, 2)), chunks=(10, 2))
    assert array.nchunks == 4
    chunk = next(p for p in sorted((tmp_path / "x.zarr").rglob("*")) if p.is_file() and p.suffix != ".json")
    chunk.write_bytes(b"junk")
    with pytest.raises(InputError, match=r"x\.zarr: rows 0 to 39: expected readable chunks"):
        ingest_rows(tmp_path / "x.zarr", tmp_path / "corpus")
    assert names_in(tmp_path) == ["x.zarr"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("\ufeffa,b\r\n1,2\r\n3,4", [[1, 2], [3, 4]]),
        (" a , b\n 1 , 2\n\n+3.,.4e1 \n", [[1, 2], [3, 4]]),
        ('"a","b;c"\n"1","2"\n3,4\n', [[1, 2], [3, 4]]),
        ("a\tb\n1\t2\n", [[1, 2]]),
    ],
)
def test_tables_as_programs_write_them(tmp_path, text, rows):
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    corpus = ingest_rows(tmp_path / "x.csv.gz", tmp_path / "corpus", format="table")
    np.testing.assert_array_equal(rows_of(corpus), rows)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        # Numbers of Python that are not those of tables; no row may be left out.
        ("a,b\n1_000,2\n3,4\n", {}, "x.csv:2: column 'a': expected a finite number, got '1_000'"),
        ("a,b\n3,4\n\uff11,2\n", {}, "x.csv:3: column 'a': expected a finite number, got '\uff11'"),
        ("a,b\n1,2\n\n3,x\n", {}, "x.csv:4: column 'b': expected a finite number, got 'x'"),
        ("a\tb\n1\t2\n\t\n", {}, "x.csv:3: column 'a': expected a finite number, got ''"),
        ('a,g\n1,"x\n2,y\n', {"columns": ["a"]}, "x.csv:2: quoted field: expected one that ends on the line"),
        (
            'g,a\n"x,2\ny,3\n',
            {"group_column": "g"},
            "x.csv:2: quoted field: expected one that ends on the line",
        ),
        ('a,g\n1,"x"\n2,"y",7\n', {"columns": ["a"]}, "x.csv:3: number of fields: expected 2, got 3"),
        (
            "g,a\nx,1\n,2\n",
            {"group_column": "g"},
            "x.csv:3: column 'g': expected a group, got an empty field",
        ),
        ("n,a\nx,1\n,2\n", {"id_column": "n"}, "x.csv:3: column 'n': expected an id, got an empty field"),
        (
            "n,a\nx\x07,1\n",
            {"id_column": "n"},
            "ids: id: expected text on one line without control characters",
        ),
        ("\na,b\n1,2\n", {}, "x.csv:1: header: expected names of columns, got a blank line"),
        (
            ",a\n1,2\n",
            {},
            "x.csv: name of column 1: expected text, got nothing, as for the index of a pandas table: name it, or",
        ),
        ("a,b\r1,2\r", {}, "x.csv:1: end of the line: expected a line feed, got a carriage return"),
        ("a,b\n1,2\n", {"names": ["u"]}, "x.csv: names of columns: number of entries: expected 2, got 1"),
        ("a,b\n1,2\n", {"columns": ["a", "a"]}, "entry 1: expected a unique name"),
        ("a,b\n1,2\n", {"lengths": [1]}, "lengths: does not apply to table"),
        ("n\u00e9" + "\x00", {}, "x.csv:1: content: expected text, got a NUL byte"),
    ],
)
def test_what_is_wrong_with_tables_is_named(tmp_path, text, options, message):
    (tmp_path / "x.csv").write_text(text, newline="")
    with pytest.raises((InputError, UsageError)) as caught:
        ingest_rows(tmp_path / "x.csv", tmp_path / "corpus", format="table", **options)
    assert message in str(caught.value)
    assert names_in(tmp_path) == ["x.csv"]


def test_long_fields_of_text_are_read(tmp_path):
    (tmp_path / "x.csv").write_text(f"g,a\n{'x' * 200_000},1\n")
    corpus = ingest_rows(tmp_path / "x.csv", tmp_path / "corpus", format="table", group_column="g")
    np.testing.assert_array_equal(rows_of(corpus), [[1]])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"a": [1.0, None]},
            {},
            "x.parquet: row 1, column 'a': expected a finite number, got a missing value",
        ),
        ({"a": [1.0, np.nan]}, {}, "x.parquet: row 1, column 'a': expected a finite number"),
        (
            {"a": [1.0, 2.0], "n": ["x", None]},
            {"id_column": "n"},
            "row 1, column 'n': expected an id, got a missing",
        ),
        (
            {"a": [1.0, 2.0], "g": [1, None]},
            {"group_column": "g"},
            "row 1, column 'g': expected a group, got a missing",
        ),
        ({"a": [1.0, 2.0], "g": [1.0, np.nan]}, {"group_column": "g"}, "row 1, column 'g': expected a group"),
        ({"a": [1.0], "g": [[1]]}, {"group_column": "g"}, "column 'g': expected single values, got list"),
        ({"a": [[1.0]]}, {}, "column 'a': expected single values, got list"),
        (
            {"a": ["x"]},
            {},
            "column 'a': expected numbers, got string (--text-field names a column",
        ),
        ({"g": ["x"]}, {"group_column": "g"}, "columns of numbers: expected at least one, got none"),
    ],
)
def test_what_is_wrong_with_parquet_is_named(tmp_path, columns, options, message):
    pa = pytest.importorskip("pyarrow")
    import_module("pyarrow.parquet").write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(InputError) as caught:
        ingest_rows(tmp_path / "x.parquet", tmp_path / "corpus", **options)
    assert message in str(caught.value)
    assert names_in(tmp_path) == ["x.parquet"]


def test_types_of_parquet_columns(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table(
        {
            "i": pa.array([1, 2, 3], pa.int8()),
            "d": pa.array([1.5, 2.0, 1.5]).dictionary_encode(),
            "g": pa.array(["x", "x", "y"]).dictionary_encode(),
        }
    )
    import_module("pyarrow.parquet").write_table(table, tmp_path / "x.parquet", row_group_size=1)
    corpus = ingest_rows(tmp_path / "x.parquet", tmp_path / "corpus", group_column="g", id_column="g")
    np.testing.assert_array_equal(rows_of(corpus), [[1, 1.5], [2, 2], [3, 1.5]])
    np.testing.assert_array_equal(corpus.read_shard(0).starts, [0, 2, 3])
    assert corpus.read_ids(0) == ["x", "y"]


def test_batches_of_an_arrow_file_are_read_one_by_one(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    X = np.arange(100.0).reshape(50, 2)
    groups = [f"g{i // 20}" for i in range(50)]
    table = pa.table({"who": groups, "b": X[:, 1], "a": X[:, 0]})
    import_module("pyarrow.feather").write_feather(table, tmp_path / "x.arrow", chunksize=7)
    module = import_module("distmom.corpus.sources.readers.arrow")
    load, n_pieces = module._load_arrow, []

    def counted(path, first, last, columns):
        n_pieces.append(last - first)
        return load(path, first, last, columns)

    monkeypatch.setattr(module, "_load_arrow", counted)
    corpus = ingest_rows(
        tmp_path / "x.arrow", tmp_path / "corpus", columns=["a", "b"], group_column="who", shard_rows=8
    )
    np.testing.assert_array_equal(rows_of(corpus), X)
    assert (corpus.n_documents, corpus.largest) == (3, 20)
    # A shard of 8 rows with 8 of context lies in at most 4 batches of 7 rows.
    assert max(n_pieces) <= 4


def test_columns_and_names_of_another_corpus(tmp_path):
    X = np.arange(6.0).reshape(3, 2)
    known = RowCorpus(X, names=["u", "v"])
    (tmp_path / "x.csv").write_text("v,other,u\n1,9,2\n")
    corpus = ingest_rows(tmp_path / "x.csv", tmp_path / "table", format="table", like=known)
    assert corpus.vocabulary == ["u", "v"]
    np.testing.assert_array_equal(rows_of(corpus), [[2, 1]])
    assert ingest_rows(X, tmp_path / "array", like=known).vocabulary == ["u", "v"]
    symbols = ingest_rows(np.array([0, 0]), tmp_path / "symbols", like=known)
    assert (symbols.n_words, symbols.vocabulary) == (2, ["u", "v"])
    (tmp_path / "y.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="columns: expected one named 'u', got a, b"):
        ingest_rows(tmp_path / "y.csv", tmp_path / "other", format="table", like=known)
    with pytest.raises(InputError, match="names: number of entries: expected 3, got 2"):
        ingest_rows(np.zeros((4, 3)), tmp_path / "other", like=known)
    with pytest.raises(UsageError, match="names: expected none"):
        ingest_rows(X, tmp_path / "other", like=known, names=["a", "b"])


def test_shards_without_units_have_no_ids(tmp_path):
    path = tmp_path / "x.seq"
    path.write_text("\n" * 100 + "a b\n" * 20)
    corpus = ingest_rows(path, tmp_path / "corpus", shard_rows=8)
    assert len(rows_of(corpus)) == 40
    assert corpus.shards[0].n_rows == 0
    assert (corpus.read_ids(0), corpus.group_names.tolist()) == ([], [str(i) for i in range(101, 121)])


@pytest.mark.parametrize("symbol", ["a", "a-very-long-symbol-of-a-text"])
def test_sizes_of_shards_do_not_depend_on_the_length_of_symbols(tmp_path, symbol):
    (tmp_path / "x.seq").write_text(f"{symbol} {symbol}\n" * 100)
    corpus = ingest_rows(tmp_path / "x.seq", tmp_path / "corpus", shard_rows=20)
    assert [shard.n_rows for shard in corpus.shards] == [20] * 10


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("x.tagged", "a/X\n", {"layer": "tags"}, "layer: expected a name other than that of the tags"),
        ("x.seq", "a b\n", {"names": ["b", "a"]}, "names: does not apply to sequences"),
        ("x.seq", "a b\n", {"group_column": "g"}, "group_column: does not apply to sequences"),
        ("x.seq", "a b\n", {"rare_suffix": -1}, "rare_suffix: expected at least 0, got -1"),
        ("x.seq", "a b\n", {"min_count": 0}, "min_count: expected at least 1, got 0"),
    ],
)
def test_options_that_do_not_suit_a_text_are_refused(tmp_path, name, text, options, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        ingest_rows(tmp_path / name, tmp_path / "corpus", **options)
    assert message in str(caught.value)
    assert names_in(tmp_path) == [name]


def test_lengths_that_change_are_noticed(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((20, 1)))
    np.save(tmp_path / "lengths.npy", [10, 10])

    def change(function, tasks):
        for task in tasks:
            np.save(tmp_path / "lengths.npy", [1] * 20)
            yield function(task)

    with pytest.raises(InputError, match=r"lengths\.npy: source: .* got a file that changed"):
        ingest_rows(tmp_path / "x.npy", tmp_path / "corpus", lengths=tmp_path / "lengths.npy", map=change)
    assert names_in(tmp_path) == ["lengths.npy", "x.npy"]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Layer("a b", "dense", "rows", 1, "float64")], "layer: expected a name of at most 64 letters"),
        ([Layer("x", "dense", "rows", 1, "float64")] * 2, "layer: expected a name of its own for each layer"),
        (
            [Layer("x", "symbols", "rows", 2, "int32")],
            "symbols of layer x in shard 0: expected below 2, got 4",
        ),
        (
            [Layer("x", "dense", "rows", 1, "float64")],
            r"layers of shard 0: expected x \(1 dense, float64\), got x",
        ),
    ],
)
def test_layers_that_do_not_fit_are_not_committed(tmp_path, layers, message):
    shard = LayerShard((Layer("x", "symbols", "rows", 5, "int32"),), {"x": np.arange(5, dtype=np.int32)})

    def write():
        with LayerWriter(tmp_path / "corpus") as writer:
            writer.write_shard(0, shard)
            writer.finalise(layers)

    with pytest.raises((InputError, UsageError), match=message):
        write()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("x.jsonl", '{"text": null}\n', {}, "x.jsonl:1: field 'text': expected text, got null"),
        ("x.jsonl", '{"text": 5}\n', {}, "x.jsonl:1: field 'text': expected text, got int"),
        ("x.jsonl", "[" * 100_000 + "\n", {}, "x.jsonl:1: line: expected a JSON object"),
        ("x.tsv", "the dog\n", {}, "x.tsv:1: line: expected labels, a tab and a text, got no tab"),
        (
            "x.csv",
            "text\nthe dog\n",
            {},
            "x.csv: format: expected JSON objects, tsv, or one text per",
        ),
        ("x.txt", "the dog\r\n", {"strict": True}, "x.txt:1: carriage returns: expected lines that end with"),
        ("x.txt", "the dog\n", {"shard_documents": 0}, "shard_documents: expected at least 1, got 0"),
    ],
)
def test_what_is_wrong_with_sentences_is_named(tmp_path, name, text, options, message):
    (tmp_path / name).write_text(text, newline="")
    with pytest.raises((InputError, UsageError)) as caught:
        ingest_sentences(tmp_path / name, tmp_path / "corpus", min_df=1, **options)
    assert message in str(caught.value)
    assert names_in(tmp_path) == [name]


def test_stop_words_of_sentences_are_those_of_documents(tmp_path):
    (tmp_path / "x.txt").write_text("The dog sat. It ran on a net.\n")
    (tmp_path / "stop.txt").write_text("Dog\n")
    for stop_words, words in (
        ("english", ["dog", "net", "ran", "sat"]),
        (tmp_path / "stop.txt", ["it", "net"]),
    ):
        corpus = ingest_sentences(
            tmp_path / "x.txt", tmp_path / "corpus", min_df=1, stop_words=stop_words, overwrite=True
        )
        assert corpus.vocabulary[: len(words)] == words


def test_further_tabs_belong_to_the_text_of_sentences(tmp_path):
    (tmp_path / "x.tsv").write_text("a\tThe dog\tsat. It ran.\n\nb\tA dog.\n")
    corpus = ingest_sentences(tmp_path / "x.tsv", tmp_path / "corpus", min_df=np.int64(1))
    assert corpus.vocabulary == ["dog", "it", "ran", "sat", "the"]
    assert corpus.warnings == {"blank_lines": 1}
    assert corpus.read_ids(0) == ["1", "3"]
