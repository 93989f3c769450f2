"""Topics of real texts found from one label word each, beside anchor words: how well they go with their words.

The comparison of Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18, 2018),
section 4.4. A fifth of the documents is held out. Labels are words of the topics that anchor words find in the
others, refined: of every topic the word of largest relevance among those that 5 to 50 % of the documents have;
each word once. Every system is told one label and gives one topic:

whitening
    `TopicSearch`, one sum over the documents for all labels.
nmf
    All topics by anchor words (`AnchorTopics` without refine), once for all labels; of them the one that has the
    label with the largest probability.
ss-nmf
    The same for every label anew, documents weighted by how often the label is in them, as a share of their words.

NPMI is the mean of that of the label with the other words of the topic's first 20, counted in the documents
held out, -1 for two that never meet; ``best`` counts the labels for which a system has the largest. ``refused``
are labels that the search refuses unless forced, as here; ``failed`` are those for which a system gives no topic,
which counts as an NPMI of -1. Seconds are those of one label and of all, sums over the documents included.

Example::

    python workflows/search_text.py docword.kos.txt.xz vocab.kos.txt.xz -k 50 --seeds 3
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from common import machine, markdown_table, results
from scipy.sparse import csr_array, csr_matrix
from topic_documents import Data, bare_name, hold_out, read_uci

from distmom.corpus import Block, MemoryCorpus
from distmom.errors import NumericalError
from distmom.models import AnchorTopics, TopicSearch

N_TOP, MIN_DF = 20, 2
#: shares of the documents that a label is in, at least and at most
LABEL_DF = (0.05, 0.5)


class WeightedCorpus(MemoryCorpus):
    """Documents that count as much as they are given weights."""

    def __init__(self, counts: csr_matrix, vocabulary: list[str], weights: np.ndarray) -> None:
        super().__init__(counts, vocabulary=vocabulary)
        self._weights = weights

    def read_shard(self, i: int) -> Block:
        """Return a shard with the weights of its documents."""
        block = super().read_shard(i)
        return replace(block, weights=self._weights[block.first : block.first + block.n_documents])


def choose_labels(data: Data, k: int, seed: int) -> list[int]:
    """Return the labels, one of every topic that has any."""
    model = AnchorTopics(k, random_state=seed).fit(data.train)
    frequency = np.asarray((data.train > 0).sum(axis=0)).ravel()
    relevance = 0.6 * np.log(model.components_) + 0.4 * np.log(model.components_ / model.unigram_)
    share = frequency / data.train.shape[0]
    relevance[:, (share < LABEL_DF[0]) | (share > LABEL_DF[1])] = -np.inf
    told = relevance[np.isfinite(relevance.max(axis=1))]
    return list(dict.fromkeys(int(word) for word in told.argmax(axis=1)))


def search_labels(data: Data, k: int, seed: int, labels: list[int]) -> tuple[list[np.ndarray | None], int]:
    """Search for every label; topics, and how many searches are refused."""
    model = TopicSearch(k, random_state=seed).fit(data.train)
    found = [_or_none(lambda label=label: model.search([label], force=True)) for label in labels]
    n_refused = sum(each is not None and not each.informative for each in found)
    return [None if each is None else each.topic for each in found], n_refused


def all_topics(data: Data, k: int, seed: int, labels: list[int]) -> tuple[list[np.ndarray | None], int]:
    """Find all topics once, and take one of them for every label."""
    topics = AnchorTopics(k, n_refine=0, random_state=seed).fit(data.train).components_
    return [topics[topics[:, label].argmax()] for label in labels], 0


def weighted_topics(data: Data, k: int, seed: int, labels: list[int]) -> tuple[list[np.ndarray | None], int]:
    """Find all topics for every label, in documents weighted by it."""
    return [_or_none(lambda label=label: _weighted_topic(data, k, seed, label)) for label in labels], 0


def _weighted_topic(data: Data, k: int, seed: int, label: int) -> np.ndarray:
    counts = csr_matrix(data.train)
    own = counts[:, [label]].toarray().ravel()
    some = np.flatnonzero(own)
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    corpus = WeightedCorpus(counts[some], data.words, own[some] / lengths[some])
    # All of these documents have the label, which the moments must see.
    model = AnchorTopics(k, n_refine=0, max_df=1.0, weighting="document", random_state=seed)
    topics = model.fit_corpus(corpus).components_
    return np.asarray(topics[topics[:, label].argmax()])


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except NumericalError:
        return None


FINDERS = {"whitening": search_labels, "nmf": all_topics, "ss-nmf": weighted_topics}


def coherence(topic: np.ndarray | None, label: int, met: csr_array) -> float:
    """Return the mean NPMI of a label with the other first words of a topic; ``met`` says who has which word."""
    if topic is None:
        return -1.0
    order = np.argsort(-topic, kind="stable")
    words = order[(order != label) & (topic[order] > 0.0)][: N_TOP - 1]
    if not len(words):
        return -1.0
    n = met.shape[0]
    own = met[:, [label]]
    together = np.asarray((met[:, words].T @ own).todense()).ravel() / n
    alone = np.asarray(met[:, words].sum(axis=0)).ravel() / n
    with np.errstate(divide="ignore", invalid="ignore"):
        npmi = np.log(together / (alone * own.sum() / n)) / -np.log(together)
    # Two words that are in all documents tell nothing.
    return float(np.where(together > 0.0, np.where(together < 1.0, npmi, 0.0), -1.0).mean())


def measure(data: Data, k: int, seed: int) -> list[dict[str, Any]]:
    """Find topics by every system and say how well they go with their labels."""
    labels = choose_labels(data, k, seed)
    met = csr_array((data.held_out > 0).astype(np.float64))
    rows: list[dict[str, Any]] = []
    for name, find in FINDERS.items():
        started = time.perf_counter()
        find(data, k, seed, labels[:1])
        one = time.perf_counter() - started
        started = time.perf_counter()
        topics, n_refused = find(data, k, seed, labels)
        rows.append(
            {
                "system": name,
                "k": k,
                "seed": seed,
                "data": data.name,
                **data.sizes(),
                "n_targets": len(labels),
                "NPMI": [coherence(topic, label, met) for topic, label in zip(topics, labels, strict=True)],
                "n_refused": n_refused,
                "n_failed": sum(topic is None for topic in topics),
                "one_s": one,
                "all_s": time.perf_counter() - started,
                "labels": [data.words[label] for label in labels],
                "words": [_first_words(topic, data.words) for topic in topics],
                "machine": machine(),
            }
        )
    best = np.argmax([row["NPMI"] for row in rows], axis=0)
    for i, row in enumerate(rows):
        row["n_best"] = int((best == i).sum())
    return rows


def _first_words(topic: np.ndarray | None, words: list[str]) -> list[str]:
    return [] if topic is None else [words[i] for i in np.argsort(-topic, kind="stable")[:N_TOP]]


def averages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over seeds."""
    means = []
    for system in FINDERS:
        same = [row for row in rows if row["system"] == system]
        shown: dict[str, Any] = {name: same[0][name] for name in ("system", "k", "n_train")}
        shown["NPMI"] = mean(mean(row["NPMI"]) for row in same)
        names = ("n_targets", "n_best", "n_refused", "n_failed", "one_s", "all_s")
        means.append({**shown, **{name: mean(row[name] for row in same) for name in names}})
    return means


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("docword", type=Path, help="counts in the UCI format")
    add("vocab", nargs="?", help="names of the words [vocab.* beside docword.*]")
    add("-k", "--n-components", type=int, default=50, metavar="K", help="topics that the texts have [50]")
    add("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1, of held-out documents too [1]")
    add("--json", type=Path, help="write the results, with labels and words of the topics, to this file")
    add("--markdown", type=Path, help="write the table of means to this file")
    options = parser.parse_args(arguments)
    counts, words = read_uci(options.docword, options.vocab)
    with results(options.json) as rows:
        for seed in range(options.seeds):
            data = hold_out(bare_name(options.docword), counts, words, seed=seed, min_df=MIN_DF)
            if not seed:
                # Kernels are compiled, or loaded.
                measure(replace(data, train=data.train[:300]), 2, seed)
            rows += measure(data, options.n_components, seed)
            print(f"seed {seed}: done", file=sys.stderr, flush=True)
    table = markdown_table(averages(rows))
    print(table)
    if options.markdown is not None:
        options.markdown.write_text(table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
