"""Moments on the command line that are interrupted, and go on."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from helpers import planted_corpus
from scipy.sparse import vstack

from distmom.cli.main import main
from distmom.cli.run_record import describe
from distmom.corpus import from_arrays, open_corpus
from distmom.engine import RunDirectory
from distmom.models import TopicMoments

COMMAND = [sys.executable, "-m", "distmom.cli.main"]
OPTIONS = ("-k", "20", "--min-df", "0", "--max-df", "1", "--n-parts", "6")
LOCAL = ("--workers", "0")


def write(folder, n, name):
    """Write a planted corpus of so many documents, without labels."""
    memory = planted_corpus(n, d=400, n_labels=10, k=5, shard_documents=5000)[2]
    words = vstack([memory.read_shard(i).words for i in range(len(memory.shards))])
    from_arrays(folder / name, words, shard_documents=5000)
    return folder / name


def digests(path):
    """What was saved, but for the seconds that it took."""
    record = json.loads((path / "model.json").read_text())
    return {name: record[name] for name in ("arrays", "files", "parameters", "noise", "sources")}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A corpus whose moments take seconds, those moments, and others in their basis."""
    folder = tmp_path_factory.mktemp("large")
    corpus = str(write(folder, 40_000, "corpus"))
    assert main(["moments", corpus, str(folder / "kept"), *OPTIONS, *LOCAL, "--quiet"]) == 0
    like = ("--like", str(folder / "kept"))
    assert main(["moments", corpus, str(folder / "more"), *like, *LOCAL, "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two small corpora over the same words, and the moments of one of them."""
    folder = tmp_path_factory.mktemp("small")
    write(folder, 600, "corpus")
    write(folder, 700, "other")
    assert main(["moments", str(folder / "corpus"), str(folder / "kept"), *OPTIONS, *LOCAL, "--quiet"]) == 0
    return folder


@pytest.fixture
def interrupted(run, monkeypatch):
    """Run a command that is interrupted when all passes are committed; its last line."""

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    def call(*arguments):
        with monkeypatch.context() as change:
            change.setattr(TopicMoments, "save", stop)
            code, out, err = run(*arguments)
        assert (code, out) == (130, "")
        return err.splitlines()[-1]

    return call


def passes(err):
    """Names of the passes that were reported, each with whether it was found committed."""
    lines = [line for line in err.splitlines() if " documents in " in line]
    return [(line.partition(":")[0], line.endswith("found committed")) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("expected", "workers", "again"), [("kept", "2", "same"), ("more", "0", "resume")])
def test_interrupted_moments_go_on_and_have_the_same_bits(large, tmp_path, expected, workers, again):
    kind = OPTIONS if expected == "kept" else ("--like", str(large / "kept"))
    command = ["moments", str(large / "corpus"), str(tmp_path / "m"), *kind, "--workers", workers]
    process = subprocess.Popen(
        [*COMMAND, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A process started in the background may have been reported to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    seen = ""
    while seen.count("moments: 40,000 documents in ") < 2:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    # As Ctrl-C in a terminal does, to all processes of the group.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert not (tmp_path / "m").exists()
    assert main(["verify", str(tmp_path / "m.run")]) == 0
    committed = describe(tmp_path / "m.run")["committed"]
    made = sum(name.startswith("moments-") for name in committed)
    assert 2 <= made < 6
    [reported] = [
        line.removeprefix("to resume: ") for line in err.splitlines() if line.startswith("to resume: ")
    ]
    assert reported == f"distmom resume {tmp_path / 'm.run'} --workers {workers}"
    go_on = command if again == "same" else shlex.split(reported)[1:]
    done = subprocess.run([*COMMAND, *go_on], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "n_documents" in done.stdout
    # Every pass that was committed is found, and no other.
    found = passes(done.stderr)
    assert [name for name, _ in found].count("moments") == 6
    assert sum(resumed for _, resumed in found) == len(committed)
    assert [resumed for _, resumed in found] == sorted((resumed for _, resumed in found), reverse=True)
    assert digests(tmp_path / "m") == digests(large / expected)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def test_a_run_of_moments_is_kept_where_it_was_asked_for(small, run, tmp_path):
    command = ("moments", small / "corpus", tmp_path / "m", *OPTIONS, *LOCAL, "--run", tmp_path / "r")
    code, _, err = run(*command)
    assert code == 0
    assert not any(resumed for _, resumed in passes(err))
    assert json.loads(run("info", tmp_path / "r", "--json")[1])["model_name"] == "moments"
    assert run("verify", tmp_path / "r")[0] == 0
    code, _, err = run(*command, "--overwrite")
    assert code == 0
    assert all(resumed for _, resumed in passes(err))
    assert digests(tmp_path / "m") == digests(small / "kept")


def test_a_run_of_moments_is_not_mixed_with_another(small, run, interrupted, tmp_path):
    target, like = tmp_path / "m", ("--like", small / "kept")
    reported = interrupted("moments", small / "corpus", target, *like, *LOCAL)
    assert reported == f"to resume: distmom resume {target}.run --workers 0"
    assert json.loads(run("info", f"{target}.run", "--json")[1])["like"]["path"] == str(small / "kept")
    committed = sorted((tmp_path / "m.run" / "passes").iterdir())
    for command, differing in (
        (("moments", small / "other", target, *like), "corpus"),
        (("moments", small / "corpus", target, *OPTIONS), "like"),
        (("fit", small / "corpus", target, "-k", 5, "--model", "lda"), "model"),
    ):
        code, _, err = run(*command, *LOCAL)
        assert code == 2
        assert f"holds another run, which differs in {differing}; resume it with" in err
    # A process that holds the run loses nothing to one that would take it up.
    with RunDirectory(tmp_path / "m.run").held():
        code, _, err = run("resume", f"{target}.run", *LOCAL)
    assert code == 2
    assert "is held by process" in err
    assert sorted((tmp_path / "m.run" / "passes").iterdir()) == committed
    code, _, err = run("resume", f"{target}.run", *LOCAL)
    assert code == 0
    assert len(passes(err)) == 6
    assert all(resumed for _, resumed in passes(err))
    assert TopicMoments.load(target).n_documents_ == open_corpus(small / "corpus").n_documents
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]
    parameters = ("moments", small / "corpus", tmp_path / "n", *OPTIONS, *LOCAL)
    interrupted(*parameters)
    code, _, err = run(*parameters, "--seed", 1)
    assert code == 2
    assert "holds another run, which differs in random_state;" in err


def test_passes_outlast_a_refusal(small, run, interrupted, tmp_path):
    target, tiny = tmp_path / "m", ("--memory-limit", "1MiB")
    command = ("moments", small / "corpus", target, *OPTIONS, *LOCAL)
    # A run without any pass leaves nothing.
    assert run(*command, *tiny)[0] == 2
    assert list(tmp_path.iterdir()) == []
    interrupted(*command)
    committed = sorted((tmp_path / "m.run" / "passes").iterdir())
    assert run("resume", f"{target}.run", *tiny, *LOCAL)[0] == 2
    assert sorted((tmp_path / "m.run" / "passes").iterdir()) == committed
    code, _, err = run("resume", f"{target}.run", *LOCAL)
    assert code == 0
    assert all(resumed for _, resumed in passes(err))


def test_moments_in_a_basis_that_is_gone_or_changed_do_not_go_on(small, run, interrupted, tmp_path):
    basis, options = tmp_path / "basis", (*OPTIONS, *LOCAL, "--quiet")
    assert run("moments", small / "corpus", basis, *options)[0] == 0
    interrupted("moments", small / "other", tmp_path / "m", "--like", basis, *LOCAL)
    basis.rename(tmp_path / "elsewhere")
    code, _, err = run("resume", tmp_path / "m.run", *LOCAL)
    assert code == 4
    assert f"{basis}: not a model" in err
    assert f"to resume: distmom resume {tmp_path / 'm.run'}" in err
    assert run("moments", small / "corpus", basis, *options, "--seed", 1)[0] == 0
    code, _, err = run("resume", tmp_path / "m.run", *LOCAL)
    assert code == 2
    assert f"{basis}: changed since the run began" in err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("{corpus} {out} -k 401 --min-df 0 --max-df 1", 2, "needs as many words"),
        ("{corpus} {kept} -k 3", 2, "the model exists"),
        ("{out} {out}2", 2, "is not a corpus"),
        ("{corpus} {out} --like {out}", 2, "not a model"),
        ("{corpus} {out} --like {kept} -k 3", 2, "--n-components: expected none with --like"),
        ("{corpus} {out} -k 20 --max-df 1 --memory-limit 100MiB", 2, "a worker of 100 MiB can use only 70"),
        ("{corpus} {out} --scheduler 127.0.0.1:1 --workers 2", 2, "either a scheduler or"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(small, run, tmp_path, arguments, code, message):
    names = {"corpus": small / "corpus", "kept": small / "kept", "out": tmp_path / "out"}
    local = () if "--workers" in arguments else LOCAL
    found = run("moments", *(each.format(**names) for each in arguments.split()), *local)
    assert found[:2] == (code, "")
    assert message in found[2]
    assert "documents in" not in found[2]
    assert list(tmp_path.iterdir()) == []
