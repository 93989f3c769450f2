"""Search for one of several subspaces: exact populations, samples, k-means for comparison, and refusals."""

import json
from itertools import product

import numpy as np
import pytest
from helpers import WeightedRows
from numpy.polynomial.hermite_e import hermegauss
from numpy.testing import assert_allclose
from sklearn.cluster import KMeans

from distmom.cli.main import main
from distmom.corpus import RowCorpus, ingest_rows
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import SubspaceSearch, load_model
from distmom.models.search.subspace import contracted_fourth, subspace_side


def bases(d, m, k, seed=0):
    rng = np.random.default_rng(seed)
    return [np.linalg.qr(rng.normal(size=(d, m)))[0] for _ in range(k)]


def population(U, weights, s, **options):
    """Return points with the moments of Gaussian rows up to order five in every component."""
    d = len(U[0])
    nodes, mass = hermegauss(3)
    Z = np.array(list(product(nodes, repeat=d)))
    p = np.array([np.prod(each) for each in product(mass / mass.sum(), repeat=d)])
    rows = []
    for basis in U:
        # A root of the covariance: sqrt(1 + s) within the subspace, sqrt(s) outside.
        within = basis @ basis.T
        rows.append(Z @ (np.sqrt(1.0 + s) * within + np.sqrt(s) * (np.eye(d) - within)))
    return WeightedRows(np.concatenate(rows), np.concatenate([w * p for w in weights]), **options)


def sample(U, weights, s, n, seed):
    rng = np.random.default_rng(seed)
    (d, m), z = U[0].shape, rng.choice(len(U), n, p=weights)
    g = rng.normal(size=(n, m))
    return np.einsum("ndm,nm->nd", np.stack(U)[z], g) + np.sqrt(s) * rng.normal(size=(n, d)), z


def distance(found, true):
    return np.linalg.norm(found @ found.T - true @ true.T, 2)


def preferring(U, i):
    """Return a vector with unit products with the basis i, and none with the others."""
    return np.linalg.pinv(np.hstack(U).T) @ np.repeat(np.eye(len(U))[i], U[0].shape[1])


@pytest.mark.parametrize(("d", "m", "k"), [(5, 2, 2), (4, 1, 3)])
def test_an_exact_population_gives_every_subspace(d, m, k):
    U, weights = bases(d, m, k), np.array([0.5, 0.3, 0.2])[:k] / np.array([0.5, 0.3, 0.2])[:k].sum()
    model = SubspaceSearch(k, dimension=m).fit_corpus(population(U, weights, 0.3, shard_rows=100))
    assert [timing["name"] for timing in model.timings_] == ["covariance", "fourth", "fourth"]
    assert model.noise_variance_ == pytest.approx(0.3, abs=1e-12)
    for i in range(k):
        v = preferring(U, i)
        found = model.search(v)
        assert distance(found.basis, U[i]) < 1e-10
        assert found.weight == pytest.approx(weights[i], abs=1e-10)
        assert found.spread == pytest.approx(1.0, abs=1e-10)
        assert found.mismatch < 1e-9
        # The squared norm of v in the subspace is m: three times that, and m - 1 times that.
        expected = np.concatenate([[3.0 * m], np.full(m - 1, m), np.zeros(m * (k - 1))])
        assert_allclose(found.preferences, expected, atol=1e-9)
        # Any orthogonal basis of the subspace as labelled rows.
        labelled = model.search(rows=np.sqrt(m) * U[i].T)
        assert distance(labelled.basis, U[i]) < 1e-10
        assert labelled.weight == pytest.approx(weights[i], abs=1e-10)
        assert labelled.informative


def test_the_noise_within_the_printed_formula_is_wrong():
    U, weights, s = bases(5, 2, 2), np.array([0.6, 0.4]), 0.3
    corpus = population(U, weights, s)
    X, p = corpus.read_shard(0).rows, corpus.unit_weights
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
    U, weights = bases(15, 2, 3), np.array([0.4, 0.35, 0.25])
    errors = []
    for n in (4_000, 64_000):
        for seed in range(5):
            X, z = sample(U, weights, 0.04, n, seed)
            found = SubspaceSearch(3, dimension=2).fit(X).search(rows=X[z == 2][:50])
            errors.append(distance(found.basis, U[2]))
    assert found.weight == pytest.approx(0.25, abs=0.02)
    assert 2.6 < np.mean(errors[:5]) / np.mean(errors[5:]) < 6.0


