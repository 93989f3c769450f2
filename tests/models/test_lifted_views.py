"""Views whose columns are multiplied: more components than columns, by enumerated populations and by samples."""

import re
from itertools import combinations_with_replacement, product
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows, matched, peak_bytes
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.cli.main import main
from distmom.corpus import RowCorpus
from distmom.engine import Columns
from distmom.errors import NumericalError, UsageError
from distmom.models import load_model
from distmom.models.multiview.estimator import MultiView
from distmom.moments.rows.multiview import (
    MultiViewColumnsPass,
    MultiViewMomentsPass,
    MultiViewSketchPass,
    lifted_widths,
    own_columns,
    with_products,
)
from distmom.simulate.mixtures import GaussianPopulation

WORD_WEIGHTS = np.array([0.3, 0.2, 0.3, 0.2])
WORDS = np.random.default_rng(1).dirichlet(np.full(3, 0.5), 4)


def six_words(**options):
    """Return all documents of six of three words, of four topics: two words a view, with their probabilities."""
    words = np.array(list(product(range(3), repeat=6)))
    chances = sum(w * np.prod(topic[words], axis=1) for w, topic in zip(WORD_WEIGHTS, WORDS, strict=True))
    return WeightedRows(np.eye(3)[words].reshape(len(words), 18), chances, **options)


def steps_population(widths, k, seed=1):
    """Return rows around means, with their probabilities: in each view one of two steps up or down.

    Columns of a view depend on each other within a component, and steps differ between components.
    """
    rng = np.random.default_rng(seed)
    means, weights = 2.0 * rng.normal(size=(k, sum(widths))), rng.dirichlet(np.full(k, 5.0))
    cuts = np.split(np.arange(sum(widths)), np.cumsum(widths)[:-1])
    steps = [np.vstack([s, -s]) for s in (rng.normal(size=(2, len(cut))) for cut in cuts)]
    rows = [
        mean + (1.0 + 0.3 * h) * np.concatenate([step[j] for step, j in zip(steps, i, strict=True)])
        for h, mean in enumerate(means)
        for i in product(range(4), repeat=3)
    ]
    return WeightedRows(np.array(rows), np.repeat(weights / 64.0, 64)), means, weights


def sample(n, seed, k=4, widths=(2, 2, 2)):
    """Return rows of k Gaussians, their means, and their components."""
    means = 2.0 * np.random.default_rng(0).normal(size=(k, sum(widths)))
    rows = GaussianPopulation(means, np.full(k, 1.0 / k), 0.25).sample(n, seed)
    return rows.X, means, rows.components


@pytest.mark.parametrize("n_oversamples", [0, 2, 10])
def test_more_topics_than_words_are_found_by_products_of_words(n_oversamples):
    corpus = six_words(shard_rows=200)
    model = MultiView(4, widths=(6, 6, 6), lift=2, n_oversamples=n_oversamples).fit_corpus(corpus)
    error, order = matched(model.components_, np.tile(WORDS, 6))
    assert error < 1e-10
    assert_allclose(model.weights_, WORD_WEIGHTS[order], rtol=1e-10)
    assert model.diagnostics_["asymmetry"] < 1e-10
    # The words themselves have means in a space of three dimensions, in which four are linearly dependent.
    with pytest.raises(NumericalError, match="rank 2, and 4 components need rank 3"):
        MultiView(4, widths=(6, 6, 6)).fit_corpus(corpus)


