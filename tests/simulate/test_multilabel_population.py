import itertools

import numpy as np
import pytest
from oracles import mixture_parameters, project

from distmom.errors import UsageError
from distmom.linalg import decompose, whiten
from distmom.simulate import MultiLabelPopulation, planted


@pytest.fixture
def population():
    rng = np.random.default_rng(1)
    return MultiLabelPopulation([0.6, 0.4], rng.dirichlet(np.ones(4), 2).T, rng.dirichlet(np.ones(3), 2).T)


def distinct_moments(documents):
    """Compute weighted moments over distinct word positions, and over labels and pairs of words, from counts."""
    C, Y, w = documents.words.toarray(), documents.labels.toarray(), documents.weights
    n, m = C.sum(axis=1), Y.sum(axis=1)
    eye = np.eye(C.shape[1])
    pairs = np.einsum("na,nb->nab", C, C) - np.einsum("na,ab->nab", C, eye)
    triples = np.einsum("na,nb,nc->nabc", C, C, C)
    # Triples of positions in which two coincide, for each of the three pairs.
    for same in ("na,nc,ab", "na,nb,ac", "na,nb,bc"):
        triples -= np.einsum(f"{same}->nabc", C, C, eye)
    triples += 2 * np.einsum("na,ab,ac->nabc", C, eye, eye)
    return (
        np.einsum("n,na->a", w / n, C),
        np.einsum("n,nab->ab", w / (n * (n - 1)), pairs),
        np.einsum("n,nabc->abc", w / (n * (n - 1) * (n - 2)), triples),
        np.einsum("n,nl,nab->lab", w / (m * n * (n - 1)), Y, pairs),
    )


@pytest.mark.parametrize(("n", "m"), [(3, 1), (4, 2), (5, 1)])
def test_enumerated_moments_equal_the_closed_forms(population, n, m):
    documents = population.enumerate(n, m)
    assert documents.weights.sum() == pytest.approx(1.0, abs=1e-14)
    assert documents.words.shape == (4**n * 3**m, 4)
    assert (documents.words.sum(axis=1) == n).all()
    assert (documents.labels.sum(axis=1) == m).all()
    first, second, third, label = distinct_moments(documents)
    np.testing.assert_allclose(first, population.first_moment(), atol=1e-14)
    np.testing.assert_allclose(second, population.second_moment(), atol=1e-14)
    np.testing.assert_allclose(third, population.third_moment(), atol=1e-14)
    np.testing.assert_allclose(label, population.label_moment(), atol=1e-14)


def test_enumerated_weights_equal_a_loop_over_tuples(population):
    documents = population.enumerate(3, 2)
    for row, (words, labels) in enumerate(
        itertools.product(itertools.product(range(4), repeat=3), itertools.product(range(3), repeat=2))
    ):
        mass = sum(
            population.pi[h] * population.O[list(words), h].prod() * population.Q[list(labels), h].prod()
            for h in range(2)
        )
        assert documents.weights[row] == pytest.approx(mass, rel=1e-13)
        np.testing.assert_array_equal(documents.words[[row]].toarray()[0], np.bincount(words, minlength=4))
        np.testing.assert_array_equal(documents.labels[[row]].toarray()[0], np.bincount(labels, minlength=3))


def test_no_labels_leave_the_words_alone(population):
    documents = population.enumerate(3, 0)
    assert documents.labels.shape == (64, 3)
    assert documents.labels.nnz == 0
    assert documents.weights.sum() == pytest.approx(1.0)


def test_parameters_are_recovered_from_the_enumerated_population(population):
    documents = population.enumerate(4, 1)
    _, second, third, label = distinct_moments(documents)
    whitening = whiten(second, 2)
    result = decompose(project(third, whitening.W))
    mixture = mixture_parameters(result.eigenvalues, result.eigenvectors, whitening.B)
    np.testing.assert_allclose(mixture.weights, population.pi, atol=1e-10)
    np.testing.assert_allclose(mixture.components, population.O, atol=1e-10)
    # E[label | pair] contracted with W u_k in both word modes gives gamma_k.
    axes = whitening.W @ result.eigenvectors
    np.testing.assert_allclose(np.einsum("lij,ik,jk->lk", label, axes, axes), population.Q, atol=1e-10)


def test_samples_do_not_depend_on_the_division_into_blocks(population):
    options = {"words_per_document": (3, 9), "labels_per_document": (0, 3), "random_state": 5}
    whole = population.sample(0, 50, **options)
    for cut in (0, 1, 33, 50):
        parts = [population.sample(0, cut, **options), population.sample(cut, 50, **options)]
        for name in ("words", "labels"):
            joined = np.concatenate([getattr(part, name).toarray() for part in parts])
            np.testing.assert_array_equal(joined, getattr(whole, name).toarray())
        np.testing.assert_array_equal(np.concatenate([part.states for part in parts]), whole.states)


