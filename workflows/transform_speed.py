"""Documents per second of `distmom transform` on one core: from a corpus on disk to shares in Zarr on disk.

Planted documents (Dirichlet shares and Zipfian words, as in `benchmark_topics`) are stored, and a `SpectralLDA` is
fitted to them. Then `transform_corpus` reads the corpus and writes the shares of all documents, in this
process, which is restricted to one core if the system permits. The time includes reading, checking,
decompressing, inference and writing. Every method first runs on a few documents, so that its kernels are
compiled. A row is the run with the median wall time.

Example::

    python workflows/transform_speed.py --planted 50,100000,10000,100 --repeats 3 --json transform.json
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import directory_mb, machine, markdown_table, results
from threadpoolctl import threadpool_limits
from topic_documents import plant

from distmom.corpus import Corpus, from_arrays
from distmom.models import SpectralLDA
from distmom.predict import transform_corpus

METHODS = ("fast", "vb")
#: target of the fast method for 50 topics, in documents per second
AIM = 20_000
#: number of documents for compiling the kernels
WARM_DOCUMENTS = 500


def measure(
    model: SpectralLDA, corpus: Corpus, warm: Corpus, method: str, place: Path, repeats: int
) -> dict[str, Any]:
    """Return the measurements of one method."""
    out = place / f"shares-{method}"
    transform_corpus(model, warm, out, method=method, overwrite=True)
    runs = []
    for _ in range(repeats):
        started, cpu_started = time.monotonic(), time.process_time()
        transform_corpus(model, corpus, out, method=method, overwrite=True)
        runs.append((time.monotonic() - started, time.process_time() - cpu_started))
    seconds, cpu = sorted(runs)[(len(runs) - 1) // 2]
    n = corpus.n_documents
    return {
        "system": method,
        "n_train": n,
        "k": len(model.weights_),
        "documents_s": n / seconds,
        "documents_cpu_s": n / cpu,
        "transform_s": seconds,
        "cpu_s": cpu,
        "shares_mb": directory_mb(out),
        "runs_s": [wall for wall, _ in runs],
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure the methods."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--planted", metavar="K,N,D,L", default="50,100000,10000,100", help="[%(default)s]")
    add("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD", help="[fast vb]")
    add("--repeats", type=int, default=3, help="runs of every method [%(default)s]")
    add("--seed", type=int, default=0, help="seed of documents and model [%(default)s]")
    add("--json", type=Path, help="write the results to this file")
    add("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    if re.fullmatch(r"[1-9]\d*(,[1-9]\d*){3}", options.planted) is None:
        parser.error(f"--planted: expected K,N,D,L, got {options.planted}")
    if options.repeats < 1:
        parser.error(f"--repeats: expected at least 1, got {options.repeats}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    else:
        print("this system cannot restrict a process to one core", file=sys.stderr)

    k, n, d, length = map(int, options.planted.split(","))
    with (
        tempfile.TemporaryDirectory(prefix="transform-") as temporary,
        threadpool_limits(1),
        results(options.json) as rows,
    ):
        place = Path(temporary)
        counts, _, alpha0 = plant(k, n, d, length, options.seed, False)
        corpus = from_arrays(place / "corpus", counts)
        warm = from_arrays(place / "warm", counts[:WARM_DOCUMENTS])
        model = SpectralLDA(k, init="tensor", alpha0=alpha0, n_refine=1, random_state=options.seed)
        model.fit_corpus(corpus)
        print(f"fitted in {model.fit_seconds_:.1f} s", file=sys.stderr, flush=True)
        for method in options.methods:
            row = measure(model, corpus, warm, method, place, options.repeats)
            rows.append({**row, "planted": options.planted, "seed": options.seed, "machine": machine()})
    table = markdown_table([{key: row[key] for key in row if key != "seed"} for row in rows])
    if options.markdown is not None:
        options.markdown.write_text(table, encoding="utf-8")
    if k == 50:
        for row in rows:
            if row["system"] == "fast":
                met = "met" if row["documents_s"] >= AIM else "missed"
                print(f"target of {AIM:,} documents per second with the fast method: {met}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
