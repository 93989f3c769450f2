"""Compare fits of latent states with the time of their bare kernels, and one worker with several.

The speed of a machine varies within minutes, so single runs are not comparable. Every round runs `distmom
bench floor`, a fit on all workers and a fit on one worker, as a user would; the medians over rounds are
compared. Memory is not sampled, which would slow the runs down. Prints one JSON object.

    python workflows/fit_over_floor.py scale/wikilshtc-all-all-0 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from scale import run


def seconds_of_floor(corpus: Path, k: int, workers: int) -> float:
    """Return the seconds of the bare kernels."""
    printed, _ = run("bench", "floor", str(corpus), f"-k{k}", f"--workers={workers}", "--json", "--quiet")
    return float(json.loads(printed)["floor_s"])


def seconds_of_fit(corpus: Path, model: Path, k: int, workers: int) -> float:
    """Return the seconds of a complete command, from the start of the interpreter to the committed model."""
    shutil.rmtree(model, ignore_errors=True)
    options = [f"-k{k}", "--head=posterior", "--n-power-iter=1", f"--workers={workers}", "--quiet"]
    started = time.monotonic()
    run("fit", str(corpus), str(model), *options)
    return time.monotonic() - started


def main() -> None:
    """Parse the command line, run all rounds and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"floor": [], "fit": [], "fit on one worker": []}
    # Use the disk of the corpus, where a user would store the model.
    with tempfile.TemporaryDirectory(prefix="floor-", dir=options.corpus.resolve().parent) as temporary:
        model = Path(temporary) / "model"
        for _ in range(options.rounds):
            seconds["floor"].append(seconds_of_floor(options.corpus, options.k, options.workers))
            seconds["fit"].append(seconds_of_fit(options.corpus, model, options.k, options.workers))
            seconds["fit on one worker"].append(seconds_of_fit(options.corpus, model, options.k, 1))
    middle = {name: median(values) for name, values in seconds.items()}
    result = {
        "seconds": {name: [round(value, 1) for value in values] for name, values in seconds.items()},
        "median_s": {name: round(value, 1) for name, value in middle.items()},
        "fit_over_floor": round(middle["fit"] / middle["floor"], 2),
        "one_over_all_workers": round(middle["fit on one worker"] / middle["fit"], 2),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
