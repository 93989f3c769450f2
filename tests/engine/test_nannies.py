"""Workers and nannies that are killed in a pass, once and repeatedly: same bits, or an error of the cluster."""

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from clusters import scheduler, wait_until, worker
from distributed import Client
from helpers import random_corpus

from distmom.corpus import from_arrays
from distmom.engine import Pass, RunDirectory, SumSpec, open_engine, open_executor
from distmom.engine.executors import watch
from distmom.errors import ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.nightly]

#: workers that each fault needs, and how often it is injected
FAULTS = {"nanny killed": (2, 1), "nannies killed": (2, 2), "workers killed": (2, 1), "worker flaps": (1, 3)}


@dataclass(frozen=True)
class DisturbedPass(Pass):
    """Adds irrational numbers and stores rows; its tasks kill processes of their cluster.

    Attributes
    ----------
    fault : str
        One of `FAULTS`.
    notes : str
        Directory of files named ``worker-PID``, and of one for each time that the fault was injected.
    """

    fault: str = ""
    notes: str = ""

    def specs(self):
        return {"x": SumSpec((self.n_features,))}

    def add(self, sums, block, rows):
        self._disturb(Path(self.notes))
        values = np.sqrt(block.words.toarray() + 0.1)
        sums["x"] += values.sum(axis=0)
        return {"first": values[:, :2]}

    def _disturb(self, notes):
        n_workers, n_times = FAULTS[self.fault]
        (notes / f"worker-{os.getpid()}").touch()
        # In the middle of a task of each.
        wait_until(lambda: len(list(notes.glob("worker-*"))) >= n_workers)
        for number in range(n_times):
            try:
                (notes / f"injected-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            # The nanny of a worker that dies while it starts starts no other.
            time.sleep(1.0)
            if self.fault.startswith("nann"):
                os.kill(os.getppid(), signal.SIGKILL)
                # The worker ends with its nanny.
                time.sleep(60)
            if self.fault == "workers killed":
                for pid in workers(notes) - {os.getpid()}:
                    os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def workers(notes):
    return {int(path.name.partition("-")[2]) for path in notes.glob("worker-*")}


def is_running(pid):
    try:
        # Where no process waits for orphans, those that have ended stay.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def found(engine, pass_):
    """Return the bits of the sum and of the rows."""
    result = engine.run(pass_)
    n_shards = len(engine.corpus.shards)
    return result.sums["x"].tobytes(), [result.rows["first"].read(i).tobytes() for i in range(n_shards)]


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_pass_whose_workers_or_nannies_are_killed_has_the_same_bits(tmp_path, monkeypatch, fault):
    block = random_corpus(n=300, shard_documents=300).read_shard(0)
    corpus = from_arrays(tmp_path / "corpus", block.words, block.labels, shard_documents=20)
    n_workers, n_times = FAULTS[fault]
    (notes := tmp_path / "notes").mkdir()
    pass_ = DisturbedPass(corpus.n_words, fault=fault, notes=str(notes))
    here = str(Path(__file__).parent)
    with ExitStack() as stack:
        # A task that was running when two workers died is blamed.
        options = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1", "PYTHONPATH": here}
        address, _ = stack.enter_context(scheduler(tmp_path, **options))
        for number in range(n_workers):
            one = worker(tmp_path, address, f"worker-{number}", "--nanny", PYTHONPATH=here)
            stack.enter_context(one)
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(n_workers, timeout=60)
        executor = stack.enter_context(open_executor(scheduler=address))
        engine = stack.enter_context(open_engine(corpus, tmp_path / "run", executor))
        if fault == "nannies killed":
            monkeypatch.setattr(watch, "NO_WORKERS_TIMEOUT_S", 2.0)
            with pytest.raises(ClusterError, match="disturbed: the cluster has had no worker for 2 s"):
                engine.run(pass_)
        else:
            disturbed = found(engine, pass_)
            # Nannies have started others, each time; the first of two may have had all tasks.
            n_seen = len(workers(notes))
            assert n_seen in {"nanny killed": (2,), "workers killed": (3, 4), "worker flaps": (4,)}[fault]
    assert len(list(notes.glob("injected-*"))) == n_times
    wait_until(lambda: not any(is_running(pid) for pid in workers(notes)), 20)
    if fault == "nannies killed":
        with open_engine(corpus, tmp_path / "run") as engine:
            disturbed = found(engine, pass_)
    with open_engine(corpus) as engine:
        assert found(engine, pass_) == disturbed
    assert RunDirectory(tmp_path / "run").verify() == []
