"""Tasks on threads of this process: the same bits as one after the other, and errors that end the others."""

import threading
import time

import numpy as np
import pytest
from helpers import planted_corpus

from distmom.compiled import _watchers
from distmom.engine import open_engine, open_executor
from distmom.models import MultiLabelMoM, SpectralLDA


@pytest.mark.parametrize("make", [lambda: MultiLabelMoM(3), lambda: SpectralLDA(3)])
def test_threads_give_the_bits_of_one(make):
    _, _, corpus = planted_corpus(900, d=60, k=3)
    alone = make().fit_corpus(corpus)
    with open_executor(threads=3) as executor:
        together = make().fit_corpus(corpus, client=executor)
    np.testing.assert_array_equal(alone.components_, together.components_)
    if isinstance(alone, MultiLabelMoM):
        X = corpus.read_shard(0).words
        np.testing.assert_array_equal(alone.decision_function(X), together.decision_function(X))


def test_tasks_run_at_once_and_come_back_in_order():
    met = threading.Barrier(3, timeout=30.0)

    def task(i):
        if i < 3:
            # None passes unless three of them run at once.
            met.wait()
        time.sleep(0.01 * (3 - i % 3))
        return i, threading.current_thread() is threading.main_thread()

    with open_executor(threads=3) as executor:
        assert list(executor.map(task, range(20))) == [(i, False) for i in range(20)]


def test_an_error_ends_the_tasks_that_wait():
    started = []

    def task(i):
        started.append(i)
        if i == 2:
            raise ValueError("the third")
        time.sleep(0.02)

    with open_executor(threads=2) as executor, pytest.raises(ValueError, match="the third"):
        list(executor.map(task, range(100)))
    assert len(started) < 10


def test_tasks_that_nobody_waits_for_end_with_the_engine(tmp_path):
    _, _, corpus = planted_corpus(100, d=20, k=2)
    begun, go, ended = threading.Event(), threading.Event(), []

    def task(i):
        begun.set()
        go.wait(30.0)
        ended.append(i)

    def interrupted_run(executor):
        with open_engine(corpus, executor=executor):
            results = executor.map(task, range(100))
            threading.Thread(target=lambda: (begun.wait(30.0), time.sleep(0.1), go.set())).start()
            next(results)
            raise KeyboardInterrupt

    with open_executor(threads=2) as executor:
        with pytest.raises(KeyboardInterrupt):
            interrupted_run(executor)
        n_ended = len(ended)
        time.sleep(0.1)
        assert len(ended) == n_ended < 10
        # The executor serves the next pass.
        assert list(executor.map(str, range(3))) == ["0", "1", "2"]


def test_engines_of_several_threads_share_an_executor():
    _, _, corpus = planted_corpus(100, d=20, k=2)
    first, is_running, has_ended = [], threading.Event(), threading.Event()

    def task(i):
        is_running.set()
        has_ended.wait(30.0)
        return i

    def run(executor):
        with open_engine(corpus, executor=executor):
            first.extend(executor.map(task, range(6)))

    with open_executor(threads=2) as executor:
        thread = threading.Thread(target=run, args=(executor,))
        thread.start()
        assert is_running.wait(30.0)
        with open_engine(corpus, executor=executor):
            # It ends before the tasks of the other engine do.
            threading.Timer(0.2, has_ended.set).start()
        assert not has_ended.is_set()
        thread.join()
    assert first == list(range(6))


def test_a_generator_that_is_dropped_waits_for_nothing():
    go = threading.Event()
    with open_executor(threads=2) as executor:
        results = executor.map(lambda i: i or go.wait(30.0), [1, 0, 0])
        assert next(results) == 1
        del results
        assert not go.is_set()
        go.set()


def test_compilation_is_reported_in_the_calling_thread():
    reports = []

    def task(i):
        for watcher in list(_watchers):
            watcher()
        return i

    with (
        open_executor(threads=2) as executor,
        executor.compiling(lambda: reports.append(threading.current_thread())),
    ):
        assert list(executor.map(task, range(3))) == [0, 1, 2]
    assert set(reports) == {threading.main_thread()}
