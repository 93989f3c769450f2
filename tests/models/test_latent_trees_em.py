"""EM passes of latent trees beside sums over all hidden states, and where they are made by default."""

from itertools import product

import numpy as np
import pytest
import zarr
from helpers import WeightedRows, peak_bytes
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from test_latent_trees import CATERPILLAR, GROUPED, QUARTET, STAR, WIDE, Truth

from distmom.cli.main import main
from distmom.corpus import RowCorpus, open_corpus
from distmom.errors import UsageError
from distmom.models import load_model
from distmom.models.trees.estimator import LatentTree
from distmom.models.trees.posterior import TreeEMPass
from distmom.models.trees.structure import Tree

NAMES = ("components_", "weights_", "transitions_")


def posteriors(parents, above, root, edges, leaf_logs):
    """Return P(states | row), (n, k, ..., k), and log-likelihoods, from log-densities (n, k) of leaves."""
    n, k = leaf_logs[0].shape
    logs = np.empty((n, *(k,) * len(parents)))
    for states in product(range(k), repeat=len(parents)):
        own = np.log(root[states[0]])
        for g, parent in enumerate(parents[1:], start=1):
            own += np.log(edges[g - 1][states[parent], states[g]])
        logs[:, *states] = own + sum(each[:, states[h]] for each, h in zip(leaf_logs, above, strict=True))
    value = logsumexp(logs.reshape(n, -1), axis=1)
    return np.exp(logs - value.reshape(-1, *(1,) * len(parents))), value


def em_by_enumeration(tree, model, leaves, n_iter, density):
    """Run EM from the parameters of a model by sums over all hidden states.

    Returns the root, edges, leaves and log-likelihoods; ``density`` takes a leaf, its means, and the distribution
    of the variable above it.
    """
    _, parents, above = tree
    weights, edges, means = list(model.weights_), list(model.transitions_), model.leaves()
    axes, values = range(1, len(parents) + 1), []
    for _ in range(n_iter):
        logs = [density(x, m, weights[h]) for x, m, h in zip(leaves, means, above, strict=True)]
        p, value = posteriors(parents, above, weights[0], edges, logs)
        values.append(value.mean())
        single = [p.sum(axis=tuple(a for a in axes if a != h + 1)) for h in range(len(parents))]
        weights, edges = [each.mean(axis=0) for each in single], []
        for g, parent in enumerate(parents[1:], start=1):
            pair = p.sum(axis=tuple(a for a in axes if a not in (g + 1, parent + 1))).sum(axis=0)
            edges.append(pair / pair.sum(axis=1, keepdims=True))
        of_leaves = [single[h] for h in above]
        means = [own.T @ x / own.sum(axis=0)[:, None] for x, own in zip(leaves, of_leaves, strict=True)]
    return weights[0], edges, means, np.array(values)


def categories(x, means, weights):
    return x @ np.log(means).T


def gaussians(x, means, weights):
    deviations = means - weights @ means
    within = np.cov(x.T, bias=True) - (deviations.T * weights) @ deviations
    return np.stack([multivariate_normal(mean, within).logpdf(x) for mean in means], axis=1)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("tree", [QUARTET, STAR, CATERPILLAR, WIDE])
def test_em_passes_are_those_by_sums_over_all_hidden_states(tree, sparse):
    text, parents, above = tree
    truth = Truth(parents, above, 2, (3,) * len(above), seed=3)
    truth.leaves = [0.7 * law + 0.1 for law in truth.leaves]
    leaves = truth.sample(3_000, 0)
    given = [csr_array(own) for own in leaves] if sparse else leaves
    # Before the first pass, small probabilities are raised.
    first = LatentTree(2, tree=text, n_em_iter=1).fit(given)
    root, edges, means, values = em_by_enumeration(tree, first, leaves, 6, categories)
    model = LatentTree(2, tree=text, n_em_iter=7).fit(given)
    assert_allclose(model.diagnostics_["log_likelihoods"][1:], values, atol=1e-9)
    assert model.diagnostics_["log_likelihoods"][0] < values[0]
    assert (np.diff(values) > 0.0).all()
    assert_allclose(model.weights_[0], root, atol=1e-9)
    for found, expected in zip(model.transitions_, edges, strict=True):
        assert_allclose(found, expected, atol=1e-9)
    for found, expected in zip(model.leaves(), means, strict=True):
        assert_allclose(found, expected, atol=1e-9)


