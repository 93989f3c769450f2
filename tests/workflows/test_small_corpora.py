"""Small parts of corpora: which rows they have, the measures, and the table."""

import importlib

import numpy as np
import pytest
from scipy.sparse import csr_array


@pytest.fixture
def small(scripts):
    return importlib.import_module("small_corpora")


def test_a_part_has_rows_of_its_own_and_only_labels_and_words_that_it_knows(small):
    rng = np.random.default_rng(0)
    words = (rng.random((300, 40)) < 0.05).astype(float)
    words[:, 0] = np.arange(1.0, 301.0)
    labels = csr_array((rng.random((300, 30)) < 0.02).astype(float))
    X, Y, others, truth = small.part_of(csr_array(words), labels, 60, 3)
    fitted, left = (set(part[:, [0]].toarray().ravel().astype(int)) for part in (X, others))
    assert (len(fitted), len(left), len(fitted & left)) == (60, 240, 0)
    assert (Y.sum(axis=0) > 0).all()
    assert ((X != 0).sum(axis=0) > 0).all()
    assert truth.shape == (240, Y.shape[1])


def test_precision_counts_true_labels_among_the_best(small):
    truth = csr_array(np.array([[1, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]]))
    scores = np.array([[6.0, 5, 4, 3, 2, 1], [6.0, 5, 4, 3, 2, 1]])
    assert small.precision(scores, truth) == pytest.approx([50.0, 100 / 3, 20.0])


def test_the_table_has_means_and_differences(small):
    rows = [
        {
            "corpus": "c", "documents": 100, "draw": draw, "system": system, "seconds": 1.0,
            "P@1": p + draw, "P@3": p, "P@5": p,
        }
        for draw in range(3)
        for system, p in (("distmom", 60.0), ("one", 58.0), ("two", 61.0))
    ]  # fmt: skip
    lines = small.table(rows).splitlines()
    assert lines[2] == "| 100 | distmom | 61.00 | 60.00 | 60.00 |  | 1.0 |"
    assert "| 2.00 ± 0.00, in 3 of 3 |" in lines[3]
    assert "| -1.00 ± 0.00, in 0 of 3 |" in lines[4]


def test_a_single_fold_is_used_only_while_it_is_measured(small):
    before = small.effort.EFFORTS["normal"]
    rng = np.random.default_rng(0)
    X = csr_array(rng.poisson(0.5, (60, 20)).astype(float))
    Y = csr_array(np.eye(3)[rng.integers(0, 3, 60)])
    assert small.on_one_fold(X, Y, X, 0).shape == (60, 3)
    assert small.effort.EFFORTS["normal"] is before


def test_weights_are_scored_as_the_counts_that_they_are_made_from(small):
    rng = np.random.default_rng(1)
    topic = rng.integers(0, 3, 400)
    law = (
        1.0 / (np.arange(60)[:, None] + 2.0) * np.where(np.arange(60)[:, None] % 3 == np.arange(3), 6.0, 1.0)
    )
    X = csr_array(rng.poisson(12.0 * (law / law.sum(axis=0)).T[topic]).astype(float))
    Y = csr_array(np.eye(3)[topic])
    counts, weights, twice = (
        small.SYSTEMS[name][1](X[:300], Y[:300], X[300:], 0) for name in ("distmom", "weights", "idf-twice")
    )
    assert np.abs(weights - counts).max() < 1e-3 * np.abs(counts).max()
    assert np.abs(twice - counts).max() > 0.05 * np.abs(counts).max()


def test_a_system_gets_every_document_twice_with_its_labels(small):
    X = csr_array(np.arange(1.0, 21.0)[:, None])
    Y = csr_array(np.eye(20))
    given = []
    small.of_copies(lambda *arguments: given.append(arguments))(X, Y, X[:3], 7)
    ((words, labels, others, seed),) = given
    numbers = words.toarray().ravel().astype(int) - 1
    assert sorted(numbers) == sorted(2 * list(range(20)))
    assert (labels.toarray().argmax(axis=1) == numbers).all()
    assert (others.shape, seed) == ((3, 1), 7)
