"""Attempts at one task that give different bits are reported."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers import random_corpus

from distmom.engine import InProcess, Pass, SumSpec, TallResult, open_engine, reports


@dataclass(frozen=True)
class UnsteadyPass(Pass):
    """Adds another number in every attempt at one group, or always the same."""

    place: str = ""
    group: int = 3
    output: str = "sums"

    def specs(self):
        return {"n": SumSpec(()), "tall": SumSpec((4, 2), "float32", tall="features")}

    def add(self, sums, block, rows):
        calls = Path(self.place, "calls")
        n_calls = calls.stat().st_size if block.first // 37 == self.group and calls.exists() else 0
        if block.first // 37 == self.group:
            with calls.open("a") as stream:
                stream.write(".")
        found = {"sums": 0, "tall": 0, "rows": 0, self.output: n_calls}
        sums["n"] += found["sums"]
        sums["tall"].single[...] += found["tall"]
        return {"first": np.full((block.n_documents, 1), found["rows"])}


class Twice(InProcess):
    """Makes two attempts at every task, neither of which knows of the other."""

    def map(self, function, items):
        for item in items:
            function(item)
            yield function(item)


@pytest.mark.parametrize("output", ["sums", "tall", "rows", "none"])
def test_attempts_with_different_bits_are_reported(tmp_path, monkeypatch, caplog, output):
    monkeypatch.setattr(reports.Report, "read", lambda *arguments, **options: None)
    corpus = random_corpus()
    pass_ = UnsteadyPass(corpus.n_words, place=str(tmp_path), output=output)
    with open_engine(corpus, tmp_path / "run", Twice()) as engine:
        engine.run(pass_, finish=lambda tallies: TallResult({}, {"n": float(tallies.sums["n"])}))
    said = [each.getMessage() for each in caplog.records if "different bits" in each.getMessage()]
    if output == "none":
        assert said == []
    else:
        [message] = said
        assert message.startswith(
            "unsteady: two attempts at a task gave different bits: shard s00003: sha256 "
        )
