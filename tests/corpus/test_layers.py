"""Corpora of layers on disk: what is written is read, cut, selected, verified, copied, resumed, and refused."""

import json
import pickle
import shutil
from contextlib import suppress
from importlib import import_module

import numpy as np
import pytest
import zarr
from scipy import sparse

from distmom.corpus import (
    LayeredCorpus,
    RowCorpus,
    copy_corpus,
    ingest_rows,
    ingest_sentences,
    open_corpus,
    open_words,
)
from distmom.corpus.layers import CONTEXT_ROWS, Layer
from distmom.corpus.stored.write_layers import LayerShard, LayerWriter
from distmom.errors import InputError, StoreError, UsageError


def everything(corpus):
    """Rows, lengths and ids of all units, put together from the shards without context."""
    rows, lengths, ids = [], np.zeros(corpus.n_documents, int), []
    for index in range(len(corpus.shards)):
        block = corpus.read_shard(index).with_context(0)
        rows.append(block.rows.toarray() if sparse.issparse(block.rows) else block.rows)
        np.add.at(lengths, np.arange(block.first, block.first + block.n_documents), block.sizes)
        ids += corpus.read_ids(index) or []
    return np.concatenate(rows), lengths, ids


@pytest.fixture
def sequences():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 40)
    return rng.integers(0, 11, lengths.sum()), lengths


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "csr", "symbols"])
def test_arrays_come_back(tmp_path, sequences, kind):
    symbols, lengths = sequences
    rng = np.random.default_rng(1)
    X = rng.standard_normal((len(symbols), 4))
    X[rng.random(X.shape) < 0.5] = 0.0
    given = {"csr": sparse.csr_array(X), "symbols": symbols, "int64": np.round(9 * X).astype(int)}.get(
        kind, X.astype(kind) if kind.startswith("float") else X
    )
    corpus = ingest_rows(given, tmp_path / "corpus", lengths=lengths, shard_rows=16)
    rows, found, _ = everything(corpus)
    dense = given.toarray() if kind == "csr" else given
    np.testing.assert_array_equal(rows, dense)
    assert rows.dtype == (np.int32 if kind == "symbols" else np.float64)
    np.testing.assert_array_equal(found, lengths)
    assert (corpus.n_documents, corpus.n_rows, corpus.largest) == (40, len(symbols), lengths.max())
    assert corpus.verify() == []
    assert max(shard.n_rows for shard in corpus.shards) == 16
    in_memory = RowCorpus(given, lengths, shard_rows=16)
    np.testing.assert_array_equal(corpus.document_frequency, in_memory.document_frequency)
    for index, shard in enumerate(in_memory.shards):
        own = corpus.shards[index]
        assert (own.first, own.first_row, own.n_rows, own.continued, own.continues) == (
            shard.first, shard.first_row, shard.n_rows, shard.continued, shard.continues,
        )  # fmt: skip
        # Stored entries include those of the context.
        assert own.n_entries == shard.n_entries or kind == "csr"
        np.testing.assert_array_equal(corpus.read_shard(index).starts, in_memory.read_shard(index).starts)


