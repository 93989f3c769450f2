"""Fit a planted corpus of WikiLSHTC's size (or a share of it), and say what it took.

Runs the command line as a user would, and samples the memory of all its processes together (proportional set
size, ten times a second). Prints one JSON object: seconds of the command, seconds of every pass, peak memory, the
largest memory of one worker, restarts and pauses of workers, and the plan.

    python workflows/scale.py --out scale
    python workflows/scale.py --out scale --memory-limit 1.5GiB
    python workflows/scale.py --out scale --docs 7113404 --workers 2
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from common import PeakMemory

DISTMOM = [sys.executable, "-m", "distmom.cli.main"]


def run(*arguments: str) -> tuple[str, str]:
    """Run distmom to its end and return both its outputs."""
    done = subprocess.run([*DISTMOM, *arguments], check=True, capture_output=True, text=True)
    return done.stdout, done.stderr


def synthesise(out: Path, preset: str, docs: int | None, words: int | None, seed: int) -> tuple[Path, float]:
    """Draw the corpus unless it is there."""
    name = f"{preset}-{docs or 'all'}-{words or 'all'}-{seed}"
    corpus = out / name
    if (corpus / "manifest.json").exists():
        return corpus, 0.0
    options = [f"--docs={docs}"] if docs else []
    options += [f"--words={words}"] if words else []
    started = time.monotonic()
    run("synth", preset, str(corpus), f"--seed={seed}", "--overwrite", *options)
    return corpus, time.monotonic() - started


def measure(
    corpus: Path, model: Path, options: list[str], workers: int, limit: str | None
) -> dict[str, object]:
    """Fit, and return what it took."""
    limits = ["--memory-limit", limit] if limit else []
    plan = json.loads(run("plan", str(corpus), "--json", *options, *limits)[0])
    for path in (model, model.with_name(f"{model.name}.run")):
        shutil.rmtree(path, ignore_errors=True)
    command = [*DISTMOM, "fit", str(corpus), str(model), "--json", f"--workers={workers}", *options, *limits]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with PeakMemory(process.pid) as memory:
            _stdout, stderr = process.communicate()
        seconds = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{stderr}")
    record = json.loads((model / "model.json").read_text())
    return {
        "fit_s": round(seconds, 1),
        "passes_s": {f"{i}-{t['name']}": round(t["seconds"], 1) for i, t in enumerate(record["timings"])},
        "peak_pss_mb": round(memory.mb),
        "peak_worker_rss_mb": round(memory.process_mb),
        "plan_worker_mb": round(plan["worker_bytes"] / 1e6),
        "worker_events": [line for line in stderr.splitlines() if "distributed" in line],
        "model_mb": round(sum(f.stat().st_size for f in model.rglob("*") if f.is_file()) / 1e6),
        "n_scans": plan["n_scans"],
    }


def main() -> None:
    """Parse, draw, fit, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("scale"), help="where corpora and models go")
    parser.add_argument("--preset", default="wikilshtc")
    parser.add_argument("--docs", type=int, help="documents; the preset's when absent")
    parser.add_argument("--words", type=int, help="words; the preset's when absent")
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--head", default="posterior")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory-limit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    corpus, synth_s = synthesise(options.out, options.preset, options.docs, options.words, options.seed)
    fit_options = [f"-k{options.k}", f"--head={options.head}", "--n-power-iter=1"]
    result = measure(corpus, options.out / "model", fit_options, options.workers, options.memory_limit)
    print(json.dumps({"corpus": corpus.name, "synth_s": round(synth_s, 1), **result}, indent=1))


if __name__ == "__main__":
    main()
