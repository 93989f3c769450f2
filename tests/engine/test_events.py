"""The events of passes, and the log of a run."""

import json
import logging
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path

import numba
import numpy as np
import pytest
from clusters import scheduler, wait_until
from distributed import Client, LocalCluster

from distmom.cli.progress import PassProgress
from distmom.compiled import compiled
from distmom.corpus import MemoryCorpus, RowCorpus
from distmom.engine import open_engine
from distmom.engine.directory.events import (
    EVENTS,
    EVENTS_VERSION,
    EventLog,
    GroupDone,
    GroupsFound,
    KernelsMissing,
    PassDone,
    PassStarted,
    read_log,
)
from distmom.engine.executors.cluster import OnCluster
from distmom.engine.executors.remote import COMPILING
from distmom.errors import StoreError
from distmom.models import HiddenMarkov, ProductMixture

#: events of version 2; a change requires a new version, and a reader of this one
SCHEMA = {
    "PassStarted": {"name": "str", "n_documents": "int", "n_groups": "int", "n_slabs": "int"},
    "KernelsMissing": {"name": "str"},
    "GroupDone": {"name": "str", "n_documents": "int"},
    "GroupsFound": {"name": "str", "n_found": "int", "n_tasks": "int"},
    "PassDone": {"name": "str", "n_documents": "int", "seconds": "float", "resumed": "bool"},
}


def test_the_events_are_those_of_their_version():
    assert EVENTS_VERSION == 2
    assert {name: {f.name: f.type for f in fields(kind)} for name, kind in EVENTS.items()} == SCHEMA


def test_the_page_on_formats_lists_every_field():
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    rows = page.partition("| event | field | type | content |\n")[2].partition("\n\n")[0].splitlines()[1:]
    listed, event = {}, ""
    for row in rows:
        name, field, kind = (cell.strip(" `") for cell in row.split("|")[1:4])
        event = name or event
        listed.setdefault(event, {})[field] = kind
    assert listed == SCHEMA


