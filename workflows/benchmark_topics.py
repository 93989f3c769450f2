"""Compare topic models of distmom with other systems on exactly the same documents, in one table.

A fifth of the documents is held out; words that occur in fewer than two training documents are removed. Every
system is given the training counts and runs on one thread in a separate process (see `run_topics` for the
definition of its time). A seed determines the held-out documents, the planted documents, and the
initialisation of the systems. With several seeds, the table shows the median and, in parentheses, the minimum
and maximum. The topics of all systems are smoothed with 1 % of the unigram distribution and evaluated by the
same measures:

perplexity
    Perplexity of half of the tokens of held-out documents; shares are the posterior mode given the other half. The
    Dirichlet parameters are proportional to the mean shares in 300 training documents, and their sum is the
    candidate with the best completion of these documents.
NPMI
    Coherence of the top 10 words of every topic, counted in all documents. Held-out NPMI counts only held-out
    documents, where accidental pairs of rare words do not recur.
below 0
    Share of topics with negative NPMI.
diversity
    Share of distinct words among all top 10 words.
topics L1
    For planted documents only: mean L1 distance, 0 to 2, between planted topics and the topics matched to them.

DATA is ``uci:`` and a docword file, ``corpus:`` and a corpus of ``distmom ingest``, or ``planted:K,N,D,L``: N
documents with K topics over D words and L words per document on average, a fifth of which is held out as
well. With ``--misspecified``, topics are correlated (shares are logistic normal) and words are bursty (a
document repeats words already drawn from a topic). ``amounts:K,N,D,L`` are documents with independent amounts
of the topics, whose lengths vary freely; in ``present:K,N,D,L`` each topic is present with probability one half,
in an amount that is always the same. ``correlated:N`` are documents of sparse topics with correlated shares. The
system ``random`` makes the same refinement passes as ``distmom``, but from random documents instead of moments.
Systems that are not installed, fail or take too long are listed below the table::

    python3 -m venv peers
    peers/bin/pip install tomotopy gensim lda scikit-learn

Examples::

    python workflows/benchmark_topics.py uci:docword.kos.txt.xz vocab.kos.txt.xz -k 20 50 \\
        --peers-python peers/bin/python --json kos.json --markdown kos.md
    python workflows/benchmark_topics.py planted:20,20000,5000,100 --misspecified --seeds 3 \\
        --systems distmom random tomotopy-300 lda --peers-python peers/bin/python
    python workflows/benchmark_topics.py correlated:5000 --seeds 3 \\
        --systems distmom-sparse-moments tomotopy-ctm-1000 --peers-python peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import ONE_THREAD, machine, markdown_table, over_seeds, results
from run_topics import OWN, SPECIAL, SYSTEMS, distributions
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array, save_npz, vstack
from scipy.spatial.distance import cdist
from topic_documents import (
    CORRELATED_TOPICS,
    Data,
    bare_name,
    hold_out,
    plant,
    plant_amounts,
    plant_correlated,
    plant_present,
    read_corpus,
    read_uci,
)
from watched import LeftOutError, run_watched

from distmom.corpus import MemoryCorpus, open_corpus
from distmom.engine import StoredColumns, open_engine
from distmom.evaluate.topics import coherence_of_counts, diversity, top_words
from distmom.models.topics.refine import COMPLETION_SMOOTHING, complete
from distmom.moments.documents.document_shares import document_shares
from distmom.moments.documents.share_kernels import GivenTopics
from distmom.spectral.program.execute import execute

UCI, CORPUS, PLANTED, PURE = "uci:", "corpus:", "planted:", "distmom-pure"
AMOUNTS, PRESENT, CORRELATED = "amounts:", "present:", "correlated:"
SOURCES = f"{UCI}DOCWORD, {CORPUS}DIR, {PLANTED}K,N,D,L, {AMOUNTS}K,N,D,L, {PRESENT}K,N,D,L or {CORRELATED}N"
#: sources of planted documents, and how many numbers follow them
N_SIZES = {PLANTED: 4, AMOUNTS: 4, PRESENT: 4, CORRELATED: 1}
N_TOP = 10
#: columns of the table for several seeds: medians with ranges, and medians only
RANGES = ("perplexity", "NPMI", "topics_l1", "fit_s")
MEDIANS = ("held_NPMI", "below_0", "diversity", "cpu_s", "peak_rss_mb")
#: number of training documents for estimating the prior of the shares
PRIOR_DOCUMENTS = 300
#: default memory limit of a system, as a share of the available memory
MEMORY_SHARE = 0.9


class Judge:
    """Evaluates the topics of all systems in the same way.

    Parameters
    ----------
    data : Data
    seed : int
        Seed for the choice of documents that determine priors.
    """

    def __init__(self, data: Data, seed: int) -> None:
        self._data = data
        frequency = data.train.sum(axis=0) + 0.1
        self.unigram = frequency / frequency.sum()
        n_train = data.train.shape[0]
        chosen = np.random.default_rng(seed).choice(n_train, min(PRIOR_DOCUMENTS, n_train), replace=False)
        self._some, self._held_out = MemoryCorpus(data.train[np.sort(chosen)]), MemoryCorpus(data.held_out)
        held_out = (data.held_out > 0).astype(np.float64)
        self._meetings = {
            "NPMI": csr_array(vstack([(data.train > 0).astype(np.float64), held_out], format="csr")),
            "held_NPMI": held_out,
        }

    def score(self, topics: np.ndarray) -> dict[str, Any]:
        """Return the measures of topics, an array (k, n_words) with rows that sum to 1."""
        top = top_words(topics, N_TOP)
        npmi = {name: self._npmi(met, top) for name, met in self._meetings.items()}
        scores = {
            **self.complete(topics),
            **{name: float(each.mean()) for name, each in npmi.items()},
            "below_0": float((npmi["NPMI"] < 0.0).mean()),
            "diversity": diversity(top),
        }
        truth = self._data.truth
        if truth is not None:
            whole = np.zeros((len(topics), truth.shape[1]))
            whole[:, self._data.kept] = topics
            scores["topics_l1"] = distance(whole, truth)
        return {**scores, "top_words": [[self._data.words[i] for i in row] for row in top]}

    def complete(self, topics: np.ndarray) -> dict[str, float]:
        """Return the held-out perplexity, and the sum of the Dirichlet parameters used for it."""
        k, matrix = len(topics), np.ascontiguousarray(topics.T, np.float32)
        unigram = self.unigram.astype(np.float32)
        with open_engine(self._some) as engine:
            completing = partial(
                complete, topics=StoredColumns((engine.put(matrix),)), unigram=engine.put(unigram[:, None])
            )
            even = execute(partial(completing, proportions=np.full(k, 1.0 / k)), engine)
            words = self._some.read_shard(0).words
            given = GivenTopics(matrix, unigram, COMPLETION_SMOOTHING, even.alpha)
            shares, _ = document_shares(words, given, how="em")
            prior = execute(partial(completing, proportions=shares.mean(axis=0)), engine).alpha
        total = float(prior.sum())
        with open_engine(self._held_out) as engine:
            completing = partial(
                complete, topics=StoredColumns((engine.put(matrix),)), proportions=prior, alpha_sums=(total,),
                unigram=engine.put(unigram[:, None]),
            )  # fmt: skip
            completion = execute(completing, engine)
        return {"perplexity": completion.perplexity, "alpha_sum": round(total, 6)}

    @staticmethod
    def _npmi(met: csr_array, top: np.ndarray) -> np.ndarray:
        words, numbers = np.unique(top, return_inverse=True)
        own = met[:, words]
        return coherence_of_counts((own.T @ own).toarray(), met.shape[0], numbers.reshape(top.shape))[0]


def distance(topics: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean L1 distance of true topics to their matches; 2 for a topic without a match."""
    distances = cdist(truth, topics, "cityblock")
    true, matched = linear_sum_assignment(distances)
    return float((distances[true, matched].sum() + 2.0 * (len(truth) - len(true))) / len(truth))


