"""Paths and data in place of corpora, models and clients, and masked values, are refused by name."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

import distmom
from distmom.corpus import text_corpus
from distmom.errors import InputError, UsageError
from distmom.models import ESTIMATORS, estimator
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


def test_a_corpus_in_place_of_documents_or_rows_is_refused(labelling, topics):
    corpus = text_corpus(TEXTS, LABELS)
    rows = distmom.SphericalMixture(2, random_state=0).fit(np.random.default_rng(0).standard_normal((60, 3)))
    for use in (
        distmom.MultiLabelMoM(2).fit,
        labelling.predict,
        labelling.decision_function,
        distmom.SpectralLDA(2).fit,
        topics.transform,
        distmom.SphericalMixture(2).fit,
        rows.predict,
        distmom.ICA(2).fit,
        distmom.HiddenMarkov(2).fit,
        distmom.MultiView(2, widths="1,1,1").fit,
        distmom.ProductMixture(2).fit,
        distmom.LatentNetwork(2).fit,
    ):
        with pytest.raises(
            UsageError, match=r"X: expected documents or rows, got a corpus, which is for fit_corpus"
        ):
            use(corpus)


def test_sparse_rows_are_refused_where_rows_are_dense():
    X = np.random.default_rng(0).standard_normal((60, 3))
    rows = distmom.SphericalMixture(2, random_state=0).fit(X)
    for use in (
        distmom.SphericalMixture(2).fit,
        distmom.ICA(2).fit,
        distmom.DiagonalMixture(2).fit,
        rows.predict,
    ):
        with pytest.raises(InputError, match="X: expected dense rows, got a sparse matrix"):
            use(csr_array(X))


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


@pytest.mark.parametrize(
    ("number", "expected"),
    [("10", "a whole number, got '10'"), (2.5, "a whole number, got 2.5"), (-1, "at least 0, got -1")],
)
def test_numbers_of_words_that_are_not_whole_numbers_are_refused(labelling, topics, number, expected):
    present = distmom.ProductMixture(1).fit(np.random.default_rng(0).integers(0, 2, (60, 6)))
    for use in (topics.topics, labelling.topics, present.topics):
        with pytest.raises(UsageError, match=f"n_top: expected {expected}"):
            use(number)
    with pytest.raises(UsageError, match=f"n_top: expected {expected}"):
        distmom.evaluate(topics, text_corpus(TEXTS), n_top=number)
    with pytest.raises(UsageError, match=f"n_words: expected {expected}"):
        topics.pyldavis_input(number)


@pytest.mark.parametrize("name", [listing.name for listing in ESTIMATORS])
def test_the_summary_of_a_model_that_is_not_fitted_is_refused(name):
    with pytest.raises(NotFittedError):
        estimator(name)().summary()


ROWS = np.random.default_rng(0).normal(size=(60, 6))
WORDS = np.ones((60, 6), int)
GROUPS = np.repeat(np.arange(20), 3)


def masked(array):
    """Return an array whose first value is masked."""
    return np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) < 1)


@pytest.mark.parametrize(
    ("model", "arguments", "name"),
    [
        (distmom.SphericalMixture(2), (masked(ROWS),), "X"),
        (distmom.DiagonalMixture(2), (masked(ROWS),), "X"),
        (distmom.ICA(2), (masked(ROWS),), "X"),
        (distmom.LatentNetwork(2), (masked(ROWS),), "X"),
        (distmom.LatentNetwork(2, views="several"), (ROWS, masked(GROUPS)), "groups"),
        (distmom.HiddenMarkov(2), (masked(ROWS),), "X"),
        (distmom.HiddenMarkov(2), (masked(GROUPS),), "X"),
        (distmom.FactorialHMM(2), (masked(ROWS),), "X"),
        (distmom.MultiView(2), ((masked(ROWS), ROWS, ROWS),), r"X\[0\]"),
        (distmom.ECA(2), (masked(ROWS), GROUPS), "X"),
        (distmom.ECA(2), (ROWS, masked(GROUPS)), "groups"),
        (distmom.GaussianSearch(2), (masked(ROWS),), "X"),
        (distmom.GaussianSearch(2), (ROWS, masked(ROWS[:, 0])), "y"),
        (distmom.SubspaceSearch(2, dimension=1), (masked(ROWS),), "X"),
        (distmom.RegressionSearch(2), (ROWS, masked(ROWS[:, 0])), "y"),
        (distmom.ProductMixture(2), (masked(WORDS),), "X"),
        (distmom.SpectralLDA(2), (masked(WORDS),), "X"),
        (distmom.MultiLabelMoM(2), (masked(WORDS), GROUPS % 2), "X"),
        (distmom.MultiLabelMoM(2), (WORDS, masked(GROUPS % 2)), "y"),
        (distmom.MultiLabelMoM(2), (WORDS, masked(np.eye(60, dtype=int))), "y"),
    ],
)
def test_masked_values_are_refused(model, arguments, name):
    def fit(*data):
        if isinstance(model, distmom.ECA | distmom.LatentNetwork) and len(data) == 2:
            return model.fit(data[0], groups=data[1])
        return model.fit(*data)

    with pytest.raises(InputError, match=f"^{name}: values: expected no masked ones, got 1$"):
        fit(*arguments)


class LazyFrame:
    """A stand-in for the class of Polars: a table of which only the schema is known."""

    columns, shape = ("a", "b"), None

    def collect_schema(self):
        return {"a": float, "b": float}


@pytest.mark.parametrize(
    "model", [distmom.SphericalMixture(2), distmom.HiddenMarkov(2), distmom.SpectralLDA(2)]
)
def test_lazy_tables_are_refused(model):
    with pytest.raises(
        UsageError, match=r"^X: expected a table in memory, got a LazyFrame: use its collect\(\)$"
    ):
        model.fit(LazyFrame())


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
