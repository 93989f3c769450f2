from dataclasses import dataclass

import numpy as np
import pytest
from helpers import random_corpus

from distmom.engine import Engine, Pass, RunDirectory, StoredColumns, SumSpec, TallResult, open_engine
from distmom.engine.stored.held import (
    HELD_SHARE,
    HELD_STATE_BYTES,
    HELD_SUM_BYTES,
    HeldArray,
    HeldRows,
    may_hold,
)
from distmom.models import SpectralLDA


@dataclass(frozen=True)
class TallyPass(Pass):
    """Adds the words of every document, times a root of its length, to a tall sum; stores these factors."""

    step: int = 0

    def specs(self):
        return {"tally": SumSpec((self.n_features, 1), "float32", tall="features"), "n": SumSpec(())}

    @property
    def row_bytes(self):
        return 8

    def add(self, sums, block, rows):
        factors = np.sqrt(np.asarray(block.words.sum(axis=1)).reshape(-1, 1) + 0.1) + rows.get("factor", 0.0)
        sums["tally"].single[...] += block.words.T @ factors
        sums["tally"].settle()
        sums["n"] += len(factors)
        return {"factor": factors}


def root(rows, tally):
    return {"root": np.sqrt(tally)}, {"mass": tally.sum(axis=0)}


def run(engine):
    """Return the bits of two passes, of which the second reads the rows of the first, and the last result."""

    def finish(tallies):
        stored, sums = engine.maps.map_rows(root, [tallies.tall["tally"]], d, {"root": (1, "float32")})
        return TallResult({"root": StoredColumns((stored["root"],))}, {"mass": float(sums["mass"][0])})

    d, bits, rows = engine.corpus.n_words, [], {}
    for step in range(2):
        result = engine.run(TallyPass(d, step=step), rows, finish=finish)
        rows = result.rows
        matrix = result.states["root"].load().parts[0]
        factors = [rows["factor"].read(i).tobytes() for i in range(len(engine.corpus.shards))]
        bits.append((matrix.tobytes(), result.values["mass"], factors))
    return bits, result


def test_a_fit_in_one_process_holds_small_arrays_and_gives_the_bits_of_files(tmp_path, monkeypatch):
    corpus = random_corpus()
    kept = Engine(corpus, RunDirectory(tmp_path / "kept"))
    in_files, result = run(kept)
    # A run that may be resumed stores all that a later process would read.
    assert not isinstance(result.rows["factor"], HeldRows)
    assert kept.directory.verify() == []
    kept.directory.flush()
    temporary = RunDirectory(tmp_path / "temporary", durable=False)
    held, result = run(Engine(corpus, temporary))
    assert held == in_files
    [root] = result.states["root"].parts
    assert isinstance(root, HeldArray)
    assert not root.load().flags.writeable
    assert isinstance(result.rows["factor"], HeldRows)
    assert not [path for path in temporary.path.rglob("*") if path.is_file()]
    for name in ("HELD_SUM_BYTES", "HELD_STATE_BYTES"):
        monkeypatch.setattr(f"distmom.engine.stored.held.{name}", 0)
    without = RunDirectory(tmp_path / "without", durable=False)
    assert run(Engine(corpus, without))[0] == in_files
    assert list(without.path.glob("partial/*/spare/*"))
    assert list(without.path.glob("states/*"))


@dataclass(frozen=True)
class LengthsPass(Pass):
    """Adds up the lengths of documents, and stores them."""

    def specs(self):
        return {"total": SumSpec(())}

    @property
    def row_bytes(self):
        return 8

    def add(self, sums, block, rows):
        lengths = np.asarray(block.words.sum(axis=1), np.float64).ravel()
        sums["total"] += lengths.sum()
        return {"lengths": lengths}


def test_rows_of_small_sums_are_held_and_nothing_is_committed(tmp_path):
    corpus, found = random_corpus(), []
    for durable in (True, False):
        engine = Engine(corpus, RunDirectory(tmp_path / str(durable), durable=durable))
        result = engine.run(LengthsPass(corpus.n_words))
        lengths = [result.rows["lengths"].read(i).tobytes() for i in range(len(corpus.shards))]
        found.append((float(result.sums["total"]), lengths))
        assert isinstance(result.rows["lengths"], HeldRows) is not durable
        assert bool(result.directory) is durable
    assert found[0] == found[1]
    assert not [path for path in (tmp_path / "False").rglob("*") if path.is_file()]


def test_a_resumed_run_reads_what_was_stored(tmp_path):
    corpus = random_corpus()
    found = []
    for _ in range(2):
        with open_engine(corpus, tmp_path) as engine:
            found.append(run(engine)[0])
            resumed = [timing.resumed for timing in engine.timings]
    assert found[0] == found[1]
    assert resumed == [True, True]


@pytest.mark.parametrize("most", [HELD_SUM_BYTES, HELD_STATE_BYTES])
def test_a_memory_limit_leaves_less_to_be_held(most):
    assert may_hold(most, most, None)
    assert not may_hold(most + 1, most, None)
    limit = int(most / HELD_SHARE) // 2
    assert may_hold(most // 2, most, limit)
    assert not may_hold(most // 2 + 1, most, limit)


@pytest.mark.parametrize("refine", ["em", "cvb"])
def test_topics_of_held_sums_have_the_bits_of_those_in_files(refine, monkeypatch, tmp_path):
    corpus = random_corpus(n=300, d=60, density=0.3, shard_documents=100)
    options = {"refine": refine, "min_df": 0.0, "max_df": 1.0}
    stored = SpectralLDA(3, **options).fit_corpus(corpus, run=tmp_path)

    def none(*arguments):
        raise AssertionError("a file was written")

    monkeypatch.setattr("distmom.engine.tasks.write_partial", none)
    monkeypatch.setattr("distmom.engine.tasks.write_rows", none)
    monkeypatch.setattr("distmom.engine.sums.tall.RowOutput.create", none)
    held = SpectralLDA(3, **options).fit_corpus(corpus)
    np.testing.assert_array_equal(held.components_, stored.components_)
    np.testing.assert_array_equal(held.alpha_, stored.alpha_)
