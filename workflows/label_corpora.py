"""Labelled corpora of the workflows: ingested from data folders, in a training and a test part."""

from __future__ import annotations

import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Stopwatch

from distmom.corpus import Corpus, ingest
from distmom.engine import Executor


def refuse_options(data: Path, texts: dict[str, Any]) -> None:
    """End the workflow if features of texts are asked for, as the words are counted already."""
    if texts:
        raise SystemExit(f"{data}: {', '.join(texts)}: expected texts, got counts of words")


def ingest_bibtex(data: Path, out: Path, executor: Executor, **texts: Any) -> tuple[Corpus, Corpus]:
    """Ingest the training and test documents of the Bibtex folder."""
    refuse_options(data, texts)
    options: dict[str, Any] = {
        "format": "xmc",
        "overwrite": True,
        "map": executor.map,
        "shard_documents": 1000,
    }
    options["vocabulary"] = data / "bibtex.features.txt.xz"
    options["labels"] = data / "bibtex.labels.txt.xz"
    train = ingest(data / "bibtex-train.xmc.txt.xz", out / "train", **options)
    return train, ingest(data / "bibtex-test.xmc.txt.xz", out / "test", like=train, **options)


def ingest_yso(data: Path, out: Path, executor: Executor, **texts: Any) -> tuple[Corpus, Corpus]:
    """Ingest the first 90 % of the YSO titles as training documents, the others as test documents."""
    train_text, test_text = split_rows(data / "docs.tsv.xz", out)
    options: dict[str, Any] = {"format": "tsv", "overwrite": True, "map": executor.map}
    options["labels"] = data / "labels.tsv.xz"
    train = ingest(train_text, out / "train", **texts, **options)
    return train, ingest(test_text, out / "test", like=train, **options)


def split_rows(source: Path, out: Path, train_percent: int = 90) -> tuple[Path, Path]:
    """Write the first rows of a compressed text to one file and the others to a second, in order."""
    out.mkdir(parents=True, exist_ok=True)
    with lzma.open(source, "rb") as rows:
        n_train = sum(1 for _ in rows) * train_percent // 100
    paths = out / "train.tsv", out / "test.tsv"
    with lzma.open(source, "rb") as rows, paths[0].open("wb") as train, paths[1].open("wb") as test:
        for i, row in enumerate(rows):
            (train if i < n_train else test).write(row)
    return paths


def ingest_pair(prefix: Path, out: Path, executor: Executor, **texts: Any) -> tuple[Corpus, Corpus]:
    """Ingest ``PREFIX-train.*`` and ``PREFIX-test.*``: JSON lines, or XMC files with names beside them."""
    options: dict[str, Any] = {"overwrite": True, "map": executor.map, "shard_documents": 5000}
    ending = "jsonl.xz"
    if not prefix.with_name(f"{prefix.name}-train.{ending}").is_file():
        refuse_options(prefix, texts)
        ending = "xmc.txt.xz"
        options["vocabulary"] = prefix.with_name(f"{prefix.name}.features.txt.xz")
        options["labels"] = prefix.with_name(f"{prefix.name}.labels.txt.xz")
    train = ingest(prefix.with_name(f"{prefix.name}-train.{ending}"), out / "train", **texts, **options)
    return train, ingest(
        prefix.with_name(f"{prefix.name}-test.{ending}"), out / "test", like=train, **options
    )


def ingest_split(prefix: Path, out: Path, executor: Executor, **texts: Any) -> tuple[Corpus, Corpus]:
    """Ingest ``PREFIX.jsonl.xz``, of which a fifth, drawn at random with seed 0, is for the test."""
    with lzma.open(prefix.with_name(f"{prefix.name}.jsonl.xz"), "rb") as stream:
        rows = stream.readlines()
    random.Random(0).shuffle(rows)
    n_test = len(rows) // 5
    out.mkdir(parents=True, exist_ok=True)
    for part, own in (("train", rows[n_test:]), ("test", rows[:n_test])):
        with lzma.open(out / f"{prefix.name}-{part}.jsonl.xz", "wb", preset=0) as stream:
            stream.writelines(own)
    return ingest_pair(out / prefix.name, out, executor, **texts)


def ingest_folder(data: Path, out: Path, executor: Executor, **texts: Any) -> tuple[Corpus, Corpus, float]:
    """Ingest Bibtex or YSO from a folder, or one or two files by their prefix; also return the seconds taken.

    ``texts`` are arguments of `ingest` that say which features texts have.
    """
    read: Callable[..., tuple[Corpus, Corpus]]
    if (data / "bibtex-train.xmc.txt.xz").is_file():
        read = ingest_bibtex
    elif (data / "docs.tsv.xz").is_file():
        read = ingest_yso
    elif any(data.parent.glob(f"{data.name}-train.*")):
        read = ingest_pair
    elif data.with_name(f"{data.name}.jsonl.xz").is_file():
        read = ingest_split
    else:
        raise SystemExit(
            f"{data}: contains neither bibtex-train.xmc.txt.xz nor docs.tsv.xz, and is no prefix of -train files "
            "or of .jsonl.xz"
        )
    watch = Stopwatch()
    train, test = read(data, out, executor, **texts)
    return train, test, watch.seconds
