"""Independent component analysis beside FastICA of scikit-learn and Picard.

    pip install python-picard pillow
    python workflows/benchmark_ica.py
    python workflows/benchmark_ica.py --routes
    python workflows/benchmark_ica.py --tasks recordings --recordings speech.wav music.wav

Four tasks, all with known mixing, measured by the Amari index of unmixing times mixing (0 if every source is
found): planted sources of kurtoses of both signs; photographs, each of which is a source whose values are its
pixels; recordings of sound, cut to the shortest; and planted sources with Gaussian noise of a full covariance. All
systems run in the same process, with the number of threads of BLAS that the environment sets; a fit by moments
makes its passes in this process, on one thread. Picard is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import wavfile
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from distmom.errors import NumericalError
from distmom.models import ICA
from distmom.simulate.sources import continuous_sources

TASKS = ("planted", "photographs", "recordings", "noise")
#: what photographs are cut to: rows and columns of pixels
SIZE = 320
#: standard deviation of the noise, as a share of that of the rows without noise
NOISE = 0.3
Fit = Callable[[np.ndarray], tuple[np.ndarray, int]]


def amari(P: np.ndarray) -> float:
    """Return the Amari index of unmixing times mixing, from 0 (a scaled permutation) to 1."""
    P = np.abs(P)
    k = len(P)
    rows, columns = P / P.max(axis=1, keepdims=True), P / P.max(axis=0, keepdims=True)
    return float((rows.sum() + columns.sum() - 2 * k) / (2 * k * (k - 1)))


def planted(k: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of k columns and their mixing."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(k, k))
    return continuous_sources(n, k, rng) @ A.T, A


def noisy(k: int, d: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of d columns with noise that is correlated between columns, and their mixing."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(d, k))
    noise = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)).T
    scale = NOISE * np.sqrt(k / d)
    return continuous_sources(n, k, rng) @ A.T + scale * noise, A


def photographs(data: Path, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mixtures of the pixels of k random photographs, and their mixing."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    found = []
    with tarfile.open(data / "bsds500.tar") as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".jpg"))
        for name in rng.choice(names, k, replace=False):
            stream = archive.extractfile(str(name))
            assert stream is not None
            pixels = np.asarray(Image.open(io.BytesIO(stream.read())).convert("L"), float)[
                :SIZE, :SIZE
            ].ravel()
            found.append((pixels - pixels.mean()) / pixels.std())
    A = rng.normal(size=(k, k))
    return np.column_stack(found) @ A.T, A


def recordings(paths: list[Path], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mixtures of recordings, of which the first channel counts, and their mixing."""
    channels = [np.asarray(wavfile.read(path)[1], float) for path in paths]
    channels = [channel if channel.ndim == 1 else channel[:, 0] for channel in channels]
    shortest = min(len(channel) for channel in channels)
    sources = np.column_stack([channel[:shortest] for channel in channels])
    A = np.random.default_rng(seed).normal(size=(len(paths),) * 2)
    return (sources - sources.mean(axis=0)) / sources.std(axis=0) @ A.T, A


def by_moments(k: int, seed: int, **options: Any) -> Fit:
    """Return a fit of `ICA`, which gives the unmixing and the number of passes."""

    def fit(X: np.ndarray) -> tuple[np.ndarray, int]:
        model = ICA(k, random_state=seed, **options).fit(X)
        if not model.diagnostics_["converged"]:
            warnings.warn("ICA did not converge", ConvergenceWarning, stacklevel=1)
        return model.components_, len(model.timings_)

    return fit


def by_fastica(k: int, seed: int, **options: Any) -> Fit:
    """Return a fit of scikit-learn, which gives the unmixing and the number of iterations."""

    def fit(X: np.ndarray) -> tuple[np.ndarray, int]:
        model = FastICA(k, whiten="unit-variance", random_state=seed, **options).fit(X)
        return model.components_, model.n_iter_

    return fit


def by_picard(k: int, seed: int) -> Fit:
    """Return a fit of Picard with adaptation to tails, which gives the unmixing and the number of iterations."""
    from picard import picard

    def fit(X: np.ndarray) -> tuple[np.ndarray, int]:
        K, W, _, n_iter = picard(
            X.T, n_components=k, ortho=True, extended=True, random_state=seed, return_n_iter=True
        )
        return W @ K, int(n_iter)

    return fit


def systems(k: int, seed: int, noise: bool) -> Iterator[tuple[str, Fit]]:
    """Yield the names of the systems and their fits."""
    if noise:
        yield "ICA, noise=gaussian", by_moments(k, seed, noise="gaussian")
    yield "ICA, moments alone", by_moments(k, seed, n_refine=0)
    yield "ICA", by_moments(k, seed)
    yield "FastICA, logcosh", by_fastica(k, seed)
    yield "FastICA, cube", by_fastica(k, seed, fun="cube")
    if find_spec("picard") is not None:
        yield "Picard-O, extended", by_picard(k, seed)


