import asyncio
import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from clusters import scheduler, worker
from distributed import Client, LocalCluster, worker_client
from helpers import count, planted_corpus, random_corpus
from scipy.sparse import vstack

from distmom.corpus import from_arrays
from distmom.engine import Engine, OnCluster, Pass, RunDirectory, SumSpec, open_engine, open_executor
from distmom.errors import ClusterError, InputError, NumericalError, UsageError
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.blend import choose as blend
from distmom.models.multilabel.blend import choose_reranker
from distmom.moments.documents.words import WordMomentsPass

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    _, _, memory = planted_corpus(2000, shard_documents=250)
    blocks = [memory.read_shard(i) for i in range(len(memory.shards))]
    X, Y = vstack([b.words for b in blocks]), vstack([b.labels for b in blocks])
    return from_arrays(tmp_path_factory.mktemp("corpus") / "c", X, Y, shard_documents=250)


def fitted(corpus, client=None):
    model = MultiLabelMoM(5, head="auto", n_residual_passes=1).fit_corpus(corpus, client=client)
    found = {"components": model.components_, "labels": model.label_components_, "weights": model.weights_}
    for name, head in model.scorer_.heads:
        for field, value in vars(head).items():
            if isinstance(value, np.ndarray):
                found[f"{name}.{field}"] = value
            elif hasattr(value, "indptr"):
                found[f"{name}.{field}"] = np.asarray(value.data)
    return {name: value.tobytes() for name, value in found.items()}


@pytest.fixture(scope="module")
def expected(corpus):
    """What a fit in this process finds."""
    return fitted(corpus)


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_same_bits_in_process_and_with_any_number_of_workers(corpus, expected, n_workers):
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0") as local,
        Client(local, set_as_default=False) as client,
    ):
        assert fitted(corpus, client) == expected
        assert client.status == "running"


@pytest.mark.slow
def test_many_labels_that_are_ranked_again_have_the_same_bits_on_two_workers(tmp_path, cluster, monkeypatch):
    _, _, memory = planted_corpus(1600, n_labels=1100, shard_documents=200)
    blocks = [memory.read_shard(i) for i in range(len(memory.shards))]
    X, Y = vstack([b.words for b in blocks]), vstack([b.labels for b in blocks])
    many = from_arrays(tmp_path / "c", X, Y, shard_documents=200)
    monkeypatch.setattr(choose_reranker, "RERANK_GAIN", -1.0)
    monkeypatch.setattr(blend, "RERANK_DOCUMENTS", 100)

    def scored(client=None):
        scorer = MultiLabelMoM(5, n_topics=0).fit_corpus(many, client=client).scorer_
        assert {"linear", "gate", "best-cosine"} <= set(scorer.blend.reranker.inputs)
        return scorer.scores(scorer.query(blocks[0])).tobytes()

    assert scored(cluster) == scored()


def test_workers_that_are_threads_of_this_process_give_the_same_bits(corpus, expected):
    """Two tasks of one process share its BLAS threads, caches and maps."""
    with Client(
        processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0"
    ) as client:
        assert fitted(corpus, client) == expected


#: lets clients of a worker stay new for a while
SLOW_CLIENT = """
import asyncio
from distributed import Client


async def slow(self, *, begin=Client._start, **options):
    await asyncio.sleep(2)
    return await begin(self, **options)


# A worker may load this twice.
if Client._start.__name__ != "slow":
    Client._start = slow
"""


def test_tasks_of_a_worker_share_a_client_that_is_still_new(tmp_path):
    (tmp_path / "slow_client.py").write_text(SLOW_CLIENT)

    def opened():
        with worker_client() as client, open_executor(client) as executor:
            return list(executor.map(abs, [-1]))

    with (
        scheduler(tmp_path) as (address, _),
        worker(tmp_path, address, "one", "--nthreads", "4", "--preload", str(tmp_path / "slow_client.py")),
        Client(address, set_as_default=False) as client,
    ):
        tasks = [client.submit(opened, pure=False) for _ in range(4)]
        assert client.gather(tasks) == [[1]] * 4


async def fit_in_a_thread(corpus):
    return await asyncio.to_thread(counted, corpus)


def counted(corpus, client=None):
    with open_executor(client) as executor, open_engine(corpus, executor=executor) as engine:
        return float(engine.run(count(corpus)).sums["total"])


def test_an_asynchronous_task_runs_passes_in_a_thread():
    corpus = random_corpus()
    with Client(
        processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0"
    ) as client:
        found = client.submit(fit_in_a_thread, corpus).result(timeout=60)
    assert found == counted(corpus)


