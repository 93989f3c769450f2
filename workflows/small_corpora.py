"""Fits to few documents: small random parts of labelled corpora, beside LinearSVC and LogisticRegression.

    python workflows/small_corpora.py bibtex labels/reuters labels/goemotions --documents 200 1000 3500

A part of the training rows is drawn, the systems are fitted to it, and other training rows are the test; the test
rows of a corpus are not used. distmom is fitted with its defaults, and with a blend that is chosen on a single
fold. With ``--systems weights idf-twice``, it is fitted to tf-idf weights in place of counts: unchanged, as is the
default for such values, and multiplied by idf once more. With ``--systems twice svc-twice``, every document of the
part occurs twice. The peers have the settings of run_peer.py and the same tf-idf rows. All systems run in this
process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from label_corpora import ingest_folder
from scipy.sparse import csr_array, vstack
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from distmom.corpus import Corpus
from distmom.engine import open_executor
from distmom.models import MultiLabelMoM
from distmom.models.multilabel import effort
from distmom.moments.features.tfidf import inverse_document_frequency, tfidf_rows

DEPTHS = (1, 3, 5)
#: test rows, at most
TEST_ROWS = 2_000
Scores = np.ndarray
System = Callable[[csr_array, csr_array, csr_array, int], Scores]


def matrices(corpus: Corpus) -> tuple[csr_array, csr_array]:
    """Return the words and the labels of a corpus."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    words, labels = (csr_array(vstack([getattr(b, name) for b in blocks])) for name in ("words", "labels"))
    return words, csr_array((labels != 0).astype(np.float64))


def by_moments(X: csr_array, Y: csr_array, others: csr_array, seed: int, features: str = "auto") -> Scores:
    """Return the scores of `MultiLabelMoM`."""
    n_components = max(2, min(100, int(X.shape[0] ** 0.5) - 1))
    model = MultiLabelMoM(n_components, features=features, random_state=seed).fit(X, Y)
    return np.asarray(model.decision_function(others))


def weighted(X: csr_array, others: csr_array) -> tuple[csr_array, csr_array]:
    """Return the tf-idf rows of counts, and those of other counts with the same idf."""
    idf = inverse_document_frequency(np.bincount(X.indices, minlength=X.shape[1]), X.shape[0])
    return tfidf_rows(X, idf), tfidf_rows(others, idf)


def of_weights(features: str) -> System:
    """Return a function that scores by `MultiLabelMoM` with some features of tf-idf rows."""

    def score(X: csr_array, Y: csr_array, others: csr_array, seed: int) -> Scores:
        rows, other_rows = weighted(X, others)
        return by_moments(rows, Y, other_rows, seed, features)

    return score


def on_one_fold(X: csr_array, Y: csr_array, others: csr_array, seed: int) -> Scores:
    """Return them for a blend that was chosen on a single fold."""
    kept = effort.EFFORTS["normal"]
    effort.EFFORTS["normal"] = replace(kept, cross_fitted_documents=0)
    try:
        return by_moments(X, Y, others, seed)
    finally:
        effort.EFFORTS["normal"] = kept


def by_peer(classifier: Any) -> System:
    """Return a function that scores by one classifier per label."""

    def score(X: csr_array, Y: csr_array, others: csr_array, seed: int) -> Scores:
        rows, other_rows = weighted(X, others)
        model = OneVsRestClassifier(classifier(random_state=seed)).fit(rows, Y)
        return np.reshape(model.decision_function(other_rows), (-1, Y.shape[1]))

    return score


def of_copies(system: System) -> System:
    """Return a function that scores by a system fitted to every document twice, in random order."""

    def score(X: csr_array, Y: csr_array, others: csr_array, seed: int) -> Scores:
        n = X.shape[0]
        order = np.random.default_rng(seed).permutation(2 * n) % n
        return system(csr_array(X[order]), csr_array(Y[order]), others, seed)

    return score


by_svc = by_peer(lambda **options: LinearSVC(C=0.3, **options))
#: by the names of ``--systems``: what tables call a system, and how it scores
SYSTEMS: dict[str, tuple[str, System]] = {
    "distmom": ("distmom", by_moments),
    "single": ("distmom, one fold", on_one_fold),
    "svc": ("LinearSVC", by_svc),
    "logistic": (
        "LogisticRegression",
        by_peer(lambda **options: LogisticRegression(solver="liblinear", **options)),
    ),
    "weights": ("distmom, tf-idf weights", of_weights("auto")),
    "idf-twice": ("distmom, tf-idf weights times idf", of_weights("tfidf")),
    "twice": ("distmom, every document twice", of_copies(by_moments)),
    "svc-twice": ("LinearSVC, every document twice", of_copies(by_svc)),
}
DEFAULT_SYSTEMS = ("distmom", "single", "svc", "logistic")


