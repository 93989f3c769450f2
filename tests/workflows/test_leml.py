"""LEML beside its objective by definition, closed forms, and as a peer."""

import importlib
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix, random_array, save_npz

PENALTY = 0.7


@pytest.fixture
def leml():
    return importlib.import_module("leml")


def data(n=80, d=12, n_labels=7, seed=0):
    rng = np.random.default_rng(seed)
    X = csr_matrix(
        random_array((n, d), density=0.4, rng=rng, data_sampler=lambda size: rng.normal(size=size))
    )
    Y = csr_matrix((rng.random((n, n_labels)) < 0.3).astype(float))
    return X, Y


def by_definition(X, Y, W, H):
    rest = Y.toarray() - X.toarray() @ W @ H.T
    return 0.5 * np.sum(rest**2) + 0.5 * PENALTY * (np.sum(W**2) + np.sum(H**2))


def test_the_objective_falls_to_a_point_where_its_gradient_is_zero(leml):
    X, Y = data()
    exact = {"n_rounds": 3000, "n_steps": 100, "tolerance": 1e-12, "least_decrease": 1e-15}
    found = leml.fit_leml(X, Y, 3, PENALTY, **exact)
    assert (np.diff(found.objectives) <= 1e-12 * found.objectives[0]).all()
    assert found.objectives[-1] == pytest.approx(by_definition(X, Y, found.W, found.H), rel=1e-12)
    assert found.objectives[-1] < 0.95 * found.objectives[0]
    rng = np.random.default_rng(1)
    for W, H in ((found.W, found.H), (rng.standard_normal((12, 3)), rng.standard_normal((7, 3)))):
        for own, which in zip(leml.gradients(X, Y, W, H, PENALTY), (0, 1), strict=True):
            numeric = np.zeros_like(own)
            for index in np.ndindex(own.shape):
                moved = [W.copy(), H.copy()]
                moved[which][index] += 1e-5
                above = by_definition(X, Y, *moved)
                moved[which][index] -= 2e-5
                numeric[index] = (above - by_definition(X, Y, *moved)) / 2e-5
            assert_allclose(own, numeric, atol=1e-6)
    scale = np.linalg.norm(X.T @ Y @ found.H)
    assert max(np.linalg.norm(g) for g in leml.gradients(X, Y, found.W, found.H, PENALTY)) < 1e-5 * scale


def test_with_outputs_of_one_label_each_the_inputs_are_those_of_ridge_regressions(leml):
    X, Y = data()
    W = leml.best_inputs(X, Y, np.zeros((12, 7)), np.eye(7), PENALTY, n_steps=200, tolerance=1e-13)
    dense = X.toarray()
    for label in range(7):
        ridge = np.linalg.solve(dense.T @ dense + PENALTY * np.eye(12), dense.T @ Y.toarray()[:, label])
        assert_allclose(W[:, label], ridge, atol=1e-9)


@pytest.mark.parametrize("rank", [2, 7])
def test_with_orthonormal_features_the_product_is_the_soft_threshold_of_the_singular_values(leml, rank):
    """The minimum for the trace norm; with a smaller rank its leading part. Here least squares are X'Y."""
    rng = np.random.default_rng(2)
    X = csr_matrix(np.linalg.qr(rng.standard_normal((60, 12)))[0])
    Y = data(60, seed=3)[1]
    U, singular, V = np.linalg.svd(X.T @ Y.toarray(), full_matrices=False)
    assert singular[2] > PENALTY > singular[-1]
    expected = (U[:, :rank] * np.maximum(singular[:rank] - PENALTY, 0.0)) @ V[:rank]
    exact = {"n_rounds": 5000, "n_steps": 100, "tolerance": 1e-13, "least_decrease": 1e-16}
    found = leml.fit_leml(X, Y, rank, PENALTY, **exact)
    assert_allclose(found.W @ found.H.T, expected, atol=1e-6)


def test_a_vanishing_penalty_gives_least_squares_of_every_label(leml):
    X, Y = data(d=6, n_labels=5)
    exact = {"n_rounds": 500, "n_steps": 200, "tolerance": 1e-13, "least_decrease": 1e-15}
    found = leml.fit_leml(X, Y, 5, 1e-9, **exact)
    assert_allclose(found.W @ found.H.T, np.linalg.lstsq(X.toarray(), Y.toarray())[0], atol=1e-6)


def test_the_peer_ranks_labels_of_a_low_rank_model(tmp_path):
    rng = np.random.default_rng(0)
    W, H = rng.standard_normal((30, 2)), rng.standard_normal((10, 2))
    X = rng.standard_normal((500, 30))
    scores = X @ W @ H.T
    Y = np.zeros_like(scores)
    np.put_along_axis(Y, scores.argsort(axis=1)[:, -2:], 1.0, axis=1)
    for name, matrix in (("X_train", X[:400]), ("Y_train", Y[:400]), ("X_test", X[400:])):
        save_npz(tmp_path / f"{name}.npz", csr_matrix(matrix.astype(np.float32)))
    run_peer = importlib.import_module("run_peer")
    assert run_peer.main(["leml", str(tmp_path)]) == 0
    times = json.loads((tmp_path / "leml" / "times.json").read_text())
    assert times["chosen"]["rank"] == 5
    assert times["chosen"]["penalty"] in run_peer.LEML_PENALTIES
    with np.load(tmp_path / "leml" / "ranked.npz") as ranked:
        labels, dense = ranked["labels"], ranked["dense"]
    assert dense.shape == (100, 10)
    assert (labels == np.argsort(-dense, axis=1, kind="stable")[:, :5]).all()
    found = np.take_along_axis(Y[400:], labels[:, :2], axis=1).mean()
    # By chance a fifth.
    assert found > 0.8