def kmeans_subspace(X, k, m, v, seed):
    """Return the singular vectors of the cluster of rows in which a vector has the largest norm."""
    assigned = KMeans(k, n_init=1, random_state=seed).fit(X).labels_
    found = [np.linalg.svd(X[assigned == i], full_matrices=False)[2][:m].T for i in range(k)]
    return max(found, key=lambda basis: np.linalg.norm(basis.T @ v))


def test_subspaces_are_nearer_than_those_of_clusters():
    U, weights = bases(40, 3, 4), np.array([0.3, 0.3, 0.2, 0.2])
    for seed in range(2):
        X, _ = sample(U, weights, 0.04, 8_000, seed)
        v = preferring(U, 1)
        error = distance(SubspaceSearch(4, dimension=3).fit(X).search(v).basis, U[1])
        assert error < 0.3
        assert error < 0.5 * distance(kmeans_subspace(X, 4, 3, v, seed), U[1])


def test_a_saved_model_and_a_file_give_the_same_bits_and_the_plan_is_kept(tmp_path):
    U, weights = bases(8, 2, 3), np.array([0.4, 0.35, 0.25])
    X, z = sample(U, weights, 0.04, 3_000, 0)
    corpus = RowCorpus(X, shard_rows=400)
    model = SubspaceSearch(3, dimension=2)
    planned = [p.name for p in model.plan(corpus).passes]
    model.fit_corpus(corpus).save(tmp_path / "m")
    assert [timing["name"] for timing in model.timings_] == planned
    stored = SubspaceSearch(3, dimension=2).fit_corpus(ingest_rows(X, tmp_path / "c", shard_rows=400))
    ours = model.search(rows=X[z == 0][:50])
    for other in (load_model(tmp_path / "m"), stored):
        theirs = other.search(rows=X[z == 0][:50])
        assert (ours.basis == theirs.basis).all()
        assert (ours.weight, ours.noise) == (theirs.weight, theirs.noise)
    cut = SubspaceSearch(3, dimension=2).fit_corpus(RowCorpus(X, shard_rows=1000))
    assert distance(cut.search(rows=X[z == 0][:50]).basis, ours.basis) < 1e-9


def test_what_does_not_suit_is_refused():
    U, weights = bases(8, 2, 3), np.array([0.4, 0.35, 0.25])
    X, _ = sample(U, weights, 0.04, 3_000, 0)
    model = SubspaceSearch(3, dimension=2).fit(X)
    with pytest.raises(UsageError, match="specify either along or rows"):
        model.search()
    with pytest.raises(UsageError, match="search: expected 8 features, got 2"):
        model.search([1.0, 2.0])
    with pytest.raises(UsageError, match=r"expected a product below 8, the number of features.*got 9"):
        SubspaceSearch(3, dimension=3).fit(X)
    with pytest.raises(InputError, match="NaN"):
        model.search(np.full(8, np.nan))
    with pytest.raises(NumericalError, match="carries fewer than 4 dimensions"):
        SubspaceSearch(2, dimension=2).fit(X[:, :1] * np.ones(8))
    # It is as near to one subspace as to another.
    tie = preferring(U, 0) + preferring(U, 1)
    with pytest.raises(
        NumericalError, match=r"prefers directions of several subspaces.* give more labelled rows"
    ):
        model.search(tie)
    assert not model.search(tie, force=True).informative
    with pytest.raises(NumericalError, match=r"does not determine a component|several subspaces"):
        model.search(np.linalg.svd(np.hstack(U))[0][:, -1])


def test_the_command_line_finds_a_subspace(tmp_path, capsys):
    U, weights = bases(6, 2, 2), np.array([0.6, 0.4])
    X, z = sample(U, weights, 0.04, 3_000, 0)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "rows.npy", X[z == 1][:50])
    corpus, place = str(tmp_path / "c"), str(tmp_path / "m")
    assert main(["ingest", str(tmp_path / "X.npy"), corpus]) == 0
    options = ["--model", "subspace-search", "-k", "2", "--dimension", "2", "--workers", "0", "--quiet"]
    assert main(["fit", corpus, place, *options]) == 0
    capsys.readouterr()
    assert main(["find", place, "--rows", str(tmp_path / "rows.npy"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert distance(np.array(found["basis"]), U[1]) < 0.3
    assert main(["find", place, "--rows", str(tmp_path / "rows.npy")]) == 0
    assert "spread" in capsys.readouterr().out
    assert main(["find", place, "--target", "0"]) == 2
    assert "--target: not an option with" in capsys.readouterr().err
