import numpy as np
import pytest
from helpers import random_corpus
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, random_array, vstack

from distmom.engine import Csr, Term, open_engine
from distmom.engine.passes import transform_fields
from distmom.models.multilabel.heads.heads import RidgeHead, StateHead, rank_labels
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead, SketchNeighbors, unit_rows
from distmom.models.multilabel.heads.query import Query
from distmom.models.multilabel.heads.score_kernels import add_sparse_scores, add_votes
from distmom.models.multilabel.kernels import (
    nearest_rows,
    top_by_states,
    top_candidates,
    top_labels,
    top_of_products,
)
from distmom.moments.features.residuals import restricted_scores


def load(leaf):
    return np.array(leaf.load()) if hasattr(leaf, "load") else leaf


def sparse(n, d, density, seed):
    return csr_array(random_array((n, d), density=density, rng=np.random.default_rng(seed))).astype(
        np.float32
    )


def unit(matrix):
    length = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    return csr_array(matrix.multiply(1 / np.where(length > 0, length, 1)[:, None])).astype(np.float32)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_top_labels_order_by_score_then_label(k):
    scores = np.random.default_rng(0).integers(0, 4, (50, 10)).astype(np.float32)
    labels, values = top_labels(scores, k)
    expected = np.lexsort((np.broadcast_to(np.arange(10), scores.shape), -scores), axis=1)[:, :k]
    assert_array_equal(labels, expected)
    assert_array_equal(values, np.take_along_axis(scores, expected, axis=1))


@pytest.mark.parametrize("shift", [0, -3, 3])
def test_top_labels_of_many_labels_and_any_sign(shift):
    scores = np.random.default_rng(1).normal(shift, 1, (20, 1000)).astype(np.float32)
    scores[:10, ::3] = 0
    labels, values = top_labels(scores, 7)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    assert_array_equal(labels, expected)
    assert_array_equal(values, np.take_along_axis(scores, expected, axis=1))


def test_top_candidates_leave_out_what_is_none():
    rng = np.random.default_rng(5)
    scores = rng.integers(0, 4, (50, 10)).astype(np.float32)
    labels = np.where(rng.random((50, 10)) < 0.6, rng.integers(0, 99, (50, 10)), -1)
    labels[0], labels[1, 1:] = -1, -1
    scores[2] = np.nan
    for row, score, label in zip(top_candidates(scores, labels, 4), scores, labels, strict=True):
        some = [c for c in range(10) if label[c] >= 0 and not np.isnan(score[c])]
        best = sorted(some, key=lambda c: (-score[c], c))[:4]
        assert row.tolist() == best + [-1] * (4 - len(best))


@pytest.mark.parametrize("density", [0.02, 0.2, 0.6])
@pytest.mark.parametrize("k", [1, 10, 75])
def test_neighbors_are_exact(k, density):
    rows, queries = unit(sparse(400, 60, density, 1)), unit(sparse(30, 60, density, 2))
    alive = np.random.default_rng(3).random(400) < 0.9
    labels = Csr.of(csr_array((400, 5)), np.uint8)
    head = NeighborsHead(Csr.of(csr_array(rows.T)), labels, alive.astype(np.uint8))
    found, cosines = head.search(queries, k)
    exact = (queries @ rows.T).toarray()
    exact[:, ~alive] = 0
    best = -np.sort(-exact, axis=1)[:, :k]
    assert_allclose(cosines, best, atol=1e-6)
    for i in range(30):
        real = found[i] >= 0
        assert_array_equal(real, best[i] > 0)
        assert len(set(found[i][real])) == real.sum()
        assert_allclose(exact[i, found[i][real]], cosines[i][real], atol=1e-6)


def sketch_query(z):
    query = Query(random_corpus(len(z)).read_shard(0).take(slice(0, len(z))), None)
    query.sketch = z
    return query


@pytest.mark.parametrize("k", [1, 7, 150, 400])
def test_neighbors_in_the_sketch_are_exact_and_the_first_of_equal_ones(k):
    rng = np.random.default_rng(0)
    kinds = unit_rows(rng.standard_normal((12, 37))).astype(np.float32)
    owner = rng.integers(0, 12, 400)
    alive = (rng.random(400) < 0.8).astype(np.uint8)
    labels = Csr.of(csr_array(np.eye(400, dtype=np.uint8)), np.uint8)
    # Every row has a unique label, so that votes show which rows were found.
    head = SketchNeighbors(kinds[owner], labels, alive, n_neighbors=k, power=1.0)
    z = rng.standard_normal((40, 37)).astype(np.float32)
    out = np.zeros((40, 400), np.float32)
    head.add_scores(sketch_query(z), 1.0, out)
    exact = unit_rows(z).astype(np.float64) @ kinds.T.astype(np.float64)
    for i in range(40):
        cosines = np.where(alive == 1, exact[i, owner], -1.0)
        expected = np.argsort(-cosines, kind="stable")[:k]
        assert_array_equal(np.flatnonzero(out[i]), np.sort(expected[cosines[expected] > 0]))
        alone = np.zeros((1, 400), np.float32)
        head.add_scores(sketch_query(z[i : i + 1]), 1.0, alone)
        assert_array_equal(alone[0], out[i])
    assert len(np.unique(out[0])) <= 13


