"""Ingest as it runs: arguments, interruption, replacement, other processes, and real corpora."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import write

from distmom.corpus import ingest, open_corpus
from distmom.corpus.files import lock
from distmom.corpus.stored.staging import StagedCorpus
from distmom.errors import InputError, StoreError, UsageError

DATA = Path(__file__).parents[3] / "shared" / "data"


def real(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there: it is not part of a clone")
    return path


def texts(path, n=3000):
    rng = np.random.default_rng(0)
    words = np.array([f"w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(400)])
    picked = rng.zipf(1.5, (n, 12)) % 400
    lines = (f"{row[0] % 9},{row[1] % 7}\t{' '.join(words[row])}\n" for row in picked)
    path.write_text("".join(lines))
    return path


def test_result_does_not_depend_on_the_map(tmp_path):
    source = texts(tmp_path / "x.tsv")
    seen = []
    one = ingest(source, tmp_path / "1", shard_documents=700, progress=lambda *event: seen.append(event))
    assert seen[-1] == ("write", 3000, 3000)
    assert ("read", source.stat().st_size, source.stat().st_size) in seen
    with ProcessPoolExecutor(2) as pool:
        two = ingest(source, tmp_path / "2", shard_documents=700, map=pool.map)
    assert one.digest == two.digest
    assert one.verify() == []


def test_arguments_are_checked(tmp_path):
    source = texts(tmp_path / "x.tsv", 5)
    cases = [
        ({"source": tmp_path / "none.tsv"}, "there is no such file"),
        ({"source": tmp_path}, "is not a file"),
        ({"format": "arff"}, "format: expected one of xmc"),
        ({"label_source": source}, "label_source"),
        ({"shard_documents": 0}, "shard_documents"),
        ({"text_field": "a", "labels_field": "a"}, "two fields"),
        ({"labels": tmp_path / "none"}, "cannot be opened"),
        ({"min_df": 0}, "min_df"),
    ]
    for options, message in cases:
        arguments = {"source": source, "destination": tmp_path / "c", **options}
        with pytest.raises(UsageError, match=message):
            ingest(**arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tsv"]


def test_existing_corpus_is_replaced_only_by_a_complete_one(tmp_path):
    source = texts(tmp_path / "x.tsv", 50)
    first = ingest(source, tmp_path / "c")
    with pytest.raises(UsageError, match="already exists"):
        ingest(source, tmp_path / "c")
    bad = write(tmp_path / "bad.tsv", "a\tone two\nno tab\n")
    with pytest.raises(InputError):
        ingest(bad, tmp_path / "c", overwrite=True)
    assert open_corpus(tmp_path / "c").digest == first.digest
    good = write(tmp_path / "good.tsv", "a\tone two\nb\tone\n")
    assert ingest(good, tmp_path / "c", overwrite=True).n_documents == 2


def test_changed_source_is_refused(tmp_path):
    source = texts(tmp_path / "x.tsv", 50)

    def append(stage, done, total):
        with open(source, "a") as stream:
            stream.write("a\tlate\n")

    with pytest.raises(InputError, match="got a file that changed"):
        ingest(source, tmp_path / "c", progress=append)


@pytest.mark.parametrize("stage", ["read", "write"])
def test_interrupted_ingest_resumes(tmp_path, stage):
    source = texts(tmp_path / "x.tsv")
    whole = ingest(source, tmp_path / "whole", shard_documents=500)
    events = []

    def interrupt(at, done, total):
        events.append(at)
        if events.count(stage) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(source, tmp_path / "c", shard_documents=500, progress=interrupt)
    assert not (tmp_path / "c").exists()
    with pytest.raises(UsageError, match="has not finished; run the same ingest again"):
        open_corpus(tmp_path / "c")
    parts = sorted(tmp_path.glob("c.partial/*/parts/*"))
    values = parts[0] / "values.npy"
    values.write_bytes(values.read_bytes()[:100])
    before = [part.stat().st_mtime_ns for part in parts[1:]]
    encoded = []
    corpus = ingest(
        source,
        tmp_path / "c",
        shard_documents=500,
        map=lambda f, tasks: (encoded.append(f.__name__) or f(task) for task in tasks),
    )
    assert encoded.count("encode_chunk") == 6 - len(before)
    assert corpus.digest == whole.digest
    assert not (tmp_path / "c.partial").exists()


def test_other_settings_start_again(tmp_path):
    source = texts(tmp_path / "x.tsv")

    def interrupt(*event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(source, tmp_path / "c", shard_documents=500, progress=interrupt)
    corpus = ingest(source, tmp_path / "c", shard_documents=500, stop_words=["wba"])
    fresh = ingest(source, tmp_path / "d", shard_documents=500, stop_words=["wba"])
    assert corpus.digest == fresh.digest
    assert "wba" not in corpus.vocabulary


@pytest.mark.parametrize(("file", "host"), [("p00002", None), ("s00003", None), ("s00003", "elsewhere")])
def test_killed_ingest_resumes(tmp_path, file, host, monkeypatch):
    """A child process is killed once the file exists; the next run, on any host, produces the same corpus."""
    source = texts(tmp_path / "x.tsv", 8000)
    whole = ingest(source, tmp_path / "whole", shard_documents=200)
    arguments = f"{str(source)!r}, {str(tmp_path / 'c')!r}, shard_documents=200"
    code = f"from distmom.corpus import ingest; ingest({arguments})"
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    deadline = time.monotonic() + 60
    place = "parts" if file.startswith("p") else "corpus/shards"
    while not any(tmp_path.glob(f"c.partial/*/{place}/{file}")) and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (tmp_path / "c").exists()
    holder = json.loads((tmp_path / "c.lock").read_text())
    if host is not None:
        (tmp_path / "c.lock").write_text(json.dumps({**holder, "host": host}))
        monkeypatch.setattr(lock, "LEASE_S", 1.0)
    corpus = ingest(source, tmp_path / "c", shard_documents=200)
    assert corpus.digest == whole.digest
    assert corpus.verify() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "whole", "x.tsv"]


@pytest.mark.parametrize("step", ["encode_chunk", "finish_parts"])
def test_a_task_that_an_earlier_ingest_has_left_cannot_write_into_a_later_one(tmp_path, step):
    """As one on a cluster that has not ended when its client is interrupted."""
    source = texts(tmp_path / "x.tsv")
    fresh = ingest(source, tmp_path / "fresh", shard_documents=500)
    late = []

    def interrupted(function, tasks):
        for task in tasks:
            if function.__name__ == step:
                late.append(partial(function, task))
                raise KeyboardInterrupt
            yield function(task)

    def with_late(function, tasks):
        for task in tasks:
            yield function(task)
            with pytest.raises((FileNotFoundError, StoreError), match="No such file"):
                late[0]()

    with pytest.raises(KeyboardInterrupt):
        ingest(source, tmp_path / "c", shard_documents=500, map=interrupted)
    write(source, source.read_text().replace("wa", "new"))
    found = ingest(source, tmp_path / "c", shard_documents=500, map=with_late)
    assert found.digest == ingest(source, tmp_path / "other", shard_documents=500).digest != fresh.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "fresh", "other", "x.tsv"]


def test_a_task_that_an_earlier_attempt_has_left_replaces_no_part(tmp_path):
    source = texts(tmp_path / "x.tsv")
    late = []

    def interrupted(function, tasks):
        late.extend(partial(function, task) for task in tasks)
        raise KeyboardInterrupt

    def with_late(function, tasks):
        for task in tasks:
            yield function(task)
            if function.__name__ == "encode_chunk":
                before = task.path.stat().st_ino
                late.pop(0)()
                assert task.path.stat().st_ino == before

    with pytest.raises(KeyboardInterrupt):
        ingest(source, tmp_path / "c", shard_documents=500, map=interrupted)
    ingest(source, tmp_path / "c", shard_documents=500, map=with_late)
    assert late == []


def test_an_ingest_that_ended_after_it_had_committed_has_nothing_left_to_do(tmp_path, monkeypatch):
    source = texts(tmp_path / "x.tsv", 50)

    def fails(self):
        raise OSError

    def work(stage, done, total):
        pytest.fail("a finished corpus was written again")

    with monkeypatch.context() as change:
        change.setattr(StagedCorpus, "_remove_partial", fails)
        first = ingest(source, tmp_path / "c")
    shutil.copytree(tmp_path / "c.partial", tmp_path / "kept")
    assert ingest(source, tmp_path / "c", progress=work).digest == first.digest
    assert not (tmp_path / "c.partial").exists()
    # Another corpus has taken its place.
    shutil.rmtree(tmp_path / "c")
    other = ingest(source, tmp_path / "c", min_df=1, shard_documents=10)
    (tmp_path / "kept").rename(tmp_path / "c.partial")
    with pytest.raises(UsageError, match="already exists"):
        ingest(source, tmp_path / "c")
    assert open_corpus(tmp_path / "c").digest == other.digest


def test_two_ingests_into_one_place(tmp_path):
    source = texts(tmp_path / "x.tsv", 50)

    def again(stage, done, total):
        with pytest.raises(UsageError, match=rf"process {os.getpid()} on host"):
            ingest(source, tmp_path / "c")

    assert ingest(source, tmp_path / "c", progress=again).n_documents == 50


def test_damage_between_the_steps_is_found(tmp_path):
    source = texts(tmp_path / "x.tsv", 500)

    def damage(stage, done, total):
        [part] = tmp_path.glob("c.partial/*/parts/*")
        content = bytearray((part / "word_ids.npy").read_bytes())
        content[len(content) // 2] ^= 1
        (part / "word_ids.npy").write_bytes(content)

    with pytest.raises(StoreError, match=r"p00000/word_ids\.npy: expected sha256"):
        ingest(source, tmp_path / "c", progress=damage)
    assert ingest(source, tmp_path / "c").verify() == []


@pytest.mark.realdata
def test_bibtex_has_its_published_sizes(tmp_path):
    folder = real("bibtex")
    options = {"labels": folder / "bibtex.labels.txt.xz", "vocabulary": folder / "bibtex.features.txt.xz"}
    train = ingest(folder / "bibtex-train.xmc.txt.xz", tmp_path / "train", strict=True, **options)
    test = ingest(folder / "bibtex-test.xmc.txt.xz", tmp_path / "test", strict=True, like=train)
    assert (train.n_documents, train.n_words, train.n_labels) == (4880, 1836, 159)
    assert (test.n_documents, test.n_words, test.label_names) == (2515, 1836, train.label_names)
    assert train.label_names[0] == "TAG_2005"
    assert train.verify() == test.verify() == []


@pytest.mark.realdata
def test_kos_has_its_published_sizes(tmp_path):
    corpus = ingest(real("kos") / "docword.kos.txt.xz", tmp_path / "kos", shard_documents=1000, strict=True)
    assert corpus.totals["nnz_words"] == 353_160
    assert int(corpus.word_frequency.sum()) == 467_714
    assert corpus.vocabulary[:2] == ["aarp", "abandon"]
    assert [shard.n_documents for shard in corpus.shards] == [1000, 1000, 1000, 430]


@pytest.mark.slow
@pytest.mark.realdata
def test_library_titles_have_their_known_sizes(tmp_path):
    folder = real("yso-finna-en")
    corpus = ingest(folder / "docs.tsv.xz", tmp_path / "yso", labels=folder / "labels.tsv.xz")
    assert (corpus.n_documents, corpus.n_labels) == (653_478, 27_754)
    assert corpus.totals["nnz_labels"] == 1_601_383
    assert corpus.warnings == {}
    assert corpus.label_names[:3] == ["light reading", "fiction and poetry", "entertainment"]
    assert np.all(np.diff(corpus.document_frequency) <= 0)
