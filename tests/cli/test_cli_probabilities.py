"""Probabilities on the command line: thresholds, F1, the table of labels, and what a fit ends with."""

import csv
import json
import os
import random
import re
import unicodedata
from pathlib import Path

import pytest

from distmom.cli.chosen_names import chosen_names
from distmom.cli.main import main
from distmom.errors import InputError, UsageError
from distmom.models import MultiLabelMoM

LOCAL = ("--workers", "0", "--quiet")
WORDS = {
    "animals": "cat dog bird fish horse",
    "finance": "stock bank money price trade",
    "roads": "train bus car road ship",
}


def rows(n, seed):
    """Titles of one or two subjects, with words of all subjects among their own."""
    draw = random.Random(seed)
    everything = " ".join(WORDS.values()).split()
    for _ in range(n):
        names = draw.sample(list(WORDS), draw.choice([1, 1, 2]))
        words = [draw.choice(WORDS[draw.choice(names)].split()) for _ in range(4)]
        yield f"{','.join(names)}\t{' '.join(words + draw.choices(everything, k=4))}\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Titles, and models with and without probabilities."""
    folder = tmp_path_factory.mktemp("probabilities")
    (folder / "train.tsv").write_text("".join(rows(600, 0)))
    (folder / "test.tsv").write_text("".join(rows(100, 1)))
    corpus = str(folder / "corpus")
    assert main(["ingest", str(folder / "train.tsv"), corpus, *LOCAL]) == 0
    assert main(["fit", corpus, str(folder / "model"), "-k", "3", *LOCAL]) == 0
    assert main(["fit", corpus, str(folder / "ridge"), "-k", "3", "--head", "ridge", *LOCAL]) == 0
    return folder


def written(out):
    with (out / "predictions.tsv").open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_a_fit_ends_with_what_was_chosen_and_the_expected_precision(place, run, tmp_path):
    code, out, _ = run("fit", place / "corpus", tmp_path / "m", "-k", 3, *LOCAL)
    assert code == 0
    chosen = MultiLabelMoM.load(tmp_path / "m").selection_
    expected = chosen["held_out"]["auto"]["P@1"]
    assert out.splitlines()[-1] == (
        f"chosen: {', '.join(chosen['weights'])}; expected P@1 {expected:.4f} with standard error "
        f"{chosen['precision_error']:.4f}, measured on {chosen['n_held_out']:,} held-out documents"
    )
    (tmp_path / "twice.tsv").write_text((place / "train.tsv").read_text() * 2)
    assert run("ingest", tmp_path / "twice.tsv", tmp_path / "twice", *LOCAL)[0] == 0
    code, twice, _ = run("fit", tmp_path / "twice", tmp_path / "t", "-k", 3, *LOCAL)
    assert code == 0
    assert re.fullmatch(r"\d\d% of the held-out documents have the same words .*", twice.splitlines()[-1])
    code, out, _ = run("fit", place / "corpus", tmp_path / "r", "-k", 3, "--head", "ridge", *LOCAL)
    assert code == 0
    assert "expected P@1" not in out


def test_a_fit_for_one_metric_ends_with_its_expected_value(place, run, tmp_path):
    options = ("-k", 3, "--objective", "PSP@1", "--n-topics", 0)
    code, out, _ = run("fit", place / "corpus", tmp_path / "m", *options, *LOCAL)
    assert code == 0
    chosen = MultiLabelMoM.load(tmp_path / "m").selection_
    value, error = chosen["expected"]["value"], chosen["expected"]["error"]
    first = f"expected PSP@1 {value:.4f} with standard error {error:.4f}, P@1 "
    assert first in out.splitlines()[-1]
    assert 0.0 < error < 0.1 < value <= 1.0
    _, out, _ = run("fit", place / "corpus", tmp_path / "json", *options, *LOCAL, "--json")
    assert json.loads(out)["expected"] == chosen["expected"]


def test_a_threshold_keeps_probable_labels(place, run, tmp_path):
    predict = ("predict", place / "model", place / "test.tsv")
    assert run(*predict, tmp_path / "all", *LOCAL)[0] == 0
    every = written(tmp_path / "all")
    for given in ("best", "0.8"):
        code, out, _ = run(*predict, tmp_path / given, "--threshold", given, *LOCAL, "--json")
        assert code == 0
        threshold = MultiLabelMoM.load(place / "model").threshold_ if given == "best" else 0.8
        kept = written(tmp_path / given)
        assert json.loads(out)["threshold"] == threshold
        assert 0 < json.loads(out)["n_predicted"] == len(kept) < len(every)
        # Six digits are written.
        assert kept == [row for row in every if float(row["probability"]) >= threshold * (1 - 1e-5)]
    assert run(*predict, tmp_path / "one", "--threshold", "best", "--top", 1, *LOCAL)[0] == 0
    best = written(tmp_path / "one")
    assert len({row["id"] for row in best}) == len(best)
    assert run("verify", tmp_path / "best")[0] == 0


