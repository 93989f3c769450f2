"""Coherence of topics of real texts that are searched by one label word each, compared with anchor words.

This is the comparison of Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models" (JMLR 18,
2018), section 4.4. A fifth of the documents is held out. Labels are words of refined anchor-word topics of
the other documents: for every topic the most relevant word that occurs in 5 to 50 % of the documents, without
duplicates. Every system is given one label and returns one topic:

whitening
    `TopicSearch`, with one pass over the documents for all labels.
nmf
    All topics by anchor words (`AnchorTopics` without refinement), computed once; the topic with the largest
    probability of the label is used.
ss-nmf
    The same, computed for every label separately, with documents weighted by the share of the label in their
    words.

NPMI is the mean NPMI of the label and the other top 20 words of the topic, counted in held-out documents,
with -1 for words that never co-occur. ``best`` is the number of labels for which a system has the largest
NPMI. ``refused`` is the number of labels that the search refuses unless forced, as it is here. ``failed`` is
the number of labels without a topic, which count as an NPMI of -1. Seconds are for one label and for all
labels, including passes over the documents.

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
#: minimum and maximum share of documents with a label
LABEL_DF = (0.05, 0.5)


class WeightedCorpus(MemoryCorpus):
    """Documents in memory with weights."""

    def __init__(self, counts: csr_matrix, vocabulary: list[str], weights: np.ndarray) -> None:
        super().__init__(counts, vocabulary=vocabulary)
        self._weights = weights

    def read_shard(self, i: int) -> Block:
        """Return a shard with the weights of its documents."""
        block = super().read_shard(i)
        return replace(block, weights=self._weights[block.first : block.first + block.n_documents])


def choose_labels(data: Data, k: int, seed: int) -> list[int]:
    """Return one label for every topic that has a suitable word."""
    model = AnchorTopics(k, random_state=seed).fit(data.train)
    frequency = np.asarray((data.train > 0).sum(axis=0)).ravel()
    relevance = 0.6 * np.log(model.components_) + 0.4 * np.log(model.components_ / model.unigram_)
    share = frequency / data.train.shape[0]
    relevance[:, (share < LABEL_DF[0]) | (share > LABEL_DF[1])] = -np.inf
    labelled = relevance[np.isfinite(relevance.max(axis=1))]
    return list(dict.fromkeys(int(word) for word in labelled.argmax(axis=1)))


def search_labels(data: Data, k: int, seed: int, labels: list[int]) -> tuple[list[np.ndarray | None], int]:
    """Search for every label; return topics and the number of refused searches."""
    model = TopicSearch(k, random_state=seed).fit(data.train)
    found = [_or_none(lambda label=label: model.search([label], force=True)) for label in labels]
    n_refused = sum(each is not None and not each.informative for each in found)
    return [None if each is None else each.topic for each in found], n_refused


def all_topics(data: Data, k: int, seed: int, labels: list[int]) -> tuple[list[np.ndarray | None], int]:
    """Estimate all topics once, and choose one for every label."""
    topics = AnchorTopics(k, n_refine=0, random_state=seed).fit(data.train).components_
    return [topics[topics[:, label].argmax()] for label in labels], 0


def weighted_topics(data: Data, k: int, seed: int, labels: list[int]) -> tuple[list[np.ndarray | None], int]:
    """Estimate all topics for every label separately, in documents weighted by the label."""
    return [_or_none(lambda label=label: _weighted_topic(data, k, seed, label)) for label in labels], 0


def _weighted_topic(data: Data, k: int, seed: int, label: int) -> np.ndarray:
    counts = csr_matrix(data.train)
    own = counts[:, [label]].toarray().ravel()
    some = np.flatnonzero(own)
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    corpus = WeightedCorpus(counts[some], data.words, own[some] / lengths[some])
    # max_df=1.0, because all of these documents contain the label.
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
    """Return the mean NPMI of a label and the top words of a topic; ``met`` has ones for words in documents."""
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
    # Words that occur together in all documents carry no information.
    return float(np.where(together > 0.0, np.where(together < 1.0, npmi, 0.0), -1.0).mean())


def measure(data: Data, k: int, seed: int) -> list[dict[str, Any]]:
    """Search for topics with every system, and measure their coherence with the labels."""
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
    add("-k", "--n-components", type=int, default=50, metavar="K", help="number of topics [%(default)s]")
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="number of seeds, which are 0 to N - 1 [%(default)s]",
    )
    add("--json", type=Path, help="write the results, with labels and words of the topics, to this file")
    add("--markdown", type=Path, help="write the table of means to this file")
    options = parser.parse_args(arguments)
    counts, words = read_uci(options.docword, options.vocab)
    with results(options.json) as rows:
        for seed in range(options.seeds):
            data = hold_out(bare_name(options.docword), counts, words, seed=seed, min_df=MIN_DF)
            if not seed:
                # Compile or load the kernels.
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