def test_every_row_is_a_unit_by_default(tmp_path):
    X = np.random.default_rng(0).standard_normal((50, 3))
    corpus = ingest_rows(X, tmp_path / "corpus", names=["a", "b", "c"], shard_rows=16)
    assert (corpus.n_documents, corpus.vocabulary, corpus.largest) == (50, ["a", "b", "c"], 1)
    assert not (tmp_path / "corpus/shards/s00000/starts").exists()
    np.testing.assert_array_equal(corpus.read_shard(3).starts, [0, 1, 2])


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.zarr", "x.parquet", "x.arrow", "x.csv"])
def test_every_source_gives_the_same_rows(tmp_path, name):
    pa = pytest.importorskip("pyarrow")
    X = np.random.default_rng(2).standard_normal((40, 3))
    path = tmp_path / name
    table = pa.table({f"c{i}": X[:, i] for i in range(3)})
    if name == "x.npy":
        np.save(path, X)
    elif name == "x.npz":
        np.savez(path, X)
    elif name == "x.zarr":
        zarr.create_array(path, data=X)
    elif name == "x.parquet":
        import_module("pyarrow.parquet").write_table(table, path, row_group_size=7)
    elif name == "x.arrow":
        import_module("pyarrow.feather").write_feather(table, path)
    else:
        lines = [",".join(map(repr, map(float, row))) for row in X]
        path.write_text("\n".join(["c0,c1,c2", *lines, ""]))
    format = {"x.npz": "rows-npz", "x.csv": "table"}.get(name)
    corpus = ingest_rows(path, tmp_path / "corpus", format=format, shard_rows=16)
    np.testing.assert_array_equal(everything(corpus)[0], X)
    assert len(corpus.shards) == 3
    if name in ("x.parquet", "x.arrow", "x.csv"):
        assert corpus.vocabulary == ["c0", "c1", "c2"]


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
@pytest.mark.parametrize("sizes", [[3, 1, 5, 30, 2, 2, 9], [12] * 6, [8], [1] * 20])
def test_groups_and_ids_of_tables(tmp_path, name, sizes):
    pa = pytest.importorskip("pyarrow")
    n = sum(sizes)
    X = np.random.default_rng(3).standard_normal((n, 2))
    groups = np.repeat([f"g{i}" for i in range(len(sizes))], sizes)
    path = tmp_path / name
    if name == "x.csv":
        rows = [f"{g};{x!r};{y!r}" for g, (x, y) in zip(groups, X.tolist(), strict=True)]
        path.write_text("\n".join(["who;a;b", *rows, ""]))
    else:
        import_module("pyarrow.parquet").write_table(
            pa.table({"a": X[:, 0], "who": groups, "b": X[:, 1]}), path, row_group_size=5
        )
    corpus = ingest_rows(
        path, tmp_path / "corpus", format="table" if name == "x.csv" else None, group_column="who",
        id_column="who", shard_rows=10,
    )  # fmt: skip
    rows, lengths, ids = everything(corpus)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(lengths, sizes)
    assert list(dict.fromkeys(ids)) == [f"g{i}" for i in range(len(sizes))]
    assert corpus.vocabulary == ["a", "b"]
    # Only groups that are longer than a shard are cut, and their parts begin with context.
    for index, shard in enumerate(corpus.shards):
        assert not shard.continues or sizes[shard.first + shard.n_documents - 1] > 10
        assert corpus.read_shard(index).context == (CONTEXT_ROWS if shard.continued else 0)
    assert corpus.largest == max(sizes)


def test_tagged_sequences_have_two_layers(tmp_path):
    path = tmp_path / "s.tagged"
    path.write_text("the/AT dog/NN runs/VB\n\nthe/AT running/VB 1/2/CD ran/VB\n")
    corpus = ingest_rows(path, tmp_path / "corpus")
    assert [layer.name for layer in corpus.layers] == ["rows", "tags"]
    assert corpus.names("tags") == ["AT", "CD", "NN", "VB"]
    assert corpus.warnings == {"blank_lines": 1}
    block = corpus.read_shard(0)
    words = [corpus.vocabulary[i] for i in block.rows]
    assert words == ["the", "dog", "runs", "the", "running", "1/2", "ran"]
    np.testing.assert_array_equal(block.starts, [0, 3, 7])
    np.testing.assert_array_equal(block.others["tags"], [0, 2, 3, 0, 3, 1, 3])
    assert corpus.read_ids(0) == ["1", "3"]
    tags = corpus.select("tags")
    np.testing.assert_array_equal(tags.read_shard(0).rows, [0, 2, 3, 0, 3, 1, 3])
    assert (tags.n_words, tags.digest != corpus.digest) == (4, True)
    np.testing.assert_array_equal(tags.document_frequency, [2, 1, 1, 3])
    again = pickle.loads(pickle.dumps(tags))
    assert again.digest == tags.digest
    np.testing.assert_array_equal(again.read_shard(0).rows, tags.read_shard(0).rows)
    with pytest.raises(UsageError, match="layer: expected one of rows, tags, got 'x'"):
        corpus.select("x")


