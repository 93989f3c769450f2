"""Bounds of the errors of latent states (theorem 1, corrected), beside the errors of samples."""

import math

import numpy as np
import pytest
from helpers import MemoryCorpus, WeightedCorpus, carried_out
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.engine import open_engine
from distmom.models.multilabel.latent.bounds import error_bounds, moment_errors
from distmom.models.multilabel.latent.states import StateSettings, fit_states
from distmom.moments.weighting import MomentKind, moment_spread
from distmom.simulate.multilabel import planted
from distmom.spectral.steps.core import Core
from distmom.spectral.steps.recovery import to_columns

STATES = ("words", "labels", "weights")
MOMENTS = ("pairs", "triples", "label_pairs")


def dense_moments(X, Y):
    """Moments of distinct positions, all tuples of which have the same weight."""
    n, m = X.sum(axis=1), Y.sum(axis=1)
    pairs = np.einsum("ni,nj->nij", X, X) - np.einsum("ni,ij->nij", X, np.eye(X.shape[1]))
    third = np.einsum("nij,nk->ijk", pairs, X)
    # Words i and j at two positions leave one less of each for the third.
    repeated = np.einsum("nij->ij", pairs)
    for i in range(X.shape[1]):
        third[i, :, i] -= repeated[i]
        third[:, i, i] -= repeated[:, i]
    return (
        pairs.sum(axis=0) / (n * (n - 1)).sum(),
        third / (n * (n - 1) * (n - 2)).sum(),
        np.einsum("nl,nij->lij", Y, pairs) / (n * (n - 1) * m).sum(),
    )


def moments_of_a_sample(population, n, length, seed):
    """Return the errors of three moments and their bounds, each of shape (3,)."""
    documents = population.sample(0, n, words_per_document=length, labels_per_document=1, random_state=seed)
    X, Y = csr_array(documents.words).astype(int), csr_array(documents.labels).astype(int)
    truth = population.second_moment(), population.third_moment(), population.label_moment()
    found = dense_moments(X.toarray().astype(float), Y.toarray().astype(float))
    block = MemoryCorpus(X, Y).read_shard(0)
    spread = moment_spread(block, MomentKind("distinct", binary=False))
    return [np.linalg.norm(a - b) for a, b in zip(found, truth, strict=True)], moment_errors(spread)