@pytest.mark.parametrize(
    ("lift", "widths", "k"), [(2, (2, 2, 3), 5), (2, (2, 3, 2), 6), (2, (1, 1, 1), 3), (3, (2, 2, 2), 7)]
)
def test_an_exact_population_of_more_components_than_columns_gives_back_all_views(lift, widths, k):
    corpus, means, weights = steps_population(widths, k)
    assert k > max(widths) + 1
    model = MultiView(k, widths=widths, lift=lift).fit_corpus(corpus)
    error, order = matched(model.components_, means)
    assert error < 1e-10
    assert_allclose(model.weights_, weights[order], rtol=1e-10)
    whole = np.concatenate([corpus.read_shard(i).rows for i in range(len(corpus.shards))])
    between = weights @ (means - weights @ means) ** 2
    total = corpus.unit_weights @ (whole - weights @ means) ** 2
    assert_allclose(model.variances_, total - between, rtol=1e-9)


def test_views_of_the_same_means_are_found_without_further_columns_of_the_sketch():
    rng = np.random.default_rng(0)
    means, steps = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))
    rows = np.array(
        [
            np.concatenate([mean + sign * steps[s] for s, sign in zip(i[:3], i[3:], strict=True)])
            for mean in means
            for i in product(*[range(2)] * 3, *[(-1.0, 1.0)] * 3)
        ]
    )
    for seed in range(6):
        corpus = WeightedRows(rows, np.repeat([0.5, 0.3, 0.2], 64) / 64.0)
        model = MultiView(3, widths=(4, 4, 4), n_oversamples=0, random_state=seed).fit_corpus(corpus)
        assert matched(model.components_, np.tile(means, 3))[0] < 1e-10


def test_errors_fall_with_the_root_of_the_number_of_rows():
    errors = []
    for n in (4_000, 64_000):
        found = []
        for seed in range(8):
            X, means, _ = sample(n, seed)
            c = MultiView(4, widths=(2, 2, 2), lift=2).fit(X).components_
            found.append(np.abs(c - means[matched(c, means)[1]]).mean())
        errors.append(np.mean(found))
    # A sixteenth of the variance is a quarter of the error.
    assert 3.0 < errors[0] / errors[1] < 5.5


def test_components_of_rows_are_predicted():
    X, means, h = sample(20_000, 3)
    model = MultiView(4, widths=(2, 2, 2), lift=2).fit(X)
    order = matched(model.components_, means)[1]
    assert (order[model.predict(X)] == h).mean() > 0.97


def test_products_are_those_of_all_multisets_of_columns():
    z = np.random.default_rng(0).normal(size=(5, 4))
    for degree in (1, 2, 3):
        expected = [
            z[:, list(columns)].prod(axis=1)
            for n in range(1, degree + 1)
            for columns in combinations_with_replacement(range(4), n)
        ]
        found = with_products(z, degree)
        assert_allclose(found, np.transpose(expected), rtol=1e-14)
        assert lifted_widths((4, 1), degree) == (found.shape[1], degree)
    assert own_columns((4, 1, 2), 2).tolist() == [0, 1, 2, 3, 14, 16, 17]


