"""Mixtures of spherical Gaussians beside scikit-learn's GaussianMixture.

    pip install pillow
    python workflows/gaussian.py

Four tasks: planted mixtures (error of the means, accuracy of the components), the classes of data sets of
scikit-learn, as they are and with columns in standard deviations (adjusted Rand index with the classes), faces
reduced by principal component analysis (adjusted Rand index with the people), and patches of photographs
(log-likelihood of patches of other photographs). All systems run in the same process, with the number of threads
of BLAS that the environment sets; a fit by moments makes its passes in this process, on one thread.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import scale

from distmom.errors import NumericalError
from distmom.models import SphericalMixture
from distmom.simulate.mixtures import GaussianPopulation

TASKS = ("planted", "classes", "faces", "patches")
#: data sets of scikit-learn whose rows have classes
CLASSES = {"iris": load_iris, "wines": load_wine, "tumours": load_breast_cancer, "digits": load_digits}
#: side of a patch, and patches of a photograph
SIDE, PER_IMAGE = 8, 1000


def planted(d: int, k: int, n: int, separation: float, seed: int) -> tuple[np.ndarray, ...]:
    """Return rows, true means and true components; means are about ``separation`` standard deviations apart."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(k, d)) * separation / np.sqrt(2.0 * d)
    weights, variances = rng.dirichlet(np.full(k, 10.0)), rng.uniform(0.7, 1.3, k)
    rows = GaussianPopulation(means, weights, variances).sample(n, rng)
    return rows.X, means, rows.components