@pytest.mark.parametrize(("length", "exceeded"), [(10, 2.0), (30, 10.0)])
def test_sampled_moments_keep_bounds_in_the_norms_of_rows_and_not_those_of_the_paper(length, exceeded):
    population = planted(12, 5, 3, random_state=2)
    n, ratios, printed = 500, [], []
    for seed in range(20):
        errors, bounds = moments_of_a_sample(population, n, (length // 2, length), seed)
        ratios.append(errors / bounds)
        lengths = np.arange(length // 2, length + 1)
        # Equation 35: 2 eps_1 / (d_2 N^(1/2)), as if rows had norms of at most one.
        eps = 1.0 + math.sqrt(math.log(1.0 / 0.05) / 2.0)
        printed.append(errors[0] / (2.0 * eps / ((lengths**2).mean() * math.sqrt(n))))
    assert np.max(ratios) < 1.0
    # The bounds are of the size of the errors.
    assert (np.mean(ratios, axis=0) > 0.05).all()
    assert min(printed) > exceeded


@pytest.mark.parametrize("weighting", ["pooled", "document", "counts"])
@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_sums_of_squared_norms_bound_what_documents_add(moments, weighting):
    rng = np.random.default_rng(1)
    X, Y = rng.poisson(0.9, (8, 6)), rng.integers(0, 2, (8, 4))
    X[0], X[1] = 0, [3, 0, 0, 0, 0, 0]
    for binary in (True, False):
        kind = MomentKind(moments, weighting, binary)
        corpus = WeightedCorpus(X, Y, np.arange(1.0, 9.0), shard_documents=8)
        found = moment_spread(corpus.read_shard(0), kind)
        expected = np.zeros((3, 2))
        for x, y, own in zip(np.minimum(X, 1) if binary else X, Y, np.arange(1.0, 9.0), strict=True):
            n, step, m = x.sum(), float(moments == "distinct"), y.sum()
            tuples = n * (n - step), n * (n - step) * (n - 2 * step), n * (n - step) * m
            norms = (x @ x), (x @ x) ** 1.5, (x @ x) * math.sqrt(m)
            for order in range(3):
                # Documents without triples are left out of the pairs of words too, but not of pairs and labels.
                enough = n >= 3 or moments == "paper" or order == 2
                omega = tuples[order] if weighting == "pooled" else 1.0
                rho = omega / tuples[order] if tuples[order] > 0 and enough else 0.0
                if weighting == "counts":
                    rho = omega = 1.0
                expected[order] += own * (omega if rho else 0.0), own * (rho * norms[order]) ** 2
        assert_allclose(found, expected, rtol=1e-12)


def test_moments_of_no_document_have_no_bound():
    assert moment_errors(np.zeros((3, 2))).tolist() == [math.inf] * 3


def draws(n, n_draws, length=6, n_words=4):
    """Return errors and bounds of states, fitted to samples of n documents of a few words each.

    Equal documents are drawn by their number, so that there may be very many.
    """
    population = planted(n_words, 2, 2, overlap=0.1, random_state=1)
    documents = population.enumerate(length, 1)
    rng = np.random.default_rng(n_draws)
    settings = StateSettings(
        2, MomentKind("distinct", binary=False), n_oversamples=2, single_precision=False, smoothing=0.0
    )
    errors, bounds = [], []
    for _ in range(n_draws):
        counts = rng.multinomial(n, documents.weights / documents.weights.sum())
        words, labels = (m[counts > 0].astype(int) for m in (documents.words, documents.labels))
        corpus = WeightedCorpus(words, labels, counts[counts > 0], shard_documents=5000)
        with open_engine(corpus) as engine:
            states = carried_out(engine, fit_states, settings)
            core, basis = states.core, to_columns(states.basis.matrix)
        columns = (basis @ core.B @ core.V) * core.eigenvalues
        order = [int(np.argmin(np.linalg.norm(columns - mu[:, None], axis=0))) for mu in population.O.T]
        pairs = basis @ core.B @ core.B.T @ basis.T
        errors.append({
            "pairs": np.linalg.norm(pairs - population.second_moment()),
            "words": np.linalg.norm(columns[:, order] - population.O, axis=0).max(),
            "labels": np.linalg.norm(states.label_states[order] - population.Q.T, axis=1).max(),
            "weights": np.abs(core.eigenvalues[order] ** -2.0 - population.pi).max(),
        })  # fmt: skip
        bounds.append(states.diagnostics["bounds"])
    return errors, bounds


@pytest.mark.slow
def test_states_keep_their_bounds_and_both_fall_with_the_root_of_the_number_of_documents():
    mean, limits = {}, {}
    for n in (10**7, 10**11):
        errors, bounds = draws(n, 20)
        for name in STATES:
            assert all(e[name] < b[name] for e, b in zip(errors, bounds, strict=True))
        mean[n] = {name: np.mean([e[name] for e in errors]) for name in errors[0]}
        limits[n] = bounds[0]
    few, many = mean
    for name in ("pairs", *STATES):
        assert 0.7 < mean[few][name] / mean[many][name] / 100.0 < 1.4
    for name in MOMENTS:
        assert limits[few][name] / limits[many][name] == pytest.approx(100.0, rel=0.01)
    for name in STATES:
        # With few documents the bounds fall faster, as the terms of second order still matter.
        assert 100.0 < limits[few][name] / limits[many][name] < 200.0
        assert limits[few][name] < 1.0


def test_too_few_documents_have_no_bound_of_states():
    errors, bounds = draws(10_000, 1)
    assert [bounds[0][name] for name in STATES] == [None] * 3
    assert errors[0]["pairs"] < bounds[0]["pairs"] < 1.0


def test_bounds_of_a_known_core_are_those_by_hand():
    core = Core(
        W=np.eye(2), B=np.diag([0.5, 0.4]), V=np.eye(2), eigenvalues=np.array([1.2, 1.6]),
        spectrum=np.array([0.25, 0.16, 0.0]), mean=np.zeros(2), lengths={}, diagnostics={},
    )  # fmt: skip
    # Errors of the moments of 0.0016, 0.002 and 0.004.
    spread = np.array([[1.0, 1.6e-3**2], [1.0, 2e-3**2], [2.0, 8e-3**2]]) * [1.0, 0.05 / 3.0]
    found = error_bounds(core, spread)
    apart = 1.0 - math.sqrt(0.99)
    grown = (1.0 + apart) ** 3 - 1.0
    eps = (1.6 * grown + 0.002 / 0.064) / (1.0 - 5.0 * grown)
    turned = 8.0 * eps / (1.2 - 5.0 * eps) + apart
    word = math.sqrt(0.2516) * turned + 0.004
    expected = {
        "delta": 0.05, "pairs": 0.0016, "triples": 0.002, "label_pairs": 0.004,
        "words": 1.6 * word + 5.0 * eps * (0.5 + word), "labels": 0.025 + turned * (2.0 + turned),
        "weights": (1.2 - 5.0 * eps) ** -2 - 1.2**-2,
    }  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-12)
