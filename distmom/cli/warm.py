"""The command that compiles kernels ahead of the first fit: warm."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from distmom.cli.terminal import say
from distmom.spectral.capabilities import Capability

if TYPE_CHECKING:
    from distmom.corpus import Corpus, RowCorpus, ViewCorpus

#: number of steps of sequences, and of rows
_N_STEPS = 4_000
#: numbers of documents, words, labels and topics of the corpus with which kernels are compiled
_N_DOCUMENTS, _N_WORDS, _N_LABELS, _N_TOPICS = 400, 60, 6, 2
#: numbers of documents and labels of a corpus with a gate, which has enough documents to rank the best labels again
_N_MANY_DOCUMENTS, _N_MANY_LABELS = 2_600, 1_001


@click.command()
def warm() -> None:
    """Compile all kernels, so that the first fit on this machine does not wait for them.

    Small models of every kind are fitted and used. The compiled code is kept in Numba's cache, for this version of
    distmom and this processor; a second run takes seconds. On a cluster, run it once on every host.

    \b
    Example: distmom warm
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="distmom-") as temporary:
        for name, work in _jobs(Path(temporary)):
            before = time.perf_counter()
            # Warnings about fits of such small corpora are of no interest.
            logging.disable(logging.WARNING)
            try:
                work()
            finally:
                logging.disable(logging.NOTSET)
            say(f"{name}: {time.perf_counter() - before:.1f} s")
    say(f"compiled in {time.perf_counter() - started:.1f} s")


@dataclass(frozen=True)
class _Data:
    """What models are fitted to."""

    documents: Corpus
    #: documents with many labels
    many: Corpus
    views: ViewCorpus
    three_views: RowCorpus
    #: rows of independent sources, and sequences of several chains
    sources: RowCorpus
    chains: RowCorpus
    #: sequences of hidden states by the kind of their steps, split across shards
    steps: dict[str, RowCorpus]