def run_system(
    name: str, k: int, seed: int, data: Data, out: Path, options: argparse.Namespace
) -> tuple[np.ndarray, dict[str, Any]]:
    """Run one system; return its topics, time and memory. LeftOutError if it gives none."""
    place = out / f"{name}-{k}-{seed}"
    python = options.peers_python if options.peers_python and name not in OWN else sys.executable
    command = [
        python, str(Path(__file__).with_name("run_topics.py")), f"--system={name}",
        f"--train={out / f'train-{seed}.npz'}", f"-k{k}", f"--seed={seed}", f"--out={place}",
    ]  # fmt: skip
    if data.alpha0 is not None:
        command.append(f"--alpha0={data.alpha0}")
    run_watched(command, place / "log.txt", timeout_s=options.timeout, memory_mb=1e3 * options.memory_gb)
    topics = np.load(place / "phi.npy", allow_pickle=False)
    if not 0 < len(topics) <= k or not np.isfinite(topics).all() or topics.min() < 0.0:
        raise LeftOutError(f"{topics.shape[0]} topics, not all of them distributions")
    return topics, json.loads((place / "fit.json").read_text())


def run_systems(
    data: Data,
    seed: int,
    out: Path,
    options: argparse.Namespace,
    rows: list[dict[str, Any]],
    gone: dict[str, tuple[int, str]],
) -> list[str]:
    """Run all systems with one seed and append their rows; return notes for the end of the table.

    Systems that fail permanently are added to ``gone``, with the number of topics and the reason, and are not
    run again with as many topics or more.
    """
    judge = Judge(data, seed)
    same = {"data": data.name, **data.sizes(), "seed": seed, "machine": machine()}
    rows.append({"system": "(unigram)", **judge.complete(judge.unigram[None]), **same})
    if data.truth is not None:
        rows.append({"system": "(planted)", **judge.score(distributions(data.truth[:, data.kept])), **same})
    save_npz(out / f"train-{seed}.npz", data.train)
    notes = []
    for k, name in ((k, name) for k in sorted(options.n_components) for name in options.systems):
        row: dict[str, Any] = {"system": name, "k": k, **same}
        try:
            if name in gone and k >= gone[name][0]:
                raise LeftOutError(gone[name][1])
            topics, cost = run_system(name, k, seed, data, out, options)
            row |= {**judge.score(topics), **cost, "n_found": len(topics)}
            outcome = f"{len(topics)} topics in {row['fit_s']:.1f} s, perplexity {row['perplexity']:.1f}"
        except LeftOutError as reason:
            if reason.for_good:
                is_absent = str(reason) == "not installed"
                gone[name] = (0, str(reason)) if is_absent else (k, f"{reason} at k = {k}, seed {seed}")
            row["left_out"] = str(reason)
            outcome = f"left out: {reason}"
        print(f"{name}, k = {k}, seed {seed}: {outcome}", file=sys.stderr, flush=True)
        if row.get("n_found") != k:
            notes.append(f"{name}, k = {k}, seed {seed}: {outcome}")
        rows.append(row)
    return notes


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", metavar="DATA", help=SOURCES)
    add(
        "vocabulary",
        metavar="VOCAB",
        nargs="?",
        help=f"names of the words ({UCI}) [vocab.* beside docword.*]",
    )
    add(
        "-k",
        "--n-components",
        type=int,
        nargs="+",
        metavar="K",
        help="numbers of topics [20 50, or the number planted]",
    )
    add(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        metavar="SYSTEM",
        help=f"some of {', '.join(SYSTEMS)} [all but {', '.join(SPECIAL)}]",
    )
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="number of seeds, which are 0 to N - 1 [%(default)s]",
    )
    add(
        "--min-df", type=int, default=2, help="minimum number of training documents with a word [%(default)s]"
    )
    add("--misspecified", action="store_true", help="plant correlated topics and bursty words")
    add("--peers-python", help="interpreter with the other systems [this one]")
    add("--timeout", type=float, default=3600.0, help="maximum seconds per system [%(default)s]")
    add("--memory-gb", type=float, help="maximum memory per system [90 %% of the available memory]")
    add("--out", type=Path, help="directory for counts, topics and logs [temporary]")
    add("--json", type=Path, help="write the results to this file")
    add("--markdown", type=Path, help="write the table to this file")
    return parser