@pytest.mark.parametrize("window", [100, 128, 1000, 5000])
def test_neighbors_do_not_depend_on_windows_of_rows(window):
    """Of rows of equal product the first are taken, whichever windows they lie in."""
    half = unit(sparse(2500, 30, 0.1, 4))
    rows, queries = csr_array(vstack([half, half])), unit(sparse(40, 30, 0.1, 5))
    alive = (np.random.default_rng(6).random(5000) < 0.9).astype(np.uint8)
    lists = csr_array(rows.T.tocsr())
    found, products = nearest_rows(
        queries.indptr, queries.indices, queries.data, lists.indptr.astype(np.int64), lists.indices, lists.data,
        alive, 20, 0.0, window,
    )  # fmt: skip
    exact = (queries @ rows.T).toarray()
    exact[:, alive == 0] = 0
    assert_allclose(products, -np.sort(-exact, axis=1)[:, :20], atol=1e-6)
    for i, j in np.argwhere(found[:, :-1] >= 0):
        assert products[i, j] > products[i, j + 1] or found[i, j] < found[i, j + 1]


def test_light_words_with_long_lists_are_skipped():
    """The lightest words go first, as far as they fit in the share; a word with a short list stays."""
    rows = np.zeros((40, 4), np.float32)
    rows[:, :3], rows[7, 3] = 1.0, 1.0
    lists = csr_array(rows.T)
    weights = np.array([[0.1, 0.3, 0.2, 0.05], [0.4, 0.4, 0.4, 0.0]], np.float32)
    queries = csr_array(weights)

    def best(skipped):
        return nearest_rows(
            queries.indptr, queries.indices, queries.data, lists.indptr.astype(np.int64), lists.indices,
            lists.data, np.ones(40, np.uint8), 1, skipped, 128, 30,
        )[1][:, 0]  # fmt: skip

    # Squared lengths are 0.1425 and 0.48.
    assert_allclose(best(0.0), [0.65, 1.2], rtol=1e-6)
    assert_allclose(best(0.08), [0.55, 1.2], rtol=1e-6)
    assert_allclose(best(0.36), [0.35, 0.8], rtol=1e-6)
    assert_allclose(best(1.0), [0.05, 0.0], atol=1e-6)


def test_sparse_scores_and_votes():
    a, w = sparse(7, 20, 0.3, 0), sparse(20, 9, 0.3, 1)
    out = np.zeros((7, 9), np.float32)
    with open_engine(random_corpus()) as engine:
        mixed = transform_fields(engine.maps.combine_mixed([Term(Csr.of(w))]), load)
    add_sparse_scores(
        a.indptr, a.indices, a.data, mixed.sparse.indptr, mixed.sparse.indices, mixed.sparse.data,
        mixed.dense_row, mixed.dense, 0.5, out,
    )  # fmt: skip
    assert 0 < (mixed.dense_row >= 0).sum() < 20
    assert_allclose(out, 0.5 * (a @ w).toarray(), atol=1e-6)
    labels = csr_array((np.random.default_rng(2).random((6, 9)) < 0.4).astype(np.uint8))
    rows = np.array([[2, 0, 5], [1, -1, -1], [-1, -1, -1]], np.int32)
    products = np.array([[0.9, 0.5, 0.1], [0.3, 0, 0], [0, 0, 0]], np.float32)
    out = np.zeros((3, 9), np.float32)
    add_votes(rows, products, labels.indptr, labels.indices, 2, 3.0, 2.0, 10.0, out)
    y = labels.toarray()
    votes = (0.9**3 * y[2] + 0.5**3 * y[0]) / (0.9**3 + 0.5**3)
    assert_allclose(out[0], 2 * votes + 10 * np.maximum(0.9 * y[2], 0.5 * y[0]), atol=1e-5)
    assert_allclose(out[1], 2.0 * y[1] + 3.0 * y[1], atol=1e-5)
    assert_array_equal(out[2], 0)


