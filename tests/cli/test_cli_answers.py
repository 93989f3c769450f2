"""Answers with ids from the command line: from texts with ids to lines that can be joined to them."""

import csv
import gzip
import json
import random
import re

import numpy as np
import pandas as pd
import pytest
import zarr

from distmom.corpus.sources.formats import detect_format
from distmom.errors import UsageError

LOCAL = ("--workers", "0", "--quiet")
WORDS = {
    "animals; pets": ["cat", "dog", "bird", "fish", "horse"],
    "finance, banks": ["stock", "bank", "money", "price", "trade"],
}


def records(n, seed):
    draw = random.Random(seed)
    for i in range(n):
        label = draw.choice(list(WORDS))
        yield {"key": f"doc\\{seed}-{i}", "body": " ".join(draw.choices(WORDS[label], k=6)), "label": label}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with training documents and new ones, of which the second has no known word."""
    folder = tmp_path_factory.mktemp("answers")
    with (folder / "train.csv").open("w", newline="") as stream:
        table = csv.DictWriter(stream, ["label", "key", "body"])
        table.writeheader()
        table.writerows(records(200, 0))
    new = [*records(20, 1)]
    new[1]["body"] = "unknown 12"
    (folder / "new.jsonl").write_text("".join(json.dumps(record) + "\n" for record in new))
    (folder / "plain.txt").write_text("".join(f"{record['body']}\n\n" for record in new))
    return folder


@pytest.fixture(scope="module")
def models(place):
    from distmom.cli.main import main

    names = ("--text-field", "body", "--id-column", "key", "--label-separator", "", *LOCAL)
    for command in (
        ("ingest", "train.csv", "corpus", *names),
        ("fit", "corpus", "model", "-k", "2", "--head", "ridge", *LOCAL),
        ("fit", "corpus", "topics", "-k", "2", "--model", "lda", "--max-df", "1", *LOCAL),
    ):
        arguments = [
            str(place / x) if x in ("train.csv", "corpus", "model", "topics") else x for x in command
        ]
        assert main(arguments) == 0
    return place


def test_predictions_can_be_joined_to_their_documents(run, models, tmp_path):
    code, out, _ = run("info", models / "corpus", "--json")
    assert code == 0
    assert (json.loads(out)["has_ids"], json.loads(out)["n_labels"]) == (True, 2)
    names = ("--text-field", "body", "--id-column", "key", *LOCAL)
    new = [json.loads(line) for line in (models / "new.jsonl").read_text().splitlines()]
    predict = ("predict", models / "model", models / "new.jsonl")
    code, out, _ = run(*predict, tmp_path / "tsv", "--top", 1, *names, "--json")
    assert code == 0
    assert json.loads(out)["n_empty"] == 1
    with (tmp_path / "tsv" / "predictions.tsv").open(newline="") as stream:
        found = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert {row["id"].replace("\\\\", "\\"): row["label"] for row in found} == {
        record["key"]: record["label"] for i, record in enumerate(new) if i != 1
    }
    assert run(*predict, tmp_path / "all", "--top", 1, *names, "--fill", "--output-format", "jsonl")[0] == 0
    lines = [json.loads(x) for x in (tmp_path / "all" / "predictions.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [record["key"] for record in new]
    assert [len(line["labels"]) for line in lines] == [1] * 20
    assert run("verify", tmp_path / "all")[0] == 0
    assert run(*predict, tmp_path / "zarr", *names, "--output-format", "zarr")[0] == 0
    assert not (tmp_path / "zarr" / "predictions.tsv").exists()


def test_lines_of_plain_texts_keep_their_numbers(run, models, tmp_path):
    arguments = ("transform", models / "topics", models / "plain.txt", tmp_path / "out", "--format", "lines")
    assert run(*arguments, *LOCAL)[0] == 0
    assert (tmp_path / "out" / "ids.txt").read_text().split() == [str(2 * i + 1) for i in range(20)]
    header, *rest = (tmp_path / "out" / "shares.tsv").read_text().splitlines()
    assert header == "id\ttopic\tshare"
    shares = zarr.open_array(tmp_path / "out" / "shares.zarr", mode="r")[...]
    first = [line.split("\t") for line in rest if line.startswith("1\t")]
    assert int(first[0][1]) == shares[0].argmax()
    np.testing.assert_allclose(float(first[0][2]), shares[0].max(), rtol=1e-5)


def test_topics_are_fitted_to_plain_texts(run, models, tmp_path):
    assert run("ingest", models / "plain.txt", tmp_path / "c", *LOCAL)[0] == 0
    fit = ("fit", tmp_path / "c", tmp_path / "m", "-k", 2, "--model", "lda", "--max-df", 1, *LOCAL)
    assert run(*fit)[0] == 0
    assert run("predict", models / "model", models / "plain.txt", tmp_path / "p", *LOCAL)[0] == 0


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("3 4 2", "xmc"), ("A title of 2 words", "lines"), ("Über Größe", "lines"), ("at 10: tea", "lines"),
        ("tea at 3:30 or 4:15pm", "lines"), ("3:30 am", "lines"), ("tea #2 at 3:30", "lines"), ("At 3:30", None),
        ("fish 1:2 3:4e-1", None), ("1 3:nan 7:inf", None), ("1 qid:3 5:0.5", None), ("1,2 12:1.5 # x y", None),

        ("fish,seas\ta text", None), ("0,1 3:0.5 4:1", None), ("17 1:2", None), ("12", None), ("", "lines"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_first_line_decides_how_a_txt_file_is_read(tmp_path, first, expected, suffix):
    path = tmp_path / f"x.txt{suffix}"
    with gzip.open(path, "wt") if suffix else open(path, "w") as file:
        file.write(f"{first}\nmore\n" if first else "")
    if expected is None:
        with pytest.raises(UsageError, match=r"specify one of xmc, svmlight, .*npy.* \(--format\)"):
            detect_format(str(path))
    else:
        assert detect_format(str(path)) == expected


def test_swapped_columns_give_a_warning(run, place, tmp_path):
    texts = [f"text {i} " + "bcd"[i % 3] * 3 for i in range(40)]
    (tmp_path / "x.tsv").write_text("".join(f"{text}\tlabel{'ab'[i % 2]}\n" for i, text in enumerate(texts)))
    code, _, err = run("ingest", tmp_path / "x.tsv", tmp_path / "c", *LOCAL)
    assert code == 0
    assert "x.tsv: 40 of 40 labels occur once, such as 'text 0 bbb'" in err


@pytest.mark.parametrize("separator", [";", "|"])
def test_labels_that_look_like_several_give_a_warning(run, tmp_path, separator):
    lines = ["text,labels", *(f"bcd bcd,{'a' if i % 2 else f'a{separator} b'}" for i in range(10))]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    code, _, err = run("ingest", tmp_path / "x.csv", tmp_path / "c", *LOCAL)
    assert code == 0
    assert f"5 of 10 labels of documents contain '{separator}', such as 'a{separator} b'" in err
    split = ("--label-separator", separator)
    code, _, err = run("ingest", tmp_path / "x.csv", tmp_path / "d", *split, *LOCAL)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("written", [str, json.dumps, lambda own: str(set(own))])
def test_lists_that_a_table_has_printed_give_a_warning(run, tmp_path, written):
    labels = [["a"], ["a", "b c"], ["b c", "a", "d"]] * 4
    pd.DataFrame({"text": "bcd bcd", "labels": map(written, labels)}).to_csv(tmp_path / "x.csv")
    code, _, err = run("ingest", tmp_path / "x.csv", tmp_path / "c", *LOCAL)
    assert code == 0
    assert "x.csv: 12 of 24 labels of documents begin with a bracket, such as " in err
    pd.DataFrame({"text": "bcd bcd", "labels": map(",".join, labels)}).to_csv(tmp_path / "x.csv")
    assert run("ingest", tmp_path / "x.csv", tmp_path / "d", *LOCAL)[::2] == (0, "")


def test_a_file_in_place_of_a_corpus_is_reported_as_such(run, tmp_path):
    (tmp_path / "x.csv").write_text("text\nbcd\n")
    code, _, err = run("fit", tmp_path / "x.csv", tmp_path / "m", *LOCAL)
    assert code == 2
    assert "x.csv: is not a corpus: it is a file, which 'distmom ingest' turns into a corpus" in err


def test_options_of_documents_and_rows_are_told_apart(run, place, tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    code, _, err = run("ingest", tmp_path / "x.npy", tmp_path / "c", "--label-separator", ";", *LOCAL)
    assert code == 2
    assert "--label-separator: is for documents only" in err
    code, _, err = run(
        "ingest", place / "plain.txt", tmp_path / "c", "--views", "sentences", "--id-column", "a", *LOCAL
    )
    assert code == 2
    assert "--id-column: cannot be combined with --views" in err
    lines = ("--format", "lines", "--id-column", "a")
    code, _, err = run("ingest", place / "plain.txt", tmp_path / "c", *lines, *LOCAL)
    assert code == 2
    assert "id_column: expected none with format lines, as only jsonl, csv, parquet and arrow have" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "model", "corpus", "out", "--id-column", "key"),
        ("evaluate", "model", "corpus", "--labels", "names.txt"),
        ("transform", "topics", "corpus", "out", "--format", "csv"),
        ("search", "corpus", "-k", "2", "--documents", "corpus", "--strict"),
        ("search", "corpus", "-k", "2", "--word", "cat", "--label-separator", ";"),
    ],
)
def test_options_of_files_are_refused_where_no_file_is_read(run, models, tmp_path, arguments):
    places = {name: models / name for name in ("model", "topics", "corpus")} | {"out": tmp_path / "out"}
    code, out, err = run(*(places.get(x, x) for x in arguments), *LOCAL)
    given = next(x for x in reversed(arguments) if x.startswith("--"))
    read = (
        f"files, and {models / 'corpus'} is a corpus"
        if "--word" not in arguments
        else "the file of --documents"
    )
    assert (code, out, err) == (2, "", f"error: {given}: is for {read}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--min-df", 3),
        ("--max-df", 0.5),
        ("--stop-words", "english"),
        ("--ngrams", 2),
        ("--analyzer", "char"),
    ],
)
@pytest.mark.parametrize("name", ["model", "corpus"])
def test_options_that_columns_of_others_fix_are_refused_with_them(run, models, tmp_path, name, option, value):
    like = ("--like", models / name)
    code, _, err = run("ingest", models / "plain.txt", tmp_path / "c", *like, option, value, *LOCAL)
    assert code == 2
    assert err.startswith(f"error: {option}: expected none with --like {models / name}, ")
    assert list(tmp_path.iterdir()) == []
    assert run("ingest", models / "plain.txt", tmp_path / "c", *like, *LOCAL)[0] == 0


def test_predictions_of_all_labels_have_no_threshold(run, models, tmp_path):
    assert run("predict", models / "model", models / "corpus", tmp_path / "out", *LOCAL)[0] == 0
    assert re.search(r"^threshold +none$", run("info", tmp_path / "out")[1], re.MULTILINE)
    assert re.search(r"^param n_topics +default$", run("info", models / "model")[1], re.MULTILINE)
