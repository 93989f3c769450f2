"""Topics from the sentences of documents: `ECA` beside topic models of whole documents, on the same words.

PREFIX names texts, ``PREFIX-train.jsonl.xz`` and ``PREFIX-test.jsonl.xz``. Sentences are the exchangeable views of
a document, and word counts of a sentence are Poisson distributed with rates that are sums of amounts of topics:
the multiple mixture of Poissons of Anandkumar, Foster, Hsu, Kakade, Liu, "A Spectral Algorithm for Latent
Dirichlet Allocation", section 2.1. Its factors are the amounts, and its columns are the topics. A linear map of
the views maps the columns as well, so views may be weighted by word, and the columns scaled back.

eca-counts
    `ECA` with unscaled counts of words.
eca-poisson
    Counts divided by the root of their mean, so that the noise of every word has variance one.
eca-idf
    Presence of words (1 where a sentence has the word), times the logarithm of the inverse share of documents.
nmf-idf
    NMF of scikit-learn, with its defaults, of the same weighted presence, added up over the sentences of a
    document.
distmom, distmom-eca, and the others
    Systems of `run_topics`, which are given the counts of whole documents.

Negative entries of topics are set to zero. Topics of all systems are evaluated as in `benchmark_topics`, on the
test documents, or on a fifth of the training documents with ``--validation``, which is for choices. ``n_topics``
is the number of topics found: `ECA` leaves out those that it cannot separate, or refuses. Seconds and CPU seconds
are those of the fit. Systems run in this process, on the threads that the environment allows.

Example::

    python workflows/sentence_topics.py data/labels/reuters --out sentences -k 5 10 20 --topics
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmark_topics import Judge
from common import machine, over_seeds, print_table, results
from run_topics import SYSTEMS, Task, distributions, timed
from scipy.sparse import csr_array, csr_matrix, vstack
from sklearn.decomposition import NMF
from topic_documents import Data

from distmom.corpus import LayeredCorpus, ingest_sentences, open_corpus
from distmom.corpus.sources.ingest import stop_word_list
from distmom.errors import NumericalError
from distmom.models import ECA

#: system, and how it weighs words
WEIGHTS = ("counts", "poisson", "idf")
OTHERS = ("distmom", "distmom-eca", "scikit-learn", "scikit-learn-nmf", "tomotopy-300")
NMF_OF_SENTENCES = "nmf-idf"
SYSTEM_NAMES = (*(f"eca-{name}" for name in WEIGHTS), NMF_OF_SENTENCES, *OTHERS)
#: smallest number of documents with a word
MIN_DF = 20


@dataclass(frozen=True)
class Sentences:
    """Word counts of sentences.

    Attributes
    ----------
    rows : csr_array of shape (n_sentences, n_words)
    groups : ndarray of shape (n_sentences,), int
        Document of every sentence, ascending from 0.
    """

    rows: csr_array
    groups: np.ndarray

    @property
    def documents(self) -> csr_array:
        """Counts of whole documents, (n_documents, n_words)."""
        n = len(self.groups)
        sums = csr_array((np.ones(n), self.groups, np.arange(n + 1)), shape=(n, self.groups[-1] + 1)).T
        return csr_array(sums.tocsr() @ self.rows)

    def take(self, documents: np.ndarray) -> Sentences:
        """Return the sentences of some documents, given by their numbers in ascending order."""
        own = np.isin(self.groups, documents)
        return Sentences(self.rows[own], np.searchsorted(documents, self.groups[own]))


def read(corpus: LayeredCorpus) -> Sentences:
    """Read the sentences of a whole corpus."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    sizes = np.concatenate([np.diff(block.starts) for block in blocks])
    rows = csr_array(vstack([block.rows for block in blocks], format="csr"))
    return Sentences(rows, np.repeat(np.arange(len(sizes)), sizes))


def ingested(source: Path, place: Path, like: Any = None) -> LayeredCorpus:
    """Ingest the sentences of texts, unless they were ingested before."""
    if place.is_dir():
        return open_corpus(place)
    return ingest_sentences(source, place, min_df=MIN_DF, stop_words=stop_word_list("english"), like=like)


def weighed(sentences: Sentences, how: str) -> tuple[csr_matrix, np.ndarray]:
    """Return the views of `ECA`, and the weights of words by which its columns are divided."""
    rows = csr_matrix(sentences.rows, dtype=np.float64)
    if how == "counts":
        weights = np.ones(rows.shape[1])
    elif how == "poisson":
        weights = 1.0 / np.sqrt(np.maximum(rows.mean(axis=0).A1, 1.0 / rows.shape[0]))
    else:
        documents = sentences.documents
        n_with = np.maximum(np.bincount(documents.indices, minlength=rows.shape[1]), 1)
        weights = np.log(documents.shape[0] / n_with)
        rows.data = np.minimum(rows.data, 1.0)
    # A word of every document has no weight: it is in no topic, and its column is zero.
    return csr_matrix(rows.multiply(weights[None, :])), weights


