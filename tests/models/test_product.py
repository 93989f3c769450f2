"""Mixtures of product distributions: exact populations, samples, EM and documents read by brute force."""

import inspect
import re
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import WeightedCorpus, matched
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.special import logsumexp
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from distmom.cli.main import main
from distmom.corpus import MemoryCorpus, from_arrays, text_corpus, write_corpus
from distmom.engine import open_executor
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import load_model
from distmom.models.gaussian.estimator import SphericalMixture
from distmom.models.product.estimator import ProductMixture
from distmom.predict import assign_rows
from distmom.simulate.views import MixedViewPopulation

MEANS = np.random.default_rng(3).uniform(0.1, 0.9, (2, 12))
WEIGHTS = np.array([0.35, 0.65])


def probabilities(X):
    """Return P(x | h) for every document and component, by the definition."""
    return np.stack([np.prod(np.where(X == 1, mean, 1.0 - mean), axis=1) for mean in MEANS], axis=1)


def population():
    X = np.array(list(product((0, 1), repeat=12)))
    return WeightedCorpus(X, np.ones((len(X), 1), int), probabilities(X) @ WEIGHTS, shard_documents=1000)


def sample(n, seed):
    return MixedViewPopulation(MEANS, WEIGHTS, [("bits", 12)]).sample(n, seed).X.astype(int)


def planted(k=3, d=30, n=2000, seed=0):
    """Return documents of a mixture whose log-odds differ by a standard deviation of 2, and its parameters."""
    rng = np.random.default_rng(seed)
    means = 1.0 / (1.0 + np.exp(-rng.normal(-1.0, 1.0, d) - 2.0 * rng.normal(size=(k, d))))
    weights = rng.dirichlet(np.full(k, 10.0))
    rows = MixedViewPopulation(means, weights, [("bits", d)]).sample(n, rng)
    return rows.X.astype(int), means, weights


def digits():
    """Return which pixels of the images of ten digits are set, and the digits."""
    X, groups = load_digits(return_X_y=True)
    return (X >= 8).astype(int), groups


def joint_logs(X, means, weights):
    """Return ``log(w_h p(x | h))`` by the definition, with every word of every document."""
    return np.log(weights) + (X[:, None] * np.log(means) + (1 - X[:, None]) * np.log1p(-means)).sum(axis=2)


def rates_of(X):
    return (X.sum(axis=0) + 0.5) / (len(X) + 1.0)


def em_step(X, means, weights):
    """Return the parameters after an iteration of EM with one document of average words added to components."""
    logs = joint_logs(X, means, weights)
    p = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    means = (p.T @ X + rates_of(X)) / (p.sum(axis=0)[:, None] + 1.0)
    return means, p.mean(axis=0)


def em_from_the_moments(X, k, n_iter, **options):
    """Return all parameters of EM, beginning with those of its start, by brute force."""
    moments = ProductMixture(k, n_em_iter=0, **options).fit(X)
    found = [(0.9 * moments.components_ + 0.1 * rates_of(X), moments.weights_)]
    for _ in range(n_iter):
        found.append(em_step(X, *found[-1]))
    return found


def likelihood(X, means, weights):
    return logsumexp(joint_logs(X, means, weights), axis=1).mean()


def penalised(X, means, weights):
    """Return the log-likelihood with the added documents."""
    rates = rates_of(X)
    added = rates * np.log(means) + (1.0 - rates) * np.log1p(-means)
    return likelihood(X, means, weights) + added.sum() / len(X)


@pytest.mark.parametrize("decomposition", ["joint", "power"])
def test_an_exact_population_gives_back_the_parameters(decomposition):
    model = ProductMixture(2, decomposition=decomposition, n_oversamples=2, n_em_iter=0)
    model.fit_corpus(population())
    error, order = matched(model.components_, MEANS)
    assert error < 1e-10
    assert_allclose(model.weights_, WEIGHTS[order], rtol=1e-10)
    assert model.diagnostics_["asymmetry"] < 1e-10
    assert model.diagnostics_["sum_weights"] == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("n_em_iter", [0, 10])
