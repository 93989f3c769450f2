"""Sources on the command line: tables of texts, and several files."""

import json
import re
from importlib import import_module

import pytest
from helpers import write

from distmom.corpus import ingest
from distmom.errors import UsageError

LOCAL = ("--workers", "0", "--quiet")


def save(path, columns):
    pa = pytest.importorskip("pyarrow")
    import_module("pyarrow.parquet").write_table(pa.table(columns), path)
    return path


def parts_of(source, folder, size):
    """Write the lines of a file to files of ``size`` lines."""
    lines = source.read_text().splitlines(keepends=True)
    return [
        write(folder / f"{start:03d}.tsv", "".join(lines[start : start + size]))
        for start in range(0, len(lines), size)
    ]


def test_the_command_line_takes_a_table_with_texts_for_documents(tmp_path, run):
    path = save(
        tmp_path / "x.parquet",
        {
            "text": ["cat dog bird", "bank money price"] * 100,
            "labels": [["animals"], ["finance"]] * 100,
            "key": [f"d{i}" for i in range(200)],
            "other": [i / 2 for i in range(200)],
        },
    )
    code, out, _ = run("ingest", path, tmp_path / "c", "--id-column", "key", "--json", *LOCAL)
    assert (code, json.loads(out)["n_documents"], json.loads(out)["n_labels"]) == (0, 200, 2)
    code, out, _ = run("ingest", path, tmp_path / "rows", "--columns", "other", "--json", *LOCAL)
    assert (code, json.loads(out)["n_rows"]) == (0, 200)
    assert run("fit", tmp_path / "c", tmp_path / "m", "-k", "3", *LOCAL)[0] == 0
    code, out, _ = run("predict", tmp_path / "m", path, tmp_path / "out", "--id-column", "key", *LOCAL)
    assert code == 0
    lines = next((tmp_path / "out").glob("*.tsv")).read_text().splitlines()
    assert lines[1].startswith("d0\t")
    code, _, err = run("ingest", path, tmp_path / "d", "--text-field", "body", *LOCAL)
    assert (code, "expected one 'body' (--text-field)" in err) == (3, True)


def test_rows_and_views_are_read_from_one_file(tmp_path, run):
    path = save(tmp_path / "x.parquet", {"a": [1.0, 2.0]})
    other = save(tmp_path / "y.parquet", {"a": [1.0, 2.0]})
    code, _, err = run("ingest", path, other, tmp_path / "c", *LOCAL)
    assert (code, "expected one source, got 2, as only documents may be in several files" in err) == (
        2,
        True,
    )
    code, _, err = run("ingest", path, other, tmp_path / "c", "--views", "sentences", *LOCAL)
    assert (code, "expected one source, got 2" in err) == (2, True)


def test_several_files_are_one_source(tmp_path, run, place):
    paths = parts_of(place / "train.tsv", tmp_path, 100)
    assert len(paths) == 4
    code, out, _ = run("ingest", *paths, tmp_path / "c", "--json", *LOCAL)
    assert (code, json.loads(out)["n_documents"], json.loads(out)["n_shards"]) == (0, 400, 1)
    code, _, err = run("ingest", paths[0], tmp_path / "x.csv", tmp_path / "d", *LOCAL)
    assert (code, "x.csv: there is no such file" in err) == (2, True)


def test_a_model_reads_new_documents_from_several_files(tmp_path, run, place):
    paths = parts_of(place / "test.tsv", tmp_path, 20)
    assert len(paths) == 3
    for name, source in (("one", [place / "test.tsv"]), ("several", paths)):
        code, out, _ = run("predict", place / "model", *source, tmp_path / name, "--json", *LOCAL)
        assert (code, json.loads(out)["n_documents"]) == (0, 60)
    one, several = ((tmp_path / name / "predictions.tsv").read_text() for name in ("one", "several"))
    assert one == several
    measured = [
        json.loads(run("evaluate", place / "model", *source, "--json", *LOCAL)[1])["P@1"]
        for source in ([place / "test.tsv"], paths)
    ]
    assert measured[0] == measured[1]
    code, _, err = run("predict", place / "model", place / "corpus", paths[0], tmp_path / "x", *LOCAL)
    assert (code, "corpus: is not a file but a directory: expected one file" in err) == (2, True)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["a.jsonl", "b.jsonl"], "*.jsonl"),
        (["a.tsv.gz", "b.tsv.gz", "c.csv", "_SUCCESS.tsv", ".a.csv", ".b.csv"], "*.tsv.gz"),
        (["part-0.snappy.parquet", "_SUCCESS"], "*.parquet"),
        (["a.TXT"], "*.TXT"),
    ],
)
def test_a_directory_of_parts_is_refused_with_a_pattern_of_its_files(tmp_path, run, place, names, pattern):
    folder = tmp_path / "the parts"
    folder.mkdir()
    for name in names:
        write(folder / name, "")
    message = f"is not a file but a directory: expected its files, such as '{folder}/'{pattern}"
    for command in (("ingest",), ("ingest", "--format", "parquet"), ("predict", place / "model")):
        code, _, err = run(*command, folder, tmp_path / "new", *LOCAL)
        assert (code, message in err) == (2, True)
    with pytest.raises(UsageError, match=re.escape(message)):
        ingest([folder], tmp_path / "new")
    assert not list(tmp_path.glob("new*"))


def test_a_directory_without_documents_is_refused_without_a_pattern(tmp_path, run, place):
    write(tmp_path / "a.npz", "")
    # Both have files vocabulary.txt and labels.txt.
    for folder in (tmp_path, place / "corpus", place / "model"):
        code, _, err = run("ingest", folder, tmp_path / "new", *LOCAL)
        assert (code, f"{folder}: is not a file but a directory: expected one file\n" in err) == (2, True)