def routes(k: int, noise: bool) -> Iterator[tuple[str, Fit]]:
    """Yield the names of the ways in which `ICA` finds components, without steps of likelihood, and their fits."""
    kinds = {"noise": "gaussian"} if noise else {}
    for method in ("joint", "power", "pencil"):
        yield method, by_moments(k, 0, n_refine=0, decomposition=method, **kinds)
    yield "joint, slices", by_moments(k, 0, n_refine=0, fourth_moment="slices", **kinds)
    if noise:
        yield "joint, covariance", by_moments(k, 0, n_refine=0)
    else:
        yield "joint, likelihood", by_moments(k, 0)
        yield "slices, likelihood", by_moments(k, 0, fourth_moment="slices")
        yield "pencil, likelihood", by_moments(k, 0, decomposition="pencil")


def compare(
    arguments: argparse.Namespace, task: str, X: np.ndarray, A: np.ndarray, seed: int, *, noise: bool = False
) -> list[dict[str, Any]]:
    """Return one result per system."""
    results = []
    k = A.shape[1]
    for system, fit in routes(k, noise) if arguments.routes else systems(k, seed, noise):
        entry: dict[str, Any] = {"task": task, "system": system, "seed": seed, "n": len(X), "d": X.shape[1]}
        started = time.perf_counter()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                unmixing, n_steps = fit(X)
            stuck = any(
                issubclass(w.category, ConvergenceWarning) or "converge" in str(w.message) for w in caught
            )
            entry |= {"amari": amari(unmixing @ A), "steps": n_steps, "not converged": int(stuck)}
        except NumericalError as error:
            entry["error"] = str(error)
        results.append(entry | {"seconds": time.perf_counter() - started})
        print(json.dumps(results[-1]), flush=True)
    return results


def run_planted(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on planted sources."""
    results = []
    for k, n in arguments.planted:
        results += compare(arguments, f"planted, k = {k}, {n:,} rows", *planted(k, n, seed), seed)
    return results


def run_photographs(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on mixed photographs."""
    results = []
    for k in arguments.photographs:
        results += compare(arguments, f"{k} photographs", *photographs(arguments.data, k, seed), seed)
    return results


def run_recordings(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on mixed recordings, if there are any."""
    if not arguments.recordings:
        return []
    task = f"{len(arguments.recordings)} recordings"
    return compare(arguments, task, *recordings(arguments.recordings, seed), seed)


def run_noise(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on planted sources with noise."""
    results = []
    for k, d, n in arguments.noise:
        results += compare(
            arguments, f"noise, k = {k}, d = {d}, {n:,} rows", *noisy(k, d, n, seed), seed, noise=True
        )
    return results


def table(results: list[dict[str, Any]]) -> str:
    """Return medians over the seeds as a table in Markdown."""
    lines = [
        "| task | system | Amari index | steps | seconds | not converged |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for task, system in dict.fromkeys((e["task"], e["system"]) for e in results):
        own = [e for e in results if (e["task"], e["system"]) == (task, system)]
        fitted = [e for e in own if "error" not in e]
        cells = [task, system]
        if fitted:
            cells += [f"{np.median([e['amari'] for e in fitted]):.4f}"]
            cells += [f"{np.median([e['steps'] for e in fitted]):.0f}"]
            cells += [f"{np.median([e['seconds'] for e in fitted]):.2f}"]
            stuck = sum(e["not converged"] for e in fitted)
            cells += [f"{stuck} of {len(own)}" if stuck else ""]
        refused = len(own) - len(fitted)
        if refused:
            cells = [*cells, *[""] * (5 - len(cells)), f"{refused} of {len(own)} refused"][:6]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a task, separated by colons."""
    return tuple(int(part) for part in text.split(":"))


def main() -> None:
    """Run the tasks and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    here = Path(__file__).resolve().parents[1]
    data = here.parent / "shared" / "data" / "models"
    add("--data", type=Path, default=data, help="folder with the photographs")
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help="[all]")
    add("--seeds", type=int, default=3, help="runs of every task [%(default)s]")
    add(
        "--planted",
        nargs="+",
        type=numbers,
        default=[(5, 5_000), (10, 20_000), (30, 50_000), (10, 1_000_000)],
        metavar="K:ROWS",
        help="planted tasks",
    )
    add("--photographs", nargs="+", type=int, default=[4, 10, 30], metavar="K", help="[4 10 30]")
    add("--recordings", nargs="+", type=Path, default=[], metavar="WAV", help="recordings to mix [none]")
    add(
        "--noise",
        nargs="+",
        type=numbers,
        default=[(4, 4, 100_000), (4, 12, 100_000)],
        metavar="K:COLUMNS:ROWS",
        help="planted tasks with noise",
    )
    add("--routes", action="store_true", help="compare the ways in which ICA finds components instead")
    add("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    runs = {
        "planted": run_planted, "photographs": run_photographs, "recordings": run_recordings, "noise": run_noise
    }  # fmt: skip
    results = []
    for task in arguments.tasks:
        for seed in range(arguments.seeds):
            results += runs[task](arguments, seed)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(f"{os.cpu_count()} processors, {threads} threads of BLAS, load {os.getloadavg()[0]:.1f}")
    print(table(results))


if __name__ == "__main__":
    main()
