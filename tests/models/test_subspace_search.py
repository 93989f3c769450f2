"""Search for one of several subspaces: exact populations, samples, k-means for comparison, and refusals."""

import json

import numpy as np
import pytest
from helpers import WeightedRows, exact_rows, peak_bytes, widened
from numpy.testing import assert_allclose

from distmom.cli.main import main
from distmom.corpus import RowCorpus, ingest_rows
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import SubspaceSearch, load_model
from distmom.models.search.subspace import FoundSubspace, contracted_fourth, subspace_side
from distmom.simulate.mixtures import SubspacePopulation


def population(d, m, weights, variance, seed=0):
    """Return random subspaces."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.normal(size=(d, m)))[0] for _ in weights]
    return SubspacePopulation(bases, np.array(weights) / sum(weights), variance)


def wide_population(d, weights, variance, n_within=4):
    """Return lines in few of d dimensions, and rows with their second moments, and fourth moments within."""
    inner = population(n_within, 1, weights, variance)
    rows = inner.exact()
    X, Q = widened(rows.X, variance, d)
    n = len(X) // len(rows.X)
    true = SubspacePopulation(Q[:, :n_within] @ inner.bases, inner.weights, variance)
    return true, WeightedRows(X, np.repeat(rows.weights, n) / n, shard_rows=1000)


def distance(found, true):
    return np.linalg.norm(found @ found.T - true @ true.T, 2)


@pytest.mark.parametrize(("d", "m", "k"), [(5, 2, 2), (4, 1, 3)])
def test_an_exact_population_gives_every_subspace(d, m, k):
    true = population(d, m, [0.5, 0.3, 0.2][:k], 0.3)
    U, weights = true.bases, true.weights
    model = SubspaceSearch(k, dimension=m).fit_corpus(exact_rows(true, shard_rows=100))
    assert [timing["name"] for timing in model.timings_] == ["covariance", "fourth", "fourth"]
    assert model.noise_variance_ == pytest.approx(0.3, abs=1e-12)
    for i in range(k):
        v = true.side_vector(i)
        found = model.search(v * np.sqrt(m) / true.preferences(v)[i])
        assert distance(found.basis, U[i]) < 1e-10
        assert found.weight == pytest.approx(weights[i], abs=1e-10)
        assert found.spread == pytest.approx(1.0, abs=1e-10)
        assert found.mismatch < 1e-9
        # The squared norm in the subspace is m: three times that, and m - 1 times that.
        expected = np.concatenate([[3.0 * m], np.full(m - 1, m), np.zeros(m * (k - 1))])
        assert_allclose(found.preferences, expected, atol=1e-9)
        # Any orthogonal basis of the subspace as labelled rows.
        labelled = model.search(rows=np.sqrt(m) * U[i].T)
        assert distance(labelled.basis, U[i]) < 1e-10
        assert labelled.weight == pytest.approx(weights[i], abs=1e-10)
        assert labelled.informative


def test_a_single_row_that_is_whitened_finds_its_subspace_however_near_others_are():
    U = [np.eye(5)[:, :2], np.linalg.qr(np.eye(5)[:, :2] + 0.6 * np.eye(5)[:, 2:4])[0]]
    true = SubspacePopulation(U, np.array([0.6, 0.4]), 0.3)
    model = SubspaceSearch(2, dimension=2).fit_corpus(exact_rows(true, shard_rows=100))
    for i in range(2):
        row = U[i] @ [[1.0], [2.0]]
        # Projected, the row has more than a third of its squared norm in the other subspace.
        projected = model.set_params(side="project").search(rows=row.T, force=True)
        assert not projected.informative
        found = model.set_params(side="whiten").search(rows=row.T)
        assert distance(found.basis, U[i]) < 1e-10
        assert found.weight == pytest.approx(true.weights[i], abs=1e-10)
        squared = 5.0 / true.weights[i] ** 2
        assert_allclose(found.preferences, [3.0 * squared, squared, 0.0, 0.0], atol=1e-8)


@pytest.mark.parametrize("side", ["project", "whiten"])
@pytest.mark.parametrize("unit", [1e-60, 1e-30, 0.01, 25.4, 1e30, 1e60])
def test_the_unit_of_the_rows_of_an_exact_population_does_not_matter(unit, side):
    true = population(5, 2, [0.6, 0.4], 0.3)
    rows = true.exact()
    plain, scaled = (
        SubspaceSearch(2, dimension=2, side=side).fit_corpus(WeightedRows(factor * rows.X, rows.weights))
        for factor in (1.0, unit)
    )
    for i, U in enumerate(true.bases):
        labelled, v = np.sqrt(2.0) * U.T, U @ [1.0, 0.5]
        found = scaled.search(rows=unit * labelled)
        assert distance(found.basis, U) < 1e-9
        assert found.weight == pytest.approx(true.weights[i], abs=1e-9)
        for theirs, ours in (
            (plain.search(rows=labelled), found),
            (plain.search(v, force=True), scaled.search(v, force=True)),
        ):
            assert distance(ours.basis, theirs.basis) < 1e-9
            assert ours.weight == pytest.approx(theirs.weight, abs=1e-9)
            assert_allclose(ours.preferences, theirs.preferences, atol=1e-9)
            assert (ours.gap, ours.mismatch) == pytest.approx((theirs.gap, theirs.mismatch), abs=1e-9)


def test_rows_whose_fourth_moments_underflow_are_refused():
    X = population(6, 2, [0.6, 0.4], 0.1).sample(500, 0).X
    with pytest.raises(NumericalError, match="fourth moments are out of range: scale the rows"):
        SubspaceSearch(2, dimension=2).fit(1e-80 * X)


@pytest.mark.parametrize(("excess", "informative"), [(0.0, False), (1e-12, False), (1e-6, True)])
def test_a_gap_that_equals_the_mismatch_up_to_rounding_does_not_exceed_it(excess, informative):
    found = FoundSubspace(
        basis=np.eye(3)[:, :1], spread=1.0, mismatch=2.0, weight=0.5, gap=2.0 * (1.0 + excess), noise=0.0,
        n_rows_needed=0.0, preferences=np.array([3.0, 1.0]),
    )  # fmt: skip
    assert found.informative is informative


@pytest.mark.parametrize(("n_oversamples", "n_power_iter"), [(0, 4), (4, 3)])
def test_an_exact_population_of_many_columns_gives_every_subspace_from_a_sketch(n_oversamples, n_power_iter):
    true, corpus = wide_population(100, [0.5, 0.3, 0.2], 0.3)
    options = {"n_oversamples": n_oversamples, "n_power_iter": n_power_iter}
    model = SubspaceSearch(3, dimension=1, **options).fit_corpus(corpus)
    names = ["sketch", *["power"] * n_power_iter, "pairs", "fourth", "fourth"]
    assert [timing["name"] for timing in model.timings_] == names
    assert model.noise_variance_ == pytest.approx(0.3, abs=1e-12)
    for i in range(3):
        v = true.side_vector(i)
        found = model.search(v / true.preferences(v)[i])
        assert distance(found.basis, true.bases[i]) < 1e-10
        assert found.weight == pytest.approx(true.weights[i], abs=1e-10)
        assert_allclose(found.preferences, [3.0, 0.0, 0.0], atol=1e-9)


def test_rows_without_noise_have_a_basis_of_as_many_columns_as_their_subspaces():
    true = population(60, 2, [0.6, 0.4], 0.0)
    X = true.sample(2_000, 0).X
    model = SubspaceSearch(2, dimension=2, n_oversamples=5, n_power_iter=1).fit(X)
    assert [timing["name"] for timing in model.timings_][:3] == ["sketch", "power", "pairs"]
    assert model.noise_variance_ < 1e-12
    whole = np.hstack(true.bases)
    assert distance(model.basis_, np.linalg.qr(whole)[0]) < 1e-10
    with pytest.raises(NumericalError, match=r"carries fewer than 6 dimensions.*the largest are"):
        SubspaceSearch(3, dimension=2, n_oversamples=3, n_power_iter=1).fit(X)


def test_a_sketch_is_as_accurate_as_the_whole_second_moment():
    true, errors = population(150, 2, [0.4, 0.35, 0.25], 0.04), {}
    for seed in range(3):
        rows = true.sample(6_000, seed)
        labelled = rows.X[rows.components == 2][:50]
        # With so many columns in the sketch, the whole moment takes fewer operations.
        for name, n_oversamples in {"covariance": 30, "sketch": 10}.items():
            model = SubspaceSearch(3, dimension=2, n_oversamples=n_oversamples).fit(rows.X)
            assert model.timings_[0]["name"] == name
            found = model.search(rows=labelled)
            errors.setdefault(name, []).append(distance(found.basis, true.bases[2]))
    assert np.mean(errors["sketch"]) < 1.01 * np.mean(errors["covariance"])


def test_no_matrix_of_all_columns_is_formed():
    d = 1_200
    true = population(d, 1, [0.6, 0.4], 0.01)
    corpus = RowCorpus(true.sample(400, 0).X, shard_rows=50)
    model, matrix = SubspaceSearch(2, dimension=1), 8 * d**2
    planned = model.plan(corpus).passes
    assert [p.name for p in planned] == ["sketch", "power", "power", "pairs", "fourth", "fourth"]
    assert max(p.sums_bytes for p in planned) < matrix / 50
    assert peak_bytes(lambda: model.fit_corpus(corpus), matrix / 4) < matrix / 4
    assert distance(model.search(true.side_vector(0)).basis, true.bases[0]) < 0.6


def test_the_noise_within_the_printed_formula_is_wrong():
    s = 0.3
    drawn = population(5, 2, [0.6, 0.4], s)
    U, weights, rows = drawn.bases, drawn.weights, drawn.exact()
    X, p = rows.X, rows.weights
    rng = np.random.default_rng(0)
    V = rng.normal(size=(3, 5))
    S = V.T @ V / 3
    A = sum(w * u @ u.T for w, u in zip(weights, U, strict=True))
    inner = [u.T @ S @ u for u in U]
    true = sum(
        w * (np.trace(each) * u @ u.T + 2.0 * u @ each @ u.T)
        for w, u, each in zip(weights, U, inner, strict=True)
    )
    moment = np.einsum("n,na,nb->ab", p * np.einsum("na,ab,nb->n", X, S, X), X, X)
    assert_allclose(subspace_side(moment, A, S, s), true, atol=1e-12)
    # With the paper's coefficient 1 of s^2 S.
    assert np.abs(subspace_side(moment, A, S, s) + s**2 * S - true).max() > 0.01
    packed = np.empty((15, 15))
    i, j = np.triu_indices(5)
    pairs = X[:, i] * X[:, j]
    packed = (pairs * p[:, None]).T @ pairs
    assert_allclose(contracted_fourth(packed, S), moment, atol=1e-12)


def test_errors_fall_with_the_root_of_the_number_of_rows():
    true, errors = population(15, 2, [0.4, 0.35, 0.25], 0.04), []
    for n in (4_000, 64_000):
        for seed in range(5):
            rows = true.sample(n, seed)
            labelled = rows.X[rows.components == 2][:50]
            found = SubspaceSearch(3, dimension=2).fit(rows.X).search(rows=labelled)
            errors.append(distance(found.basis, true.bases[2]))
    assert found.weight == pytest.approx(0.25, abs=0.02)
    assert 2.6 < np.mean(errors[:5]) / np.mean(errors[5:]) < 6.0


def test_subspaces_are_nearer_than_those_of_clusters(workflow):
    kmeans_subspace = workflow("row_search").kmeans_subspace
    true = population(40, 3, [0.3, 0.3, 0.2, 0.2], 0.04)
    v, basis = true.side_vector(1), true.bases[1]
    for seed in range(2):
        X = true.sample(8_000, seed).X
        error = distance(SubspaceSearch(4, dimension=3).fit(X).search(v).basis, basis)
        assert error < 0.3
        assert error < 0.5 * distance(kmeans_subspace(X, 4, 3, v[None], seed), basis)


@pytest.mark.parametrize(("d", "options"), [(8, {}), (60, {"n_oversamples": 4, "n_power_iter": 1})])
def test_a_saved_model_and_a_file_give_the_same_bits_and_the_plan_is_kept(tmp_path, d, options):
    rows = population(d, 2, [0.4, 0.35, 0.25], 0.04).sample(3_000, 0)
    X, z = rows.X, rows.components
    corpus = RowCorpus(X, shard_rows=400)
    model = SubspaceSearch(3, dimension=2, **options)
    planned = [p.name for p in model.plan(corpus).passes]
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == planned
    assert planned[0] == ("sketch" if options else "covariance")
    stored = SubspaceSearch(3, dimension=2, **options).fit_corpus(
        ingest_rows(X, tmp_path / "c", shard_rows=400)
    )
    ours = model.search(rows=X[z == 0][:50])
    for other in (load_model(tmp_path / "m"), stored):
        theirs = other.search(rows=X[z == 0][:50])
        assert (ours.basis == theirs.basis).all()
        assert (ours.weight, ours.noise) == (theirs.weight, theirs.noise)
    cut = SubspaceSearch(3, dimension=2, **options).fit_corpus(RowCorpus(X, shard_rows=1000))
    assert distance(cut.search(rows=X[z == 0][:50]).basis, ours.basis) < 1e-9


def test_what_does_not_suit_is_refused():
    true = population(8, 2, [0.4, 0.35, 0.25], 0.04)
    X = true.sample(3_000, 0).X
    model = SubspaceSearch(3, dimension=2).fit(X)
    with pytest.raises(UsageError, match="specify either along or rows"):
        model.search()
    with pytest.raises(UsageError, match="search: expected 8 features, got 2"):
        model.search([1.0, 2.0])
    with pytest.raises(UsageError, match="along: expected a vector, got an array of 2 dimensions"):
        model.search(X[:3])
    with pytest.raises(UsageError, match=r"expected a product below 8, the number of features.*got 9"):
        SubspaceSearch(3, dimension=3).fit(X)
    with pytest.raises(InputError, match="NaN"):
        model.search(np.full(8, np.nan))
    with pytest.raises(NumericalError, match="carries fewer than 4 dimensions"):
        SubspaceSearch(2, dimension=2).fit(X[:, :1] * np.ones(8))
    for given in ({"along": np.full(8, 1e200)}, {"rows": np.full((2, 8), 1e200)}):
        with pytest.raises(NumericalError, match="so large that its moments overflow: scale it"):
            model.search(**given)
    # It is as near to one subspace as to another.
    first, second = (v / true.preferences(v)[i] for i, v in enumerate(map(true.side_vector, (0, 1))))
    tie = first + second
    with pytest.raises(
        NumericalError, match=r"prefers directions of several subspaces.* give more labelled rows"
    ):
        model.search(tie)
    assert not model.search(tie, force=True).informative
    with pytest.raises(NumericalError, match=r"does not determine a component|several subspaces"):
        model.search(np.linalg.svd(np.hstack(true.bases))[0][:, -1])


def test_the_command_line_finds_a_subspace(tmp_path, capsys):
    true = population(6, 2, [0.6, 0.4], 0.04)
    rows = true.sample(3_000, 0)
    X, z = rows.X, rows.components
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "rows.npy", X[z == 1][:50])
    corpus, place = str(tmp_path / "c"), str(tmp_path / "m")
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--workers", "0"]) == 0
    options = ["--model", "subspace-search", "-k", "2", "--dimension", "2", "--workers", "0", "--quiet"]
    assert main(["fit", corpus, place, *options]) == 0
    capsys.readouterr()
    assert main(["find", place, "--rows", str(tmp_path / "rows.npy"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert distance(np.array(found["basis"]), true.bases[1]) < 0.3
    assert main(["find", place, "--rows", str(tmp_path / "rows.npy")]) == 0
    assert "spread" in capsys.readouterr().out
    assert main(["find", place, "--target", "0"]) == 2
    assert "--target: not an option with" in capsys.readouterr().err
