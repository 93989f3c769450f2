"""Train one peer on exported features, rank labels for the test rows, and store rankings and times.

`benchmark_peers` runs this in a separate process, so that memory is measured for the peer alone and a peer can use
another interpreter. It requires NumPy, SciPy and the peer, but not distmom. The exit code is 3 if the peer is not
installed.

Example::

    python run_peer.py omikuji-parabel FOLDER --threads 2
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from leml import fit_leml
from scipy.sparse import csr_matrix, load_npz, save_npz

TOP = 5
NOT_INSTALLED = 3
#: packages with versions to store with the results
PACKAGES = ("libpecos", "napkinxc", "numpy", "omikuji", "scikit-learn", "scipy")
#: candidate numbers of neighbours, and the number of held-out training rows for choosing among them
NEIGHBORS = (10, 20, 50, 100)
HELD_OUT = 1000
#: candidate penalties of LEML, chosen in the same way, and its largest rank
LEML_PENALTIES = (0.5, 1.0, 2.0, 4.0, 8.0)
LEML_RANK = 100


class Task:
    """Input of a peer.

    Parameters
    ----------
    folder : Path
        Folder of ``X_train.npz Y_train.npz X_test.npz`` (float32 CSR) and ``train.xmc.txt``.
    out : Path
        Directory for the model of the peer.
    threads : int
    seed : int
        For peers that take one.
    """

    def __init__(self, folder: Path, out: Path, threads: int, seed: int) -> None:
        self.folder = folder
        self.out = out
        self.threads = threads
        self.seed = seed

    def matrix(self, name: str) -> csr_matrix:
        """Read one of the matrices."""
        matrix = csr_matrix(load_npz(self.folder / f"{name}.npz"))
        matrix.sort_indices()
        return matrix

    def training(self) -> tuple[csr_matrix, csr_matrix]:
        """Return features and labels of the training rows with at least one feature."""
        X, Y = self.matrix("X_train"), self.matrix("Y_train")
        kept = np.flatnonzero(np.diff(X.indptr))
        return X[kept], Y[kept]


def run_omikuji(task: Task, name: str) -> dict[str, Any]:
    """Run omikuji as Parabel (its defaults) or as Bonsai with one or three trees."""
    import omikuji

    parameters = omikuji.Model.default_hyper_param()
    if name.startswith("omikuji-bonsai"):
        parameters.cluster_balanced = False
        parameters.cluster_k = 100
        parameters.max_depth = 3
    if name == "omikuji-bonsai-1":
        parameters.n_trees = 1
    started = time.monotonic()
    model = omikuji.Model.train_on_data(
        str(task.folder / "train.xmc.txt"), parameters, n_threads=task.threads
    )
    fit_s = time.monotonic() - started
    model.save(str(task.out))
    X = task.matrix("X_test")
    started = time.monotonic()
    ends = X.indptr.tolist()

    def rank(i: int) -> list[tuple[int, float]]:
        span = slice(ends[i], ends[i + 1])
        pairs = zip(X.indices[span].tolist(), X.data[span].tolist(), strict=True)
        found: list[tuple[int, float]] = model.predict(list(pairs), top_k=TOP)
        return found

    with ThreadPoolExecutor(task.threads) as pool:
        lists = list(pool.map(rank, range(X.shape[0])))
    return {"fit_s": fit_s, "predict_s": time.monotonic() - started, "lists": lists}


def run_napkinxc(task: Task, name: str) -> dict[str, Any]:
    """Run the probabilistic label tree of napkinXC with its defaults."""
    from napkinxc.models import PLT

    X, Y = task.training()
    model = PLT(str(task.out), threads=task.threads, seed=task.seed)
    started = time.monotonic()
    model.fit(X, Y)
    fit_s = time.monotonic() - started
    queries = task.matrix("X_test")
    started = time.monotonic()
    lists = model.predict_proba(queries, top_k=TOP)
    return {"fit_s": fit_s, "predict_s": time.monotonic() - started, "lists": lists}


def run_one_per_label(task: Task, name: str) -> dict[str, Any]:
    """Run a linear support vector machine (C = 0.3) or a logistic regression (C = 1) per label; for few labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    X, Y = task.training()
    used = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel())
    started = time.monotonic()
    if name == "linear-svc":
        each = LinearSVC(C=0.3, random_state=task.seed)
    else:
        each = LogisticRegression(solver="liblinear", random_state=task.seed)
    model = OneVsRestClassifier(each, n_jobs=task.threads).fit(X, Y[:, used])
    fit_s = time.monotonic() - started
    coefficients = np.vstack([fitted.coef_ for fitted in model.estimators_])
    np.savez_compressed(task.out / "coefficients.npz", coefficients)
    queries = task.matrix("X_test")
    started = time.monotonic()
    scores = np.full((queries.shape[0], Y.shape[1]), -np.inf, np.float32)
    # One label alone has a vector of scores.
    scores[:, used] = np.reshape(model.decision_function(queries), (-1, len(used)))
    lists = _best(scores)
    return {"fit_s": fit_s, "predict_s": time.monotonic() - started, "lists": lists, "scores": scores}