@pytest.mark.parametrize("weights", [None, np.random.default_rng(1).uniform(size=60)])
def test_sums_are_those_of_rows_with_products(weights, monkeypatch):
    monkeypatch.setattr("distmom.moments.rows.multiview._LEAST_ROWS", 7)
    monkeypatch.setattr("distmom.moments.rows.multiview._PIECE_VALUES", 1)
    rng = np.random.default_rng(0)
    widths, lifted = (2, 3, 1), (5, 9, 2)
    X, units = rng.normal(size=(60, 6)) + 1.0, rng.uniform(0.5, 1.5, (6, 2))
    averages, basis = rng.normal(size=(16, 2)), rng.normal(size=(16, 4))
    cuts = np.split(np.arange(6), np.cumsum(widths)[:-1])
    z = (X - units[:, 0]) * units[:, 1]
    views = [with_products(z[:, cut], 2) for cut in cuts]
    whole, own = np.hstack(views), np.ones(60) if weights is None else weights
    corpus = RowCorpus(X) if weights is None else WeightedRows(X, weights)
    block, fields = corpus.read_shard(0), {"widths": widths, "degree": 2, "units": units}

    def total(pass_):
        sums = pass_.zero()
        pass_.add(sums, block, {})
        return {name: value.dense() if hasattr(value, "dense") else value for name, value in sums.items()}

    found = total(MultiViewColumnsPass(16, **fields))["columns"]
    assert_allclose(found, np.column_stack([own @ whole, own @ whole**2]), rtol=1e-12)
    lifted_cuts = np.split(np.arange(16), np.cumsum(lifted)[:-1])
    c = [whole[:, cut] - averages[cut, 0] for cut in lifted_cuts]
    y = [x @ basis[cut] for x, cut in zip(c, lifted_cuts, strict=True)]
    others = [y[1] + 0.5 * y[2], y[0] + 0.5 * y[2], y[0] + 0.5 * y[1]]
    expected = np.concatenate([(x * own[:, None]).T @ o for x, o in zip(c, others, strict=True)])
    sketch = MultiViewSketchPass(16, **fields, averages=averages, basis=basis, n_columns=4)
    assert_allclose(total(sketch)["sketch"], expected, rtol=1e-10, atol=1e-10)
    for slabs in (basis, Columns((basis[:, :1], basis[:, 1:]))):
        sums = total(MultiViewMomentsPass(16, **fields, averages=averages, basis=slabs, rank=4))
        assert_allclose(sums["triples"], np.einsum("n,ni,nj,nk->ijk", own, *y), rtol=1e-10, atol=1e-10)
        assert_allclose(sums["pairs"][1], (y[0] * own[:, None]).T @ y[2], rtol=1e-10, atol=1e-10)
        assert_allclose(sums["means"], [own @ each for each in y], rtol=1e-10, atol=1e-10)


def test_the_units_and_origins_of_columns_do_not_matter():
    X, _, _ = sample(4000, 0)
    plain = MultiView(4, widths=(2, 2, 2), lift=2).fit(X)
    scales = 10.0 ** np.random.default_rng(0).uniform(-6, 6, 6)
    moved = MultiView(4, widths=(2, 2, 2), lift=2).fit((X + 1e3) * scales)
    assert_allclose(moved.components_ / scales - 1e3, plain.components_, atol=1e-6)
    assert_allclose(moved.weights_, plain.weights_, rtol=1e-6)


def test_sparse_rows_and_constant_columns_give_the_same_model():
    X, _, _ = sample(3000, 1)
    X = np.where(np.abs(X) < 0.5, 0.0, X)
    model = MultiView(4, lift=2).fit((X[:, :2], X[:, 2:4], X[:, 4:]))
    given = csr_array(X)
    mixed = MultiView(4, lift=2).fit((given[:, :2], X[:, 2:4], given[:, 4:]))
    assert_allclose(mixed.components_, model.components_, atol=1e-9)
    constant = MultiView(4, lift=2).fit(
        (np.column_stack([X[:, 0], np.full(3000, 7.0), X[:, 1]]), X[:, 2:4], X[:, 4:])
    )
    assert_allclose(constant.components_[:, 1], 7.0, rtol=1e-12)
    assert_allclose(np.delete(constant.components_, 1, axis=1), model.components_, atol=1e-9)


def test_the_plan_lists_the_pass_over_products_and_a_saved_model_is_fitted_again(tmp_path):
    X, _, _ = sample(800, 0)
    corpus = RowCorpus(X, shard_rows=100)
    model = MultiView(4, widths=(2, 2, 2), lift=2, n_power_iter=1)
    names = ["columns", "products", "sketch", "power", "moments"]
    assert [p.name for p in model.plan(corpus, n_workers=1).passes] == names
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == names
    loaded = load_model(tmp_path / "m")
    assert (loaded.fit_corpus(corpus).components_ == model.components_).all()