def real_leaves(n, seed):
    """Return leaves of real vectors whose columns depend on each other, and their means."""
    rng = np.random.default_rng(5)
    means = [0.8 * rng.normal(size=(2, 3)) for _ in range(4)]
    mixing = [rng.normal(size=(3, 3)) for _ in range(4)]
    rng = np.random.default_rng(seed)
    root = rng.choice(2, n, p=[0.6, 0.4])
    below = np.where(rng.random(n) < 0.2, 1 - root, root)
    hidden = (below, below, root, root)
    return [m[h] + rng.normal(size=(n, 3)) @ a for m, h, a in zip(means, hidden, mixing, strict=True)], means


def test_leaves_of_real_vectors_have_em_passes_on_request():
    leaves, _ = real_leaves(4_000, 0)
    start = LatentTree(2, tree=QUARTET[0]).fit(leaves)
    assert [t["name"] for t in start.timings_] == ["columns", "pairs", "triples"]
    assert "log_likelihoods" not in start.diagnostics_
    first = LatentTree(2, tree=QUARTET[0], n_em_iter=1).fit(leaves)
    _, edges, means, values = em_by_enumeration(QUARTET, first, leaves, 5, gaussians)
    model = LatentTree(2, tree=QUARTET[0], n_em_iter=6).fit(leaves)
    single = sum(multivariate_normal(x.mean(axis=0), np.cov(x.T, bias=True)).logpdf(x).mean() for x in leaves)
    assert_allclose(np.array(model.diagnostics_["log_likelihoods"][1:]) + single, values, atol=1e-8)
    assert (np.diff(values) > -1e-12).all()
    assert_allclose(model.transitions_[0], edges[0], atol=1e-8)
    assert_allclose(model.components_, np.hstack(means), atol=1e-7)


@pytest.mark.parametrize("tree", [QUARTET, STAR, CATERPILLAR, WIDE])
def test_states_given_rows_are_those_by_sums_over_all_hidden_states(tree, tmp_path):
    text, parents, above = tree
    truth = Truth(parents, above, 2, (3,) * len(above), seed=3)
    leaves = truth.sample(3_000, 0)
    model = LatentTree(2, tree=text).fit(leaves)
    logs = [categories(x, np.maximum(m, 1e-15), None) for x, m in zip(leaves, model.leaves(), strict=True)]
    p, value = posteriors(parents, above, model.weights_[0], model.transitions_, logs)
    axes = range(1, len(parents) + 1)
    single = [p.sum(axis=tuple(a for a in axes if a != h + 1)) for h in range(len(parents))]
    model.save(tmp_path / "m")
    for each in (model, load_model(tmp_path / "m")):
        found = each.predict_proba(leaves)
        assert_allclose(found, np.stack(single, axis=1), atol=1e-9)
        assert_allclose(each.predict_proba([csr_array(x) for x in leaves]), found, atol=1e-12)
        assert_allclose(each.predict_proba(np.hstack(leaves)), found)
        np.testing.assert_array_equal(each.predict(leaves), found.argmax(axis=2))
        assert_allclose(each.score_samples(leaves), value, atol=1e-9)
        assert each.score(leaves) == pytest.approx(value.mean())


