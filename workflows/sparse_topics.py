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
from benchmark_topics import distance
from scipy.sparse import csr_array
from topic_documents import CORRELATED_TOPICS, plant_correlated, read_uci

from distmom.corpus import MemoryCorpus
from distmom.evaluate.topics import evaluate_topics
from distmom.models import AnchorTopics, SparseTopics, SpectralLDA

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


def compare_planted(n_documents: list[int], n_seeds: int) -> None:
    for n in n_documents:
        errors: dict[str, list[float]] = {}
        for seed in range(n_seeds):
            counts, topics = plant_correlated(n, seed)
            found = models(CORRELATED_TOPICS, seed, min_df=0.0, max_df=1.0, max_count=None)
            for name, model in found.items():
                model.fit(counts)
                errors.setdefault(name, []).append(distance(model.components_, topics))
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
