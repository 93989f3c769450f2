"""A committed pass is found by its fingerprint, and no other pass is taken for it."""

import shutil
from functools import partial

import numpy as np
from helpers import CountPass, count, random_corpus

from distmom.corpus.files.commit import TEMPORARY
from distmom.engine import Engine, PassDone, RunDirectory, Selection, TallResult, fingerprint
from distmom.engine.directory.run_directory import committed_passes
from distmom.moments.documents.words import WordSketchPass


def test_fingerprints_tell_values_apart():
    a = CountPass(5, factor=1.0)
    assert fingerprint(a) == fingerprint(CountPass(5, factor=1.0))
    others = [CountPass(5, factor=2.0), CountPass(6), (a,), Selection(0.5, True)]
    assert len({fingerprint(x) for x in [a, *others]}) == 5
    assert fingerprint(np.zeros(3)) != fingerprint(np.zeros(3, np.float32))
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})


def test_a_committed_pass_is_found_and_another_is_not(tmp_path):
    corpus = random_corpus()
    events = []

    def engine():
        return Engine(corpus, RunDirectory(tmp_path), observer=events.append)

    first = engine().run(count(corpus))
    second = engine().run(count(corpus))
    engine().run(count(corpus, factor=3.0))
    engine_on_other = Engine(random_corpus(seed=1), RunDirectory(tmp_path), observer=events.append)
    engine_on_other.run(count(corpus))
    assert [e.resumed for e in events if isinstance(e, PassDone)] == [False, True, False, False]
    for name in ("words", "total"):
        assert first.sums[name].tobytes() == second.sums[name].tobytes()


def test_a_pass_whose_directory_was_not_renamed_is_not_committed(tmp_path):
    assert committed_passes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    corpus = random_corpus()
    Engine(corpus, RunDirectory(tmp_path)).run(count(corpus))
    (committed,) = (tmp_path / "passes").iterdir()
    shutil.copytree(committed, committed.with_name(f"{TEMPORARY}0"))
    assert committed_passes(tmp_path) == [committed.name]


def summed(tallies):
    return TallResult({}, {"sum": float(tallies.tall["sketch"].read_rows(slice(0, 40)).sum())})


def squared(engine, tallies):
    assert engine.corpus.n_words == 40
    return TallResult({}, {"squares": float((tallies.tall["sketch"].read_rows(slice(0, 40)) ** 2).sum())})


def test_a_pass_that_is_finished_in_another_way_is_another(tmp_path):
    engine = Engine(random_corpus(), RunDirectory(tmp_path))
    pass_, finishes = WordSketchPass(40, n_columns=4), (summed, partial(squared, engine))
    for resumed in (False, True):
        found = [engine.run(pass_, finish=finish).values for finish in finishes]
        assert [set(values) for values in found] == [{"sum"}, {"squares"}]
        assert [timing.resumed for timing in engine.timings[-2:]] == [resumed] * 2