def documents(n=60):
    return MemoryCorpus([[i % 2, 1, (i // 2) % 2, (i * 7) % 5] for i in range(n)], shard_documents=20)


def test_the_parts_of_a_split_sequence_are_counted():
    seen = []
    corpus = RowCorpus(np.arange(400) % 5 % 3, [400], n_symbols=3, shard_rows=100)
    HiddenMarkov(1, n_em_iter=0, n_power_iter=0).fit_corpus(corpus, observer=seen.append)
    started = [event.n_documents for event in seen if isinstance(event, PassStarted)]
    done = Counter()
    for event in seen:
        if isinstance(event, GroupDone):
            done[event.name] += event.n_documents
    assert started == [len(corpus.shards)] * len(done) == list(done.values())
    assert len(corpus.shards) == 4


def test_a_run_keeps_all_events_of_its_passes(tmp_path):
    seen = []
    for _ in range(2):
        # EM of a single component repeats the same pass, which is made once.
        ProductMixture(1, n_em_iter=0).fit_corpus(documents(), run=tmp_path, observer=seen.append)
    logged = read_log(tmp_path / "log.jsonl")
    assert [each.event for each in logged] == seen
    assert [each.time for each in logged] == sorted(each.time for each in logged)
    assert isinstance(seen[0], PassStarted)
    resumed = [event.resumed for event in seen if isinstance(event, PassDone)]
    assert resumed == sorted(resumed)
    assert sum(resumed) * 2 == len(resumed) > 0
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert line == {"version": 2, "time": logged[0].time, "event": "PassStarted", **asdict(seen[0])}


def add_one(x):
    return x + 1


def test_work_that_waits_for_a_kernel_is_shown_as_such(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    seen = []
    with open_engine(documents(), observer=seen.append) as engine:
        for _ in range(2):
            kernel = compiled(add_one)
            assert engine.on_scheduler(lambda x, kernel=kernel: kernel(x) + kernel(float(x)), lambda: 2) == 6
    assert seen == [KernelsMissing("decomposition")]
    with PassProgress() as progress:
        progress(seen[0])
        progress(GroupsFound("words", 7, 12))
    assert capsys.readouterr().err == ("decomposition: compiling kernels\nwords: 7 of 12 tasks found done\n")


@pytest.mark.cluster
def test_events_of_a_cluster_arrive_in_the_thread_of_the_caller(tmp_path, monkeypatch):
    """So observers may ask the cluster, which is impossible on its event loop."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    seen = []
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):

        def observe(event):
            seen.append((event, threading.current_thread(), list(client.run(add_one, 1).values())))

        with open_engine(documents(), executor=OnCluster(client), observer=observe) as engine:
            kernel = compiled(add_one)
            assert engine.on_scheduler(lambda x: kernel(x), lambda: 2) == 3
    assert seen == [(KernelsMissing("decomposition"), threading.current_thread(), [2])]


@pytest.mark.cluster
def test_fits_that_share_a_client_all_receive_notices_of_compilation(tmp_path):
    with (
        scheduler(tmp_path) as (address, _),
        Client(address, set_as_default=False) as client,
        Client(address, set_as_default=False) as other,
    ):
        executors, reports = (OnCluster(client), OnCluster(client)), ([], [])

        def delivered(number):
            # The scheduler may receive the first event before the subscription.
            other.log_event(COMPILING, None)
            executors[number]._notices.deliver()
            return reports[number]

        def announced(*numbers):
            """Announce compilations until they are reported to fits."""
            for number in numbers:
                wait_until(partial(delivered, number), 10)
                reports[number].clear()

        with executors[0].compiling(lambda: reports[0].append(0)):
            with executors[1].compiling(lambda: reports[1].append(1)):
                announced(0, 1)
            announced(0)
        with executors[1].compiling(lambda: reports[1].append(1)):
            announced(1)


def test_an_incomplete_last_line_is_left_out_and_removed(tmp_path):
    path = tmp_path / "log.jsonl"
    assert read_log(path) == []
    with EventLog(path) as log:
        log(PassDone("a", 1, 0.5, False))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert len(read_log(path)) == 1
    with EventLog(path) as log:
        log(PassDone("b", 1, 0.5, True))
    assert [each.event.name for each in read_log(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "expected an event"),
        ("{", "expected an event"),
        ("[" * 100_000, "expected an event"),
        (f'{{"event": "GroupDone", "time": 1{"0" * 400}, "version": 1}}', "expected an event"),
        ('{"event": "GroupDone", "name": "a", "n_documents": 1, "time": 0}', "expected an event"),
        (
            '{"event": "GroupDone", "name": "a", "n_documents": 1, "time": 0, "version": 3}',
            "version: expected 2",
        ),
        ('{"event": "GroupDone", "name": "a", "time": 0, "version": 1}', "expected an event"),
        ('{"event": "GroupDone", "name": 1, "n_documents": 1, "time": 0, "version": 1}', "expected an event"),
        ('{"event": "Other", "name": "a", "time": 0, "version": 1}', "expected an event"),
    ],
)
def test_other_lines_are_refused(tmp_path, line, message):
    path = tmp_path / "log.jsonl"
    good = '{"event": "GroupDone", "name": "a", "n_documents": 1, "time": 0, "version": 1}\n'
    path.write_text(good + line + "\n")
    with pytest.raises(StoreError, match=f"log.jsonl:2: {message}"):
        read_log(path)
    with open_engine(documents(), tmp_path) as engine:
        assert [problem for problem in engine.directory.verify() if "log.jsonl:2" in problem]


def test_the_logger_has_no_handlers():
    """Neither the package nor any of its modules configures logging."""
    code = (
        "import importlib, logging, pkgutil, distmom\n"
        "for module in pkgutil.walk_packages(distmom.__path__, 'distmom.'): importlib.import_module(module.name)\n"
        "found = [name for name in logging.root.manager.loggerDict if name.split('.')[0] == 'distmom']\n"
        "assert len(found) > 5\n"
        "print(sum(len(logging.getLogger(name).handlers) for name in found),"
        " {logging.getLogger(name).propagate for name in found}, logging.getLogger('distmom').level)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["0", "{True}", str(logging.NOTSET)]