def _drawn(place: Path) -> _Data:
    """Draw the data that models are fitted to; corpora are written below ``place``."""
    from distmom.corpus import RowCorpus, ViewCorpus, from_arrays
    from distmom.simulate.chains import FactorialChains
    from distmom.simulate.views import poisson_sentences

    rng = np.random.default_rng(0)
    topic = rng.integers(0, _N_TOPICS, _N_MANY_DOCUMENTS)
    chance = np.where(np.arange(_N_WORDS) % _N_TOPICS == topic[:, None], 0.6, 0.1)
    own = chance[:_N_DOCUMENTS]
    words = rng.poisson(own).astype(np.int32)
    labels = (rng.random((_N_DOCUMENTS, _N_LABELS)) < own[:, :_N_LABELS]).astype(np.uint8)
    # Factors are found by their skewness, which takes a few thousand groups.
    views = poisson_sentences(rng.gamma(0.3, size=(12, _N_TOPICS)), [1.0, 0.5], 3000, 5)
    states = np.cumsum(rng.random(_N_STEPS) < 0.1) % _N_TOPICS
    steps = {
        "symbols": rng.integers(0, 3, _N_STEPS) + 2 * states,
        "dense": rng.standard_normal((_N_STEPS, 3)) + 3.0 * states[:, None],
    }
    # Several chains are found by their skewness.
    start, fall, rise = np.array([[0.2, 0.3], [0.4, 0.3], [0.1, 0.1]])
    chains = FactorialChains(rng.normal(size=(_N_TOPICS, 6)), np.zeros(6), start, fall, rise)
    drawn = chains.sample(2 * _N_STEPS, 3, noise=0.1)
    # With many labels there is a gate. A stack by classes is tried, as few labels hold most pairs, and the best labels
    # are ranked again, as the labels of documents depend on their lengths.
    is_long = (rng.random(_N_MANY_DOCUMENTS) < 0.5)[:, None]
    many = (rng.random((_N_MANY_DOCUMENTS, _N_MANY_LABELS)) < 0.01).astype(np.uint8)
    many[:, :_N_WORDS] |= rng.random(chance.shape) < np.where(is_long, chance, chance[:, ::-1])
    of_lengths = rng.poisson(np.where(is_long, 3.0, 0.5) * chance).astype(np.int32)
    return _Data(
        documents=from_arrays(place / "corpus", words, labels, shard_documents=_N_DOCUMENTS // 2),
        many=from_arrays(place / "many", of_lengths, many, shard_documents=_N_MANY_DOCUMENTS // 2),
        views=ViewCorpus(views.X, views.groups),
        three_views=RowCorpus(rng.standard_normal((_N_STEPS, 9)) + 3.0 * states[:, None]),
        sources=RowCorpus(rng.random((_N_STEPS, _N_TOPICS))),
        chains=RowCorpus(drawn.X, drawn.lengths),
        steps={kind: RowCorpus(X, [_N_STEPS], shard_rows=_N_STEPS // 4) for kind, X in steps.items()},
    )


def _fit(data: _Data, place: Path, name: str, options: dict[str, Any], corpus: Corpus) -> None:
    """Fit and use models of a class, those of documents on ``corpus``."""
    from distmom.evaluate.dispatch import evaluate
    from distmom.models import estimator
    from distmom.predict import assign_rows, predict_corpus, transform_corpus

    kind = estimator(name)
    if Capability.SEARCH in kind.capabilities or name == "network":
        # Searches of rows, and networks of dense rows, have no compiled kernels.
        return
    if Capability.ROWS in kind.capabilities:
        for rows, own in _row_fits(data, name, kind, options):
            model = kind(_N_TOPICS, **own).fit_corpus(rows)
            if model.can(Capability.COMPONENTS):
                assign_rows(model, rows, place / name, overwrite=True)
        return
    model = kind(_N_TOPICS, **options)
    if Capability.VIEWS in kind.capabilities:
        model.fit_corpus(data.views)
        return
    model.fit_corpus(corpus)
    if Capability.COMPONENTS in kind.capabilities:
        assign_rows(model, corpus, place / name, overwrite=True)
    for capability, use in ((Capability.LABELS, predict_corpus), (Capability.SHARES, transform_corpus)):
        if capability in kind.capabilities:
            use(model, corpus, place / capability, overwrite=True)
            evaluate(model, corpus)


def _row_fits(
    data: _Data, name: str, kind: Any, options: dict[str, Any]
) -> Iterator[tuple[RowCorpus, dict[str, Any]]]:
    """Yield the rows that a class of models is fitted to, and its parameters."""
    if "widths" in kind.parameters():
        yield data.three_views, {**options, "widths": "3,3,3"}
    elif name == "ica":
        yield data.sources, {}
    elif name == "factorial-hmm":
        yield data.chains, {"n_em_iter": 1}
    else:
        for layer in kind.reads:
            # Dense steps have only one kind of first model.
            yield data.steps[layer], {**(options if layer == "symbols" else {}), "n_em_iter": 1}


def _jobs(place: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of every kind of work, and a function that does it."""
    from distmom.models import ESTIMATORS, estimator

    data = _drawn(place)
    for listing in ESTIMATORS:
        declared = estimator(listing.name).parameters()
        # Each way of scoring and of refinement has kernels of its own.
        name = next((each for each in ("head", "refine", "init") if each in declared), None)
        shared = {"max_df": 1.0} if "max_df" in declared else {}
        for choice in declared[name].choices if name is not None else [None]:
            options = shared if name is None else {**shared, name: choice}
            shown = listing.name if choice is None else f"{listing.name}, {name} {choice}"
            yield shown, partial(_fit, data, place, listing.name, options, data.documents)
    of_many: dict[str, dict[str, Any]] = {
        "many labels": {},
        # Whichever heads were chosen, some of the scored weights are large and memory-mapped, others are small.
        "many labels, head linear": {"head": "linear"},
        # Limits on weights have kernels of their own.
        "many labels, few weights": {"weights_per_word": 5, "weights_per_label": 5},
    }
    for shown, more in of_many.items():
        own = {**more, "n_topics": 0}
        yield f"multilabel, {shown}", partial(_fit, data, place, "multilabel", own, data.many)
