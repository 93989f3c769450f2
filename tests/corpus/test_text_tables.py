"""Texts in Parquet and Arrow files."""

import json
import re
from importlib import import_module

import numpy as np
import pytest
from helpers import write

from distmom.corpus import FORMATS, ingest
from distmom.corpus.sources.readers.spec import Spec
from distmom.errors import InputError

pa = pytest.importorskip("pyarrow")
pq = import_module("pyarrow.parquet")

KINDS = ["parquet", "arrow", "stream"]


def save(path, table, kind, rows=70):
    """Write a table in pieces of some rows."""
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return path
    with (
        pa.OSFile(str(path), "wb") as file,
        (pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream)(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=rows)
    return path


def documents(n=500):
    rng = np.random.default_rng(5)
    return [
        {
            "other": i / 2,
            "labels": [f"l{i % 4}", f"m{i % 5}"][: i % 3],
            "text": " ".join(f"w{chr(97 + word)}" for word in rng.integers(0, 26, 9)),
            "key": f"d{i}",
        }
        for i in range(n)
    ]


def suffix(kind):
    return "parquet" if kind == "parquet" else "arrow"


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The corpus of the same documents as JSON lines."""
    folder = tmp_path_factory.mktemp("reference")
    lines = write(folder / "x.jsonl", "".join(json.dumps(each) + "\n" for each in documents()))
    return ingest(lines, folder / "corpus", id_column="key", shard_documents=150)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 70, 150, 500])
def test_documents_are_those_of_json_lines(tmp_path, reference, kind, rows):
    path = save(tmp_path / f"x.{suffix(kind)}", pa.Table.from_pylist(documents()), kind, rows)
    seen = []
    corpus = ingest(
        path, tmp_path / "c", id_column="key", shard_documents=150, progress=lambda *event: seen.append(event)
    )
    assert [shard.digest for shard in corpus.shards] == [shard.digest for shard in reference.shards]
    assert (corpus.vocabulary, corpus.label_names) == (reference.vocabulary, reference.label_names)
    done = [event[1] for event in seen if event[0] == "read"]
    assert done == sorted(done)
    assert seen[len(done) - 1] == ("read", path.stat().st_size, path.stat().st_size)


def test_several_files_are_read_in_order(tmp_path, reference):
    table = pa.Table.from_pylist(documents())
    paths = [save(tmp_path / f"{i}.parquet", table.slice(50 * i, 50), "parquet") for i in range(10)]
    corpus = ingest(paths, tmp_path / "c", id_column="key", shard_documents=150)
    assert [shard.digest for shard in corpus.shards] == [shard.digest for shard in reference.shards]


def test_texts_and_labels_may_be_of_any_type_that_holds_them(tmp_path):
    texts = pa.array(["one two", "one three", "two three"])
    for number, (text, labels) in enumerate([
        (texts.cast(pa.large_string()), pa.array([3, None, 4])),
        (texts.dictionary_encode(), pa.array(["3", None, "4"]).dictionary_encode()),
        (texts, pa.array([[3], [], [4]], pa.large_list(pa.int8()))),
        (texts.cast(pa.string_view()), pa.array(["3", None, "4"])),
        (
            texts.cast(pa.string_view()).dictionary_encode(),
            pa.ListArray.from_arrays(
                pa.array([0, 1, 1, 2], pa.int32()),
                pa.array(["3", "4"], pa.string_view()).dictionary_encode(),
            ),
        ),
    ]):  # fmt: skip
        path = save(tmp_path / f"{number}.arrow", pa.table({"text": text, "label": labels}), "arrow")
        corpus = ingest(path, tmp_path / str(number), min_df=1)
        assert corpus.vocabulary == ["one", "three", "two"]
        assert corpus.label_names == ["3", "4"]
        assert corpus.read_shard(0).labels.toarray().tolist() == [[1, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_only_the_columns_that_are_needed_are_read(tmp_path, kind):
    path = save(tmp_path / f"x.{kind}", pa.Table.from_pylist(documents(5)), kind)
    (chunk,) = FORMATS[kind].open(Spec(str(path))).chunks(10)
    assert sorted(pa.ipc.open_stream(chunk.other).schema.names) == ["labels", "text"]


def test_documents_without_ids_are_numbered(tmp_path):
    table = pa.table({"text": ["one two", "one two"]})
    paths = [save(tmp_path / f"{i}.parquet", table, "parquet") for i in range(2)]
    assert not ingest(paths, tmp_path / "c").has_ids


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"text": ["one", None]}, {}, "x.parquet:2: field 'text': expected text, got null"),
        ({"text": [1]}, {}, "x.parquet:1: field 'text': expected text, got int"),
        (
            {"text": ["a b"], "labels": [[1.5]]},
            {},
            "x.parquet:1: field 'labels': expected a name or whole number",
        ),
        (
            {"text": ["a b"], "labels": [["a", ""]]},
            {},
            "x.parquet:1: label: expected a name that is not empty",
        ),
        ({"text": ["a b"], "n": [None]}, {"id_column": "n"}, "x.parquet:1: field 'n': expected an id"),
        ({"body": ["a b"]}, {}, "x.parquet: columns: expected one 'text' (--text-field), got ('body',)"),
        ({"text": ["a b"]}, {"id_column": "n"}, "columns: expected one 'n' (--id-column), got ('text',)"),
        ({"text": ["a b"]}, {"labels_field": "n"}, "columns: expected one 'n' (--labels-field)"),
        (
            {"text": pa.array([], pa.string())},
            {},
            "x.parquet: content: expected at least one document, got none",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, columns, options, message):
    save(tmp_path / "x.parquet", pa.table(columns), "parquet")
    with pytest.raises(InputError, match=re.escape(message)):
        ingest(tmp_path / "x.parquet", tmp_path / "c", min_df=1, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused(tmp_path, kind):
    path = save(tmp_path / f"x.{suffix(kind)}", pa.Table.from_pylist(documents()), kind)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:5], b"", b"text\n" * 50):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"x\.{suffix(kind)}: "):
            ingest(path, tmp_path / "c")
        assert not list(tmp_path.glob("c*"))


def test_columns_that_may_contain_labels_are_reported(tmp_path, caplog):
    path = save(tmp_path / "x.parquet", pa.table({"text": ["one two"] * 2, "topic": ["a", "b"]}), "parquet")
    ingest(path, tmp_path / "c")
    assert "contains them (topic), use --labels-field" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_labels_that_occurs_twice_is_refused(tmp_path, kind):
    columns = [pa.array(["one two"] * 2), pa.array(["a", "b"]), pa.array(["c", "d"])]
    path = save(tmp_path / f"x.{suffix(kind)}", pa.table(columns, names=["text", "label", "label"]), kind)
    with pytest.raises(InputError, match="columns: expected one 'label' at most, got"):
        ingest(path, tmp_path / "c")


@pytest.mark.parametrize("name", ["x.parquet.gz", "x.arrow.zst"])
def test_compressed_files_are_to_be_decompressed(tmp_path, name):
    path = write(tmp_path / name, "not a table")
    with pytest.raises(InputError, match=f"{name}: content: expected .*, got a compressed file: decompress"):
        ingest(path, tmp_path / "c")


def test_columns_of_numbers_are_not_taken_for_labels(tmp_path, caplog):
    columns = {"text": ["one two"] * 2, "score": [0.5, 1.5], "tags": [["a"], ["b"]], "key": ["x", "y"]}
    path = save(tmp_path / "x.parquet", pa.table(columns), "parquet")
    ingest(path, tmp_path / "c", id_column="key")
    assert "contains them (tags), use --labels-field" in caplog.text


def test_a_row_group_is_read_piece_by_piece(tmp_path):
    rng = np.random.default_rng(7)
    table = pa.table({"labels": [["a"]] * 20_000, "text": [rng.bytes(250).hex() for _ in range(20_000)]})
    path = save(tmp_path / "x.parquet", table, "parquet", rows=20_000)
    source = FORMATS["parquet"].open(Spec(str(path)))
    done = [source.bytes_done() for _ in source.chunks(500)]
    assert path.stat().st_size > 8 << 20
    assert done[0] < 4 << 20
    assert done == sorted(done)
    assert done[-1] == path.stat().st_size


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_has_its_own_values_of_a_dictionary(tmp_path, kind):
    texts = pa.array([f"{i} " + "word " * 200 for i in range(300)]).dictionary_encode()
    names = pa.array([f"{i} " + "label" * 200 for i in range(300)]).dictionary_encode()
    labels = pa.ListArray.from_arrays(pa.array(range(301), pa.int32()), names)
    path = save(tmp_path / f"x.{suffix(kind)}", pa.table({"text": texts, "labels": labels}), kind, rows=300)
    sizes = [len(chunk.other) for chunk in FORMATS[suffix(kind)].open(Spec(str(path))).chunks(10)]
    assert len(sizes) == 30
    assert max(sizes) < 40_000


def test_joined_streams_are_refused(tmp_path):
    path = save(tmp_path / "x.arrow", pa.Table.from_pylist(documents(9)), "stream", rows=4)
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(
        InputError, match=r"x\.arrow: cannot be read as an Arrow IPC file: bytes follow the end"
    ):
        ingest(path, tmp_path / "c")
