"""Passes are planned for a number of threads, which changes neither with workers that leave nor on resumption."""

import logging

import pytest
from helpers import planted_corpus

from distmom.engine import InProcess, PassDone, RunDirectory
from distmom.engine.directory.planned import PLANNED, PlannedThreads
from distmom.engine.executors.threads import on_threads
from distmom.models import MultiLabelMoM

#: more threads than there are groups of shards
N_THREADS = 12


class Changing(InProcess):
    """Has one number of threads, and from some request on another."""

    def __init__(self, first, then, n_requests):
        self._counts = [first] * n_requests
        self._then = then

    @property
    def n_threads(self):
        return self._counts.pop() if self._counts else self._then


@pytest.fixture(scope="module")
def corpus():
    return planted_corpus(600, d=120, n_labels=12, k=3, shard_documents=300)[2]


def fit(corpus, client=None, run=None, observer=None):
    """Return bits of all parts of a fitted model."""
    model = MultiLabelMoM(3, head="posterior", random_state=0)
    model.fit_corpus(corpus, client=client, run=run, observer=observer)
    return model.decision_function(corpus.read_shard(0).words).tobytes()


@pytest.mark.parametrize("numbers", [(N_THREADS, 1), (1, N_THREADS)])
def test_a_fit_outlasts_workers_that_leave_or_join(corpus, numbers):
    expected = fit(corpus)
    for n_requests in (0, 2, 5, 8, 11, 14):
        assert fit(corpus, Changing(*numbers, n_requests)) == expected, n_requests


@pytest.mark.parametrize("numbers", [(N_THREADS, 1), (1, N_THREADS)])
def test_a_run_that_is_resumed_with_other_workers_keeps_its_passes(tmp_path, corpus, numbers):
    done = []

    def interrupt(event):
        done.extend([event.resumed] if isinstance(event, PassDone) else [])
        if len(done) == 3:
            raise KeyboardInterrupt

    with on_threads(numbers[0]) as executor, pytest.raises(KeyboardInterrupt):
        fit(corpus, executor, tmp_path, interrupt)
    assert done == [False] * 3
    done = [None] * 4
    with on_threads(numbers[1]) as executor:
        assert fit(corpus, executor, tmp_path, interrupt) == fit(corpus)
    assert done[4:] == [True] * 3 + [False] * (len(done) - 7)


def test_a_damaged_plan_is_made_again(tmp_path, corpus, caplog):
    expected = fit(corpus, run=tmp_path)
    content = bytearray((tmp_path / "plan.json").read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / "plan.json").write_bytes(content)
    assert [problem for problem in RunDirectory(tmp_path).verify() if "plan.json" in problem]
    with caplog.at_level(logging.WARNING):
        assert fit(corpus, run=tmp_path) == expected
    assert "passes are planned again, and may have to be run again" in caplog.text
    assert RunDirectory(tmp_path).verify() == []


@pytest.mark.parametrize("content", [{}, {"n_threads": 0}, {"n_threads": True}, {"n_threads": "4"}])
def test_a_plan_without_a_number_of_threads_is_made_again(tmp_path, content, caplog):
    PLANNED.write(tmp_path / "plan.json", content)
    assert PlannedThreads(tmp_path / "plan.json").given(3) == 3
    assert "n_threads: expected a whole number from 1" in caplog.text
    assert PlannedThreads(tmp_path / "plan.json").given(2) == 3
