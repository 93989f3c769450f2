"""The stack of a fit enters no file of the package more than twice: A, B, A, C are two entries of A."""

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

import distmom
from distmom.cli.main import main
from distmom.models import SpectralLDA
from distmom.simulate import preset, synthesise

ROOT = Path(distmom.__file__).parent


def walk(function, root=ROOT):
    """Return for every file below a folder how often it was on the stack, at most, and the files of that stack."""
    prefix, stack, runs, entered, found = f"{root}/", [], [], Counter(), {}

    def profile(frame, event, argument):
        if event == "call":
            path = frame.f_code.co_filename
            # Files elsewhere do not count: a callback through the standard library stays in its file.
            new = path.startswith(prefix) and (not runs or runs[-1] != path)
            stack.append((frame, new))
            if new:
                runs.append(path)
                entered[path] += 1
                if entered[path] > found.get(path, (0, ()))[0]:
                    found[path] = entered[path], tuple(run.removeprefix(prefix) for run in runs)
        elif event == "return" and stack and stack[-1][0] is frame and stack.pop()[1]:
            entered[runs.pop()] -= 1

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    assert all(n == 0 for n in entered.values())
    return {path.removeprefix(prefix): way for path, way in found.items()}


def test_entries_of_a_file_are_counted(tmp_path, monkeypatch):
    """By way of `back` and the sort of the standard library, the first file is entered three times."""
    (tmp_path / "walk_one.py").write_text(
        "from walk_two import back\n"
        "def first():\n    return inner()\n"
        "def inner():\n    return back(second)\n"
        "def second(_):\n    return back(third)\n"
        "def third(_):\n    return sorted([1], key=last)\n"
        "def last(_):\n    return 0\n"
    )
    (tmp_path / "walk_two.py").write_text("def back(f):\n    return list(map(f, [1]))\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = walk(importlib.import_module("walk_one").first, tmp_path)
    assert found["walk_one.py"] == (3, ("walk_one.py", "walk_two.py") * 2 + ("walk_one.py",))
    assert found["walk_two.py"] == (2, ("walk_one.py", "walk_two.py") * 2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    model = preset("wikilshtc", n_documents=400, n_words=100, n_labels=8, n_states=3)
    return synthesise(model, tmp_path_factory.mktemp("walk") / "corpus", shard_documents=100)


@pytest.fixture(params=["SpectralLDA", "fit", "fit lda"])
def fit(request, corpus, tmp_path):
    """A fit by an estimator, or by the command with its default model or with topics."""
    if request.param == "SpectralLDA":
        return lambda: SpectralLDA(3, min_df=0.0, max_df=1.0).fit_corpus(corpus)
    arguments = [
        "fit",
        corpus.path,
        str(tmp_path / "model"),
        "-k",
        "3",
        "--workers",
        "0",
        "--overwrite",
        "--quiet",
    ]
    if request.param == "fit lda":
        arguments += ["--model", "lda", "--min-df", "0", "--max-df", "1"]

    def call():
        assert main(arguments) == 0

    return call


def test_a_fit_passes_through_each_file_at_most_twice(fit):
    # Modules are imported, and kernels compiled, before the walk.
    fit()
    found = walk(fit)
    assert {"spectral/program/execution.py", "engine/run.py", "engine/tasks.py"} <= found.keys()
    assert {path: way for path, way in found.items() if way[0] > 2} == {}
