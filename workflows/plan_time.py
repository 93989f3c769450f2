"""Compare the times of plans with those of fits: ten fits, as a Markdown table.

    python workflows/plan_time.py [--data ../shared/data] [--out DIR]

The bundled titles and planted corpora are always there; corpora that are absent below ``--data`` are left out. One
corpus is read from an S3 server that the script starts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from distmom.corpus import Corpus, ViewCorpus, copy_corpus, ingest, open_corpus
from distmom.engine import open_executor
from distmom.models import ECA, AnchorTopics, MultiLabelMoM, SingleTopic, SpectralLDA, TopicMoments
from distmom.simulate import preset, synthesise
from distmom.simulate.views import poisson_sentences


def titles(place: Path) -> Corpus:
    """Ingest the bundled titles."""
    data = resources.files("distmom") / "data"
    with (
        resources.as_file(data / "titles-train.tsv.xz") as train,
        resources.as_file(data / "titles-labels.txt.xz") as labels,
    ):
        return ingest(
            train, place / "titles", format="tsv", labels=labels, stop_words="english", shard_documents=5000
        )


def fits(place: Path, data: Path) -> Iterator[tuple[str, Any, Any, int]]:
    """Yield name, model, corpus and number of workers of every fit."""
    corpus = titles(place)
    yield "topics of titles, k = 20", SpectralLDA(20), corpus, 0
    yield "single topics of titles, k = 20, two workers", SingleTopic(20), corpus, 2
    yield "linear head, titles", MultiLabelMoM(40, head="linear"), corpus, 0
    yield "automatic blend, titles", MultiLabelMoM(40), corpus, 0
    yield "kept moments of titles, k = 30", TopicMoments(30), corpus, 0
    model = preset("wikilshtc", n_documents=100_000, n_words=200_000, n_labels=50_000, n_states=50)
    large = synthesise(model, place / "planted", shard_documents=10_000)
    yield "posterior head, 100,000 planted documents", MultiLabelMoM(50, head="posterior"), large, 0
    yield "the same on two workers", MultiLabelMoM(50, head="posterior"), large, 2
    sentences = poisson_sentences(*_factors(), 20_000, 6)
    yield "factors of views, k = 4", ECA(4, orders="both"), ViewCorpus(sentences.X, sentences.groups), 0
    kos = data / "kos"
    if kos.exists():
        news = ingest(
            kos / "docword.kos.txt.xz", place / "kos", format="uci", vocabulary=kos / "vocab.kos.txt.xz",
            shard_documents=500,
        )  # fmt: skip
        yield "anchor words of kos, k = 20", AnchorTopics(20), news, 0
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "key", "AWS_REGION": "us-east-1",
            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        _make_bucket(f"http://{host}:{port}")
        copy_corpus(str(place / "titles"), "s3://bucket/titles")
        yield "topics of titles from S3, k = 20", SpectralLDA(20), open_corpus("s3://bucket/titles"), 0
    finally:
        server.stop()


def _factors() -> tuple[Any, list[float]]:
    import numpy as np

    return np.random.default_rng(0).gamma(0.3, size=(40, 4)), [1.0, 0.5, 2.0, 0.7]


def _make_bucket(endpoint: str) -> None:
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    n_covered = n_fits = 0
    print("| fit | planned, s | taken, s | covered |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for name, model, corpus, workers in fits(Path(place), options.data):
            with open_executor(workers=workers) as executor:
                total = model.plan(corpus, n_workers=max(1, workers)).total_seconds
                started = time.perf_counter()
                model.fit_corpus(corpus, client=executor)
                taken = time.perf_counter() - started
            covered = total.low <= taken <= total.high
            n_covered, n_fits = n_covered + covered, n_fits + 1
            print(
                f"| {name} | {total.low:.1f} to {total.high:.1f} | {taken:.1f} | {'yes' if covered else 'no'} |",
                flush=True,
            )
    print(f"\n{n_covered} of {n_fits} fits took what was planned.")


if __name__ == "__main__":
    main()
