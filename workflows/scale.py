"""Fit a planted corpus with the size of WikiLSHTC, a part of it or another preset, and report time and memory.

Runs the command line as a user would, and samples the total memory of all its processes (proportional set
size, ten times per second). Prints a JSON object with the seconds of the command and of every pass, peak
memory, the largest memory of a single process, and the plan, followed by a table of the time of all workers
by kind of work. With `--separate`, scheduler and workers are started as separate processes (`dask scheduler`,
`dask worker`). The object then also contains their warnings (including pauses and restarts) and, sampled
twice per second, the maximum amount of data spilled to disk and the maximum number of workers that were not
running.

    python workflows/scale.py --out scale
    python workflows/scale.py --out scale --memory-limit 1.5GiB --separate
    python workflows/scale.py --out scale --docs 7113404 --workers 2
    python workflows/scale.py --out scale --preset lda --model lda
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from common import PeakMemory
from distributed import Client

#: seconds between requests to the scheduler, equal to the interval at which workers report
ASKED_EVERY_S = 0.5

DISTMOM = [sys.executable, "-m", "distmom.cli.main"]


def run(*arguments: str) -> tuple[str, str]:
    """Run distmom and return its standard output and standard error."""
    done = subprocess.run([*DISTMOM, *arguments], check=True, capture_output=True, text=True)
    return done.stdout, done.stderr


def synthesise(out: Path, preset: str, docs: int | None, words: int | None, seed: int) -> tuple[Path, float]:
    """Simulate the corpus unless it exists."""
    name = f"{preset}-{docs or 'all'}-{words or 'all'}-{seed}"
    corpus = out / name
    if (corpus / "manifest.json").exists():
        return corpus, 0.0
    options = [f"--docs={docs}"] if docs else []
    options += [f"--words={words}"] if words else []
    started = time.monotonic()
    run("synth", preset, str(corpus), f"--seed={seed}", "--overwrite", *options)
    return corpus, time.monotonic() - started


@contextmanager
def separate_cluster(out: Path, workers: int, limit: str | None) -> Iterator[tuple[list[str], list[Path]]]:
    """Start a scheduler and workers; yield the options for connecting to it, and the log files."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    port = address.rpartition(":")[2]
    limits = ["--memory-limit", limit] if limit else []
    commands = [["scheduler", "--host", "127.0.0.1", "--port", port]]
    commands += [["worker", address, "--nthreads", "1", *limits]] * workers
    logs, processes = [], []
    try:
        for i, command in enumerate(commands):
            logs.append(out / f"{command[0]}-{i}.log")
            with logs[-1].open("wb") as log:
                whole = [sys.executable, "-m", "dask", *command, "--no-dashboard"]
                processes.append(subprocess.Popen(whole, stdout=log, stderr=log))
        with Client(address, timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
        yield ["--scheduler", address], logs
    finally:
        # Stop workers first: a worker without a scheduler would wait for it while closing.
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


def warnings_in(logs: list[Path]) -> list[str]:
    """Return the warnings and errors in the logs of Dask processes."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return [line for line in lines if "WARNING" in line or "ERROR" in line or "estart" in line]


class Workers:
    """Samples the state of the workers of a scheduler; a context manager.

    Attributes
    ----------
    spilled_bytes : int
        Maximum amount of data that all workers together had spilled to disk.
    n_not_running : int
        Maximum number of workers that were paused or otherwise not running at the same time.
    n_asked : int
        Number of responses of the scheduler.
    """

    def __init__(self, address: str) -> None:
        self.spilled_bytes = self.n_not_running = self.n_asked = 0
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Workers:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        with Client(self._address, set_as_default=False) as client:
            while not self._stop.wait(ASKED_EVERY_S):
                spilled, n_not_running = client.run_on_scheduler(_worker_states)
                self.spilled_bytes = max(self.spilled_bytes, spilled)
                self.n_not_running = max(self.n_not_running, n_not_running)
                self.n_asked += 1


def _worker_states(dask_scheduler: Any) -> tuple[int, int]:
    workers = dask_scheduler.workers.values()
    return sum(w.memory.spilled for w in workers), sum(w.status.name != "running" for w in workers)


def measure(
    corpus: Path, model: Path, options: list[str], workers: int, limit: str | None, separate: bool
) -> dict[str, Any]:
    """Fit a model, and return time and memory."""
    limits = ["--memory-limit", limit] if limit else []
    plan = json.loads(run("plan", str(corpus), "--json", *options, *limits)[0])
    for path in (model, model.with_name(f"{model.name}.run")):
        shutil.rmtree(path, ignore_errors=True)
    with ExitStack() as stack:
        where, logs, states = [f"--workers={workers}"], [], None
        if separate:
            where, logs = stack.enter_context(separate_cluster(model.parent, workers, limit))
            states = stack.enter_context(Workers(where[-1]))
        command = [*DISTMOM, "fit", str(corpus), str(model), "--json", *where, *options, *limits]
        # All processes of the fit are descendants of this process.
        memory = stack.enter_context(PeakMemory())
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    record = json.loads((model / "model.json").read_text())
    return {
        "fit_s": round(seconds, 1),
        "passes_s": {f"{i}-{t['name']}": round(t["seconds"], 1) for i, t in enumerate(record["timings"])},
        "table": where_the_seconds_go(record, seconds, workers),
        "peak_pss_mb": round(memory.mb),
        "peak_process_rss_mb": round(memory.process_mb),
        "plan_worker_mb": round(plan["worker_bytes"] / 1e6),
        **(_sampled(states, logs) if states is not None else {}),
        "model_mb": round(sum(f.stat().st_size for f in model.rglob("*") if f.is_file()) / 1e6),
        "n_scans": plan["n_scans"],
    }


def _sampled(states: Workers, logs: list[Path]) -> dict[str, Any]:
    return {
        "n_asked": states.n_asked,
        "spilled_mb": round(states.spilled_bytes / 1e6),
        "n_not_running": states.n_not_running,
        "worker_warnings": warnings_in(logs),
    }


KINDS = ("read", "decompress", "kernels", "merge", "write")


def where_the_seconds_go(record: dict[str, Any], command_s: float, workers: int) -> str:
    """Return a Markdown table of wall time, and of the seconds of all workers by kind of work.

    ``idle`` is the remaining time of the workers: waiting for each other, for the client and for the scheduler.
    """
    lines = [
        f"| step | s | {' | '.join(KINDS)} | idle |",
        f"|---|---:|{'---:|' * (len(KINDS) + 1)}",
    ]

    def add(step: str, seconds: float, spent: dict[str, float]) -> None:
        cells = [spent.get(kind, 0.0) for kind in KINDS]
        idle = max(1, workers) * seconds - sum(cells)
        shown = " | ".join(f"{cell:.1f}" for cell in cells)
        lines.append(f"| {step} | {seconds:.1f} | {shown} | {idle:.1f} |")

    total, in_passes = dict(record["spent"]), 0.0
    between = {kind: total.get(kind, 0.0) for kind in KINDS}
    for timing in record["timings"]:
        add(timing["name"], timing["seconds"], timing["spent"])
        in_passes += timing["seconds"]
        for kind in KINDS:
            between[kind] -= timing["spent"].get(kind, 0.0)
    decomposition = total.get("decomposition", 0.0)
    add("decomposition", decomposition, {})
    add("between passes", record["fit_seconds"] - in_passes - decomposition, between)
    add("start of the processes, model written", command_s - record["fit_seconds"], {})
    add("all", command_s, total)
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, simulate, fit and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("scale"), help="directory for corpora and models [%(default)s]"
    )
    parser.add_argument("--preset", default="wikilshtc")
    parser.add_argument("--docs", type=int, help="number of documents [that of the preset]")
    parser.add_argument("--words", type=int, help="number of words [that of the preset]")
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--model", default="multilabel", help="kind of model [%(default)s]")
    parser.add_argument("--head", default="posterior", help="head of a multilabel model [%(default)s]")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory-limit")
    parser.add_argument(
        "--separate", action="store_true", help="run scheduler and workers as separate processes"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    corpus, synth_s = synthesise(options.out, options.preset, options.docs, options.words, options.seed)
    fit_options = [f"-k{options.k}", f"--model={options.model}"]
    if options.model == "multilabel":
        fit_options += [f"--head={options.head}", "--n-power-iter=1"]
    result = measure(
        corpus, options.out / "model", fit_options, options.workers, options.memory_limit, options.separate
    )
    table = result.pop("table")
    print(json.dumps({"corpus": corpus.name, "synth_s": round(synth_s, 1), **result}, indent=1))
    print(table)


if __name__ == "__main__":
    main()