def run_leml(task: Task, name: str) -> dict[str, Any]:
    """Run LEML with the squared loss and a rank of half the labels, at most `LEML_RANK`; for few labels.

    The penalty is chosen on held-out training rows, by the mean of P@1, P@3 and P@5.
    """
    X, Y = task.training()
    rank = max(1, min(LEML_RANK, Y.shape[1] // 2))
    started = time.monotonic()
    held, rest = _held_out(X.shape[0], task.seed)
    means = {}
    for each in LEML_PENALTIES:
        scores = fit_leml(X[rest], Y[rest], rank, each, seed=task.seed).scores(X[held])
        means[each] = _mean_precision(_best(scores), Y[held])
    penalty = max(means, key=lambda each: means[each])
    model = fit_leml(X, Y, rank, penalty, seed=task.seed)
    fit_s = time.monotonic() - started
    np.savez_compressed(task.out / "factors.npz", W=model.W.astype(np.float32), H=model.H.astype(np.float32))
    queries = task.matrix("X_test")
    started = time.monotonic()
    scores = model.scores(queries)
    lists = _best(scores)
    predict_s = time.monotonic() - started
    chosen = {"penalty": penalty, "rank": rank}
    return {
        "fit_s": fit_s,
        "predict_s": predict_s,
        "lists": lists,
        "scores": scores.astype(np.float32),
        "chosen": chosen,
    }


def run_neighbors(task: Task, name: str) -> dict[str, Any]:
    """Run k nearest neighbours by brute force, with votes weighted by cosine.

    The number of neighbours is chosen on held-out training rows, by the mean of P@1, P@3 and P@5.
    """
    from sklearn.neighbors import NearestNeighbors

    def nearest(X: csr_matrix, k: int, queries: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        index = NearestNeighbors(
            n_neighbors=min(k, X.shape[0]), algorithm="brute", metric="cosine", n_jobs=task.threads
        )
        distances, rows = index.fit(X).kneighbors(queries)
        return distances, rows

    X, Y = task.training()
    started = time.monotonic()
    held, rest = _held_out(X.shape[0], task.seed)
    distances, rows = nearest(X[rest], max(NEIGHBORS), X[held])
    means = {k: _mean_precision(_votes(distances[:, :k], rows[:, :k], Y[rest]), Y[held]) for k in NEIGHBORS}
    k = max(means, key=lambda each: means[each])
    fit_s = time.monotonic() - started
    save_npz(task.out / "features.npz", X)
    save_npz(task.out / "labels.npz", Y)
    queries = task.matrix("X_test")
    started = time.monotonic()
    lists = _votes(*nearest(X, k, queries), Y)
    predict_s = time.monotonic() - started
    return {"fit_s": fit_s, "predict_s": predict_s, "lists": lists, "chosen": {"n_neighbors": k}}


def _held_out(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the held-out training rows, and those of the others."""
    order = np.random.default_rng(seed).permutation(n_rows)
    held, rest = np.split(order, [min(HELD_OUT, len(order) // 5)])
    return held, rest


def _best(scores: np.ndarray) -> list[list[tuple[int, float]]]:
    """Return the labels with the largest scores of every row and the scores, ties by smaller label."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]
    return [
        [(int(label), float(row[label])) for label in top] for row, top in zip(scores, order, strict=True)
    ]


def _votes(distances: np.ndarray, rows: np.ndarray, Y: csr_matrix) -> list[list[tuple[int, float]]]:
    ends = np.arange(0, rows.size + 1, rows.shape[1])
    cosines = csr_matrix(((1.0 - distances).ravel(), rows.ravel(), ends), shape=(len(rows), Y.shape[0]))
    return ranked(csr_matrix(cosines @ Y))


def _mean_precision(lists: list[list[tuple[int, float]]], truth: csr_matrix) -> float:
    gains = [sum(1.0 / depth for depth in (1, 3, 5) if j < depth) / 3.0 for j in range(TOP)]
    total = 0.0
    for i, best in enumerate(lists):
        own = set(truth.indices[truth.indptr[i] : truth.indptr[i + 1]].tolist())
        total += sum(gain for gain, (label, _) in zip(gains, best, strict=False) if label in own)
    return total / max(1, len(lists))


def run_pecos(task: Task, name: str) -> dict[str, Any]:
    """Run XR-Linear of PECOS with its defaults."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    X, Y = task.matrix("X_train"), task.matrix("Y_train")
    started = time.monotonic()
    features = LabelEmbeddingFactory.create(Y, X, method="pifa")
    chain = Indexer.gen(features, indexer_type="hierarchicalkmeans", seed=task.seed)
    model = XLinearModel.train(X, Y, C=chain, threads=task.threads)
    fit_s = time.monotonic() - started
    model.save(str(task.out))
    queries = task.matrix("X_test")
    started = time.monotonic()
    found = csr_matrix(model.predict(queries, only_topk=TOP, beam_size=10, threads=task.threads))
    predict_s = time.monotonic() - started
    return {"fit_s": fit_s, "predict_s": predict_s, "lists": ranked(found)}


def ranked(scores: csr_matrix) -> list[list[tuple[int, float]]]:
    """Return the labels with the largest positive scores of every row and the scores, ties by smaller label."""
    lists = []
    for start, stop in zip(scores.indptr[:-1], scores.indptr[1:], strict=True):
        labels, values = scores.indices[start:stop], scores.data[start:stop]
        order = np.lexsort((labels, -values))[:TOP]
        lists.append([(int(labels[j]), float(values[j])) for j in order if values[j] > 0])
    return lists


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of this interpreter and of the packages installed in it."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def die_first() -> None:
    """Ask the system, where possible, to kill this process first if memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


PEERS = {
    "omikuji-parabel": run_omikuji,
    "omikuji-bonsai-1": run_omikuji,
    "omikuji-bonsai": run_omikuji,
    "napkinxc-plt": run_napkinxc,
    "linear-svc": run_one_per_label,
    "logistic": run_one_per_label,
    "sklearn-neighbors": run_neighbors,
    "leml": run_leml,
    "pecos-xr-linear": run_pecos,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one peer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument(
        "folder", type=Path, help="folder of exported features; results are written to FOLDER/PEER"
    )
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of peers that take one [%(default)s]")
    options = parser.parse_args(arguments)
    die_first()
    model = options.folder / options.peer / "model"
    model.mkdir(parents=True, exist_ok=True)
    try:
        result = PEERS[options.peer](Task(options.folder, model, options.threads, options.seed), options.peer)
    except ImportError as error:
        print(f"{options.peer}: not installed: {error}", file=sys.stderr)
        return NOT_INSTALLED
    lists = result.pop("lists")
    labels = np.full((len(lists), TOP), -1, np.int64)
    scores = np.full((len(lists), TOP), -np.inf)
    for i, best in enumerate(lists):
        for j, (label, score) in enumerate(best[:TOP]):
            labels[i, j], scores[i, j] = label, score
    np.savez(
        model.parent / "ranked.npz",
        labels=labels,
        scores=scores,
        dense=result.pop("scores", np.zeros((0, 0), np.float32)),
    )
    record = {**result, "versions": installed(PACKAGES)}
    (model.parent / "times.json").write_text(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
