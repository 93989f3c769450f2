"""The command that compiles kernels ahead of the first fit: warm."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from distmom.cli.terminal import say

#: numbers of documents, words, labels and topics of the corpus with which kernels are compiled
_N_STEPS = 4_000
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


def _jobs(place: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of every kind of work, and a function that does it."""
    from distmom.corpus import RowCorpus, ViewCorpus, from_arrays
    from distmom.evaluate.dispatch import evaluate
    from distmom.models import ESTIMATORS, estimator
    from distmom.predict import assign_rows, predict_corpus, transform_corpus
    from distmom.simulate.chains import FactorialChains
    from distmom.simulate.views import poisson_sentences
    from distmom.spectral.capabilities import Capability

    rng = np.random.default_rng(0)
    topic = rng.integers(0, _N_TOPICS, _N_MANY_DOCUMENTS)
    chance = np.where(np.arange(_N_WORDS) % _N_TOPICS == topic[:, None], 0.6, 0.1)
    own = chance[:_N_DOCUMENTS]
    words = rng.poisson(own).astype(np.int32)
    labels = (rng.random((_N_DOCUMENTS, _N_LABELS)) < own[:, :_N_LABELS]).astype(np.uint8)
    corpus = from_arrays(place / "corpus", words, labels, shard_documents=_N_DOCUMENTS // 2)
    # Factors are found by their skewness, which takes a few thousand groups.
    views = poisson_sentences(rng.gamma(0.3, size=(12, _N_TOPICS)), [1.0, 0.5], 3000, 5)

    # Sequences of two states, cut over shards.
    states = np.cumsum(rng.random(_N_STEPS) < 0.1) % _N_TOPICS
    rows = {
        "symbols": RowCorpus(rng.integers(0, 3, _N_STEPS) + 2 * states, [_N_STEPS], shard_rows=_N_STEPS // 4),
        "dense": RowCorpus(
            rng.standard_normal((_N_STEPS, 3)) + 3.0 * states[:, None], [_N_STEPS], shard_rows=_N_STEPS // 4
        ),
    }

    three_views = RowCorpus(rng.standard_normal((_N_STEPS, 9)) + 3.0 * states[:, None])
    sources = RowCorpus(rng.random((_N_STEPS, _N_TOPICS)))
    # Several chains are found by their skewness.
    start, fall, rise = np.array([[0.2, 0.3], [0.4, 0.3], [0.1, 0.1]])
    chains = FactorialChains(rng.normal(size=(_N_TOPICS, 6)), np.zeros(6), start, fall, rise)
    drawn = chains.sample(2 * _N_STEPS, 3, noise=0.1)
    windows = RowCorpus(drawn.X, drawn.lengths)

    # Many labels have a gate, a stack by classes is tried where few of them hold most pairs, and the best labels are
    # ranked again where that helps, as it does if the labels of documents depend on their lengths. Limits on weights
    # have kernels of their own.
    is_long = (rng.random(_N_MANY_DOCUMENTS) < 0.5)[:, None]
    many = (rng.random((_N_MANY_DOCUMENTS, _N_MANY_LABELS)) < 0.01).astype(np.uint8)
    many[:, :_N_WORDS] |= rng.random(chance.shape) < np.where(is_long, chance, chance[:, ::-1])
    of_lengths = rng.poisson(np.where(is_long, 3.0, 0.5) * chance).astype(np.int32)
    of_many = from_arrays(place / "many", of_lengths, many, shard_documents=_N_MANY_DOCUMENTS // 2)

    def fit(name: str, options: dict[str, Any], corpus: Any = corpus) -> None:
        if "widths" in estimator(name).parameters():
            # Three views of three columns each.
            model = estimator(name)(_N_TOPICS, widths="3,3,3", **options).fit_corpus(three_views)
            if model.can(Capability.COMPONENTS):
                assign_rows(model, three_views, place / name, overwrite=True)
            return
        # Independent components are not Gaussian, and chains are skewed.
        for each, data, more in (("ica", sources, {}), ("factorial-hmm", windows, {"n_em_iter": 1})):
            if name == each:
                model = estimator(name)(_N_TOPICS, **more).fit_corpus(data)
                assign_rows(model, data, place / name, overwrite=True)
                return
        if Capability.SEARCH in estimator(name).capabilities or name == "network":
            # Searches of rows, and networks of dense rows, have no compiled kernels.
            return
        if Capability.ROWS in estimator(name).capabilities:
            for kind in estimator(name).reads:
                # Dense steps have only one kind of first model.
                own = options if kind == "symbols" else {}
                model = estimator(name)(_N_TOPICS, n_em_iter=1, **own).fit_corpus(rows[kind])
                assign_rows(model, rows[kind], place / name, overwrite=True)
            return
        model = estimator(name)(_N_TOPICS, **options)
        if Capability.VIEWS in model.capabilities:
            model.fit_corpus(ViewCorpus(views.X, views.groups))
            return
        model.fit_corpus(corpus)
        for capability, use in ((Capability.LABELS, predict_corpus), (Capability.SHARES, transform_corpus)):
            if capability in model.capabilities:
                use(model, corpus, place / capability, overwrite=True)
                evaluate(model, corpus)

    for listing in ESTIMATORS:
        declared = estimator(listing.name).parameters()
        # Each way of scoring and of refinement has kernels of its own.
        name = next((each for each in ("head", "refine", "init") if each in declared), None)
        shared = {"max_df": 1.0} if "max_df" in declared else {}
        for choice in declared[name].choices if name is not None else [None]:
            options = shared if name is None else {**shared, name: choice}
            shown = listing.name if choice is None else f"{listing.name}, {name} {choice}"
            yield shown, partial(fit, listing.name, options)
    yield "multilabel, many labels", partial(fit, "multilabel", {"n_topics": 0}, of_many)
    # Whichever heads were chosen, weights are scored that are large, and read from maps, beside small arrays.
    linear = {"head": "linear", "n_topics": 0}
    yield "multilabel, many labels, head linear", partial(fit, "multilabel", linear, of_many)
    limits = {"weights_per_word": 5, "weights_per_label": 5, "n_topics": 0}
    yield "multilabel, many labels, few weights", partial(fit, "multilabel", limits, of_many)
