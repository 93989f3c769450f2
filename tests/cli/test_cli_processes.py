"""Commands as processes of their own: interrupts, clusters, the script for SLURM, and compilation."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import planted_corpus, scores
from scipy.sparse import vstack
from stores import free_port

from distmom.cli.main import main
from distmom.corpus import from_arrays
from distmom.engine import KernelsMissing, tasks
from distmom.engine.directory.events import read_log
from distmom.models import load_model

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMAND = [sys.executable, "-m", "distmom.cli.main"]


@pytest.mark.cluster
def test_bad_input_met_by_a_worker_is_told_in_one_line(tmp_path):
    (tmp_path / "bad.txt").write_text("2 5 2\n0 1:1 2:1\n1 9:1\n")
    done = subprocess.run(
        [*COMMAND, "ingest", "bad.txt", "c", "--format", "xmc", "--workers", "1"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == "error: bad.txt:3: column of a word: expected 0 to 4, got 9\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.txt"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A corpus whose fit takes seconds, and the scores of an uninterrupted fit."""
    folder = tmp_path_factory.mktemp("large")
    memory = planted_corpus(24_000, d=1000, n_labels=100, k=10, shard_documents=2000)[2]
    blocks = [memory.read_shard(i) for i in range(len(memory.shards))]
    X, Y = vstack([b.words for b in blocks]), vstack([b.labels for b in blocks])
    from_arrays(folder / "corpus", X, Y, shard_documents=2000)
    fit = ["fit", str(folder / "corpus"), str(folder / "model"), "-k", "10", "--head", "linear"]
    assert main([*fit, "--workers", "0", "--quiet"]) == 0
    return folder / "corpus", scores(folder / "model", folder / "corpus")


def group(number):
    """Processes of a group that still run."""
    alive = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(of) == number and state != "Z":
            alive.append(entry.name)
    return alive