@pytest.mark.slow
def test_errors_fall_with_the_root_of_the_number_of_documents(n_em_iter):
    errors = []
    for n in (4_000, 64_000):
        found = [ProductMixture(2, n_em_iter=n_em_iter).fit(sample(n, seed)).components_ for seed in range(8)]
        errors.append(np.mean([np.abs(c - MEANS[matched(c, MEANS)[1]]).mean() for c in found]))
    # A sixteenth of the variance is a quarter of the error.
    assert 2.5 < errors[0] / errors[1] < 6.5


@pytest.mark.parametrize("n_em_iter", [1, 2, 7])
def test_em_passes_are_iterations_by_brute_force(n_em_iter):
    X, _, _ = planted()
    # A word in no document, and one in all documents.
    X[:, 0], X[:, 1] = 0, 1
    expected = em_from_the_moments(X, 3, n_em_iter)
    means, weights = expected[-1]
    model = ProductMixture(3, n_em_iter=n_em_iter).fit_corpus(MemoryCorpus(X, shard_documents=300))
    order = np.argsort(-weights)
    assert_allclose(model.components_, means[order], atol=1e-10)
    assert_allclose(model.weights_, weights[order], atol=1e-10)
    before = [likelihood(X, *each) for each in expected[:-1]]
    assert_allclose(model.diagnostics_["log_likelihoods"], before, atol=1e-10)
    assert model.components_.min() > 0.0
    assert model.components_.max() < 1.0
    # The next E-step is what the model returns for documents.
    logs = joint_logs(X, means[order], weights[order])
    assert_allclose(model.predict_proba(X), np.exp(logs - logsumexp(logs, axis=1, keepdims=True)), atol=1e-10)


def test_the_likelihood_never_falls():
    X = planted(k=4, d=25, n=400, seed=3)[0]
    values = [penalised(X, *each) for each in em_from_the_moments(X, 4, 40)]
    assert all(b > a - 1e-12 for a, b in pairwise(values))
    logs = ProductMixture(4, n_em_iter=40).fit(X).diagnostics_["log_likelihoods"]
    assert len(logs) == 40
    assert all(b > a - 1e-3 / len(X) for a, b in pairwise(logs))
    assert values[-1] > values[0] + 0.1


@pytest.mark.slow
def test_em_from_the_moments_is_as_accurate_as_em_from_ten_random_starts():
    errors = {"moments": [], "EM": [], "ten starts": []}
    for seed in range(5):
        X, true, _ = planted(seed=seed)
        rng, starts = np.random.default_rng(seed), []
        for _ in range(10):
            means, weights = rng.uniform(0.2, 0.8, true.shape), np.full(3, 1 / 3)
            for _ in range(60):
                means, weights = em_step(X, means, weights)
            starts.append((likelihood(X, means, weights), means))
        found = {
            "moments": ProductMixture(3, n_em_iter=0).fit(X).components_,
            "EM": ProductMixture(3).fit(X).components_,
            "ten starts": max(starts, key=lambda each: each[0])[1],
        }
        for name, means in found.items():
            errors[name].append(np.abs(means - true[matched(means, true)[1]]).mean())
    average = {name: np.mean(own) for name, own in errors.items()}
    assert average["EM"] == pytest.approx(average["ten starts"], rel=0.01)
    assert average["moments"] > 1.2 * average["EM"]


def test_a_fit_out_of_core_gives_the_same_bits(tmp_path):
    X = planted()[0]
    kept = ProductMixture(3, n_em_iter=3).fit_corpus(MemoryCorpus(X, shard_documents=250))
    corpus = from_arrays(tmp_path / "c", X, np.ones((len(X), 1), int), shard_documents=250)
    for limit in (None, 1 << 30):
        model = ProductMixture(3, n_em_iter=3).fit_corpus(corpus, memory_limit=limit)
        assert (model.components_ == kept.components_).all()
        assert (model.weights_ == kept.weights_).all()
        assert model.diagnostics_ == kept.diagnostics_