def test_stored_states_are_those_of_rows_in_memory(tmp_path, capsys):
    leaves = Truth(*CATERPILLAR[1:], 2, (3,) * 5, seed=3).sample(3_000, 0)
    np.save(tmp_path / "X.npy", np.hstack(leaves))
    corpus, place, out = (str(tmp_path / name) for name in ("c", "m", "out"))
    options = ["--workers", "0", "--shard-rows", "700"]
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, *options]) == 0
    model = LatentTree(2, tree=CATERPILLAR[0], widths="3,3,3,3,3").fit_corpus(open_corpus(corpus))
    model.save(place)
    assert main(["transform", place, corpus, out, "--workers", "0"]) == 0
    assert "probabilities" in capsys.readouterr().out
    stored = zarr.open_group(f"{out}/components.zarr", mode="r")
    found = model.predict_proba(leaves)
    assert_allclose(stored["probabilities"][:], found, atol=1e-6)
    np.testing.assert_array_equal(stored["states"][:], found.argmax(axis=2))


def test_trees_of_earlier_versions_load_but_cannot_read_rows(tmp_path):
    leaves = Truth(*QUARTET[1:], 2, (3,) * 4, seed=3).sample(3_000, 0)
    model = LatentTree(2, tree=QUARTET[0]).fit(leaves)
    model.coefficients_ = model.offsets_ = None
    model.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert_allclose(loaded.components_, model.components_)
    with pytest.raises(UsageError, match="an earlier version fitted this model, which cannot read rows"):
        loaded.predict(leaves)


def test_states_of_rows_with_real_leaves_have_no_likelihood():
    leaves, _ = real_leaves(4_000, 0)
    model = LatentTree(2, tree=QUARTET[0], n_em_iter=3).fit(leaves)
    logs = [
        gaussians(x, m, model.weights_[h]) for x, m, h in zip(leaves, model.leaves(), QUARTET[2], strict=True)
    ]
    p, _ = posteriors(*QUARTET[1:], model.weights_[0], model.transitions_, logs)
    assert_allclose(model.predict_proba(leaves)[:, 0], p.sum(axis=2), atol=1e-8)
    assert_allclose(model.predict_proba(leaves)[:, 1], p.sum(axis=1), atol=1e-8)
    with pytest.raises(UsageError, match="only where every leaf is a category"):
        model.score(leaves)
    with pytest.raises(UsageError, match="X: expected views of 3, 3, 3, 3 columns, got 3, 3, 4, 2"):
        model.predict([*leaves[:2], np.hstack([leaves[2], leaves[3][:, 2:]]), leaves[3][:, :2]])


def test_an_exact_population_stays_as_it_is():
    text, *structure = GROUPED
    truth = Truth(*structure, 2, (3,) * 8, seed=3)
    truth.leaves = [0.7 * law + 0.1 for law in truth.leaves]
    model = LatentTree(2, tree=text, widths=(3,) * 8).fit_corpus(truth.population(shard_rows=500))
    assert len(model.timings_) == 13
    assert max(truth.errors(model)) < 1e-9


@pytest.mark.slow
def test_em_lowers_the_errors_of_leaves_and_edges():
    truth, errors = Truth(*GROUPED[1:], 2, (4,) * 8, seed=3), []
    for seed in range(8):
        leaves = truth.sample(4_000, seed)
        fits = [LatentTree(2, tree=GROUPED[0], n_em_iter=n).fit(leaves) for n in (0, 10)]
        pairs = (("components_", np.hstack(truth.leaves)), ("transitions_", np.stack(truth.edges)))
        errors.append([[np.abs(getattr(fit, name) - true).mean() for name, true in pairs] for fit in fits])
    before, after = np.mean(errors, axis=0)
    assert (after < 0.9 * before).all()