@dataclass(frozen=True)
class DyingPass(Pass):
    """Kills its worker the first time it reads a shard."""

    marker: str = ""
    always: bool = False

    def specs(self):
        # The second is large enough to be merged in files.
        return {"n": SumSpec(()), "wide": SumSpec((1 << 20,))}

    def add(self, sums, block, rows):
        marker = Path(self.marker)
        if block.first >= 600 and (self.always or not marker.exists()):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        sums["n"] += block.n_documents
        sums["wide"] += np.sqrt(block.words.sum())


def test_a_killed_worker_does_not_change_the_sum(corpus, tmp_path):
    with open_executor(workers=2) as executor, open_engine(corpus, executor=executor) as engine:
        result = engine.run(DyingPass(corpus.n_words, marker=str(tmp_path / "once")))
    assert result.sums["n"] == corpus.n_documents
    assert (tmp_path / "once").exists()
    with open_engine(corpus) as engine:
        expected = engine.run(DyingPass(corpus.n_words, marker=str(tmp_path / "once"))).sums["wide"]
        np.testing.assert_array_equal(result.sums["wide"], expected)


@dataclass(frozen=True)
class BadPass(Pass):
    """Fails on a shard."""

    def specs(self):
        return {"n": SumSpec(())}

    def add(self, sums, block, rows):
        if block.first >= 1500:
            raise InputError("shard s00006: something is wrong")


def test_an_error_in_a_task_comes_back_as_it_is(corpus, cluster):
    with (
        open_engine(corpus, executor=OnCluster(cluster)) as engine,
        pytest.raises(InputError, match="s00006"),
    ):
        engine.run(BadPass(corpus.n_words))


def test_map_keeps_order(cluster):
    assert list(OnCluster(cluster).map(len, ["a" * n for n in range(20)])) == list(range(20))


def _slow(value):
    time.sleep(3)
    return value, os.getpid()


def _one():
    return {"x": np.ones(3)}


def test_scheduler_node_works_off_its_event_loop(cluster):
    """The scheduler answers while it computes."""
    executor = OnCluster(cluster)
    result = []
    thread = threading.Thread(target=lambda: result.append(executor.on_scheduler(_slow, _one)))
    thread.start()
    time.sleep(1.0)
    started = time.monotonic()
    assert cluster.submit(sum, [1, 2], pure=False).result() == 3
    assert len(cluster.scheduler_info()["workers"]) == 2
    answered = time.monotonic() - started
    still_working = not result
    thread.join()
    value, pid = result[0]
    np.testing.assert_array_equal(value["x"], np.ones(3))
    assert pid == cluster.run_on_scheduler(os.getpid)
    assert still_working, f"the answer took {answered:.1f} s, until the work was done"


def _large():
    # Beyond 64 MB an array travels in several frames.
    return np.arange(10_000_000.0)


def _ends(value):
    return float(value[0]), float(value[-1]), value.shape


def test_a_large_result_reaches_the_scheduler_whole(cluster):
    assert OnCluster(cluster).on_scheduler(_ends, _large) == (0.0, 9_999_999.0, (10_000_000,))


def _refused(value):
    raise NumericalError("no states")


def test_a_refusal_on_the_scheduler_is_raised_and_not_logged(cluster, caplog, monkeypatch):
    # The scheduler of a local cluster runs in this process, and Dask's loggers do not propagate.
    monkeypatch.setattr(logging.getLogger("distributed"), "propagate", True)
    with pytest.raises(NumericalError, match=r"^no states$"):
        OnCluster(cluster).on_scheduler(_refused, _one)
    assert "Traceback" not in caplog.text


def test_opened_cluster_is_closed_and_given_one_is_not(corpus):
    with open_executor(workers=1) as executor:
        client = executor.client
        engine = Engine(
            corpus, RunDirectory(Path(os.environ.get("TMPDIR", "/tmp")) / f"run-{os.getpid()}"), executor
        )
        basis = np.eye(corpus.n_words, 3)
        engine.run(WordMomentsPass(corpus.n_words, basis=basis, rank=3))
    assert client.status == "closed"
    with (
        pytest.raises(UsageError, match="either a scheduler or a number of workers"),
        open_executor(scheduler="tcp://127.0.0.1:1", workers=2),
    ):
        pass


def test_a_scheduler_is_reached_from_a_thread_that_runs_an_event_loop(cluster):
    async def in_a_notebook():
        with open_executor(scheduler=cluster.scheduler_info()["address"]) as executor:
            return executor.client.submit(str, 3).result()

    assert asyncio.run(in_a_notebook()) == "3"


def test_no_scheduler_is_one_clear_error():
    with (
        pytest.raises(ClusterError, match=r"no scheduler answers at tcp://127\.0\.0\.1:1"),
        open_executor(scheduler="tcp://127.0.0.1:1", connect_timeout_s=1.0),
    ):
        pass
