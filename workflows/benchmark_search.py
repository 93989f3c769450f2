"""Compare searches for topics by label words with full decompositions: errors and seconds after whitening.

Documents are simulated: N documents with K topics over D words and L words per document on average (Dirichlet
shares and Zipfian words, as in `benchmark_topics`). `TopicSearch` computes and whitens their moments once,
with the true alpha0, all words and all counts; every system then starts from the same whitened moments. Each
topic is a target, specified by one label word. The margin of a word w for topic i is ``mu_i(w) - max_j
mu_j(w)`` over the other topics j, and labels have a positive margin: the label is the word with the largest
margin or, with ``--labels drawn``, a word drawn with the probabilities of the topic. Both rules use the
planted topics and the words that occur in documents; topics without a label are left out.

whitening, cancellation
    The two searches of Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in Mixture Models".
fast-tpm
    One run of the tensor power method from the side information.
tpm
    The tensor power method with restarts and deflation, followed by the choice of the component preferred by
    the word.
joint
    The same with joint diagonalisation, as in `SpectralLDA`.
random
    The same with the eigenvectors of one random contraction of the third moment, in place of that by the word.

error
    Mean Euclidean distance over targets between the estimated and the planted topic; topics L1 is the mean L1
    distance.
gain %
    Mean over targets of ``100 (E_tpm - E) / E_tpm`` with errors E.
refused
    Number of targets that a search refuses unless forced, because the gap is not larger than the noise; here, all
    searches are forced.
wrong topic
    Number of targets for which another planted topic is closer (L1) than the target; the next column counts
    those that are not refused.
one target ms
    Median time of one search, including everything after whitening: the decomposition for tpm and joint, and
    for all systems the coordinates of the word, the noise level and the topic over all words.
all targets ms
    The same for all targets in one call; decompositions are computed once.

The claim to check is that one search by whitening is at least 5 times as fast as tpm and joint, with a mean
error at most 5 % larger. Example::

    python workflows/benchmark_search.py --planted 10,8000,2000,100 50,16000,10000,100 --seeds 3 \\
        --json search.json
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from common import machine, markdown_table, results
from scipy.spatial.distance import cdist
from topic_documents import plant

from distmom.linalg.search.component import SEARCHES
from distmom.models import TopicSearch
from distmom.simulate.topics import label_words

#: numbers of repetitions for the median time of one target and of all targets
ONE_REPEATS, ALL_REPEATS = 9, 3
FASTER, WORSE = 5.0, 1.05
REFERENCE = "tpm"
LABELS = ("margin", "drawn")
MEASURES = ("error_l2", "topics_l1", "gain", "n_refused", "n_wrong", "n_misled", "one_ms", "all_ms")


def fresh(model: TopicSearch) -> TopicSearch:
    """Return the model after clearing the cached results of earlier searches."""
    model.whitened_ = replace(model.whitened_)
    return model


def seconds_of_one(model: TopicSearch, targets: list[list[int]]) -> float:
    """Return the median seconds of a search without cached results."""
    seconds = []
    for i in range(ONE_REPEATS):
        target = targets[i % len(targets)]
        fresh(model)
        started = time.perf_counter()
        model.search(target, force=True)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def measure(sizes: list[int], seed: int, rule: str) -> list[dict[str, Any]]:
    """Simulate documents, and search with every system."""
    k = sizes[0]
    counts, topics, alpha0 = plant(*sizes, seed, False)
    model = TopicSearch(k, alpha0=alpha0, min_df=0.0, max_df=1.0, max_count=None).fit(counts)
    # Words without documents cannot be searched for.
    occurring = np.where(counts.sum(axis=0) > 0, topics, 0.0)
    labelled, words = label_words(occurring.T, drawn=rule == "drawn", seed=seed)
    targets = [[int(word)] for word in words]
    rows, errors = [], {}
    for name in SEARCHES:
        model.set_params(method=name)
        one = seconds_of_one(model, targets)
        of_all = []
        for _ in range(ALL_REPEATS):
            fresh(model)
            started = time.perf_counter()
            found = model.search_all(targets, force=True)
            of_all.append(time.perf_counter() - started)
        estimates = np.array([each.topic for each in found])
        errors[name] = np.linalg.norm(estimates - topics[labelled], axis=1)
        distances = cdist(estimates, topics, "cityblock")
        wrong = distances.argmin(axis=1) != labelled
        informative = np.array([each.informative for each in found])
        rows.append(
            {
                "system": name,
                "k": k,
                "seed": seed,
                "n_train": counts.shape[0],
                "planted": ",".join(map(str, sizes)),
                "labels": rule,
                "n_targets": len(targets),
                "error_l2": float(errors[name].mean()),
                "topics_l1": float(distances[np.arange(len(labelled)), labelled].mean()),
                "n_refused": int((~informative).sum()),
                "n_wrong": int(wrong.sum()),
                "n_misled": int((wrong & informative).sum()),
                "one_ms": 1e3 * one,
                "all_ms": 1e3 * median(of_all),
                "whitened_s": model.fit_seconds_,
                "machine": machine(),
            }
        )
    for row in rows:
        gains = 1.0 - errors[row["system"]] / errors[REFERENCE]
        row["gain"] = 100.0 * float(gains.mean())
    return rows


def averages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means over seeds."""
    keys = list(dict.fromkeys((row["planted"], row["system"]) for row in rows))
    means = []
    for planted, system in keys:
        same = [row for row in rows if (row["planted"], row["system"]) == (planted, system)]
        shown = {name: same[0][name] for name in ("system", "k", "n_train", "n_targets", "planted")}
        means.append({**shown, **{name: mean(row[name] for row in same) for name in MEASURES}})
    return means


def claims(means: list[dict[str, Any]]) -> list[str]:
    """Return one sentence per size and system on whether the claim holds."""
    lines = []
    for planted in dict.fromkeys(row["planted"] for row in means):
        of = {row["system"]: row for row in means if row["planted"] == planted}
        search = of["whitening"]
        for other in ("tpm", "joint"):
            faster = of[other]["one_ms"] / search["one_ms"]
            together = of[other]["all_ms"] / search["all_ms"]
            worse = search["error_l2"] / of[other]["error_l2"]
            holds = "holds" if faster >= FASTER and worse <= WORSE else "does not hold"
            lines.append(
                f"{planted}: one search by whitening takes 1/{faster:.1f} of the time of {other} (all targets: "
                f"1/{together:.1f}), at {worse:.3f} of its error: the claim {holds}"
            )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--planted", nargs="+", metavar="K,N,D,L", default=["10,8000,2000,100", "50,16000,10000,100"])
    add(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help="number of seeds, which are 0 to N - 1 [%(default)s]",
    )
    add("--labels", choices=LABELS, default=LABELS[0], help="how label words are chosen [%(default)s]")
    add("--json", type=Path, help="write the results to this file")
    add("--markdown", type=Path, help="write the table of means to this file")
    options = parser.parse_args(arguments)
    sizes = []
    for text in options.planted:
        numbers = text.split(",")
        if len(numbers) != 4 or not all(number.isdigit() and int(number) > 0 for number in numbers):
            parser.error(f"--planted: expected K,N,D,L, got {text}")
        sizes.append([int(number) for number in numbers])
    with results(options.json) as rows:
        for each in sizes:
            for seed in range(options.seeds):
                rows += measure(each, seed, options.labels)
                print(f"{each[0]} topics, seed {seed}: done", file=sys.stderr, flush=True)
    means = averages(rows)
    table = markdown_table(means)
    print(table)
    if options.markdown is not None:
        options.markdown.write_text(table, encoding="utf-8")
    for line in claims(means):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