def planted_sizes(source: str) -> tuple[str, list[int]]:
    """Return the kind of planted documents and the numbers that follow it; an empty kind for other sources."""
    for kind, n in N_SIZES.items():
        if re.fullmatch(kind + r"[1-9]\d*" + r",[1-9]\d*" * (n - 1), source):
            return kind, list(map(int, source.removeprefix(kind).split(",")))
    return "", []


def load(options: argparse.Namespace, seed: int) -> Data:
    """Read or simulate the documents, and hold some out."""
    split: dict[str, Any] = {"seed": seed, "min_df": options.min_df}
    if options.data.startswith(UCI):
        source = Path(options.data.removeprefix(UCI))
        return hold_out(bare_name(source), *read_uci(source, options.vocabulary), **split)
    if options.data.startswith(CORPUS):
        source = Path(options.data.removeprefix(CORPUS))
        corpus = open_corpus(source)
        if corpus.values != "counts":
            sys.exit(f"{source}: expected word counts, got {corpus.values}")
        return hold_out(bare_name(source), *read_corpus(corpus), **split)
    kind, sizes = planted_sizes(options.data)
    alpha0 = None
    if kind == PLANTED:
        counts, truth, alpha0 = plant(*sizes, seed, options.misspecified)
    elif kind == AMOUNTS:
        counts, truth = plant_amounts(*sizes, seed)
    elif kind == PRESENT:
        counts, truth = plant_present(*sizes, seed)
    else:
        counts, truth = plant_correlated(*sizes, seed)
    name = options.data + (" misspecified" if options.misspecified else "")
    words = [str(i) for i in range(counts.shape[1])]
    return hold_out(name, counts, words, truth=truth, alpha0=alpha0, **split)