def test_a_memory_limit_does_not_change_a_bit():
    n, d, limit = 600, 120_000, 570 << 20
    rng = np.random.default_rng(0)
    group = rng.integers(0, 8, n)
    rows = np.repeat(np.arange(n), 60)
    own = rng.integers(0, 3000, 60 * n) + 3000 * np.repeat(group, 60)
    X = csr_array((np.ones(60 * n, int), (rows, own)), shape=(n, d))
    corpus = MemoryCorpus(X, shard_documents=100)
    model = ProductMixture(8, n_em_iter=2, n_oversamples=0, n_power_iter=1)
    planned = {(p.part, p.name): p.n_slabs for p in model.plan(corpus, limit).passes}
    assert planned["", "sketch"] > 1
    whole = model.fit_corpus(corpus).components_
    assert (model.fit_corpus(corpus, memory_limit=limit).components_ == whole).all()


@pytest.mark.parametrize("start", ["thirds", "documents"])
def test_more_threads_than_shards_give_the_same_bits(start):
    X, k = (planted(k=4, d=60, n=3000)[0], 4) if start == "thirds" else (digits()[0], 10)
    alone = ProductMixture(k, n_em_iter=1).fit_corpus(MemoryCorpus(X))
    # One shard for two threads: passes with tall sums are divided by columns.
    with open_executor(threads=2) as executor:
        both = ProductMixture(k, n_em_iter=1).fit_corpus(MemoryCorpus(X), client=executor)
    assert both.diagnostics_["start"] == start
    assert (both.components_ == alone.components_).all()
    assert (both.weights_ == alone.weights_).all()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("start", ["thirds", "documents"])
def test_two_processes_give_the_same_bits(cluster, start):
    X, k = (planted(k=4, d=60, n=3000)[0], 4) if start == "thirds" else (digits()[0], 10)
    corpus = MemoryCorpus(X, shard_documents=150)
    alone = ProductMixture(k, n_em_iter=3).fit_corpus(corpus)
    both = ProductMixture(k, n_em_iter=3).fit_corpus(corpus, client=cluster)
    assert both.diagnostics_["start"] == start
    assert (both.components_ == alone.components_).all()
    assert (both.weights_ == alone.weights_).all()
    assert both.diagnostics_["log_likelihoods"] == alone.diagnostics_["log_likelihoods"]


@pytest.mark.parametrize("dtype", ["f2", ">f2", ">f4", ">f8", ">i8"])
def test_words_of_every_precision_and_byte_order_are_the_same(dtype):
    X = (np.random.default_rng(0).random((600, 12)) < MEANS[np.repeat([0, 1], 300)]).astype(np.float64)
    expected, found = (ProductMixture(2).fit(X.astype(each)) for each in (np.float64, dtype))
    np.testing.assert_array_equal(found.predict_proba(X.astype(dtype)), expected.predict_proba(X))


def test_documents_are_read_by_the_rule_of_bayes():
    model = ProductMixture(2, n_oversamples=2, n_em_iter=0).fit_corpus(population())
    X = sample(200, 1)
    joint = probabilities(X) * WEIGHTS
    expected = (joint / joint.sum(axis=1, keepdims=True))[:, matched(model.components_, MEANS)[1]]
    assert_allclose(model.predict_proba(X), expected, atol=1e-8)
    assert (model.predict(X) == expected.argmax(axis=1)).all()
    assert_allclose(model.score_samples(X), np.log(joint.sum(axis=1)), atol=1e-8)
    assert model.score(X) == pytest.approx(np.log(joint.sum(axis=1)).mean())
    with pytest.raises(InputError, match="minimum of 1 is required"):
        model.score(X[:0])
    # Presence counts, and how often a word is there does not.
    assert_allclose(model.predict_proba(3 * X), expected, atol=1e-8)