@pytest.mark.parametrize(("width", "order", "n"), [(30, None, 1500), (10, np.arange(30)[::-1], 12_000)])
def test_memory_stays_within_the_plan(width, order, n):
    widths = (width, width, width)
    corpus = RowCorpus(np.random.default_rng(0).normal(size=(n, 3 * width)), shard_rows=n)
    block, d, r = corpus.read_shard(0), sum(lifted_widths(widths, 2)), 8
    fields = {"widths": widths, "degree": 2, "units": np.tile([0.0, 1.0], (3 * width, 1)), "order": order}
    averages, basis = np.zeros((d, 2)), np.ones((d, r))
    for pass_ in (
        MultiViewColumnsPass(d, **fields),
        MultiViewSketchPass(d, **fields, averages=averages, basis=basis, n_columns=r),
        MultiViewMomentsPass(d, **fields, averages=averages, basis=basis, rank=r),
    ):
        sums = pass_.zero()
        pass_.add(sums, block, {})
        most = 1.05 * (pass_.working_bytes(n) + pass_.mapped_bytes) + (1 << 16)
        assert peak_bytes(lambda pass_=pass_, sums=sums: pass_.add(sums, block, {}), most) < most, pass_.name


@pytest.mark.parametrize("third", [True, False])
def test_memory_of_moments_of_the_columns_alone_stays_within_the_plan(third):
    d, r, n = 30, 30, 20_000
    block = RowCorpus(np.random.default_rng(0).normal(size=(n, d)), shard_rows=n).read_shard(0)
    pass_ = MultiViewMomentsPass(
        d, widths=(10, 10, 10), averages=np.zeros((d, 2)), basis=np.ones((d, r)), rank=r, with_own=True,
        third=third,
    )  # fmt: skip
    sums = pass_.zero()
    most = pass_.working_bytes(n) + pass_.mapped_bytes + (1 << 16)
    assert peak_bytes(lambda: pass_.add(sums, block, {}), most) < most


def test_what_cannot_be_fitted_is_refused_with_one_sentence():
    X, _, _ = sample(300, 0)
    views = (X[:, :2], X[:, 2:4], X[:, 4:])
    with pytest.raises(UsageError, match="of the narrowest view, got 4; lift=2 allows up to 6"):
        MultiView(4).fit(views)
    with pytest.raises(
        UsageError, match="at most 6, one more than the columns and products of up to 2 columns"
    ):
        MultiView(7, lift=2).fit(views)
    with pytest.raises(UsageError, match="lift: expected at least 1, got 0"):
        MultiView(3, lift=0).fit(views)
    with pytest.raises(
        UsageError, match=r"lift: expected at most 10000000 columns .* got 13513500 with lift=2"
    ):
        MultiView(3, widths=(3000,) * 3, lift=2).fit(np.zeros((5, 9000), np.float32))
    # Bits: their squares are multiples of themselves.
    bits = (np.random.default_rng(0).random((300, 3)) < 0.5).astype(float)
    with pytest.raises(NumericalError, match="components need rank 2"):
        MultiView(3, widths=(1, 1, 1), lift=2).fit(bits)


def test_the_command_line_fits_more_components_than_columns(tmp_path, capsys):
    X, means, _ = sample(4000, 0)
    np.save(tmp_path / "X.npy", X)
    corpus, place = str(tmp_path / "c"), str(tmp_path / "m")
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--workers", "0"]) == 0
    options = ["--model", "multiview", "-k", "4", "--widths", "2,2,2", "--lift", "2"]
    assert main(["plan", corpus, *options]) == 0
    assert "products" in capsys.readouterr().out
    assert main(["fit", corpus, place, *options, "--workers", "0"]) == 0
    assert matched(load_model(place).components_, means)[0] < 0.1


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "multiview.md").read_text(encoding="utf-8")
    code = re.search(r"## More components than columns.*?```python\n(.*?)```", text, re.DOTALL)[1]
    names = {"rng": np.random.default_rng(0)}
    exec(code, names)
    assert matched(names["lifted"].components_, names["means"])[0] < 0.1