def faces(data: Path, n_people: int, n_coordinates: int, n_left_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images of some people, by principal components, and the person of each.

    Values are logarithms of grey values less their mean. The first principal components, which are the
    direction of the light, are left out.
    """
    with np.load(data / "yale-b-faces.npz") as stored:
        images, person = stored["images"].astype(float), stored["person"]
    some = np.isin(person, np.unique(person)[:n_people])
    X, person = images[some], person[some]
    X = np.log1p(X)
    X -= X.mean(axis=1, keepdims=True)
    X -= X.mean(axis=0)
    left, values, _ = np.linalg.svd(X, full_matrices=False)
    used = slice(n_left_out, n_left_out + n_coordinates)
    return left[:, used] * values[used], person


def patches(data: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return patches of every second photograph, and of the others, in grey values from 0 to 1 less their mean."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    found: list[list[np.ndarray]] = [[], []]
    with tarfile.open(data / "bsds500.tar") as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".jpg"))
        for i, name in enumerate(names):
            stream = archive.extractfile(name)
            assert stream is not None
            image = np.asarray(Image.open(io.BytesIO(stream.read())).convert("L"), float) / 255.0
            windows = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE))
            rows = rng.integers(0, windows.shape[0], PER_IMAGE)
            columns = rng.integers(0, windows.shape[1], PER_IMAGE)
            own = windows[rows, columns].reshape(PER_IMAGE, -1)
            found[i % 2].append(own - own.mean(axis=1, keepdims=True))
    return np.concatenate(found[0]), np.concatenate(found[1])


def systems(k: int, em: list[int], seed: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the names of the systems and how their estimators are made."""
    for n in em:
        yield f"moments, {n} EM passes", lambda n=n: SphericalMixture(k, n_em_iter=n, random_state=seed)
    for n in (1, 10):
        yield (
            f"scikit-learn, n_init={n}",
            lambda n=n: GaussianMixture(k, covariance_type="spherical", n_init=n, random_state=seed),
        )


def measured(make: Callable[[], Any], X: np.ndarray) -> tuple[Any, float]:
    """Return a fitted estimator, and the seconds of the fit."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = make().fit(X)
    return model, time.perf_counter() - started


def compare(
    task: str,
    k: int,
    X: np.ndarray,
    arguments: argparse.Namespace,
    seed: int,
    measure: Callable[[Any], dict[str, float]],
) -> list[dict[str, Any]]:
    """Return one result per system."""
    results = []
    for system, make in systems(k, arguments.em, seed):
        entry: dict[str, Any] = {"task": task, "system": system, "seed": seed, "k": k}
        try:
            model, seconds = measured(make, X)
            entry |= measure(model) | {"seconds": seconds}
        except NumericalError as error:
            entry["error"] = str(error)
        results.append(entry)
        print(json.dumps(entry), flush=True)
    return results


def run_planted(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on a planted mixture."""
    X, means, components = planted(500, 10, arguments.rows, arguments.separation, seed)

    def measure(model: Any) -> dict[str, float]:
        distance = np.linalg.norm(model.means_[:, None] - means[None], axis=2)
        rows, columns = linear_sum_assignment(distance)
        accuracy = (columns[model.predict(X)] == components).mean()
        return {"mean error": distance[rows, columns].mean(), "accuracy": float(accuracy)}

    return compare("planted, d = 500", 10, X, arguments, seed, measure)


def run_classes(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on rows of known classes, with one component per class."""
    results = []
    for name, load in CLASSES.items():
        X, classes = load(return_X_y=True)
        for task, rows in ((name, X), (f"{name}, scaled", scale(X))):
            results += compare(
                task, len(np.unique(classes)), rows, arguments, seed,
                lambda model, rows=rows, classes=classes: {
                    "rand index": adjusted_rand_score(classes, model.predict(rows)),
                    "log-likelihood": model.score(rows),
                },
            )  # fmt: skip
    return results


def run_faces(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on faces, with one component per person."""
    results = []
    for n_people in arguments.people:
        X, person = faces(arguments.data, n_people, arguments.coordinates, arguments.left_out)
        results += compare(
            f"faces of {n_people}", n_people, X, arguments, seed,
            lambda model, X=X, person=person: {
                "rand index": adjusted_rand_score(person, model.predict(X)), "log-likelihood": model.score(X)
            },
        )  # fmt: skip
    return results


def run_patches(arguments: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Compare the systems on patches."""
    train, test = patches(arguments.data, seed)
    results = []
    for k in arguments.components:
        results += compare(
            "patches", k, train, arguments, seed,
            lambda model: {"log-likelihood": model.score(train), "held out": model.score(test)},
        )  # fmt: skip
    return results


def table(results: list[dict[str, Any]]) -> str:
    """Return averages over the seeds as a table in Markdown."""
    measures = list(dict.fromkeys(name for entry in results for name in entry))
    measures = [name for name in measures if name not in ("task", "system", "seed", "k", "error")]
    lines = [
        "| " + " | ".join(["task", "k", "system", *measures]) + " |",
        "|" + "---|" * 3 + "---:|" * len(measures),
    ]
    for task, k, system in dict.fromkeys((e["task"], e["k"], e["system"]) for e in results):
        own = [e for e in results if (e["task"], e["k"], e["system"]) == (task, k, system)]
        cells = []
        for name in measures:
            values = [entry[name] for entry in own if name in entry]
            cells.append(f"{np.mean(values):.3f}" if values else "refused" if "error" in own[0] else "")
        lines.append("| " + " | ".join([task, str(k), system, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the tasks and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    here = Path(__file__).resolve().parents[1]
    add(
        "--data",
        type=Path,
        default=here.parent / "shared" / "data" / "models",
        help="folder with the data sets",
    )
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help="[all]")
    add(
        "--em",
        nargs="+",
        type=int,
        default=[0, 10, 150],
        metavar="N",
        help="EM passes after the moments %(default)s",
    )
    add("--seeds", type=int, default=3, help="runs of every task [%(default)s]")
    add("--rows", type=int, default=20_000, help="rows of the planted mixture [%(default)s]")
    add("--separation", type=float, default=6.0, help="distance of its means [%(default)s]")
    add("--people", nargs="+", type=int, default=[3, 10, 19], metavar="N", help="%(default)s")
    add("--coordinates", type=int, default=40, help="principal components of the faces [%(default)s]")
    add("--left-out", type=int, default=3, metavar="N", help="leading ones that are left out [%(default)s]")
    add(
        "-k",
        "--components",
        nargs="+",
        type=int,
        default=[10],
        metavar="K",
        help="of the patches %(default)s",
    )
    add("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    runs = {"planted": run_planted, "classes": run_classes, "faces": run_faces, "patches": run_patches}
    results = []
    for task in arguments.tasks:
        for seed in range(arguments.seeds):
            results += runs[task](arguments, seed)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