def test_rare_symbols_are_classes_and_new_texts_are_numbered_alike(tmp_path):
    path = tmp_path / "s.seq"
    path.write_text("a a a b b walking talking sing\na b xing jumped\n")
    corpus = ingest_rows(path, tmp_path / "corpus", min_count=3, rare_suffix=3)
    assert corpus.vocabulary == ["<rare-ing>", "a", "b", "<rare>"]
    new = tmp_path / "new.seq"
    new.write_text("b unknown king a\n")
    other = ingest_rows(new, tmp_path / "new", like=corpus)
    assert [other.vocabulary[i] for i in other.read_shard(0).rows] == ["b", "<rare>", "<rare-ing>", "a"]
    whole = ingest_rows(path, tmp_path / "whole")
    with pytest.raises(InputError, match=r"new.seq:1: symbol: expected one of the 7 known.*, got 'unknown'"):
        ingest_rows(new, tmp_path / "refused", like=whole)
    assert not (tmp_path / "refused").exists()
    assert not (tmp_path / "refused.partial").exists()


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("x.csv", "a,b\n1,2\n3\n", {}, "x.csv:3: number of fields: expected 2, got 1"),
        ("x.csv", "a,b\n1,2\n3,nan\n", {}, "x.csv:3: column 'b': expected a finite number, got 'nan'"),
        ("x.csv", "a,b\n1,2\n3,inf\n", {}, "x.csv:3: column 'b': expected a finite number, got 'inf'"),
        ("x.csv", "a,b\n1,two\n", {}, "x.csv:2: column 'b': expected a finite number, got 'two'"),
        ("x.csv", "a,b\n1,\n", {}, "x.csv:2: column 'b': expected a finite number, got ''"),
        ("x.csv", "1,2\n3,4\n", {}, "x.csv:1: header: expected names of columns, got numbers"),
        ("x.csv", "", {}, "x.csv:1: header"),
        ("x.csv", "a,b\n", {}, "x.csv: rows: expected at least one row, got none"),
        ("x.csv", "a,a\n1,2\n", {}, "a unique name, got 'a'"),
        ("x.csv", "a,b\n1,2\n", {"group_column": "g"}, "columns: expected one named 'g', got a, b"),
        ("x.tagged", "a/B\nword\n", {}, "x.tagged:2: step: expected word/TAG, got 'word'"),
        ("x.seq", "a b\n\n", {"strict": True}, "x.seq:2: blank lines: expected no blank line"),
        ("x.seq", "\n", {}, "x.seq: rows: expected at least one row"),
    ],
)
def test_bad_texts_are_refused(tmp_path, name, content, options, message):
    path = tmp_path / name
    path.write_text(content)
    format = "table" if name == "x.csv" else None
    with pytest.raises((InputError, UsageError)) as caught:
        ingest_rows(path, tmp_path / "corpus", format=format, **options)
    assert message in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (
            np.array([[1.0, 2.0], [3.0, np.nan]]),
            {},
            "x.npy: value in row 1, column 1: expected a finite number",
        ),
        (np.array([["a"]]), {}, "x.npy: type of the values: expected real numbers"),
        (np.zeros((2, 2, 2)), {}, "x.npy: shape: expected a matrix"),
        (np.array([0, -1]), {}, "x.npy: symbol of row 1"),
        (np.zeros((4, 1)), {"lengths": np.array([2, 1])}, "lengths: sum of the lengths: expected 4"),
        (np.zeros((4, 1)), {"lengths": np.array([4, 0])}, "length of unit 1: expected at least 1, got 0"),
        (np.zeros((0, 3)), {}, "expected at least one row"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, array, options, message):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(InputError) as caught:
        ingest_rows(tmp_path / "x.npy", tmp_path / "corpus", **options)
    assert message in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy"]


