"""Tasks that kill their workers are found, and named with the shard; other tasks are not blamed."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import dask
import pytest

from distmom.engine import InProcess, Pass, SumSpec, open_engine, open_executor, plan
from distmom.errors import ClusterError, WorkersLostError
from distmom.moments.documents.words import WordSketchPass


def die(value):
    """Kill the worker for one of the values."""
    if value == 7:
        os._exit(1)
    return value


@pytest.mark.slow
@pytest.mark.cluster
def test_a_task_that_kills_every_worker_is_named_and_others_are_not_blamed(monkeypatch):
    monkeypatch.setattr("distmom.engine.executors.cluster.MAX_ATTEMPTS", 1)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        open_executor(workers=1) as executor,
    ):
        results = executor.map(die, iter(range(20)))
        assert [next(results) for _ in range(7)] == list(range(7))
        with pytest.raises(ClusterError, match=r"map: the worker of task \S+ died 2 times"):
            next(results)


@dataclass(frozen=True)
class DeadlyPass(Pass):
    """Kills every worker that reads a certain document."""

    deadly: int = -1

    def specs(self):
        return {"n": SumSpec(())}

    def add(self, sums, block, rows):
        if block.first == self.deadly:
            os._exit(1)
        sums["n"] += block.n_documents


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.cluster
def test_the_shard_that_kills_every_worker_is_named(corpus, monkeypatch):
    """It is in the middle of a group of three."""
    monkeypatch.setattr("distmom.engine.executors.cluster.MAX_ATTEMPTS", 1)
    monkeypatch.setattr(plan, "MAX_GROUPS", 5)
    monkeypatch.setattr(plan, "MIN_GROUPS", 5)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_executor(workers=1) as executor,
        open_engine(corpus, executor=executor) as engine,
    ):
        assert engine.plan(DeadlyPass(corpus.n_words)).groups[2] == (6, 7, 8)
        with pytest.raises(WorkersLostError) as caught:
            engine.run(DeadlyPass(corpus.n_words, deadly=140))
    first, second, last = (shard.id for shard in corpus.shards[6:9])
    died = r"the worker of task \S+ died 2 times; the task may need more memory than the worker's limit"
    assert re.fullmatch(f"deadly: shard {second}: {died}", str(caught.value))
    assert re.fullmatch(f"deadly: shards {first} to {last}: {died}", str(caught.value.__cause__))


class Losing(InProcess):
    """Loses the workers of tasks, given as a function of their shards, or the cluster."""

    def __init__(self, loses):
        self.loses, self.tasks = loses, []

    def reduce(self, function, arguments, merge, fan_in, on_done, name, subject):
        for index, (task,) in enumerate(arguments):
            self.tasks.append(task.shards)
            if self.loses(task.shards):
                raise WorkersLostError(f"{name}: {subject(index)}: died", index)
        return super().reduce(function, arguments, merge, fan_in, on_done, name, subject)


@pytest.mark.parametrize("is_tall", [False, True])
@pytest.mark.parametrize(
    ("loses", "message", "last"),
    [
        (lambda shards: 7 in shards, "shard {1}: died", 7),
        (lambda shards: 6 in shards, "shard {0}: died", 6),
        (
            lambda shards: {7, 8} <= set(shards),
            "shards {0} to {2}: died; none of its shards causes it alone",
            8,
        ),
    ],
)
def test_a_group_that_lost_its_workers_runs_shard_by_shard(
    corpus, monkeypatch, is_tall, loses, message, last
):
    monkeypatch.setattr(plan, "MAX_GROUPS", 5)
    monkeypatch.setattr(plan, "MIN_GROUPS", 5)
    executor = Losing(loses)
    pass_ = WordSketchPass(corpus.n_words, n_columns=4) if is_tall else DeadlyPass(corpus.n_words)
    finish = {"finish": tuple} if is_tall else {}
    with open_engine(corpus, executor=executor) as engine, pytest.raises(WorkersLostError) as caught:
        engine.run(pass_, **finish)
    first = executor.tasks.index((6, 7, 8)) + 1
    assert executor.tasks[first:] == [(shard,) for shard in range(6, last + 1)]
    named = message.format(*(shard.id for shard in corpus.shards[6:9]))
    assert str(caught.value) == f"{pass_.name}: {named}"


def test_a_cluster_that_is_lost_while_a_shard_is_looked_for_does_not_hide_what_was_lost(corpus, monkeypatch):
    monkeypatch.setattr(plan, "MAX_GROUPS", 1)
    monkeypatch.setattr(plan, "MIN_GROUPS", 1)

    def loses(shards):
        if len(shards) == 1:
            raise ClusterError("no worker")
        return True

    with open_engine(corpus, executor=Losing(loses)) as engine, pytest.raises(WorkersLostError) as caught:
        engine.run(DeadlyPass(corpus.n_words))
    assert str(caught.value).endswith(f"shards {corpus.shards[0].id} to {corpus.shards[-1].id}: died")
    assert str(caught.value.__cause__) == "no worker"


def work_or_die(value, folder):
    """Note when a call begins and ends; the first call with one of the values kills its worker."""
    attempt = len(list(Path(folder).glob(f"{value}-*.begin")))
    (Path(folder) / f"{value}-{attempt}.begin").write_text(str(time.time()))
    # Results that were lost with the worker are still being computed when the lost tasks could run again.
    time.sleep(2.0 if attempt and value != 3 else 0.3)
    if value == 3 and attempt == 0:
        os._exit(1)
    (Path(folder) / f"{value}-{attempt}.end").write_text(str(time.time()))
    return value


@pytest.mark.slow
@pytest.mark.cluster
def test_tasks_that_lost_a_worker_run_again_with_no_other(tmp_path):
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_executor(workers=2) as executor,
    ):
        arguments = [(value, str(tmp_path)) for value in range(16)]
        assert executor.reduce(work_or_die, arguments, sum, 16, lambda index: None, "pass") == sum(range(16))

    def seconds(path):
        return float(path.read_text())

    calls = {
        path.stem: (seconds(path), seconds(path.with_suffix(".end")))
        for path in tmp_path.glob("*.begin") if path.with_suffix(".end").exists()
    }  # fmt: skip
    begin, end = calls.pop("3-1")
    assert not [name for name, (first, last) in calls.items() if first < end and last > begin]