@pytest.mark.parametrize("leaf", ["last category left out", "one column", "two columns that are both 1"])
def test_which_columns_are_indicators_of_a_category(leaf):
    truth = Truth(*QUARTET[1:], 2, (3, 3, 3, 3), seed=4)
    leaves = list(truth.sample(3_000, 0))
    whole = LatentTree(2, tree=QUARTET[0], n_em_iter=60).fit(leaves)
    if leaf == "last category left out":
        leaves = [own[:, :-1] for own in leaves]
    elif leaf == "one column":
        leaves[2] = leaves[2][:, :1]
    else:
        leaves[2] = np.column_stack([leaves[2][:, 0], leaves[3][:, 0]])
    model = LatentTree(2, tree=QUARTET[0]).fit(leaves)
    assert ("log_likelihoods" in model.diagnostics_) == (leaf != "two columns that are both 1")
    if leaf == "last category left out":
        model = model.set_params(n_em_iter=60).fit(leaves)
        expected = whole.diagnostics_["log_likelihoods"][-1]
        assert model.diagnostics_["log_likelihoods"][-1] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("unit", [1e-150, 1e-30, 1e-12, 1e-6, 1e6, 1e30])
def test_the_unit_of_the_columns_changes_no_state(unit):
    leaves = [own - own.min() for own in real_leaves(3_000, 0)[0]]
    plain = LatentTree(2, tree=QUARTET[0], n_em_iter=2).fit(leaves)
    scaled = LatentTree(2, tree=QUARTET[0], n_em_iter=2).fit([unit * own for own in leaves])
    found = scaled.predict_proba([unit * own for own in leaves])
    assert_allclose(found, plain.predict_proba(leaves), atol=1e-8)
    assert_allclose(scaled.components_, unit * plain.components_, rtol=1e-6)


def test_states_are_in_the_order_of_the_root_and_of_parents():
    truth = Truth(*WIDE[1:], 2, (3,) * 7, seed=3)
    model = LatentTree(2, tree=WIDE[0], n_em_iter=40).fit(truth.sample(5_000, 0))
    assert (np.diff(model.weights_[0]) <= 0.0).all()
    for law in model.transitions_:
        assert np.trace(law) >= np.trace(law[:, ::-1])
    expected = [model.weights_[0]]
    for parent, law in zip(Tree.parse(WIDE[0]).parents[1:], model.transitions_, strict=True):
        expected.append(expected[parent] @ law)
    assert_allclose(model.weights_, expected, atol=1e-9)


def test_weights_of_rows_count_and_runs_resume_with_the_same_bits(tmp_path):
    truth = Truth(*QUARTET[1:], 2, (3, 3, 3, 3), seed=4)
    rows = np.hstack(truth.sample(2_000, 0))
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    weighted = LatentTree(2, tree=QUARTET[0], widths=(3,) * 4).fit_corpus(
        WeightedRows(distinct, counts / len(rows))
    )
    corpus = RowCorpus(rows, shard_rows=170)
    plain, *others = (
        LatentTree(2, tree=QUARTET[0], widths=(3,) * 4).fit_corpus(corpus, **options)
        for options in ({}, {"memory_limit": 1 << 30}, {"run": tmp_path / "r"}, {"run": tmp_path / "r"})
    )
    assert all(timing["resumed"] for timing in others[-1].timings_)
    for name in NAMES:
        assert_allclose(getattr(weighted, name), getattr(plain, name), atol=1e-8)
        for other in others:
            assert (getattr(other, name) == getattr(plain, name)).all()


def test_memory_stays_within_the_plan():
    rng, n, widths = np.random.default_rng(0), 5_000, (60, 70, 80, 90)
    tree = Tree.parse(QUARTET[0])
    pass_ = TreeEMPass(
        300, widths=widths, parents=tree.parents, of_leaves=tree.of_leaves, n_components=5,
        averages=np.zeros((300, 2)), coefficients=rng.normal(size=(300, 5)), offsets=np.zeros((2, 5)),
        root=np.full(5, 0.2), transitions=np.full((1, 5, 5), 0.2),
    )  # fmt: skip
    block = RowCorpus(rng.normal(size=(n, 300)), shard_rows=n).read_shard(0)
    sums = pass_.zero()
    most = pass_.working_bytes(n) + pass_.mapped_bytes + (1 << 16)
    assert peak_bytes(lambda: pass_.add(sums, block, {}), most) < most