@pytest.mark.parametrize("density", [0.3, 0.02])
@pytest.mark.parametrize("n_labels", [9, 400])
def test_scores_of_true_labels_and_hardest_wrong_ones(n_labels, density):
    """Few weights and many labels are scored label by label, the others over all labels."""
    a, weights = sparse(12, 20, 0.3, 0), sparse(20, n_labels, density, 1)
    labels = csr_array((np.random.default_rng(2).random((12, n_labels)) < 2 / n_labels).astype(np.uint8))
    inverse = np.random.default_rng(3).random(20).astype(np.float32)
    sums = np.ones(weights.nnz)
    indptr, indices, data = restricted_scores(a, labels, weights, inverse, n_labels, 3, 1.0, sums)
    found = csr_array((data, indices, indptr), shape=(12, n_labels)).toarray()
    scores, truth = (a @ weights).toarray(), labels.toarray().astype(bool)
    own = (a.toarray() ** 2) @ inverse
    expected = np.where(truth, scores - own[:, None], 0)
    for i in range(12):
        wrong = np.flatnonzero(~truth[i] & (scores[i] > 0))
        hardest = wrong[np.argsort(-scores[i, wrong])][:3]
        expected[i, hardest] = scores[i, hardest]
    assert_allclose(found, expected, atol=1e-5)
    of_entries = (a.toarray().T @ expected)[weights.nonzero()]
    assert np.abs(of_entries).max() > 0.1
    assert_allclose(sums - 1, of_entries, atol=1e-5)


@pytest.mark.parametrize("concentration", [0.01, 0.3, 100.0])
def test_top_by_states_is_that_of_all_labels(concentration):
    rng = np.random.default_rng(4)
    # Few different values: ties are common, and zeros too.
    states = (rng.integers(0, 6, (500, 8)) * (rng.random((500, 8)) < 0.3) / 64).astype(np.float32)
    posterior = rng.dirichlet(np.full(8, concentration), 300).astype(np.float32)
    posterior = np.round(posterior * 64).astype(np.float32) / 64
    head = StateHead(None, None, states, ranked=rank_labels(states))
    scores = posterior @ states.T
    for depth in (12, 100, 500):
        labels, values, found = top_by_states(posterior, states, head.ranked[:, :depth].copy(), 7, 500)
        sure = found == 1
        expected, expected_values = top_labels(scores, 7)
        # All products and sums are exact in float32, so that the order is too.
        assert_array_equal(labels[sure], expected[sure])
        assert_array_equal(values[sure], expected_values[sure])
        if depth == 500:
            assert sure.all()
        elif depth == 100 and concentration < 1:
            assert sure.any()
    assert not top_by_states(posterior, states, head.ranked[:, :1].copy(), 7, 500)[2].any()
    assert not top_by_states(posterior, states, head.ranked[:, 1:].copy(), 7, 0)[2].any()


@pytest.mark.parametrize("concentration", [0.01, 100.0])
def test_top_of_products_does_not_depend_on_their_rounding(concentration):
    """Products in float64 and products of other rows give the sums in order, and the labels of these."""
    rng = np.random.default_rng(5)
    states = rng.gamma(0.3, size=(900, 37)).astype(np.float32)
    states[rng.random(900) < 0.5] = 0.0
    posterior = rng.dirichlet(np.full(37, concentration), 60).astype(np.float32)
    posterior[0] = 0.0
    exact = np.zeros((60, 900), np.float32)
    for h in range(37):
        exact += posterior[:, h : h + 1] * states[:, h]
    expected, values = top_labels(exact, 600)
    for products in (posterior @ states.T, (posterior.astype(np.float64) @ states.T).astype(np.float32)):
        found, found_values = top_of_products(products, posterior, states, 600, 37 * 2.0**-23)
        assert_array_equal(found, expected)
        assert_array_equal(found_values, values)
    assert (products != exact).any()
    assert (values[:, -1] == 0.0).all()


@pytest.mark.parametrize("n_labels", [3, 5000])
def test_best_labels_of_ridge_are_those_of_all_scores(n_labels):
    rng = np.random.default_rng(0)
    # Small integers: products are exact in float32, and ties are common.
    z = rng.integers(-3, 4, (300, 6)).astype(np.float32)
    head = RidgeHead(rng.integers(-2, 3, (6, n_labels)).astype(np.float32), rng.integers(-2, 3, n_labels))

    class Sketched:
        sketch = z

    labels, values = head.top(Sketched(), 0.5, 3)
    scores = np.zeros((300, n_labels), np.float32)
    head.add_scores(Sketched(), 0.5, scores)
    expected, expected_values = top_labels(scores, 3)
    assert_array_equal(values, expected_values)
    assert_array_equal(labels, expected)
