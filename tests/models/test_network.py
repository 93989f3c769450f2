"""Latent networks: exact populations of one view and of several, samples, files, and refusals."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import WeightedRows
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.cli.main import main
from distmom.corpus import RowCorpus
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import LatentNetwork, load_model

WEIGHTS = np.array([[0.0, 0.0, 0.7], [0.9, 0.0, -0.4], [0.0, 0.0, 0.0]])  # node 2, then 0, then 1
DEVIATIONS = np.array([0.8, 1.3, 1.0])
#: probabilities of the upper of two values: different skewness of each noise
UPPER = np.array([0.2, 0.85, 0.3])


def loadings_of(blocks, seed=0):
    """Return loadings of three nodes, each on columns of its own and on one column of the next node."""
    rng = np.random.default_rng(seed)
    A = np.kron(np.eye(3), np.ones((blocks, 1)))
    A[[0, blocks + 1, 2 * blocks + 2 % blocks], [1, 2, 0]] = 1.0
    return A * rng.choice([-1.0, 1.0], A.shape) * rng.uniform(0.6, 1.4, A.shape)


def two_points(probabilities, deviations):
    """Return all combinations of independent centred variables of two values, and their probabilities."""
    scale = np.sqrt(probabilities * (1.0 - probabilities))
    upper = np.array(list(itertools.product([False, True], repeat=len(probabilities))))
    points = (upper - probabilities) / scale * deviations
    return points, np.where(upper, probabilities, 1.0 - probabilities).prod(axis=1)


def nodes_of(noises):
    return noises @ np.linalg.inv(np.eye(3) - WEIGHTS).T


def truth():
    """Return the adjacency, shares of noise and correlations of the nodes, scaled to variance one."""
    responses = np.linalg.inv(np.eye(3) - WEIGHTS) * DEVIATIONS
    covariance = responses @ responses.T
    scale = np.sqrt(np.diag(covariance))
    return (
        WEIGHTS * scale / scale[:, None],
        (DEVIATIONS / scale) ** 2,
        covariance / np.outer(scale, scale),
        scale,
    )


def errors_of(model, A, units=1.0):
    """Return the largest errors of adjacency, noise shares, correlations and loadings, nodes matched."""
    adjacency, share, correlations, scale = truth()
    found = model.components_.T / np.reshape(units, (-1, 1))
    A = A * scale
    cosines = (found / np.linalg.norm(found, axis=0)).T @ (A / np.linalg.norm(A, axis=0))
    nodes = np.abs(cosines).argmax(axis=1)
    assert sorted(nodes) == [0, 1, 2]
    signs = np.sign(cosines[np.arange(3), nodes])
    both = np.outer(signs, signs)
    return (
        np.abs(model.adjacency_ - both * adjacency[np.ix_(nodes, nodes)]).max(),
        np.abs(model.noise_share_ - share[nodes]).max(),
        np.abs(model.correlations_ - both * correlations[np.ix_(nodes, nodes)]).max(),
        np.abs(found - signs * A[:, nodes]).max(),
    )


def one_view(A, seed=3):
    """Return the weighted rows ``A h + epsilon`` of an exact population, and the variances of epsilon."""
    noises, chances = two_points(UPPER, DEVIATIONS)
    rng = np.random.default_rng(seed)
    deviations = rng.uniform(0.3, 0.9, len(A))
    own, of_own = two_points(rng.uniform(0.1, 0.4, len(A)), deviations)
    rows = ((nodes_of(noises) @ A.T)[:, None, :] + own[None, :, :]).reshape(-1, len(A))
    return rows, np.outer(chances, of_own).ravel(), deviations**2


def test_an_exact_population_of_one_view_gives_back_network_loadings_and_noise():
    A = loadings_of(4)
    rows, weights, variances = one_view(A)
    units = 10.0 ** np.random.default_rng(1).uniform(-2, 2, len(A))
    corpus = WeightedRows((rows + 3.0) * units, weights, shard_rows=1000)
    model = LatentNetwork(3).fit_corpus(corpus)
    assert max(errors_of(model, A, units)) < 1e-10
    assert_allclose(model.noise_variance_ / units**2, variances, atol=1e-10)
    assert_allclose(model.mean_ / units, 3.0, atol=1e-10)
    assert model.diagnostics_["against"] < 1e-10
    assert all(model.diagnostics_["exact"])
    assert model.diagnostics_["off_diagonal_share"] < 1e-8
    skewness = np.abs(1.0 - 2.0 * UPPER) / np.sqrt(UPPER * (1.0 - UPPER))
    assert_allclose(model.skewness_, np.sort(skewness)[::-1], atol=1e-10)


def test_an_exact_population_without_noise_gives_back_the_network():
    A = loadings_of(5)
    noises, chances = two_points(UPPER, DEVIATIONS)
    model = LatentNetwork(3, noise="none").fit_corpus(WeightedRows(nodes_of(noises) @ A.T + 1.0, chances))
    assert max(errors_of(model, A)) < 1e-10
    assert_allclose(model.noise_variance_, 0.0)
    # Without noise the nodes of rows are exact.
    signs = model.transform(nodes_of(noises) @ A.T + 1.0).T @ (chances[:, None] * nodes_of(noises))
    assert_allclose(np.abs(signs).max(axis=1), truth()[3][np.abs(signs).argmax(axis=1)], atol=1e-10)


def test_an_observed_network_is_that_of_the_columns():
    noises, chances = two_points(UPPER, DEVIATIONS)
    model = LatentNetwork(3, noise="none").fit_corpus(WeightedRows(nodes_of(noises) - 2.0, chances))
    assert max(errors_of(model, np.eye(3))) < 1e-10
    assert model.order_ == [2, 0, 1]
    assert_allclose(model.components_, np.diag(truth()[3]), atol=1e-10)


def test_an_exact_population_of_several_views_gives_back_network_and_loadings():
    # Noise of the views that is correlated between columns: one of two vectors, of mean zero.
    A, rng = loadings_of(4), np.random.default_rng(5)
    noises, chances = two_points(UPPER, DEVIATIONS)
    vectors = rng.standard_normal((2, len(A)))
    rows, weights = [], []
    for latent, chance in zip(nodes_of(noises) @ A.T, chances, strict=True):
        for signs in itertools.product([-1.0, 1.0], repeat=3):
            rows += [latent + s * vectors[i % 2] + 0.5 for i, s in enumerate(signs)]
            weights.append(chance / 8)
    # Views are exchangeable: every assignment of the two vectors to the three views is as probable.
    rows, weights = np.array(rows), np.array(weights)
    corpus = WeightedRows(rows, weights, np.full(len(weights), 3), shard_rows=99)
    model = LatentNetwork(3, views="several").fit_corpus(corpus)
    assert max(errors_of(model, A)) < 1e-10
    assert model.diagnostics_["n_groups"] == len(weights)


def sample(n, seed, A, noise=0.6):
    rng = np.random.default_rng(seed)
    h = nodes_of((rng.exponential(size=(n, 3)) - 1.0) * DEVIATIONS)
    return h, h @ A.T + noise * (rng.exponential(size=(n, len(A))) - 1.0)


@pytest.mark.parametrize("views", ["one", "several"])
@pytest.mark.slow
def test_errors_of_samples_fall_with_the_root_of_the_number_of_rows(views):
    A, medians = loadings_of(6), []
    for n in (4_000, 64_000):
        found = []
        for seed in range(8):
            rng = np.random.default_rng(seed)
            if views == "one":
                model = LatentNetwork(3, random_state=seed).fit(sample(n, seed, A)[1])
            else:
                h = np.repeat(nodes_of((rng.exponential(size=(n // 4, 3)) - 1.0) * DEVIATIONS), 4, axis=0)
                rows = h @ A.T + 0.6 * rng.standard_normal((n, len(A)))
                groups = np.repeat(rng.permutation(n // 4), 4)
                model = LatentNetwork(3, views="several").fit(rows, groups=groups)
            found.append(errors_of(model, A)[0])
        medians.append(np.median(found))
    assert medians[1] < 0.1
    assert 2.0 < medians[0] / medians[1] < 8.0


def test_weighted_scores_are_closer_to_the_nodes_than_plain_least_squares():
    A = loadings_of(6)
    h, rows = sample(20_000, 0, A, noise=np.where(np.arange(18) % 2, 0.1, 2.0))
    model = LatentNetwork(3).fit(rows)
    h = h / h.std(axis=0)

    def error(scores):
        own = np.corrcoef(scores.T, h.T)[:3, 3:]
        return 1.0 - np.abs(own).max(axis=1)

    plain = (rows - model.mean_) @ np.linalg.pinv(model.components_)
    assert (error(model.transform(rows)) < 0.2 * error(plain)).all()


def test_the_units_of_the_columns_do_not_matter():
    _, rows = sample(20_000, 0, loadings_of(6), noise=0.5)
    units = 10.0 ** np.arange(-9, 9)
    model, other = (LatentNetwork(3).fit(given) for given in (rows, rows * units))
    # The largest loading of a node is positive, and which is the largest depends on the units.
    signs = np.sign((other.components_ / units * model.components_).sum(axis=1))
    assert_allclose(other.adjacency_ * np.outer(signs, signs), model.adjacency_, atol=1e-8)
    assert_allclose(other.components_ / units * signs[:, None], model.components_, atol=1e-8)
    assert_allclose(other.transform(rows * units) * signs, model.transform(rows), atol=1e-6)


def test_the_units_of_the_columns_of_several_views_do_not_matter():
    A, rng = loadings_of(6), np.random.default_rng(0)
    h = np.repeat(nodes_of((rng.exponential(size=(5_000, 3)) - 1.0) * DEVIATIONS), 4, axis=0)
    rows, groups = h @ A.T + 0.5 * rng.standard_normal((20_000, 18)), np.repeat(np.arange(5_000), 4)
    units = 10.0 ** np.resize(np.arange(-6, 7), 18)
    model, other = (
        LatentNetwork(3, views="several").fit(given, groups=groups) for given in (rows, rows * units)
    )
    signs = np.sign((other.components_ / units * model.components_).sum(axis=1))
    assert_allclose(other.adjacency_ * np.outer(signs, signs), model.adjacency_, atol=1e-8)
    assert_allclose(other.components_ / units * signs[:, None], model.components_, atol=1e-8)
    assert_allclose(other.noise_variance_ / units**2, model.noise_variance_, atol=1e-8)
    assert_allclose(model.noise_variance_, 0.25, rtol=0.1)
    assert_allclose(other.transform(rows * units) * signs, model.transform(rows), atol=1e-6)
    # Columns that do not vary have no loadings and no weight.
    still = np.hstack([rows, np.full((20_000, 1), 3.0), np.zeros((20_000, 1))])
    wide = LatentNetwork(3, views="several").fit(still, groups=groups)
    assert_allclose(wide.components_[:, :18], model.components_, atol=0.02)
    assert not wide.components_[:, 18:].any()
    assert_allclose(wide.transform(still), model.transform(rows), atol=0.1)
    with pytest.raises(NumericalError, match=r"the squares of column 0 .* overflow, .*: scale the rows"):
        LatentNetwork(3, views="several").fit(rows * 1e200, groups=groups)


def test_shards_and_groups_in_any_order_change_nothing():
    A = loadings_of(4)
    rows = sample(3_000, 0, A)[1]
    one = LatentNetwork(3).fit(rows)
    many = LatentNetwork(3).fit_corpus(RowCorpus(rows, shard_rows=100))
    assert_allclose(many.adjacency_, one.adjacency_, atol=1e-10)
    groups = np.repeat(np.arange(750), 4)
    grouped = np.repeat(nodes_of(np.random.default_rng(2).exponential(size=(750, 3))), 4, axis=0) @ A.T
    grouped += 0.3 * np.random.default_rng(3).standard_normal(grouped.shape)
    order = np.argsort(np.tile(np.arange(4), 750), kind="stable")
    first = LatentNetwork(3, views="several").fit(grouped, groups=groups)
    mixed = LatentNetwork(3, views="several").fit(grouped[order], groups=groups[order])
    assert_allclose(mixed.adjacency_, first.adjacency_, atol=1e-10)


def test_a_model_comes_back_from_disk_and_the_command_line(tmp_path):
    A = loadings_of(4)
    rows = sample(20_000, 1, A)[1]
    np.save(tmp_path / "rows.npy", rows)
    corpus, model, nodes = (str(tmp_path / name) for name in ("corpus", "model", "nodes"))
    assert main(["ingest", str(tmp_path / "rows.npy"), corpus, "--workers", "0"]) == 0
    assert main(["plan", corpus, "--model", "network", "-k", "3"]) == 0
    assert main(["fit", corpus, model, "--model", "network", "-k", "3"]) == 0
    read = load_model(model)
    assert max(errors_of(read, A)) < 0.2
    assert read.order_ == LatentNetwork(3).fit(rows).order_
    assert [p["title"] for p in read.pictures()] == ["Network", "Loadings"]
    assert main(["transform", model, corpus, nodes]) == 0
    stored = zarr.open_group(str(Path(nodes) / "components.zarr"), mode="r")["nodes"][:]
    assert_allclose(stored, read.transform(rows), atol=1e-6)
    summary = read.summary()
    assert json.loads(json.dumps(summary))["order"] == read.order_
    assert {tuple(edge[:2]) for edge in summary["edges"]} <= set(itertools.permutations(range(3), 2))


def test_what_cannot_be_fitted_is_refused():
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=(300, 9))
    with pytest.raises(UsageError, match="n_components: expected at most 3, a third of the columns, got 4"):
        LatentNetwork(4).fit(rows)
    with pytest.raises(UsageError, match="expected at most 9, the number of columns, got 10"):
        LatentNetwork(10, noise="none").fit(rows)
    with pytest.raises(UsageError, match="groups: expected one per row with views='several'"):
        LatentNetwork(2, views="several").fit(rows)
    with pytest.raises(UsageError, match="groups: expected none with views='one'"):
        LatentNetwork(2).fit(rows, groups=np.zeros(300))
    with pytest.raises(InputError, match="groups: expected 300, one per row, got 2"):
        LatentNetwork(2, views="several").fit(rows, groups=[0, 1])
    with pytest.raises(UsageError, match="views: expected one of one, several, got 'two'"):
        LatentNetwork(2, views="two").fit(rows)
    numbers = np.arange(300) // 3
    for groups, message in (
        (np.where(numbers == 1, np.nan, numbers), "group of row 3: expected a number or a string, got nan"),
        (np.where(numbers == 1, None, numbers), "group of row 3: expected a number or a string, got None"),
        ([1, "a"] * 150, "type of the groups: expected numbers, or strings, got int, str"),
        (numbers[:, None], r"shape: expected one group for every row, got \(300, 1\)"),
        (3, r"shape: expected one group for every row, got \(\)"),
    ):
        given = np.array(groups, dtype=object) if isinstance(groups, list) else groups
        with pytest.raises(InputError, match=f"groups: {message}"):
            LatentNetwork(2, views="several").fit(rows, groups=given)
    with pytest.raises(InputError, match="groups of at least 3 rows, got at most 2"):
        LatentNetwork(2, views="several").fit(rows, groups=np.repeat(np.arange(150), 2))
    with pytest.raises(UsageError, match="expected 'several' with more than 2000 columns"):
        LatentNetwork(2).fit(np.zeros((4, 2001)))
    constant = (
        r"column 2 \(counted from 0\) is constant, up to rounding: its mean is {}, and its variance {}; "
    )
    with pytest.raises(NumericalError, match=constant.format("7", "0")):
        LatentNetwork(2).fit(np.where(np.arange(9) == 2, 7.0, rows))
    with pytest.raises(
        NumericalError, match=constant.format(r"1e\+07", ".*") + ".*subtract the mean from the rows"
    ):
        LatentNetwork(2).fit(np.where(np.arange(9) == 2, 1e7 + rows, rows))
    with pytest.raises(NumericalError, match=r"of the rows overflows, .* 1e\+200: scale the rows"):
        LatentNetwork(2).fit(np.full((300, 9), 1e200))
    with pytest.raises(InputError, match="NaN"):
        LatentNetwork(2).fit(np.where(rows < 0.01, np.nan, rows))
    A = loadings_of(4)
    gaussian = rng.standard_normal((5_000, 3)) @ A.T + 0.5 * rng.standard_normal((5_000, 12))
    with pytest.raises(NumericalError, match="the third moment separates"):
        LatentNetwork(3).fit(gaussian)
    model = LatentNetwork(3).fit(sample(2_000, 0, A)[1])
    with pytest.raises(UsageError, match="12 features"):
        model.transform(np.zeros((2, 5)))


@parametrize_with_checks([LatentNetwork(1, noise="none")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)
