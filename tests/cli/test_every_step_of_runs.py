"""Fits, updates, moments and outputs that end, or whose disk fails, at any step: they are completed or resumed."""

import errno
import json
import os

import pytest
from helpers import lda_corpus, planted_corpus
from steps import ACTS, Spec, tried_apart

from distmom.cli import run as runs
from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.engine.directory import epochs
from distmom.engine.directory.run_directory import FIRST_DIRECTORIES
from distmom.spectral.saved.artifact import record_digest

LOCAL = ("--workers", "0", "--quiet")
LABELS = ("-k", "3", "--head", "posterior")
TOPICS = (
    "--model",
    "lda",
    "-k",
    "3",
    "--alpha0",
    "1",
    "--n-refine",
    "0",
    "--init",
    "tensor",
    "--n-power-iter",
    "1",
)
MOMENTS = ("-k", "3", "--n-parts", "2", "--n-oversamples", "4", "--n-power-iter", "1")
UPDATED = ("-k", "3", "--head", "linear", "--keep-sums")
#: arguments of every command; places of the fixture in braces
COMMANDS = {
    "labels": ("fit", "{corpus}", "{c}", *LABELS),
    "topics": ("fit", "{texts}", "{c}", *TOPICS),
    "update": ("update", "{kept}", "{more}", "{c}"),
    "moments": ("moments", "{texts}", "{c}", *MOMENTS),
    "predict": ("predict", "{labels}", "{corpus}", "{c}"),
    "transform": ("transform", "{topics}", "{texts}", "{c}"),
    "synth": (
        "synth",
        "bibtex",
        "{c}",
        "--docs",
        "40",
        "--words",
        "300",
        "--states",
        "4",
        "--shard-docs",
        "20",
    ),
}
#: commands that replace an older result of the same kind
OLDER = {
    "labels": ("fit", "{more}", "{c}", *LABELS),
    "topics": ("fit", "{texts}", "{c}", *TOPICS, "--seed", "5"),
    "update": ("fit", "{more}", "{c}", *LABELS),
    "moments": ("moments", "{texts}", "{c}", *MOMENTS, "--seed", "5"),
    "predict": ("predict", "{labels}", "{more}", "{c}"),
    "transform": ("transform", "{topics}", "{few}", "{c}"),
    "synth": ("synth", "bibtex", "{c}", "--docs", "30", "--words", "300", "--states", "4"),
}