def test_labels_do_not_change_with_the_length_of_documents(population):
    short, long = (population.sample(0, 30, words_per_document=n) for n in (3, 8))
    np.testing.assert_array_equal(short.labels.toarray(), long.labels.toarray())
    assert (long.words - short.words).min() >= 0


def test_lengths_and_binary_values(population):
    documents = population.sample(0, 500, words_per_document=(3, 6), labels_per_document=(0, 2))
    assert set(documents.words.sum(axis=1)) == {3, 4, 5, 6}
    assert set(documents.labels.sum(axis=1)) == {0, 1, 2}
    assert documents.words.has_canonical_format
    binary = population.sample(0, 500, words_per_document=(3, 6), labels_per_document=(0, 2), binary=True)
    assert set(binary.words.data) == {1.0}
    np.testing.assert_array_equal(binary.words.toarray(), documents.words.toarray() > 0)


def test_sampled_moments_approach_the_population(population):
    documents = population.sample(0, 40000, words_per_document=5, labels_per_document=2, random_state=2)
    assert np.bincount(documents.states) / 40000 == pytest.approx(population.pi, abs=0.01)
    sampled = type(documents)(documents.words, documents.labels, np.full(40000, 1 / 40000), None)
    first, second, _, label = distinct_moments(sampled)
    np.testing.assert_allclose(first, population.first_moment(), atol=0.005)
    np.testing.assert_allclose(second, population.second_moment(), atol=0.005)
    np.testing.assert_allclose(label, population.label_moment(), atol=0.005)


def test_posterior_equals_bayes_rule(population):
    documents = population.enumerate(3, 0)
    expected = population.pi * np.prod(population.O[None] ** documents.words.toarray()[:, :, None], axis=1)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(population.state_posterior(documents.words), expected, atol=1e-13)
    # The mean posterior over the population is the prior.
    np.testing.assert_allclose(documents.weights @ expected, population.pi, atol=1e-13)


def test_posterior_with_impossible_words():
    population = MultiLabelPopulation([0.5, 0.5], [[1.0, 0.5], [0.0, 0.5], [0.0, 0.0]], np.ones((1, 2)))
    np.testing.assert_allclose(
        population.state_posterior(np.array([[1, 1, 0], [2, 0, 0]])), [[0, 1], [0.8, 0.2]]
    )
    with pytest.raises(UsageError, match="document 1 has probability zero"):
        population.state_posterior(np.array([[1, 0, 0], [0, 0, 1]]))
    # Words that cannot occur are never drawn.
    assert population.sample(0, 300).words[:, [2]].nnz == 0


@pytest.mark.parametrize("seed", range(5))
def test_planted_parameters_are_well_conditioned(seed):
    population = planted(200, 30, 8, random_state=seed)
    assert (population.n_words, population.n_labels, population.n_states) == (200, 30, 8)
    assert population.pi.max() < 3.5 * population.pi.min()
    for columns in (population.O, population.Q):
        np.testing.assert_allclose(columns.sum(axis=0), 1.0, atol=1e-14)
        unit = columns / np.linalg.norm(columns, axis=0)
        assert np.linalg.svd(unit, compute_uv=False)[-1] > 0.3
    again = planted(200, 30, 8, random_state=seed)
    assert population.O.tobytes() == again.O.tobytes()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: MultiLabelPopulation([0.5, 0.6], np.eye(2), np.eye(2)), "columns of pi must be"),
        (lambda p: MultiLabelPopulation([0.5, 0.5], np.eye(2) - 1e-3, np.eye(2)), "columns of O must be"),
        (lambda p: MultiLabelPopulation([1.0], np.eye(2), np.eye(2)), "pi has 1 states"),
        (lambda p: MultiLabelPopulation([1.0], np.ones(1), np.ones((1, 1))), "O must be a matrix"),
        (lambda p: p.sample(3, 2), "3 to 2 are not a range"),
        (lambda p: p.sample(0, 2, words_per_document=(3, 2)), "words_per_document must be"),
        (lambda p: p.enumerate(20, 1), "more than 4000000"),
        (lambda p: p.enumerate(-1, 1), "must not be negative"),
        (lambda p: planted(3, 2, 3), "3 states need at least as many"),
        (lambda p: planted(3, 3, 3, overlap=1.0), "overlap must lie"),
    ],
)
def test_bad_arguments_are_named(population, call, message):
    with pytest.raises(UsageError, match=message):
        call(population)