def test_only_chosen_labels_are_ranked(place, run, tmp_path):
    predict = ("predict", place / "model", place / "test.tsv")
    (tmp_path / "chosen.txt").write_text("roads\nanimals\n")
    assert run(*predict, tmp_path / "file", "--only-labels", tmp_path / "chosen.txt", *LOCAL)[0] == 0
    assert run(*predict, tmp_path / "names", "--only-labels", "roads, animals", *LOCAL)[0] == 0
    assert run(*predict, tmp_path / "all", "--top", 3, *LOCAL)[0] == 0
    found = written(tmp_path / "file")
    assert found == written(tmp_path / "names")
    expected = [row for row in written(tmp_path / "all") if row["label"] != "finance"]
    assert [(row["id"], row["label"]) for row in found] == [(row["id"], row["label"]) for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert float(row["probability"]) == pytest.approx(float(other["probability"]), rel=1e-4)

    (tmp_path / "chosen.txt").write_text("roads\nanimal\n")
    code, _, err = run(*predict, tmp_path / "out", "--only-labels", tmp_path / "chosen.txt", *LOCAL)
    assert code == 3
    assert f"{tmp_path / 'chosen.txt'}:2: label: expected a label of the model, got 'animal'" in err
    (tmp_path / "chosen.txt").write_text("")
    code, _, err = run(*predict, tmp_path / "out", "--only-labels", tmp_path / "chosen.txt", *LOCAL)
    assert (code, "expected one name per line, got no name" in err) == (3, True)
    assert not (tmp_path / "out").exists()


def test_evaluation_reports_f1_and_a_table_of_labels(place, run, tmp_path):
    evaluate = ("evaluate", place / "model", place / "test.tsv")
    code, out, _ = run(*evaluate, "--per-label", tmp_path / "labels.tsv", *LOCAL, "--json")
    assert code == 0
    metrics = json.loads(out)
    with (tmp_path / "labels.tsv").open(newline="") as stream:
        table = list(csv.DictReader(stream, delimiter="\t"))
    assert [row["label"] for row in table] == list(WORDS)
    assert metrics["F1_macro"] == pytest.approx(sum(float(row["F1"]) for row in table) / 3, rel=1e-5)
    assert metrics["n_assigned"] == sum(int(row["predicted"]) for row in table)
    assert 0.7 < metrics["F1_micro"] <= 1
    (tmp_path / "metrics.json").write_text(out)
    report = ("report", place / "model", tmp_path / "r.html", "--metrics", tmp_path / "metrics.json")
    assert run(*report)[0] == 0
    assert "Measured on labelled" in (tmp_path / "r.html").read_text().partition('id="reliability"')[2]
    code, out, _ = run(*evaluate, *LOCAL)
    assert code == 0
    assert re.search(r"^F1_micro +0\.\d{4}$", out, re.MULTILINE)
    assert "reliability" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "model", "test.tsv", "out", "--threshold", "2"], "expected a probability from 0 to 1 or"),
        (["predict", "ridge", "test.tsv", "out", "--threshold", "best"], "--threshold: this model has no prob"),
        (["predict", "model", "test.tsv", "out", "--only-labels", "roads,x"], "the model has no label 'x', and"),
        (["predict", "model", "test.tsv", "out", "--only-labels", "roads,roads"], "'roads' is given twice"),
        (["evaluate", "ridge", "test.tsv", "--per-label", "out"], "--per-label: this model has no probabilities"),
        (["evaluate", "model", "test.tsv", "--per-label", "train.tsv"], "train.tsv: exists; choose another path"),
        # Before the source is read.
        (["evaluate", "model", "nothing", "--per-label", "train.tsv"], "train.tsv: exists; choose another path"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused(place, run, arguments, message, monkeypatch):
    monkeypatch.chdir(place)
    code, out, err = run(*arguments, *LOCAL)
    assert (code, out) == (2, "")
    assert message in err
    assert not (place / "out").exists()


def test_a_directory_that_cannot_be_written_is_refused_before_the_source_is_read(
    place, run, tmp_path, monkeypatch
):
    access = os.access
    # Root may write to all directories of a disk that is not read-only.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and access(path, mode))
    for command in (
        ("predict", place / "model", "nothing", tmp_path / "new" / "out"),
        ("evaluate", place / "model", "nothing", "--per-label", tmp_path / "labels.tsv"),
        ("report", place / "model", tmp_path / "report.html"),
    ):
        code, _, err = run(*command)
        assert code == 2
        assert f"the directory {tmp_path} cannot be written to" in err
    assert list(tmp_path.iterdir()) == []


def test_a_name_without_room_for_temporary_names_is_refused_before_the_source_is_read(place, run, tmp_path):
    for command in (
        ("predict", place / "model", "nothing", tmp_path / ("x" * 230)),
        ("fit", place / "corpus", tmp_path / ("x" * 225), "-k", 3),
    ):
        code, _, err = run(*command)
        assert code == 2
        assert "the name is too long" in err
    assert list(tmp_path.iterdir()) == []


def test_a_report_replaces_no_pipe(place, run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code, _, err = run("report", place / "model", tmp_path / "pipe", "--overwrite")
    assert code == 2
    assert "is a device or a pipe" in err
    assert (tmp_path / "pipe").is_fifo()


def test_many_labels_may_be_named():
    known = [f"label {i}" for i in range(1000)]
    assert chosen_names(",".join(known[::-1]), known) == known[::-1]


def test_chosen_labels_may_have_any_unicode_form(tmp_path):
    known = ["Küste", "trees"]
    other = unicodedata.normalize("NFD", known[0])
    assert chosen_names(f"trees, {other}", known) == ["trees", "Küste"]
    with pytest.raises(UsageError, match="is given twice"):
        chosen_names(f"Küste,{other}", known)
    path = tmp_path / "names.txt"
    path.write_text(f"{other}\n", encoding="utf-8")
    assert chosen_names(str(path), known) == ["Küste"]
    path.write_text(f"{other}\nKüste\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"names\.txt:2: label: expected each label once"):
        chosen_names(str(path), known)
