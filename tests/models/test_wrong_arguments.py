"""Paths and data in place of corpora, models and clients are refused by name."""

import asyncio
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import distmom
from distmom.corpus import text_corpus
from distmom.errors import UsageError
from distmom.predict import predict_corpus, transform_corpus

TEXTS = ["salmon and herring", "herring nets", "oak and pine", "oak leaves"] * 15
LABELS = [["fish"], ["fish"], ["trees"], ["trees"]] * 15


@pytest.fixture(scope="module")
def labelling():
    return distmom.MultiLabelMoM(2, head="linear", keep_sums=True).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def topics():
    return distmom.SpectralLDA(2, min_df=0.0, max_df=1.0).fit(TEXTS)


@pytest.mark.parametrize(
    ("corpus", "found"),
    [
        ("corpus", "the path 'corpus'"),
        (Path("corpus"), "the path 'corpus'"),
        (TEXTS, "list"),
        (None, "NoneType"),
    ],
)
def test_what_is_not_a_corpus_is_refused(labelling, topics, tmp_path, corpus, found):
    for use in (
        distmom.MultiLabelMoM(2).fit_corpus,
        distmom.SphericalMixture(2).fit_corpus,
        distmom.SpectralLDA(2).plan,
        labelling.partial_fit_corpus,
        labelling.remove_corpus,
        lambda each: distmom.evaluate(labelling, each),
        lambda each: distmom.evaluate(topics, each),
        lambda each: predict_corpus(labelling, each, tmp_path / "out"),
        lambda each: transform_corpus(topics, each, tmp_path / "out"),
    ):
        with pytest.raises(UsageError, match=f"corpus: expected a corpus, as .* returns it, got {found}"):
            use(corpus)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_model_is_refused(tmp_path):
    corpus = text_corpus(TEXTS, LABELS)
    for use in (
        lambda each: distmom.evaluate(each, corpus),
        lambda each: distmom.write_report(each, tmp_path / "report.html"),
        lambda each: predict_corpus(each, corpus, tmp_path / "out"),
    ):
        with pytest.raises(
            UsageError, match=r"model: expected a fitted model, as .* returns it, got the path 'm'"
        ):
            use("m")


@pytest.mark.cluster
def test_what_is_not_a_synchronous_client_is_refused():
    model, corpus = distmom.MultiLabelMoM(2, head="linear"), text_corpus(TEXTS, LABELS)

    async def fit_with_asynchronous(address):
        async with Client(address, asynchronous=True) as client:
            model.fit_corpus(corpus, client=client)

    with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        address = cluster.scheduler_address
        for other, found in ((cluster, "LocalCluster"), (address, "str")):
            with pytest.raises(UsageError, match=rf"client: expected a distributed\.Client, got {found}"):
                model.fit_corpus(corpus, client=other)
        with pytest.raises(UsageError, match=r"expected a distributed\.Client that is not asynchronous"):
            asyncio.run(fit_with_asynchronous(address))