def part_of(words: csr_array, labels: csr_array, n: int, seed: int) -> tuple[csr_array, ...]:
    """Return n random rows and their labels, and other rows with theirs, with the labels of the first alone."""
    order = np.random.default_rng(seed).permutation(words.shape[0])
    fitted, others = np.sort(order[:n]), np.sort(order[n : n + TEST_ROWS])
    known = np.flatnonzero(labels[fitted].sum(axis=0))
    used = np.flatnonzero((words[fitted] != 0).sum(axis=0))
    return (
        csr_array(words[fitted][:, used]), csr_array(labels[fitted][:, known]),
        csr_array(words[others][:, used]), csr_array(labels[others][:, known]),
    )  # fmt: skip


def precision(scores: Scores, truth: csr_array) -> list[float]:
    """Return P@k in percent for `DEPTHS`."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, : DEPTHS[-1]]
    hits = np.take_along_axis(truth.toarray(), best, axis=1)
    return [100.0 * float(hits[:, :k].sum() / (k * len(hits))) for k in DEPTHS]


def training_rows(data: Iterable[Path]) -> Iterator[tuple[str, csr_array, csr_array]]:
    """Yield the name of each corpus, and the words and the labels of its training rows."""
    for path in data:
        with tempfile.TemporaryDirectory() as temporary, open_executor(workers=0) as executor:
            corpus, _, _ = ingest_folder(path, Path(temporary), executor)
            yield path.name, *matrices(corpus)


def run(
    corpus: str, words: csr_array, labels: csr_array, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield one result for every number of documents, draw and system."""
    for n in options.documents:
        if words.shape[0] < n + TEST_ROWS // 4:
            continue
        for seed in range(options.draws):
            X, Y, others, truth = part_of(words, labels, n, seed)
            for system, score in (SYSTEMS[name] for name in options.systems):
                started = time.perf_counter()
                found = precision(score(X, Y, others, seed), truth)
                seconds = time.perf_counter() - started
                row = {"corpus": corpus, "documents": n, "draw": seed, "system": system, "seconds": seconds}
                yield row | {f"P@{k}": value for k, value in zip(DEPTHS, found, strict=True)}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the means of all draws of all corpora as a table in Markdown, with differences from distmom."""
    columns = ("documents", "system", *(f"P@{k}" for k in DEPTHS), "worse than distmom by (P@1)", "s")
    lines = ["| " + " | ".join(columns) + " |", "|---:|---|---:|---:|---:|---|---:|"]
    for n in sorted({row["documents"] for row in rows}):
        own = [row for row in rows if row["documents"] == n]
        ours = np.array([row["P@1"] for row in own if row["system"] == "distmom"])
        for system in dict.fromkeys(row["system"] for row in own):
            same = [row for row in own if row["system"] == system]
            means = [f"{np.mean([row[f'P@{k}'] for row in same]):.2f}" for k in DEPTHS]
            gained = ours - np.array([row["P@1"] for row in same])
            error = gained.std(ddof=1) / len(gained) ** 0.5 if len(gained) > 1 else np.nan
            shown = f"{gained.mean():.2f} ± {error:.2f}, in {(gained > 0).sum()} of {len(gained)}"
            seconds = f"{np.median([row['seconds'] for row in same]):.1f}"
            cells = [f"{n:,}", system, *means, "" if system == "distmom" else shown, seconds]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Fit all systems to all parts and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", type=Path, nargs="+", metavar="DATA", help="folders or prefixes, as for benchmark_peers.py")
    add("--documents", type=int, nargs="+", default=[200, 1000, 3500], help="[200 1000 3500]")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(DEFAULT_SYSTEMS), metavar="SYSTEM",
        help=f"distmom and some of {', '.join(list(SYSTEMS)[1:])} [{' '.join(DEFAULT_SYSTEMS)}]")  # fmt: skip
    add("--draws", type=int, default=3, help="parts of each size [%(default)s]")
    add("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name, words, labels in training_rows(options.data):
        for row in run(name, words, labels, options):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
