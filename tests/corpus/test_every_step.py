"""Ingests that end, or whose disk fails, at any step: the same command completes the same corpus."""

import json

import numpy as np
import pytest
from steps import ACTS, Spec, tried_apart

from distmom.cli.main import main


def documents(place):
    """Texts with labels in three shards."""
    lines = [f"label{i % 5}\tw{'x' * (i % 7)} w{'y' * (i % 5)}\n" for i in range(30)]
    (place / "titles.tsv").write_text("".join(lines))
    return ["ingest", str(place / "titles.tsv"), "--shard-docs", "15"]


def sentences(place):
    """Documents with a row for each sentence."""
    texts = (f"word{i % 7} word{i % 5}. word{i % 11} word{i % 3}." for i in range(40))
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return ["ingest", str(place / "texts.jsonl"), "--views", "sentences", "--shard-docs", "15"]


def sequences(place):
    """Rows of sequences, which are cut into shards."""
    np.save(place / "rows.npy", np.random.default_rng(0).standard_normal((60, 3)))
    np.save(place / "lengths.npy", np.full(6, 10))
    return ["ingest", str(place / "rows.npy"), "--lengths", str(place / "lengths.npy"), "--shard-rows", "15"]


def copies(place):
    """A copy of a corpus."""
    assert main([*documents(place), str(place / "original"), "--workers", "0", "--quiet"]) == 0
    return ["copy", str(place / "original")]


SOURCES = {make.__name__: make for make in (documents, sentences, sequences, copies)}


def tried(place, source, *, is_replaced=False, every=1, first=0):
    command, target = SOURCES[source](place), place / "folder" / "c"
    command.insert(2, str(target))
    own = ["--quiet"] if source == "copies" else ["--workers", "0", "--quiet"]
    before = ""
    if is_replaced:
        before = str(place / "before")
        old = ["ingest", str(place / "old.tsv"), f"{before}/c", "--workers", "0", "--quiet"]
        (place / "old.tsv").write_text("a\tone two\nb\ttwo one\n")
        assert main(old) == 0
        own.append("--overwrite")
    return tried_apart(Spec([*command, *own], str(place / "folder"), ["c"], before, every, first))


@pytest.mark.slow
def test_ingests_that_end_at_some_steps_are_completed_by_the_same_command(tmp_path):
    result = tried(tmp_path, "documents", every=71, first=3)
    assert result["failures"] == []
    assert {"create", "write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir"} <= set(
        result["steps"]
    )
    assert result["n_tried"] >= 15


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("source", "is_replaced"),
    [("documents", False), ("sentences", False), ("sequences", True), ("copies", True)],
)
def test_ingests_that_end_at_any_step_are_completed_by_the_same_command(tmp_path, source, is_replaced):
    result = tried(tmp_path, source, is_replaced=is_replaced)
    assert result["failures"] == []
    assert result["n_tried"] == len(ACTS) * len(result["steps"]) > 500
