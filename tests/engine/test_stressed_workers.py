"""Workers that exceed their memory limit or hold the interpreter lock, and workers on processors of two kinds."""

import ctypes
import os
import platform
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from clusters import scheduler, wait_until, worker
from distributed import Client
from helpers import random_corpus
from numpy.testing import assert_allclose

from distmom.corpus import from_arrays
from distmom.engine import Pass, Selection, SumSpec, open_engine, open_executor
from distmom.errors import ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
HERE = str(Path(__file__).parent)
#: seconds without a sign of life after which the scheduler gives a worker up
GIVEN_UP_S = 2
#: memory of a worker, and what a task takes beyond it
LIMIT_BYTES, EXCESS_BYTES = 700 << 20, 1 << 30


@dataclass(frozen=True)
class StressingPass(Pass):
    """Adds irrational numbers; some of its tasks take too much memory, or hold the interpreter lock.

    Attributes
    ----------
    fault : str
        ``memory`` or ``lock``.
    notes : str
        Directory of one file for each time that the fault was injected.
    n_times : int
        How often it is injected.
    """

    fault: str = ""
    notes: str = ""
    n_times: int = 1

    def specs(self):
        return {"x": SumSpec((self.n_features,))}

    def add(self, sums, block, rows):
        number = len(list(Path(self.notes).glob("*")))
        if number < self.n_times:
            (Path(self.notes) / f"{os.getpid()}-{number}").touch()
            self._stress()
        sums["x"] += np.sqrt(block.words.toarray() + 0.1).sum(axis=0)

    def _stress(self):
        if self.fault == "lock":
            # Unlike time.sleep, and like a loop in C that does not release it, this call keeps the lock.
            ctypes.PyDLL(None).sleep(4 * GIVEN_UP_S)
            return
        taken = np.ones(EXCESS_BYTES // 8)
        # The nanny looks several times a second.
        wait_until(lambda: not taken.size, 30)


@dataclass(frozen=True)
class ProductsPass(Pass):
    """Adds up products of matrices; with a directory of notes, no task ends before two processes have one."""

    notes: str = ""

    def specs(self):
        return {"x": SumSpec((self.n_features, self.n_features))}

    def add(self, sums, block, rows):
        if self.notes:
            notes = Path(self.notes)
            (notes / f"worker-{os.getpid()}").touch()
            wait_until(lambda: len(list(notes.iterdir())) == 2)
        values = np.sqrt(block.words.toarray() + 0.1)
        sums["x"] += values.T @ values


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    block = random_corpus(n=300, shard_documents=300).read_shard(0)
    place = tmp_path_factory.mktemp("stressed") / "corpus"
    return from_arrays(place, block.words, block.labels, shard_documents=20)


@contextmanager
def engine_of(corpus, place, *options, of_workers=({}, {}), **environment):
    """Open an engine on a cluster of workers with these options and variables."""
    with ExitStack() as stack:
        address, _ = stack.enter_context(scheduler(place, **environment))
        for number, variables in enumerate(of_workers):
            stack.enter_context(
                worker(place, address, f"worker-{number}", *options, PYTHONPATH=HERE, **variables)
            )
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(len(of_workers), timeout=60)
        executor = stack.enter_context(open_executor(scheduler=address))
        yield stack.enter_context(open_engine(corpus, place / "run", executor))


def expected(corpus, pass_, place):
    with open_engine(corpus, place / "calm") as engine:
        return engine.run(pass_).sums["x"].tobytes()


@pytest.mark.parametrize("fault", ["memory", "lock"])
def test_a_pass_of_a_worker_that_is_stressed_has_the_same_bits(corpus, tmp_path, fault):
    (notes := tmp_path / "notes").mkdir()
    pass_ = StressingPass(corpus.n_words, fault=fault, notes=str(notes))
    options = ("--nanny", "--memory-limit", str(LIMIT_BYTES)) if fault == "memory" else ()
    environment = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{GIVEN_UP_S}s"} if fault == "lock" else {}
    with engine_of(corpus, tmp_path, *options, **environment) as engine:
        found = engine.run(pass_).sums["x"].tobytes()
    assert len(list(notes.iterdir())) == 1
    log = (tmp_path / "scheduler.log").read_text() + "".join(
        path.read_text() for path in tmp_path.glob("worker-*.log")
    )
    assert {"memory": "exceeded 95% memory budget", "lock": "failed to heartbeat"}[fault] in log
    assert found == expected(corpus, pass_, tmp_path)


@pytest.mark.nightly
def test_a_task_that_always_needs_more_memory_than_a_worker_has_is_given_up(corpus, tmp_path):
    (notes := tmp_path / "notes").mkdir()
    pass_ = StressingPass(corpus.n_words, fault="memory", notes=str(notes), n_times=100)
    options = ("--nanny", "--memory-limit", str(LIMIT_BYTES))
    environment = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with (
        engine_of(corpus, tmp_path, *options, **environment) as engine,
        pytest.raises(ClusterError, match="the task may need more memory than the worker's limit"),
    ):
        engine.run(pass_)
    assert len(list(notes.iterdir())) < 30


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kinds are those of x86")
def test_processors_of_two_kinds_are_reported_and_agree_up_to_rounding(corpus, tmp_path, caplog):
    """BLAS computes as on the kind of processor that a variable names."""
    (notes := tmp_path / "notes").mkdir()
    kinds = [{"OPENBLAS_CORETYPE": kind} for kind in ("Nehalem", "Sandybridge")]
    with engine_of(corpus, tmp_path, of_workers=kinds) as engine:
        found = engine.run(ProductsPass(corpus.n_words, notes=str(notes))).sums["x"]
        blas = [each["blas"] for each in engine.directory.environments()]
    assert ["Nehalem" in each for each in sorted(blas)] == [True, False]
    assert "the last bits of results depend on the processor, and processors differ: " in caplog.text
    with open_engine(corpus, tmp_path / "calm") as engine:
        here = engine.run(ProductsPass(corpus.n_words)).sums["x"]
    assert_allclose(found, here, rtol=1e-12)


def warnings_of(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "distmom.engine.executors.cluster"]


def test_a_pass_that_may_need_more_memory_than_a_worker_has_is_named_once(corpus, tmp_path, caplog):
    with engine_of(corpus, tmp_path, "--memory-limit", "500MiB") as engine:
        for selection in (None, Selection(0.5, heldout=True)):
            engine.run(ProductsPass(corpus.n_words, selection))
    (warning,) = warnings_of(caplog)
    assert warning.startswith("pass products: a worker may need 384 MiB, but tcp://127.0.0.1:")
    assert "has 500 MiB, of which it can use 70 % before Dask spills" in warning


@pytest.mark.parametrize("limit", ["1GiB", "0"])
def test_what_the_tasks_of_a_worker_need_together_is_compared_with_its_limit(corpus, tmp_path, caplog, limit):
    with engine_of(corpus, tmp_path, "--memory-limit", limit, "--nthreads", "4", of_workers=({},)) as engine:
        for needed_mib in (430, 500, 500, 600):
            engine.executor.check_memory("sums", needed_mib << 20, 384 << 20, 0.7)
    found = [re.findall("need (.*) MiB, but .* has (.*) MiB", each) for each in warnings_of(caplog)]
    # 0 is no limit; 430 MiB for one task are 568 for four, and fit.
    assert found == ([] if limit == "0" else [[("848", "1024")], [("1248", "1024")]])