def arguments(command, place, result):
    places = [each.replace("{c}", str(result)) for each in command]
    return [each.replace("{", f"{place}/").replace("}", "") for each in places] + [*LOCAL]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Corpora of several groups of shards, and models of them."""
    folder = tmp_path_factory.mktemp("place")
    block = planted_corpus(320, d=60, n_labels=8, k=3, shard_documents=320)[2].read_shard(0)
    from_arrays(folder / "corpus", block.words[:240], block.labels[:240], shard_documents=60)
    from_arrays(folder / "more", block.words[240:], block.labels[240:], shard_documents=40)
    words = lda_corpus(240, 60, 3, shard_documents=240)[2].read_shard(0).words
    from_arrays(folder / "texts", words, shard_documents=60)
    from_arrays(folder / "few", words[:60], shard_documents=60)
    fits = {"labels": ("corpus", LABELS), "topics": ("texts", TOPICS), "kept": ("corpus", UPDATED)}
    for name, (corpus, options) in fits.items():
        assert main(["fit", str(folder / corpus), str(folder / name), *options, *LOCAL]) == 0
    return folder


def tried(place, tmp_path, name, is_replaced, every=1, first=0):
    before, folder = "", tmp_path / "folder"
    names = ["c", "c.truth"] if name == "synth" else ["c"]
    more = ()
    if is_replaced:
        before, more = str(tmp_path / "before"), ["--overwrite"]
        (tmp_path / "before").mkdir()
        assert main(arguments(OLDER[name], place, f"{before}/c")) == 0
    command = [*arguments(COMMANDS[name], place, folder / "c"), *more]
    return tried_apart(Spec(command, str(folder), names, before, every, first))


#: every how many pairs of step and act the nightly tests try one
EVERY = {"labels": 11, "topics": 11, "update": 23, "moments": 29, "predict": 3, "transform": 3, "synth": 3}
#: by default; of a run, of the last pairs, which save the model and remove the run
SAMPLES = {"labels": (117, -690), "predict": (103, 12)}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.slow
def test_commands_that_end_at_some_steps_are_completed_or_resumed(place, tmp_path, name):
    every, first = SAMPLES[name]
    result = tried(place, tmp_path, name, False, every, first)
    assert result["failures"] == []
    assert {"write", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir"} <= set(result["steps"])
    assert result["n_tried"] >= 4


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_end_at_many_steps_are_completed_or_resumed(place, tmp_path, name, is_replaced):
    result = tried(place, tmp_path, name, is_replaced, EVERY[name])
    assert result["failures"] == []
    # Steps of two threads are not always as many.
    assert result["n_tried"] > 0.95 * len(ACTS) * len(result["steps"]) / EVERY[name] > 90


@pytest.mark.parametrize("n_made", range(len(FIRST_DIRECTORIES) + 1))
def test_a_run_that_ended_while_it_made_its_directories_is_begun_again(place, tmp_path, n_made):
    (tmp_path / "c.run").mkdir()
    for name in FIRST_DIRECTORIES[:n_made]:
        (tmp_path / "c.run" / name).mkdir()
    assert main(arguments(COMMANDS["labels"], place, tmp_path / "c")) == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "c"]


def test_a_directory_with_files_of_the_user_is_not_a_run(place, tmp_path, capsys):
    (tmp_path / "c.run" / "states").mkdir(parents=True)
    (tmp_path / "c.run" / "states" / "mine").write_bytes(b"")
    assert main(arguments(COMMANDS["labels"], place, tmp_path / "c")) == 2
    assert "c.run: exists and is not a run" in capsys.readouterr().err
    assert (tmp_path / "c.run" / "states" / "mine").exists()


@pytest.fixture
def fit(place, tmp_path, run):
    return lambda *more: run(*arguments(COMMANDS["labels"], place, tmp_path / "m"), *more)


@pytest.fixture
def left(fit, tmp_path, monkeypatch):
    """A model, whose finished run was left as the process ended; the digest of the model."""
    with monkeypatch.context() as change:
        change.setattr(runs, "discard", lambda path: None)
        assert fit()[0] == 0
    monkeypatch.setattr(epochs.Owner, "is_gone", True)
    assert (tmp_path / "m.run" / "run.json").exists()
    return record_digest(tmp_path / "m")


@pytest.mark.parametrize("command", ["fit", "resume"])
def test_a_finished_run_that_was_left_is_removed_by_the_next_command(left, fit, run, tmp_path, command):
    code, out, err = fit("--json") if command == "fit" else run("resume", tmp_path / "m.run", "--json")
    assert (code, json.loads(out)) == (0, {"model": str(tmp_path / "m"), "finished": True}), err
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]
    assert record_digest(tmp_path / "m") == left


def test_a_finished_run_that_was_left_is_in_the_way_of_no_other(left, fit, tmp_path):
    code, _, err = fit("--seed", 7)
    assert (code, "the model exists" in err) == (2, True)
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]
    assert record_digest(tmp_path / "m") == left
    assert fit("--seed", 7, "--overwrite")[0] == 0
    assert record_digest(tmp_path / "m") != left


def test_a_finished_run_whose_process_may_be_removing_it_is_left_to_it(left, fit, tmp_path, monkeypatch):
    monkeypatch.setattr(epochs.Owner, "is_gone", False)
    code, _, err = fit("--overwrite", "--seed", 7)
    assert (code, "holds another run" in err) == (2, True)
    assert (tmp_path / "m.run" / "run.json").exists()


def test_a_run_whose_end_cannot_be_recorded_says_how_to_go_on(fit, run, tmp_path, monkeypatch):
    def fails(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as change:
        change.setattr(epochs, "write_end", fails)
        code, _, err = fit()
    assert (code, err.splitlines()[-1]) == (1, f"to resume: distmom resume {tmp_path / 'm.run'} --workers 0")
    assert run("resume", tmp_path / "m.run", *LOCAL)[0] == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]
