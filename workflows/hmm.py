"""Hidden Markov models beside hmmlearn: planted symbols, planted dense steps, and tagged sentences.

The peer is run in the same process with restarts, of which the one with the best training likelihood counts; it
needs ``pip install hmmlearn``. For the sentences of the Brown corpus, words with at least 20 occurrences are
symbols, and the others are mapped to classes by their suffix; about a tenth of the sentences, drawn at random, is
held out. Tags are used for the accuracies only: states are matched to tags one to one (``1-1``), or each state to
its most frequent tag (``m-1``), on the held-out sentences. Of several first models the one with the best training
likelihood is refined further.

Example::

    python workflows/hmm.py --only planted dense
    python workflows/hmm.py --only brown --brown brown-tagged.txt.xz --restarts 10 --json hmm.json
"""

from __future__ import annotations

import argparse
import json
import logging
import lzma
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.corpus import RowCorpus
from distmom.models import HiddenMarkov

#: endings of rare words that are symbols of their own, the first that fits counts
SUFFIXES = (
    "tion", "ment", "ness", "able", "ible", "ing", "est", "ous", "ive", "ity", "ful", "ant", "ent", "ly", "ed",
    "er", "al", "ic", "'s", "s",
)  # fmt: skip
LEAST_OCCURRENCES = 20
#: first models of the sentences that are tried, with the columns of the sketch beyond the states
TRIED = [(init, columns) for init in ("anchors", "clusters") for columns in (4, 10, 28)]


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=["planted", "dense", "brown"], default=["planted", "dense"]
    )
    parser.add_argument("--brown", type=Path, help="brown-tagged.txt.xz, one sentence of word/TAG per line")
    parser.add_argument("--steps", type=int, default=200_000, help="planted steps [%(default)s]")
    parser.add_argument("--states", type=int, default=12, help="states of the sentences [%(default)s]")
    add_peer_options(parser, restarts=10)
    parser.add_argument("--passes", type=int, nargs="+", default=[0, 10, 50],
                        help="Baum-Welch passes after the moments [%(default)s]")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name in args.only:
        rows += {"planted": planted, "dense": dense, "brown": brown}[name](args)
        show(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


# Planted sequences


def planted(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Symbols of a model with 5 states and 100 symbols."""
    rng = np.random.default_rng(args.seed)
    truth = HiddenMarkov(5)
    truth.startprob_ = rng.dirichlet(np.ones(5))
    truth.transmat_ = 0.6 * np.eye(5) + 0.4 * rng.dirichlet(np.ones(5), 5)
    truth.emissionprob_, truth.means_, truth.variances_ = rng.dirichlet(np.full(100, 0.2), 5), None, None
    truth.n_features_in_, truth.fit_seconds_ = 100, 0.0
    train, test = (truth.sample(n, args.seed + i)[0] for i, n in enumerate((args.steps, 20_000)))
    rows = []
    for n in args.passes:
        model, seconds = timed(HiddenMarkov(5, n_em_iter=n), RowCorpus(train, [len(train)], n_symbols=100))
        rows.append(planted_row(f"moments + {n}", "planted", model, truth.emissionprob_, truth.transmat_, seconds)
                    | {"held-out": model.score(test) / len(test)})  # fmt: skip
    if args.restarts:
        from hmmlearn.hmm import CategoricalHMM

        peer, seconds = best_of(CategoricalHMM, train[:, None], [len(train)], 5, args, n_features=100)
        rows.append(planted_row(peer_name(args), "planted", peer, truth.emissionprob_, truth.transmat_, seconds)
                    | {"held-out": peer.score(test[:, None]) / len(test)})  # fmt: skip
    return rows


def dense(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Dense steps of a model with 6 states and 20 values."""
    rng = np.random.default_rng(args.seed)
    truth = HiddenMarkov(6)
    truth.startprob_ = rng.dirichlet(np.ones(6))
    truth.transmat_ = 0.6 * np.eye(6) + 0.4 * rng.dirichlet(np.ones(6), 6)
    truth.emissionprob_, truth.means_ = None, rng.standard_normal((6, 20))
    truth.variances_ = rng.uniform(0.5, 2.0, (6, 20))
    truth.n_features_in_, truth.fit_seconds_ = 20, 0.0
    train, test = (truth.sample(n, args.seed + i)[0] for i, n in enumerate((args.steps, 20_000)))
    rows = []
    for n in args.passes:
        model, seconds = timed(HiddenMarkov(6, n_em_iter=n), RowCorpus(train, [len(train)]))
        rows.append(planted_row(f"moments + {n}", "dense", model, truth.means_, truth.transmat_, seconds)
                    | {"held-out": model.score(test) / len(test)})  # fmt: skip
    if args.restarts:
        from hmmlearn.hmm import GaussianHMM

        peer, seconds = best_of(GaussianHMM, train, [len(train)], 6, args, covariance_type="diag")
        rows.append(planted_row(peer_name(args), "dense", peer, truth.means_, truth.transmat_, seconds)
                    | {"held-out": peer.score(test) / len(test)})  # fmt: skip
    return rows


def planted_row(
    system: str, data: str, model: Any, emissions: np.ndarray, transition: np.ndarray, seconds: float
) -> dict[str, Any]:
    """Return the mean absolute errors of the parameters, states matched one to one by their emissions."""
    found = model.means_ if getattr(model, "emissionprob_", None) is None else model.emissionprob_
    cost = np.abs(emissions[:, None] - np.asarray(found)[None]).mean(axis=2)
    _, order = linear_sum_assignment(cost)
    return {
        "data": data,
        "system": system,
        "emissions": float(np.abs(found[order] - emissions).mean()),
        "transition": float(np.abs(model.transmat_[np.ix_(order, order)] - transition).mean()),
        "seconds": seconds,
    }


# Tagged sentences


def brown(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Sentences with tags."""
    if args.brown is None:
        raise SystemExit("--brown: expected the path of brown-tagged.txt.xz, got none")
    (X, _, lengths), (test, tags, test_lengths), names = sentences(args.brown, args.seed)
    corpus = RowCorpus(X, lengths, n_symbols=len(names), names=names)
    rows = []
    started = time.perf_counter()
    first = min(args.passes, key=lambda n: abs(n - 10))
    tried = [
        HiddenMarkov(args.states, init=init, n_oversamples=columns, n_em_iter=first).fit_corpus(corpus)
        for init, columns in TRIED
    ]
    best = int(np.argmax([model.score(X, lengths=lengths) for model in tried]))
    searched = time.perf_counter() - started
    for n in args.passes:
        init, columns = TRIED[best]
        options = {"init": init, "n_oversamples": columns, "n_em_iter": n}
        model, seconds = timed(HiddenMarkov(args.states, **options), corpus)
        row = {"data": "brown", "system": f"{init} + {n}", "search": searched, "seconds": seconds}
        row["training"] = model.score(X, lengths=lengths) / len(X)
        row["held-out"] = model.score(test, lengths=test_lengths) / len(test)
        rows.append(row | accuracies(model.predict(test, test_lengths), tags, args.states))
    if args.restarts:
        from hmmlearn.hmm import CategoricalHMM

        peer, seconds = best_of(CategoricalHMM, X[:, None], lengths, args.states, args, n_features=len(names))
        row = {"data": "brown", "system": peer_name(args), "seconds": seconds}
        # Words of the held-out sentences that a state never emits must not have probability zero.
        smoothed = peer.emissionprob_ + 1e-6
        peer.emissionprob_ = smoothed / smoothed.sum(axis=1, keepdims=True)
        row["training"] = peer.score(X[:, None], lengths) / len(X)
        row["held-out"] = peer.score(test[:, None], test_lengths) / len(test)
        rows.append(row | accuracies(peer.predict(test[:, None], test_lengths), tags, args.states))
    return rows


def sentences(path: Path, seed: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], list[str]]:
    """Return symbols, tags and lengths of training and held-out sentences, and the names of the symbols."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        read = [[token.rsplit("/", 1) for token in line.split()] for line in lines]
    held = np.random.default_rng(seed).random(len(read)) < 0.1
    training = [tokens for tokens, out in zip(read, held, strict=True) if not out]
    counts = Counter(word.lower() for tokens in training for word, _ in tokens)

    def symbol(word: str) -> str:
        if counts[word.lower()] >= LEAST_OCCURRENCES:
            return word.lower()
        if any(letter.isdigit() for letter in word):
            return "<number>"
        if word[:1].isupper():
            return "<capital>"
        return next((f"<-{suffix}>" for suffix in SUFFIXES if word.endswith(suffix)), "<other>")

    names = sorted({symbol(word) for tokens in training for word, _ in tokens} | {"<other>"})
    number = {name: i for i, name in enumerate(names)}
    tag = {name: i for i, name in enumerate(sorted({name for tokens in read for _, name in tokens}))}

    def part(which: bool) -> tuple[np.ndarray, ...]:
        own = [tokens for tokens, out in zip(read, held, strict=True) if out == which]
        symbols = [number.get(symbol(word), number["<other>"]) for tokens in own for word, _ in tokens]
        return (
            np.array(symbols, np.int32), np.array([tag[name] for tokens in own for _, name in tokens]),
            np.array([len(tokens) for tokens in own]),
        )  # fmt: skip

    return part(False), part(True), names


def accuracies(states: np.ndarray, tags: np.ndarray, k: int) -> dict[str, float]:
    """Return the shares of steps whose tag is that matched to their state."""
    table = np.zeros((k, int(tags.max()) + 1))
    np.add.at(table, (states, tags), 1.0)
    rows, columns = linear_sum_assignment(-table)
    n = len(tags)
    return {"1-1": float(table[rows, columns].sum() / n), "m-1": float(table.max(axis=1).sum() / n)}


# Both systems


def timed(model: HiddenMarkov, corpus: RowCorpus) -> tuple[HiddenMarkov, float]:
    """Fit a model and return it with the seconds taken."""
    started = time.perf_counter()
    return model.fit_corpus(corpus), time.perf_counter() - started


def add_peer_options(parser: argparse.ArgumentParser, restarts: int) -> None:
    """Add the options of `best_of`."""
    add = parser.add_argument
    add("--restarts", type=int, default=restarts, help="of hmmlearn; 0 leaves it out [%(default)s]")
    add("--iterations", type=int, default=100, help="of hmmlearn, at most [%(default)s]")
    add("--seed", type=int, default=0, help="of planted data, and of hmmlearn [%(default)s]")


def best_of(
    kind: Any,
    X: np.ndarray,
    lengths: Any,
    k: int,
    args: argparse.Namespace,
    implementation: str = "scaling",
    **options: Any,
) -> tuple[Any, float]:
    """Return the best of several fits of hmmlearn by its training likelihood, with the seconds of all.

    Of its two implementations the one with scaling is several times as fast, with the same likelihoods; it fails
    where a step is very unlikely in all states, which ``log`` allows.
    """
    # It logs every step that loses likelihood by rounding.
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)
    started = time.perf_counter()
    fits = [
        kind(
            k, n_iter=args.iterations, random_state=args.seed + i, implementation=implementation, **options
        ).fit(X, lengths)
        for i in range(args.restarts)
    ]
    best = max(fits, key=lambda model: model.monitor_.history[-1])
    return best, time.perf_counter() - started


def peer_name(args: argparse.Namespace) -> str:
    """Return the name of the peer in the table."""
    return f"hmmlearn, best of {args.restarts}"


def show(rows: list[dict[str, Any]]) -> None:
    """Print results with one line per system."""
    columns = list(dict.fromkeys(name for row in rows for name in row if name not in ("data", "system")))
    print(f"{'data':8} {'system':22}" + "".join(f"{name:>12}" for name in columns))
    for row in rows:
        cells = (f"{row[name]:12.4f}" if name in row else " " * 12 for name in columns)
        print(f"{row['data']:8} {row['system']:22}" + "".join(cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