def test_all_words_together_give_a_start_where_thirds_do_not():
    X, groups = digits()
    with pytest.raises(NumericalError, match=r"[678] of n_components=10"):
        ProductMixture(10, n_em_iter=0).fit(X)
    model = ProductMixture(10, n_em_iter=1, n_oversamples=54)
    model.fit_corpus(MemoryCorpus(X, shard_documents=500))
    assert [timing["name"] for timing in model.timings_] == [
        *2 * ["sketch", "power", "power", "moments"],
        "em",
    ]
    assert model.diagnostics_["start"] == "documents"
    # The same by the mixture of spherical Gaussians, in the units of the words that are in some documents.
    rates, varying = rates_of(X), X.any(axis=0)
    deviations = np.sqrt(rates * (1.0 - rates))
    spherical = SphericalMixture(10, n_em_iter=0).fit((X / deviations)[:, varying])
    start = np.zeros((10, 64))
    start[:, varying] = np.clip(deviations[varying] * spherical.means_, 0.0, 1.0)
    means, weights = em_step(X, 0.9 * start + 0.1 * rates, spherical.weights_)
    order = np.argsort(-weights)
    assert_allclose(model.weights_, weights[order], atol=1e-6)
    assert_allclose(model.components_, means[order], atol=1e-6)
    # Groups are about as close to the digits as those of k-means.
    found = ProductMixture(10).fit(X).predict(X)
    peer = KMeans(10, n_init=3, random_state=0).fit_predict(X)
    assert adjusted_rand_score(groups, found) > 0.9 * adjusted_rand_score(groups, peer)


def test_one_component_is_fitted_where_a_third_of_the_words_is_in_no_document():
    X = np.zeros((300, 6), int)
    X[:, :2] = np.random.default_rng(0).random((300, 2)) < 0.4
    model = ProductMixture(1, random_state=2).fit(X)
    assert model.diagnostics_["start"] == "documents"
    assert_allclose(model.components_[0], (X.sum(axis=0) + rates_of(X)) / 301.0, atol=1e-12)


def test_the_plan_lists_the_passes_that_are_made_and_a_saved_model_is_the_same(tmp_path):
    corpus = MemoryCorpus(sample(500, 0), shard_documents=100)
    model = ProductMixture(2, n_power_iter=1, n_em_iter=2)
    names = ["sketch", "power", "moments", "em", "em"]
    planned = model.plan(corpus).passes
    assert [p.name for p in planned if not p.possible] == names
    assert [(p.part, p.name) for p in planned if p.possible] == [("all words", name) for name in names[:3]]
    certain = [p.name for p in ProductMixture(2).plan(corpus, n_workers=1).passes if not p.possible]
    assert certain[3:] == ["moments", *10 * ["em"]]
    assert not any(p.possible for p in ProductMixture(2, n_em_iter=0).plan(corpus).passes)
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == names
    loaded = load_model(tmp_path / "m")
    assert loaded.topics(1)[0]["words"][0][1] == model.components_[0].max()
    assert (loaded.components_ == model.components_).all()
    assert (loaded.predict_proba(sample(9, 1)) == model.predict_proba(sample(9, 1))).all()


def test_more_components_than_a_group_of_words_can_tell_apart_are_refused():
    with pytest.raises(UsageError, match="n_components: expected at most 4, a third of the 12 words, got 5"):
        ProductMixture(5).fit(sample(100, 0))
    with pytest.raises(NumericalError, match="; and only 0 words are in some documents but not"):
        ProductMixture(2).fit(np.ones((50, 12), int))
    # Words of three kinds carry at most four components, in thirds and together.
    X = np.tile(sample(400, 0)[:, :3], (1, 8))
    with pytest.raises(
        NumericalError, match="; and with all words together, the covariance carries fewer than 6"
    ):
        ProductMixture(6).fit(X)
    with pytest.raises(NumericalError, match=r"carries fewer than 6 components.* distinguish them$"):
        ProductMixture(6, n_em_iter=0).fit(X)
    with pytest.raises(InputError, match="X: expected documents with words, got none"):
        ProductMixture(2).fit(np.zeros((50, 12), int))