def report(rows: list[dict[str, Any]], notes: list[str]) -> str:
    """Return the table in Markdown, with a description of the data and notes."""
    first = rows[0]
    several = " (seed 0)" if any(row["seed"] != first["seed"] for row in rows) else ""
    text = (
        f"{first['data']}: {first['n_train']} training documents with {first['n_tokens']} tokens, "
        f"{first['n_held_out']} held out, {first['n_words']} words{several}; {first['machine']}\n\n"
        + markdown_table(over_seeds(rows, ("system", "k"), RANGES, MEDIANS))
    )
    return text + "".join(f"\n{each}.\n" for each in notes)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = arguments_parser()
    options = parser.parse_args(arguments)
    kind, sizes = planted_sizes(options.data)
    if not kind and not options.data.startswith((UCI, CORPUS)):
        parser.error(f"{options.data}: expected {SOURCES}")
    if options.misspecified and kind != PLANTED:
        parser.error(f"--misspecified is for {PLANTED} documents, not {options.data}")
    if options.seeds < 1:
        parser.error(f"--seeds: expected at least 1, got {options.seeds}")
    if options.systems is None:
        options.systems = [
            name for name in SYSTEMS if name not in SPECIAL and (kind == PLANTED or name != PURE)
        ]
    elif PURE in options.systems and kind != PLANTED:
        parser.error(f"{PURE} needs the alpha0 of {PLANTED} documents")
    if options.n_components is None:
        options.n_components = (
            [20, 50] if not kind else [CORRELATED_TOPICS if kind == CORRELATED else sizes[0]]
        )
    if options.memory_gb is None:
        options.memory_gb = MEMORY_SHARE * psutil.virtual_memory().available / 1e9

    # Systems run in separate sessions, which only the cleanup of this process ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ.update(ONE_THREAD)
    with (
        tempfile.TemporaryDirectory(prefix="topics-", ignore_cleanup_errors=True) as temporary,
        results(options.json) as rows,
    ):
        out = options.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        notes: list[str] = []
        gone: dict[str, tuple[int, str]] = {}
        for seed in range(options.seeds):
            notes += run_systems(load(options, seed), seed, out, options, rows, gone)
    text = report(rows, notes)
    if options.seeds > 1:
        print(f"\n{text}")
    if options.markdown is not None:
        options.markdown.write_text(text, encoding="utf-8")
    for note in notes:
        print(note)
    for versions in {
        json.dumps(row["versions"]): row["versions"] for row in rows if "versions" in row
    }.values():
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
    return 0 if any("fit_s" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
