"""Compare distmom with the best peer on the same test documents, by a paired bootstrap.

The folders hold the numbers of true labels among the first 1, 3 and 5 of every document that
``benchmark_peers.py --hits`` stored, one file per corpus and system. The documents of a corpus are drawn with
replacement, the same ones for all systems. For every corpus, the table has the difference between distmom and the
peer with the best value, in points, and its standard error. The last lines give the mean over corpora, and the
bound that it exceeds with a confidence of 95 %.

Example::

    for name in reuters goemotions; do
        python workflows/benchmark_peers.py labels/$name -k 200 --hits hits
    done
    python workflows/bootstrap.py hits
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

DEPTHS = (1, 3, 5)
#: beginning of the names of distmom's systems
OWN = "distmom"


def read(folders: list[Path]) -> dict[str, dict[str, np.ndarray]]:
    """Return the precisions (n, 3) of documents, by corpus and system."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.npz")):
            with np.load(path, allow_pickle=False) as stored:
                corpus, system = str(stored["corpus"]), str(stored["system"])
                found.setdefault(corpus, {})[system] = stored["hits"] / np.array(DEPTHS)
    return found


def differences(own: np.ndarray, best: np.ndarray, n_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Return the mean differences of precisions (n, 3) in bootstrap samples, (n_samples, 3)."""
    each = own - best
    means = np.empty((n_samples, len(DEPTHS)))
    for i in range(n_samples):
        means[i] = each[rng.integers(0, len(each), len(each))].mean(axis=0)
    return means


def compare(
    found: dict[str, dict[str, np.ndarray]], n_samples: int, seed: int
) -> tuple[list[list[str]], np.ndarray]:
    """Return the lines of the table, and the mean difference over corpora in every sample, (n_samples, 3)."""
    rng = np.random.default_rng(seed)
    lines, total = [], []
    for corpus, systems in found.items():
        own = next((hits for name, hits in systems.items() if name.startswith(OWN)), None)
        peers = {name: hits for name, hits in systems.items() if not name.startswith(OWN)}
        if own is None or not peers:
            print(
                f"{corpus}: left out: expected distmom and a peer, got {', '.join(systems)}", file=sys.stderr
            )
            continue
        means = np.empty((n_samples, len(DEPTHS)))
        for column, depth in enumerate(DEPTHS):
            name = max(peers, key=lambda name: peers[name][:, column].mean())
            best = peers[name]
            if len(best) != len(own):
                raise SystemExit(f"{corpus}: expected {len(own)} documents of {name}, got {len(best)}")
            means[:, column] = differences(own, best, n_samples, rng)[:, column]
            found_, peer = own[:, column].mean(), best[:, column].mean()
            lines.append([
                corpus, f"P@{depth}", f"{found_:.4f}", f"{peer:.4f}", name, f"{100 * (found_ - peer):+.2f}",
                f"{100 * means[:, column].std():.2f}",
            ])  # fmt: skip
        total.append(means)
    return lines, np.mean(total, axis=0) if total else np.zeros((0, len(DEPTHS)))


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="where --hits stored files")
    parser.add_argument("--samples", type=int, default=2000, help="bootstrap samples [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    options = parser.parse_args(arguments)
    lines, total = compare(read(options.folders), options.samples, options.seed)
    if not lines:
        print("no corpus with distmom and a peer", file=sys.stderr)
        return 1
    print("| corpus | metric | distmom | best peer | peer | difference | s.e. |")
    print("|---|---|---:|---:|---|---:|---:|")
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()
    for depth, means in zip(DEPTHS, total.T, strict=True):
        bound = np.quantile(means, 0.05)
        print(
            f"P@{depth}: mean difference {100 * means.mean():+.2f}, above {100 * bound:+.2f} at 95 % confidence"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
