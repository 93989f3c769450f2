"""Write planted documents as XMC text and measure the time of their ingest.

Prints one JSON object: megabytes of text and, for every number of workers, seconds and megabytes per second of
`distmom ingest`, including the start of the command and of its workers.

    python workflows/ingest_speed.py --docs 2000000
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from distmom.simulate import preset
from distmom.simulate.draws import draw_documents

BLOCK = 20_000


def write_xmc(path: Path, name: str, docs: int, tfidf: bool) -> None:
    """Write documents of a preset; values are counts, or weights with seven digits."""
    model = preset(name, n_documents=docs)
    rng = np.random.default_rng(0)
    with path.open("w") as stream:
        stream.write(f"{docs} {model.n_words} {model.n_labels}\n")
        for first in range(0, docs, BLOCK):
            words, labels, _ = draw_documents(model, first, min(BLOCK, docs - first))
            values = (
                [f"{x:.7f}" for x in rng.uniform(0.01, 1.0, words.nnz)] if tfidf else map(str, words.data)
            )
            pairs = [f"{v}:{x}" for v, x in zip(words.indices.tolist(), values, strict=True)]
            for i in range(words.shape[0]):
                own = ",".join(map(str, labels.indices[labels.indptr[i] : labels.indptr[i + 1]].tolist()))
                stream.write(f"{own} {' '.join(pairs[words.indptr[i] : words.indptr[i + 1]])}\n")


def main() -> None:
    """Write the text, ingest it and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="wikilshtc")
    parser.add_argument("--docs", type=int, default=1_000_000)
    parser.add_argument("--tfidf", action="store_true", help="values such as 0.0213441 instead of counts")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingest-") as temporary:
        text, corpus = Path(temporary) / "text.xmc.txt", Path(temporary) / "corpus"
        write_xmc(text, options.preset, options.docs, options.tfidf)
        megabytes = text.stat().st_size / 1e6
        result: dict[str, object] = {
            "docs": options.docs,
            "tfidf": options.tfidf,
            "text_mb": round(megabytes),
        }
        for workers in options.workers:
            started = time.monotonic()
            subprocess.run(
                [sys.executable, "-m", "distmom.cli.main", "ingest", str(text), str(corpus), "--format", "xmc",
                 f"--workers={workers}", "--quiet"],
                check=True, capture_output=True,
            )  # fmt: skip
            seconds = time.monotonic() - started
            shutil.rmtree(corpus)
            result[f"workers_{workers}"] = {"s": round(seconds, 1), "mb_per_s": round(megabytes / seconds)}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
