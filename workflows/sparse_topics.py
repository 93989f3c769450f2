"""Compare `SparseTopics` with other topic models, on planted corpora of correlated topics or on counts.

The shares of planted documents are logistic-normal with strong correlations of both signs, so that no Dirichlet
distribution fits them; a topic has about a fifth of the words. Prints one line per model: the mean L1 error of
matched topics, or held-out perplexity, NPMI and diversity.

Examples::

    python workflows/sparse_topics.py planted --docs 1000 4000 16000 64000
    python workflows/sparse_topics.py uci docword.kos.txt.xz vocab.kos.txt.xz -k 10 20
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from topic_documents import read_uci

from distmom.corpus import MemoryCorpus
from distmom.evaluate.topics import evaluate_topics
from distmom.models import AnchorTopics, SparseTopics, SpectralLDA
from distmom.simulate.topics import CorrelatedTopicPopulation

N_WORDS, N_TOPICS, LENGTH, DENSITY = 300, 8, 60, 0.2
#: share of documents that are held out
HELD_OUT = 0.2


def models(k: int, seed: int, **options: Any) -> dict[str, Any]:
    """Return the models to compare, by name."""
    options |= {"random_state": seed}
    return {
        "sparse": SparseTopics(k, **options),
        "anchors": AnchorTopics(k, n_refine=0, **options),
        "lda": SpectralLDA(k, n_refine=0, init="tensor", **options),
        "sparse-refined": SparseTopics(k, n_refine=4, **options),
        "anchors-refined": AnchorTopics(k, **options),
        "lda-refined": SpectralLDA(k, **options),
    }


def planted(n: int, seed: int) -> tuple[np.ndarray, csr_array]:
    """Return topics, (d, k), and counts of n documents."""
    rng = np.random.default_rng(seed)
    topics = (rng.random((N_WORDS, N_TOPICS)) < DENSITY) * rng.gamma(1.0, 1.0, (N_WORDS, N_TOPICS))
    empty = np.flatnonzero(topics.max(axis=1) == 0.0)
    topics[empty, rng.integers(0, N_TOPICS, len(empty))] = rng.gamma(1.0, 1.0, len(empty))
    topics /= topics.sum(axis=0)
    population = CorrelatedTopicPopulation(rng.normal(0.0, 0.9, (N_TOPICS, N_TOPICS)), topics)
    return topics, population.sample(n, LENGTH, rng)[0]


def compare_planted(n_documents: list[int], n_seeds: int) -> None:
    for n in n_documents:
        errors: dict[str, list[float]] = {}
        for seed in range(n_seeds):
            topics, counts = planted(n, seed)
            found = models(N_TOPICS, seed, min_df=0.0, max_df=1.0, max_count=None)
            for name, model in found.items():
                model.fit(counts)
                cost = np.abs(topics.T[:, None] - model.components_[None]).sum(axis=2)
                rows, columns = linear_sum_assignment(cost)
                errors.setdefault(name, []).append(float(cost[rows, columns].mean()))
        for name, values in errors.items():
            print(f"{n:7} {name:16} L1 {np.mean(values):.3f}", flush=True)


def compare_counts(counts: csr_array, sizes: list[int], n_seeds: int) -> None:
    n = counts.shape[0]
    n_test = int(HELD_OUT * n)
    for k in sizes:
        results: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(n_seeds):
            order = np.random.default_rng(seed).permutation(n)
            train, test = counts[order[n_test:]], counts[order[:n_test]]
            seen = np.asarray(train.sum(axis=0)).ravel() > 0
            documents = MemoryCorpus(test[:, seen])
            for name, model in models(k, seed).items():
                model.fit_corpus(MemoryCorpus(train[:, seen]))
                found = evaluate_topics(model, documents)
                row = tuple(found[metric] for metric in ("perplexity", "NPMI", "diversity"))
                results.setdefault(name, []).append((*row, model.fit_seconds_))
        for name, rows in results.items():
            perplexity, npmi, diversity, seconds = np.mean(rows, axis=0)
            print(
                f"{k:4} {name:16} perplexity {perplexity:7.1f}  NPMI {npmi:.3f}  diversity {diversity:.2f}  "
                f"{seconds:.1f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_planted, of_uci = kinds.add_parser("planted"), kinds.add_parser("uci")
    of_planted.add_argument("--docs", type=int, nargs="+", default=[1000, 4000, 16000])
    of_uci.add_argument("docword", type=Path)
    of_uci.add_argument("vocabulary")
    of_uci.add_argument("-k", type=int, nargs="+", default=[10, 20])
    for each in (of_planted, of_uci):
        each.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    if given.kind == "planted":
        compare_planted(given.docs, given.seeds)
    else:
        compare_counts(csr_array(read_uci(given.docword, given.vocabulary)[0]), given.k, given.seeds)


if __name__ == "__main__":
    main()