def test_a_long_sequence_is_cut_and_reads_as_one(tmp_path):
    n = 1_000_000
    np.save(tmp_path / "x.npy", np.arange(n, dtype=np.int32) % 1000)
    np.save(tmp_path / "lengths.npy", [1, n - 2, 1])
    corpus = ingest_rows(
        tmp_path / "x.npy", tmp_path / "corpus", lengths=tmp_path / "lengths.npy", shard_rows=1 << 17
    )
    assert (corpus.n_documents, corpus.largest, len(corpus.shards)) == (3, n - 2, 9)
    assert [shard.first for shard in corpus.shards] == [0, *[1] * 8]
    assert corpus.verify() == []


def test_copies_to_a_directory_are_equal(tmp_path, sequences):
    corpus = ingest_rows(sequences[0], tmp_path / "corpus", lengths=sequences[1], shard_rows=64)
    copy = copy_corpus(tmp_path / "corpus", tmp_path / "copy")
    assert isinstance(copy, LayeredCorpus)
    assert copy.digest == corpus.digest
    np.testing.assert_array_equal(everything(copy)[0], sequences[0])


def test_altered_bytes_are_found(tmp_path, sequences):
    ingest_rows(sequences[0], tmp_path / "corpus", lengths=sequences[1], shard_rows=600)
    files = sorted(p for p in (tmp_path / "corpus").rglob("*") if p.is_file())
    assert len(files) > 12
    for file in files:
        content = file.read_bytes()
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        file.write_bytes(bytes(changed))
        with suppress(StoreError):
            assert open_corpus(tmp_path / "corpus").verify(), file
        file.write_bytes(content)
    assert open_corpus(tmp_path / "corpus").verify() == []


def test_an_interrupted_ingest_resumes(tmp_path):
    X = np.random.default_rng(0).standard_normal((100, 2))
    np.save(tmp_path / "x.npy", X)
    written = []

    def interrupted(function, tasks):
        for task in tasks:
            if len(written) == 3:
                raise KeyboardInterrupt
            written.append(task[0])
            yield function(task)

    with pytest.raises(KeyboardInterrupt):
        ingest_rows(tmp_path / "x.npy", tmp_path / "corpus", shard_rows=16, map=interrupted)
    (kept,) = tmp_path.glob("corpus.partial/*/corpus/shards/s00001/shard.json")
    before = kept.stat().st_ino
    corpus = ingest_rows(tmp_path / "x.npy", tmp_path / "corpus", shard_rows=16)
    assert (tmp_path / "corpus/shards/s00001/shard.json").stat().st_ino == before
    np.testing.assert_array_equal(everything(corpus)[0], X)
    assert corpus.digest == ingest_rows(tmp_path / "x.npy", tmp_path / "other", shard_rows=16).digest


