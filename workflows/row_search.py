"""Search for one component of simulated rows, beside estimates of all components: errors and seconds.

The tasks ``gaussian``, ``regression`` and ``subspace`` draw rows of a mixture, and labels for some of them: a
share of the rows of the target and a share of all others, which are wrong labels. All systems get the rows and the
labels, and estimate the mean, the coefficients or the subspace of the target. Systems that find all components
without labels are scored by the component that is nearest to the target, which favours them.

The task ``sphere`` is the experiment of section 4.1 of Ray, Neeman, Sanghavi, Shakkottai, "The Search Problem in
Mixture Models" (JMLR 18, 2018): means are random on a sphere of radius 10, weights rise from the least in equal
steps, and every component is the target of a vector once. Its systems get the vectors alone, as ``search
(vector)`` of subspaces does (section 4.3); ``--vector-share`` is the squared length of a vector along the
direction that only its target has.

The task ``records`` has rows of real data: the health records of 1,521 people (NHEFS, ``pip install causaldata``),
with height, weight, age and cholesterol of 1971 as features. The response is the weight of 1982 in two fifths of
the rows, drawn at random, and the blood pressure in the others; all columns have mean zero and variance one. The
target is the regression of the weight, by least squares in all rows, and labels are drawn as above, without wrong
ones. In ``gaussian-records`` the features are Gaussian, with the same covariance, and residuals are those of the
records.

search (labels), search (rows)
    `GaussianSearch` or `RegressionSearch` with the labels as a column of side information, or with the labelled
    rows; `SubspaceSearch` with the labelled rows.
labelled rows
    Mean of the labelled rows, least squares in them, or their leading singular vectors.
k-means, EM
    From k-means++ with one start; for regressions, from the mean of random responsibilities. EM has spherical
    components.
seeded k-means, seeded EM, EM from the search
    The same with the first component started from the labelled rows, or from the search with the labels.
k-means and singular vectors
    Of subspaces: the leading singular vectors of every cluster, and of these the ones nearest to the labelled
    rows.
whitening, cancellation
    Of spheres: `GaussianSearch` with the vectors; cancellation is by the threshold of the paper's experiments.
tpm
    Of spheres: all components by the tensor power method (`SphericalMixture`), and of these the one with the
    largest product with the vector.
alternating minimisation
    Of regressions: rows are assigned to the component with the smallest residual, and components fitted to them.

error
    Euclidean distance to the true mean or coefficients, or spectral norm of the difference of the projections on
    both subspaces, on average over targets and seeds.
gain %
    Average of ``100 (E_0 - E) / E_0`` with errors E, and errors E_0 of the reference: tpm for spheres, k-means and
    singular vectors for subspaces, and EM for the others.

Examples::

    python workflows/row_search.py --rows 20000 --seeds 5
    python workflows/row_search.py --tasks sphere --rows 6000 --features 500 --components 10 --deviation 0.4
    python workflows/row_search.py --tasks records --share 0.2 --seeds 20
    python workflows/row_search.py --tasks subspace --rows 6000 --features 167 --components 5 --dimension 10
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.mixture import GaussianMixture

from distmom.errors import NumericalError
from distmom.models import GaussianSearch, RegressionSearch, SphericalMixture, SubspaceSearch
from distmom.simulate.mixtures import (
    GaussianPopulation,
    RegressionPopulation,
    SubspacePopulation,
    draw_labels,
)

#: what systems return, and its error, or those of all targets
Systems = dict[str, tuple[Callable[[], Any], Callable[[Any], float | np.ndarray]]]
#: for each task, the system with which the errors of the others are compared
REFERENCES = {
    "gaussian": "EM",
    "regression": "EM",
    "records": "EM",
    "gaussian-records": "EM",
    "subspace": "k-means and singular vectors",
    "sphere": "tpm",
}

#: iterations of the methods for regressions
_ITERATIONS = 200


def gaussians(d: int, k: int, distance: float, rng: np.random.Generator) -> GaussianPopulation:
    """Return components with noise of variance one.

    Component 0 has a weight of 0.05 and is at ``distance`` from component 1; others are farther.
    """
    means = 1.2 * rng.normal(size=(k, d))
    offset = rng.normal(size=d)
    means[0] = means[1] + distance * offset / np.linalg.norm(offset)
    return GaussianPopulation(means, component_weights(0.05, k), 1.0)


def regressions(d: int, k: int, noise: float, rng: np.random.Generator) -> RegressionPopulation:
    """Return regressions with coefficients of norm 2 and standard normal features; component 0 weighs 0.2."""
    coefs = rng.normal(size=(k, d))
    coefs *= 2.0 / np.linalg.norm(coefs, axis=1, keepdims=True)
    return RegressionPopulation(coefs, component_weights(0.2, k), noise**2)


def subspaces(d: int, k: int, m: int, rng: np.random.Generator) -> SubspacePopulation:
    """Return random subspaces with noise of variance 0.04; component 0 weighs 0.1."""
    bases = np.stack([np.linalg.qr(rng.normal(size=(d, m)))[0] for _ in range(k)])
    return SubspacePopulation(bases, component_weights(0.1, k), 0.04)


def spheres(
    d: int, k: int, deviation: float, least_weight: float, rng: np.random.Generator
) -> GaussianPopulation:
    """Return components with means at random on a sphere of radius 10, and weights in equal steps."""
    means = rng.normal(size=(k, d))
    means *= 10.0 / np.linalg.norm(means, axis=1, keepdims=True)
    step = 2.0 * (1.0 - least_weight * k) / (k * (k - 1))
    return GaussianPopulation(means, least_weight + step * np.arange(k), deviation**2)


def component_weights(first: float, k: int) -> np.ndarray:
    """Return weights of components, of which all but the first are equal."""
    return np.append(first, np.full(k - 1, (1.0 - first) / (k - 1)))


def alternating_minimisation(X: np.ndarray, y: np.ndarray, coefs: np.ndarray) -> np.ndarray:
    """Return coefficients of components, (k, d), fitted to the rows that each explains best."""
    for _ in range(_ITERATIONS):
        own = np.abs(y[:, None] - X @ coefs.T).argmin(axis=1)
        after = np.stack([_fit(X, y, (own == i).astype(float), coef) for i, coef in enumerate(coefs)])
        if np.allclose(after, coefs, atol=1e-10):
            break
        coefs = after
    return coefs


def regression_em(X: np.ndarray, y: np.ndarray, coefs: np.ndarray) -> np.ndarray:
    """Return coefficients of components, (k, d), by expectation-maximisation; variances differ."""
    k = len(coefs)
    weights, variances = np.full(k, 1.0 / k), np.full(k, float(np.var(y)) / 2.0)
    before = -np.inf
    for _ in range(_ITERATIONS):
        squares = (y[:, None] - X @ coefs.T) ** 2
        logs = np.log(weights) - (np.log(variances) + squares / variances) / 2.0
        top = logs.max(axis=1, keepdims=True)
        p = np.exp(logs - top)
        total = p.sum(axis=1, keepdims=True)
        p /= total
        likelihood = float(np.mean(top + np.log(total)))
        weights = np.maximum(p.mean(axis=0), 1e-12)
        coefs = np.stack([_fit(X, y, p[:, i], coefs[i]) for i in range(k)])
        squares = (y[:, None] - X @ coefs.T) ** 2
        variances = np.maximum((p * squares).sum(axis=0) / np.maximum(p.sum(axis=0), 1e-12), 1e-6)
        if likelihood - before < 1e-10:
            break
        before = likelihood
    return coefs


def _fit(X: np.ndarray, y: np.ndarray, weights: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return weighted least squares; the coefficients before if few rows have weight."""
    if weights.sum() <= X.shape[1]:
        return before
    weighted = X * weights[:, None]
    return np.asarray(np.linalg.solve(X.T @ weighted + 1e-12 * np.eye(X.shape[1]), weighted.T @ y))