def test_the_command_line_fits_it_and_shows_its_words(tmp_path, capsys):
    documents = (([f"w{v}" for v in np.flatnonzero(row)], []) for row in sample(600, 2))
    write_corpus(tmp_path / "c", documents)
    place, options = str(tmp_path / "m"), ["--model", "product", "-k", "2", "--workers", "0"]
    assert main(["plan", str(tmp_path / "c"), *options]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown if line.endswith("  all words, only if needed")] == [
        "sketch",
        "power",
        "moments",
    ]
    assert shown[-1].startswith("in all: 14 to 18 scans, ")
    assert main(["fit", str(tmp_path / "c"), place, *options]) == 0
    assert "start" in capsys.readouterr().out
    assert main(["topics", place, "--top", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()[-1].split()) == 5


@pytest.mark.parametrize("n_em_iter", [0, 10])
def test_components_of_documents_are_written_out_of_core(tmp_path, capsys, n_em_iter):
    rows = sample(600, 2)
    texts = [" ".join(f"word{'abcdefghijkl'[v]}" for v in np.flatnonzero(row)) for row in rows]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    corpus = text_corpus(texts, min_df=1, shard_documents=250)
    model = ProductMixture(2, n_em_iter=n_em_iter).fit_corpus(corpus)
    model.save(tmp_path / "m")
    # The new documents have other words first, and one that the model does not know.
    new = ["wordl wordk unknown", *reversed(texts)]
    found = assign_rows(model, text_corpus(new, min_df=1, shard_documents=100), tmp_path / "python")
    assert (found["n_units"], found["n_rows"], found["arrays"]) == (601, 601, ["components", "probabilities"])
    expected = model.predict_proba(new)
    arrays = zarr.open_group(tmp_path / "python" / "components.zarr", mode="r")
    assert_allclose(arrays["probabilities"][...], expected, atol=1e-6)
    assert (arrays["components"][...] == expected.argmax(axis=1)).all()
    assert (np.load(tmp_path / "python" / "starts.npy") == np.arange(602)).all()
    line = [
        "transform",
        str(tmp_path / "m"),
        str(tmp_path / "texts.txt"),
        str(tmp_path / "out"),
        "--workers",
        "0",
    ]
    assert main([*line, "--format", "lines"]) == 0
    arrays = zarr.open_group(tmp_path / "out" / "components.zarr", mode="r")
    assert_allclose(arrays["probabilities"][...], model.predict_proba(texts), atol=1e-6)
    assert (tmp_path / "out" / "ids.txt").read_text().split() == [str(i) for i in range(1, 601)]
    capsys.readouterr()
    for more, message in (
        ([], "already exists"),
        (["--overwrite", "--method", "fast"], "--method: not an option with"),
        (["--overwrite", "--output-format", "jsonl"], "--output-format: not an option with"),
    ):
        assert main([*line, "--format", "lines", *more]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match="got none of them"):
        assign_rows(model, text_corpus(["other terms", "other names"], min_df=1), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_example_of_the_documentation_is_the_program():
    page = Path(__file__).parents[2] / "docs/extending.md"
    if not page.exists():
        pytest.skip("the documentation is not part of this copy")
    (example,) = re.findall(r"```python\n(    def program.*?)```", page.read_text("utf-8"), re.DOTALL)
    code = inspect.getsource(ProductMixture.program)
    lines = [line.strip() for line in example.splitlines()]
    at = [code.find(line.removeprefix("return ")) for line in lines[1:]]
    assert min(at) >= 0
    assert at == sorted(at)