def test_layers_along_units_and_rows_are_aligned(tmp_path):
    layers = (Layer("steps", "dense", "rows", 2, "float64"), Layer("label", "symbols", "units", 3, "int32"))
    rng = np.random.default_rng(0)
    with LayerWriter(tmp_path / "corpus") as writer:
        for index in range(2):
            arrays = {"steps": rng.standard_normal((5, 2)), "label": np.array([index, 2], np.int32)}
            writer.write_shard(index, LayerShard(layers, arrays, np.array([0, 2, 5])))
        corpus = writer.finalise(layers, {"label": ["x", "y", "z"]})
    block = corpus.read_shard(1).take(slice(1, 2))
    assert block.of_units["label"].tolist() == [2]
    assert block.rows.shape == (3, 2)
    assert corpus.names("label") == ["x", "y", "z"]
    short = {"steps": np.zeros((5, 2)), "label": np.array([0], np.int32)}
    with LayerWriter(tmp_path / "bad") as writer:
        shard = LayerShard(layers, short, np.array([0, 2, 5]))
        with pytest.raises(InputError, match="number of units of layer label in shard 0: expected 2, got 1"):
            writer.write_shard(0, shard)
    steps, rows = layers[:1], {"steps": np.zeros((5, 2))}
    with LayerWriter(tmp_path / "mixed") as writer:
        writer.write_shard(0, LayerShard(steps, rows, np.array([0, 2, 5])))
        writer.write_shard(1, LayerShard(steps, rows, None))
        with pytest.raises(InputError, match=r"starts of units, as in shard 0, got a unit per row"):
            writer.finalise(steps)


def test_words_and_rows_are_told_apart(tmp_path):
    ingest_rows(np.zeros((3, 2)), tmp_path / "corpus")
    with pytest.raises(UsageError, match=r"expected a corpus of words, got one of rows \(dense\)"):
        open_words(tmp_path / "corpus")


def test_a_manifest_with_other_entries_is_refused(tmp_path):
    from distmom.corpus.stored.manifest import CORPUS

    ingest_rows(np.zeros((30, 2)), tmp_path / "corpus", shard_rows=16)
    path = tmp_path / "corpus/manifest.json"
    good = CORPUS.read(path)
    for name, value in [
        ("layers", []),
        ("layers", [{**good["layers"][0], "kind": "x"}]),
        ("layers", [{**good["layers"][0], "name": "../x"}]),
        ("layers", [{**good["layers"][0], "kind": "csr"}]),
        ("layers", [{**good["layers"][0], "dtype": "int32"}]),
        ("shards", [{**entry, "entries": {"x": 1}} for entry in good["shards"]]),
        ("totals", {**good["totals"], "n_rows": 29}),
        ("shards", good["shards"][:1]),
        ("shards", [{**good["shards"][0], "continues": True}, good["shards"][1]]),
        ("rows_are_units", 1),
        ("files", {}),
    ]:
        path.write_bytes(CORPUS.dump({**good, name: value}))
        with pytest.raises(StoreError, match="an entry is missing or of the wrong type"):
            open_corpus(tmp_path / "corpus")
    assert json.loads(CORPUS.dump(good))["format_version"] == 2
    shutil.rmtree(tmp_path / "corpus")


def test_sentences_are_views_of_documents(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text(
        'x\tThe cat sat. A dog ran! "Why?" asked the cat.\ny\tDogs.\n\tThe dog sat, the dog sat.\n'
    )
    corpus = ingest_sentences(path, tmp_path / "corpus", min_df=2)
    assert corpus.vocabulary == ["dog", "sat", "the"]
    block = corpus.read_shard(0)
    np.testing.assert_array_equal(block.rows.toarray(), [[0, 1, 1], [1, 0, 0], [0, 0, 1], [2, 2, 2]])
    np.testing.assert_array_equal(block.starts, [0, 3, 4])
    assert (corpus.read_ids(0), corpus.warnings) == (["1", "3"], {"empty_documents": 1})
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "A dog. A cat. Sat."}\n')
    like = ingest_sentences(other, tmp_path / "other", like=corpus)
    np.testing.assert_array_equal(like.read_shard(0).rows.toarray(), [[1, 0, 0], [0, 1, 0]])
    with pytest.raises(
        InputError, match=r"texts.tsv:2: document: expected a word of the vocabulary, got none"
    ):
        ingest_sentences(path, tmp_path / "strict", min_df=2, strict=True)
    other.write_text('{"body": "A dog."}\n')
    with pytest.raises(
        InputError, match=r"other.jsonl:1: field 'text': expected text, got fields \['body'\]"
    ):
        ingest_sentences(other, tmp_path / "bad")