def random_coefs(X: np.ndarray, y: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Return least squares in k random groups of rows."""
    group = np.random.default_rng((seed, 2)).integers(0, k, len(y))
    size = X.shape[1] * 2
    return np.stack([np.linalg.lstsq(X[group == i][:size], y[group == i][:size])[0] for i in range(k)])


def of_gaussians(arguments: argparse.Namespace, seed: int) -> Systems:
    """Return the systems of the Gaussian task."""
    k, d = arguments.components, arguments.features
    rng = np.random.default_rng(seed)
    population = gaussians(d, k, arguments.distance, rng)
    rows = population.sample(arguments.rows, rng)
    X, marked = rows.X, draw_labels(rows.components, 0, arguments.share, arguments.wrong, (seed, 1))
    mean = X[marked].mean(axis=0)
    others = kmeans_plusplus(X, k, random_state=seed)[0]
    started = np.vstack([mean, others[1:]])
    model = GaussianSearch(k)

    def by_labels() -> Any:
        return model.fit(X, marked.astype(float)).search(target=0, force=True).mean

    em = {"n_components": k, "covariance_type": "spherical", "random_state": seed, "max_iter": 300}
    systems = {
        "search (labels)": by_labels,
        "search (rows)": lambda: model.fit(X).search(rows=X[marked], force=True).mean,
        "labelled rows": lambda: mean,
        "k-means": lambda: KMeans(k, n_init=1, random_state=seed).fit(X).cluster_centers_,
        "seeded k-means": lambda: KMeans(k, init=started, n_init=1).fit(X).cluster_centers_[0],
        "EM": lambda: GaussianMixture(**em).fit(X).means_,
        "seeded EM": lambda: GaussianMixture(**em, means_init=started).fit(X).means_[0],
        "EM from the search": lambda: (
            GaussianMixture(**em, means_init=np.vstack([by_labels(), others[1:]])).fit(X).means_[0]
        ),
    }
    return {name: (system, partial(nearest, target=population.means[0])) for name, system in systems.items()}


def of_regressions(arguments: argparse.Namespace, seed: int) -> Systems:
    """Return the systems of the regression task."""
    k, d = arguments.components, arguments.features
    rng = np.random.default_rng(seed)
    population = regressions(d, k, arguments.noise, rng)
    drawn = population.sample(10 * arguments.rows, rng)
    X, y = drawn.X, drawn.responses
    assert y is not None
    marked = draw_labels(drawn.components, 0, arguments.share, arguments.wrong, (seed, 1))
    return regression_systems(X, y, marked, population.coefs[0], k, seed)


def regression_systems(
    X: np.ndarray, y: np.ndarray, marked: np.ndarray, target: np.ndarray, k: int, seed: int
) -> Systems:
    """Return the systems that find the coefficients of the component of the marked rows."""
    rows = np.c_[X, y]
    first = random_coefs(X, y, k, seed)
    own = np.linalg.lstsq(X[marked], y[marked])[0]
    started = np.vstack([own, first[1:]])
    model = RegressionSearch(k)

    def by_labels() -> Any:
        return model.fit(X, y, marked.astype(float)).search(target=0, force=True).coef

    systems = {
        "search (labels)": by_labels,
        "search (rows)": lambda: model.fit(X, y).search(rows=rows[marked], force=True).coef,
        "labelled rows": lambda: own,
        "alternating minimisation": lambda: alternating_minimisation(X, y, first),
        "seeded alternating minimisation": lambda: alternating_minimisation(X, y, started)[0],
        "EM": lambda: regression_em(X, y, first),
        "seeded EM": lambda: regression_em(X, y, started)[0],
        "EM from the search": lambda: regression_em(X, y, np.vstack([by_labels(), first[1:]]))[0],
    }
    return {name: (system, partial(nearest, target=target)) for name, system in systems.items()}


def of_records(arguments: argparse.Namespace, seed: int, gaussian: bool = False) -> Systems:
    """Return the systems of the regression task with real rows, or with Gaussian features of their covariance."""
    X, responses = health_records()
    rng = np.random.default_rng((seed, 2))
    target = np.linalg.lstsq(X, responses)[0]
    if arguments.resampled:
        drawn = rng.integers(0, len(X), arguments.resampled)
        X, responses = X[drawn], responses[drawn]
    if gaussian:
        residuals = responses - X @ target
        X = rng.multivariate_normal(np.zeros(X.shape[1]), np.cov(X.T), len(X))
        responses = X @ target + residuals
    y, components = one_response(responses, 0.4, rng)
    marked = draw_labels(components, 0, arguments.share, 0.0, (seed, 1))
    return regression_systems(X, y, marked, target[:, 0], 2, seed)


def health_records() -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, 4), and the weight and the blood pressure of 1982 (n, 2), all of variance one."""
    from causaldata import nhefs

    names = ["ht", "wt71", "age", "cholesterol", "wt82", "sbp"]
    rows = nhefs.load_pandas().data[names].dropna().to_numpy(float)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    return rows[:, :4], rows[:, 4:]


def one_response(
    responses: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return one of two responses of every row, the first in a share of them, and which one it is, 0 or 1."""
    components = (rng.random(len(responses)) >= share).astype(int)
    return responses[np.arange(len(responses)), components], components


def kmeans_subspace(X: np.ndarray, k: int, m: int, along: np.ndarray, seed: int) -> np.ndarray:
    """Return the m singular vectors of the cluster along which given rows have the largest squared norm."""
    assigned = KMeans(k, n_init=1, random_state=seed).fit(X).labels_
    found = [leading_vectors(X[assigned == i], m) for i in range(k)]
    return max(found, key=lambda basis: float(np.sum((along @ basis) ** 2)))


def leading_vectors(X: np.ndarray, m: int) -> np.ndarray:
    """Return the m leading right singular vectors of rows, (d, m)."""
    return np.asarray(np.linalg.svd(X, full_matrices=False)[2][:m].T)


def of_subspaces(arguments: argparse.Namespace, seed: int) -> Systems:
    """Return the systems of the subspace task."""
    k, d, m = arguments.components, 3 * arguments.features, arguments.dimension
    rng = np.random.default_rng(seed)
    population = subspaces(d, k, m, rng)
    rows = population.sample(arguments.rows, rng)
    X, marked = rows.X, draw_labels(rows.components, 0, arguments.share, arguments.wrong, (seed, 1))
    v = population.side_vector(0, arguments.vector_share)
    model = SubspaceSearch(k, dimension=m)
    systems: dict[str, Callable[[], Any]] = {
        "search (vector)": lambda: model.fit(X).search(v, force=True).basis,
        "search (rows)": lambda: model.fit(X).search(rows=X[marked], force=True).basis,
        "labelled rows": lambda: leading_vectors(X[marked], m),
        "k-means and singular vectors": lambda: kmeans_subspace(X, k, m, X[marked], seed),
    }
    return {name: (system, partial(between, target=population.bases[0])) for name, system in systems.items()}


def of_spheres(arguments: argparse.Namespace, seed: int) -> Systems:
    """Return the systems of the task with a vector for each component."""
    k, d = arguments.components, arguments.features
    rng = np.random.default_rng(seed)
    population = spheres(d, k, arguments.deviation, arguments.least_weight, rng)
    X = population.sample(arguments.rows, rng).X
    vectors = np.stack([population.side_vector(i, arguments.vector_share) for i in range(k)])

    def search(method: str) -> np.ndarray:
        model = GaussianSearch(k, method=method).fit(X)
        return np.stack([model.search(v, force=True).mean for v in vectors])

    def preferred() -> np.ndarray:
        means = SphericalMixture(k, decomposition="power", n_em_iter=0).fit(X).means_
        return np.asarray(means[(vectors @ means.T).argmax(axis=1)])

    systems: dict[str, Callable[[], Any]] = {
        "whitening": lambda: search("whitening"),
        "cancellation": lambda: search("cancellation-threshold"),
        "tpm": preferred,
    }
    each = partial(row_distances, target=population.means)
    return {name: (system, each) for name, system in systems.items()}


def nearest(found: np.ndarray, target: np.ndarray) -> float:
    """Return the distance of the nearest row, or of the only one, to the target."""
    return float(np.linalg.norm(np.atleast_2d(found) - target, axis=1).min())


def between(found: np.ndarray, target: np.ndarray) -> float:
    """Return the distance of two subspaces, given by orthonormal columns."""
    return float(np.linalg.norm(found @ found.T - target @ target.T, 2))


def row_distances(found: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the distance of each row to the target of the same number."""
    return np.asarray(np.linalg.norm(found - target, axis=1))


def gain(errors: np.ndarray, reference: np.ndarray) -> float:
    """Return by how much errors are smaller than those of the reference, in percent of these, on average."""
    return float(100.0 * np.mean((reference - errors) / reference))


TASKS = {
    "gaussian": of_gaussians,
    "regression": of_regressions,
    "records": of_records,
    "gaussian-records": partial(of_records, gaussian=True),
    "subspace": of_subspaces,
    "sphere": of_spheres,
}
#: tasks that need no data
PLANTED = [task for task in TASKS if "records" not in task]


def compare(arguments: argparse.Namespace, task: str) -> dict[str, Summary]:
    """Return error, gain and CPU seconds of every system of a task."""
    errors: dict[str, list[np.ndarray]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(arguments.seeds):
        for name, (system, error_of) in TASKS[task](arguments, seed).items():
            started = time.process_time()
            try:
                found = np.atleast_1d(error_of(system()))
            except NumericalError:
                found = np.array([np.nan])
            errors.setdefault(name, []).append(found)
            seconds.setdefault(name, []).append(time.process_time() - started)
    reference = errors[REFERENCES[task]]
    return {name: summary(own, reference, seconds[name]) for name, own in errors.items()}


class Summary(NamedTuple):
    """Average error, gain and CPU seconds of a system, and in how many draws it refused, which are left out."""

    error: float
    gain: float
    seconds: float
    n_refused: int


def summary(own: list[np.ndarray], reference: list[np.ndarray], seconds: list[float]) -> Summary:
    """Return averages over draws; errors are NaN where the system refused, and averages where it always did."""
    known = [i for i, each in enumerate(own) if np.isfinite(each).all()]
    if not known:
        return Summary(np.nan, np.nan, float(np.mean(seconds)), len(own))
    error = np.mean([own[i].mean() for i in known])
    gained = np.mean([gain(own[i], reference[i]) for i in known])
    return Summary(float(error), float(gained), float(np.mean(seconds)), len(own) - len(known))


def main(arguments: list[str] | None = None) -> None:
    """Run the tasks and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tasks", nargs="+", choices=list(TASKS), default=PLANTED, help="[all without records]")
    add("--rows", type=int, default=20_000, help="rows; regressions have ten times as many [%(default)s]")
    add("--features", type=int, default=20, help="[%(default)s]")
    add("--components", type=int, default=4, help="[%(default)s]")
    add("--distance", type=float, default=2.5, help="of the target from its neighbour [%(default)s]")
    add("--noise", type=float, default=1.0, help="standard deviation of responses [%(default)s]")
    add("--share", type=float, default=0.5, help="of the target that is labelled [%(default)s]")
    add("--wrong", type=float, default=0.02, help="share of other rows that is labelled [%(default)s]")
    add("--dimension", type=int, default=5, help="of subspaces [%(default)s]")
    add("--vector-share", type=float, default=0.8, help="see above [%(default)s]")
    add("--deviation", type=float, default=0.5, help="standard deviation of rows of spheres [%(default)s]")
    add("--least-weight", type=float, default=0.0253, help="of a component of spheres [%(default)s]")
    add("--resampled", type=int, default=0, help="rows of records, drawn with replacement [all, once each]")
    add("--seeds", type=int, default=5, help="[%(default)s]")
    options = parser.parse_args(arguments)
    print("| task | system | error | gain % | CPU s | refused |\n|---|---|---:|---:|---:|---:|")
    for task in options.tasks:
        for name, (error, gained, seconds, refused) in compare(options, task).items():
            print(f"| {task} | {name} | {error:.3f} | {gained:.1f} | {seconds:.2f} | {refused} |", flush=True)


if __name__ == "__main__":
    main()