def topics_of(columns: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return columns of weighed words as distributions of words, and the share of them that was negative."""
    columns = np.divide(columns, weights, out=np.zeros_like(columns), where=weights > 0.0)
    positive = np.maximum(columns, 0.0)
    return distributions(positive), float(1.0 - positive.sum() / np.abs(columns).sum())


def eca_topics(sentences: Sentences, k: int, how: str, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the topics that `ECA` finds behind sentences, (n_found, n_words), and what it reports."""
    views, weights = weighed(sentences, how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ECA(k, random_state=seed).fit(views, groups=sentences.groups)
    kept = {name: model.diagnostics_[name] for name in ("n_groups", "n_dropped_groups", "separation", "gap")}
    topics, kept["negative"] = topics_of(model.components_, weights)
    return topics, kept


def nmf_topics(sentences: Sentences, k: int, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the topics that NMF finds in the same weighed words, added up over documents."""
    views, weights = weighed(sentences, "idf")
    documents = Sentences(csr_array(views), sentences.groups).documents
    return topics_of(NMF(k, random_state=seed).fit(csr_matrix(documents)).components_, weights)[0], {}


def measure(name: str, sentences: Sentences, data: Data, judge: Judge, k: int, seed: int) -> dict[str, Any]:
    """Fit one system and evaluate its topics; a row without measures if it refuses."""
    row: dict[str, Any] = {"system": f"{name}, k = {k}", "name": name, "k": k, "seed": seed}
    if name in OTHERS:
        fit = SYSTEMS[name](Task(csr_matrix(data.train), k, seed, None), name)
    elif name == NMF_OF_SENTENCES:
        fit = partial(nmf_topics, sentences, k, seed)
    else:
        eca_topics(sentences.take(np.arange(200)), 1, "idf", seed)  # compiles
        fit = partial(eca_topics, sentences, k, name.removeprefix("eca-"), seed)
    try:
        (topics, details), cost = timed(fit)
    except NumericalError as error:
        return row | {"left_out": str(error)}
    scores = judge.score(distributions(topics))
    return row | scores | {"n_topics": len(topics), "fit_s": cost["fit_s"], "cpu_s": cost["cpu_s"], **details}


def load(options: argparse.Namespace) -> tuple[Sentences, Data]:
    """Read the texts, and hold out documents for the evaluation."""
    prefix: Path = options.prefix
    corpora = {}
    for part in ("train", "test"):
        source = prefix.with_name(f"{prefix.name}-{part}.jsonl.xz")
        corpora[part] = ingested(source, options.out / part, corpora.get("train"))
    train = read(corpora["train"])
    if options.validation:
        order = np.random.default_rng(0).permutation(int(train.groups[-1]) + 1)
        n_held_out = len(order) // 5
        held_out = train.take(np.sort(order[:n_held_out]))
        train = train.take(np.sort(order[n_held_out:]))
    else:
        held_out = read(corpora["test"])
    words = list(corpora["train"].vocabulary)
    counts = [csr_array(each.documents.astype(np.int32)) for each in (train, held_out)]
    return train, Data(prefix.name, *counts, words, None, None, np.arange(len(words)))


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("prefix", type=Path, metavar="PREFIX", help="texts, for example data/labels/reuters")
    add("--out", type=Path, required=True, help="folder for ingested corpora")
    add("-k", "--n-components", type=int, nargs="+", default=[10], help="numbers of topics [10]")
    add("--systems", nargs="+", choices=SYSTEM_NAMES, default=SYSTEM_NAMES, help="[all]")
    add("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1 [%(default)s]")
    add("--validation", action="store_true", help="evaluate on a fifth of the training documents")
    add("--topics", action="store_true", help="print the words of all topics of seed 0")
    add("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    sentences, data = load(options)
    judge = Judge(data, 0)
    with results(options.json) as rows:
        for seed in range(options.seeds):
            for k in options.n_components:
                for name in options.systems:
                    row = measure(name, sentences, data, judge, k, seed)
                    rows.append(row | {"machine": machine()})
                    found = row["left_out"] if "left_out" in row else f"{row['n_topics']} topics"
                    print(f"{row['system']}, seed {seed}: {found}", file=sys.stderr, flush=True)
                    if options.topics and seed == 0:
                        for words in row.get("top_words", []):
                            print("   ", " ".join(words), flush=True)
    if options.seeds > 1:
        medians = ("n_topics", "perplexity", "diversity", "fit_s", "cpu_s")
        print_table(over_seeds(rows, ("system",), ("held_NPMI",), medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