def test_a_refused_resume_keeps_the_groups_that_were_finished(run, large, tmp_path, monkeypatch):
    corpus, expected = large
    finished = []

    def interrupted(folded, report):
        if finished:
            raise KeyboardInterrupt
        finished.append(report)
        return reported(folded, report)

    reported = tasks._reported
    fit = ("fit", corpus, tmp_path / "m", "-k", 10, "--head", "linear")
    with monkeypatch.context() as change:
        change.setattr(tasks, "_reported", interrupted)
        assert run(*fit, "--workers", 0)[0] == 130
    code, _, err = run("resume", tmp_path / "m.run", "--workers", 0, "--memory-limit", "300MiB")
    assert (code, "memory" in err) == (2, True)
    code, _, err = run(*fit, "--n-residual-passes", 2, "--workers", 0)
    assert (code, "holds another run" in err) == (2, True)
    code, _, err = run("resume", tmp_path / "m.run", "--workers", 0)
    assert (code, "1 of " in err and "found done" in err) == (0, True)
    np.testing.assert_array_equal(scores(tmp_path / "m", corpus), expected)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_interrupted_fit_says_how_to_go_on_and_that_gives_the_same_bits(workers, large, tmp_path):
    corpus, expected = large
    command = ["fit", str(corpus), str(tmp_path / "m"), "-k", "10", "--head", "linear", "--workers", workers]
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
    while " documents in " not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    # As Ctrl-C in a terminal does, to all processes of the group, and by an impatient person twice.
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.1)
    if workers == "2":
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert "semaphore" not in err
    # The tracker of shared resources ends when it sees that its process has.
    for _ in range(100):
        if not group(process.pid):
            break
        time.sleep(0.1)
    assert group(process.pid) == []
    assert "interrupted" in err
    [reported] = [
        line.removeprefix("to resume: ") for line in err.splitlines() if line.startswith("to resume: ")
    ]
    assert not (tmp_path / "m").exists()
    assert main(["verify", str(tmp_path / "m.run")]) == 0
    program, *rest = shlex.split(reported)
    assert program == "distmom"
    assert rest[:2] == ["resume", str(tmp_path / "m.run")]
    done = subprocess.run([*COMMAND, *rest], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "found committed" in done.stderr
    assert "Traceback" not in done.stderr
    assert scores(tmp_path / "m", corpus) == expected
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_an_interrupt_in_the_first_moment_is_one_word():
    process = subprocess.Popen(
        [*COMMAND, "info", "nothing"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # Python itself does not catch SIGTERM: it is caught when the entry point has begun, before the long imports.
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1:
        assert process.poll() is None
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "interrupted\n"
    assert process.returncode == 130


def ended(code, timeout_s):
    """Run a program that begins with the handlers of signals of Python; return its exit code and errors."""
    process = subprocess.run(
        [sys.executable, "-c", code, "info", "nothing"],
        capture_output=True, text=True, timeout=timeout_s, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    return process.returncode, process.stderr


def test_a_second_interrupt_while_the_process_ends_is_ignored():
    code = """
import atexit, os, signal, sys
from distmom.cli import main

def interrupt(command=None):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)

atexit.register(interrupt)
main.exit_code = interrupt
sys.exit(main.main())
"""
    assert ended(code, 60) == (130, "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["destructor", "callback"])
def test_an_interrupt_that_python_drops_in_a_destructor_is_heeded(kind, number):
    code = f"""
import os, sys, time, weakref
from distmom.cli import main

def interrupt(reference=None):
    for _ in range(2):
        os.kill(os.getpid(), {int(number)})

class Held:
    pass

def work(command):
    held = Held()
    if {kind!r} == "destructor":
        Held.__del__ = interrupt
    else:
        reference = weakref.ref(held, interrupt)
    del held
    time.sleep(30)
    return 0

main.exit_code = work
sys.exit(main.main())
"""
    assert ended(code, 20) == (130, "interrupted\n")


def test_other_errors_in_destructors_are_reported_as_before(monkeypatch, capsys):
    seen = []

    class Held:
        def __del__(self):
            raise KeyError("held")

    def work(command):
        Held()
        return 0

    monkeypatch.setattr(sys, "unraisablehook", lambda given: seen.append(str(given.exc_value)))
    hook = sys.unraisablehook
    monkeypatch.setattr("distmom.cli.main.exit_code", work)
    assert main(["info", "nothing"]) == 0
    assert seen == ["'held'"]
    assert sys.unraisablehook is hook


def test_an_interrupt_around_a_command_is_one_word(monkeypatch, capsys):
    def interrupted(command):
        raise KeyboardInterrupt

    monkeypatch.setattr("distmom.cli.main.exit_code", interrupted)
    assert main(["info", "nothing"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.slow
@pytest.mark.cluster
def test_a_scheduler_and_workers_started_elsewhere_give_the_same_bits(place, tmp_path):
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    started = []
    try:
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
        options = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        started.append(subprocess.Popen([*dask, *options], **quiet))
        for _ in range(2):
            worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
            started.append(subprocess.Popen([*worker, "--no-dashboard", "--no-nanny"], **quiet))
        done = subprocess.run(
            [*COMMAND, "fit", str(place / "corpus"), str(tmp_path / "m"), "-k", "3", "--scheduler", address],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert address in done.stderr
        assert "Traceback" not in done.stderr
        assert all(process.poll() is None for process in started)
    finally:
        for process in reversed(started):
            process.kill()
        for process in started:
            process.wait(20)
    assert scores(tmp_path / "m", place / "corpus") == scores(place / "model", place / "corpus")
    corpus = np.frombuffer(scores(tmp_path / "m", place / "corpus"), np.float32)
    assert np.isfinite(corpus).all()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.cluster
@pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the files of deploy/")
def test_the_slurm_script_fits_and_leaves_nothing_running(place, tmp_path):
    """With two tasks on this machine in place of SLURM's."""
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift\n"$@" &\nexec "$@"\n')
    srun.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        [str(DEPLOY / "slurm.sh"), str(place / "corpus"), str(tmp_path / "m"), "-k", "3"],
        env={**os.environ, "PATH": path, "HOST": "127.0.0.1", "PORT": str(free_port())},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
        assert scores(tmp_path / "m", place / "corpus") == scores(place / "model", place / "corpus")
        for _ in range(200):
            if not group(process.pid):
                break
            time.sleep(0.1)
        assert group(process.pid) == []
    finally:
        for left in group(process.pid):
            os.kill(int(left), signal.SIGKILL)


@pytest.mark.cluster
@pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the files of deploy/")
def test_workers_take_the_settings_of_deploy():
    code = (
        "import os\n"
        "from distributed import Client, LocalCluster\n"
        "if __name__ == '__main__':\n"
        "    options = dict(n_workers=1, threads_per_worker=1, dashboard_address='127.0.0.1:0')\n"
        "    with LocalCluster(**options) as c, Client(c) as d:\n"
        "        [found] = d.run(lambda: dict(os.environ)).values()\n"
        "        print(found['MALLOC_TRIM_THRESHOLD_'], found['OMP_NUM_THREADS'])\n"
    )
    # Dask leaves the settings of earlier workers in the environment, where they would take precedence.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "DASK_CONFIG": str(DEPLOY / "dask.yaml")},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["134217728", "1"]


#: runs commands, and writes the kernels that they have called, each with its signature
CALLED = """
import gc, json, sys
from pathlib import Path
from numba.core.registry import CPUDispatcher
from distmom.cli.main import main

for command in json.loads(sys.argv[2]):
    assert main(command) == 0
kernels = [each for each in gc.get_objects() if isinstance(each, CPUDispatcher)]
called = [f"{each.__module__}.{each.__qualname__}{types}" for each in kernels for types in each.signatures]
Path(sys.argv[1]).write_text(json.dumps(called))
"""


def kernels_of(place, *commands):
    """Run commands in a process of their own, and return the kernels that it needs to have compiled."""
    arguments = json.dumps([[str(each) for each in command] for command in commands])
    subprocess.run([sys.executable, "-c", CALLED, str(place), arguments], check=True, capture_output=True)
    return set(json.loads(place.read_text()))


@pytest.mark.slow
@pytest.mark.nightly
def test_all_kernels_of_a_fit_are_compiled_ahead(tmp_path):
    """That a process compiles nothing that another one has compiled is `test_a_cold_run_shows ...`."""
    ahead = kernels_of(tmp_path / "ahead.json", ["warm"])
    source = tmp_path / "titles.tsv"
    letters = "abcdefghijk"
    lines = (
        f"l{i % 3}\t{letters[i % 7] * 3} {letters[i % 5] * 4} {letters[i % 11] * 5}\n" for i in range(300)
    )
    source.write_text("".join(lines))
    # Many labels, of which the frequent ones depend on the kind of the words and on their number.
    many, rng, lines = tmp_path / "many.tsv", np.random.default_rng(0), []
    names = [f"{letters[w // 10] * 2}{letters[w % 10] * 2}" for w in range(60)]
    for i in range(2600):
        kind, is_long = rng.integers(2, size=2)
        share = np.where(np.arange(60) % 2 == kind, 0.6, 0.1)
        words = np.repeat(names, rng.poisson(share * (3.0 if is_long else 0.5)))
        frequent = np.flatnonzero(rng.random(60) < (share if is_long else share[::-1]))
        lines.append(f"{','.join(map(str, frequent))},first{i},second{i}\t{' '.join(words)}\n")
    many.write_text("".join(lines))
    for name, texts in (("few", source), ("many", many)):
        made = {part: tmp_path / f"{name}-{part}" for part in ("corpus", "model", "out")}
        needed = kernels_of(
            tmp_path / f"{name}.json",
            ["ingest", texts, made["corpus"], "--workers", "0"],
            ["fit", made["corpus"], made["model"], "-k", "3", "--workers", "0"],
            ["predict", made["model"], texts, made["out"], "--workers", "0"],
        )
        assert len(needed) > 10
        assert needed - ahead == set()
    assert load_model(tmp_path / "many-model").reranker_ is not None


@pytest.mark.slow
def test_a_cold_run_shows_that_kernels_are_compiled(tmp_path):
    """Workers and the scheduler report it to the client; a second run has nothing to compile."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    rng = np.random.default_rng(0)
    from_arrays(tmp_path / "c", rng.poisson(0.5, (300, 20)).astype(np.int32), shard_documents=100)
    shown = []
    for name in ("cold", "warm"):
        arguments = ["moments", tmp_path / "c", tmp_path / name, "-k", "2", "--max-df", "1",
                     "--run", tmp_path / f"{name}.run", "--workers", "2"]  # fmt: skip
        command = [sys.executable, "-m", "distmom.cli.main", *map(str, arguments)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        shown.append([line for line in done.stderr.splitlines() if line.endswith("compiling kernels")])
    assert "sketch: compiling kernels" in shown[0]
    assert shown[1] == []
    logged = [each.event for each in read_log(tmp_path / "cold.run" / "log.jsonl")]
    assert logged.index(KernelsMissing("sketch")) > 0
