"""The reported error of a sketched basis of rows, against the eigenvectors of the whole moment."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from distmom import ICA, GaussianSearch, RegressionSearch, SphericalMixture, SubspaceSearch
from distmom.spectral.steps import directions as steps

N_FEATURES = 300


def clusters(size: float, n: int = 1500) -> np.ndarray:
    """Return rows of five spherical Gaussians whose means have about this norm."""
    rng = np.random.default_rng(1)
    means = size * rng.normal(size=(5, N_FEATURES)) / np.sqrt(N_FEATURES)
    return means[rng.integers(0, 5, n)] + rng.normal(size=(n, N_FEATURES))


def leading(moment: np.ndarray, m: int) -> np.ndarray:
    """Return the m leading eigenvectors of a symmetric matrix, as columns."""
    return np.linalg.eigh(moment)[1][:, ::-1][:, :m]


def sine(basis: np.ndarray, vectors: np.ndarray) -> float:
    """Return the sine of the largest angle between a space and the span of orthonormal vectors."""
    Q = np.linalg.qr(basis)[0]
    return float(np.linalg.norm(vectors - Q @ (Q.T @ vectors), 2))


@pytest.mark.parametrize(
    ("size", "n_oversamples", "n_power_iter"),
    [(8.0, 10, 1), (8.0, 0, 2), (8.0, 10, 2), (5.0, 10, 2), (5.0, 4, 3)],
)
def test_the_reported_error_of_a_sketch_is_near_that_of_its_basis(size, n_oversamples, n_power_iter):
    X = clusters(size)
    fitted = GaussianSearch(5, n_oversamples=n_oversamples, n_power_iter=n_power_iter, random_state=0).fit(X)
    error = sine(fitted.basis_, leading(np.cov(X.T, bias=True), 4))
    assert 1e-4 < error < 0.5
    assert error / 3.0 < fitted.diagnostics_["basis_error"] < 3.0 * error
    assert "basis_error" in fitted.summary()


def test_more_power_passes_report_a_smaller_error():
    X = clusters(5.0)
    errors = [
        GaussianSearch(5, n_power_iter=n, random_state=0).fit(X).diagnostics_["basis_error"] for n in range(5)
    ]
    # Nothing is known of a product with a random matrix alone.
    assert errors[0] == 1.0
    assert all(b < 0.7 * a for a, b in pairwise(errors[1:]))


def test_a_basis_that_misses_a_direction_reports_it():
    X = clusters(5.0)
    fitted = GaussianSearch(5, n_oversamples=0, n_power_iter=1, random_state=0).fit(X)
    assert sine(fitted.basis_, leading(np.cov(X.T, bias=True), 4)) > 0.5
    assert fitted.diagnostics_["basis_error"] > 0.5


def test_slabs_of_rows_report_the_same_error(monkeypatch):
    X = clusters(8.0)
    whole = GaussianSearch(5, random_state=0).fit(X).diagnostics_["basis_error"]
    monkeypatch.setattr(steps, "WHOLE_BYTES", 0)
    slabs = GaussianSearch(5, random_state=0).fit(X).diagnostics_["basis_error"]
    assert slabs == pytest.approx(whole, rel=1e-6)


def test_rows_without_noise_have_no_error():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) @ rng.normal(size=(4, N_FEATURES))
    # Residuals are differences of squares, so that rounding leaves about the root of the precision.
    assert GaussianSearch(5, random_state=0).fit(X).diagnostics_["basis_error"] < 1e-6


def test_few_columns_take_no_sketch():
    fitted = GaussianSearch(5, random_state=0).fit(clusters(8.0)[:, :20])
    assert "basis_error" not in fitted.diagnostics_


def test_other_searches_report_it():
    rng = np.random.default_rng(2)
    n, r = 6000, 4
    X = rng.normal(size=(n, 200))
    coef = 4.0 * np.linalg.qr(rng.normal(size=(200, 2)))[0].T
    y = np.einsum("ij,ij->i", X, coef[rng.integers(0, 2, n)]) + 0.1 * rng.normal(size=n)
    regressions = RegressionSearch(2, covariance="diagonal", n_power_iter=3, random_state=0).fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    moment = (Z * (y - y.mean())[:, None] ** 2).T @ Z / n
    error = sine(regressions.basis_ * X.std(axis=0)[:, None], leading(moment, 2))
    assert 1e-8 < error < 0.5
    assert error / 3.0 < regressions.diagnostics_["basis_error"] < 3.0 * error

    spans = np.linalg.qr(rng.normal(size=(200, r)))[0].reshape(200, 2, 2)
    X = np.einsum("nij,nj->ni", spans[:, rng.integers(0, 2, n)].transpose(1, 0, 2), rng.normal(size=(n, 2)))
    X += 0.15 * rng.normal(size=(n, 200))
    subspaces = SubspaceSearch(2, dimension=2, n_power_iter=1, random_state=0).fit(X)
    error = sine(subspaces.basis_, leading(X.T @ X / n, r))
    assert 1e-8 < error < 0.5
    assert error / 3.0 < subspaces.diagnostics_["basis_error"] < 3.0 * error


def test_mixtures_and_components_report_it():
    X = clusters(8.0)
    mixture = SphericalMixture(5, random_state=0).fit(X)
    assert (
        mixture.diagnostics_["basis_error"]
        == GaussianSearch(5, random_state=0).fit(X).diagnostics_["basis_error"]
    )
    rng = np.random.default_rng(3)
    mixed = rng.laplace(size=(4000, 3)) @ rng.normal(size=(3, N_FEATURES)) + rng.normal(
        size=(4000, N_FEATURES)
    )
    assert 0.0 < ICA(3, random_state=0).fit(mixed).diagnostics_["basis_error"] < 1e-3
