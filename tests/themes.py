"""Texts of two themes each for tests of topic models."""

import random

from distmom.cli.main import main

WORDS = {
    "animals": ["cat", "dog", "bird", "fish", "horse"],
    "finance": ["stock", "bank", "money", "price", "trade"],
    "transport": ["train", "bus", "car", "road", "ship"],
}
LOCAL = ("--workers", "0", "--quiet")


def texts(n, seed):
    """Texts of two of the themes each, most words of the first."""
    draw = random.Random(seed)
    for _ in range(n):
        first, second = draw.sample(list(WORDS), 2)
        words = draw.choices(WORDS[first], k=22) + draw.choices(WORDS[second], k=3)
        yield f"x\t{' '.join(words)}\n"


def themed(folder):
    """Write texts, a corpus and a model of each kind to a folder, and return it."""
    (folder / "train.tsv").write_text("".join(texts(600, 0)))
    (folder / "test.tsv").write_text("".join(texts(80, 1)) + "x\tunknown words\n")
    assert main(["ingest", str(folder / "train.tsv"), str(folder / "corpus"), *LOCAL]) == 0
    for name in ("lda", "single-topic", "anchors"):
        arguments = [str(folder / "corpus"), str(folder / name), "-k", "3", "--model", name, *LOCAL]
        assert main(["fit", *arguments, "--max-df", "1"]) == 0
    return folder
