"""Planted rows and sequences that are drawn shard by shard, with the models that are fitted to them.

A shard depends on its number alone, so that workers draw a corpus in any order. Several models are fitted to
one corpus where it suits them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from benchmark_ica import amari
from networks import population, score
from scipy.linalg import subspace_angles
from scipy.optimize import linear_sum_assignment

from distmom.corpus.layers import Layer
from distmom.corpus.stored.write_layers import LayerShard
from distmom.models import (
    ECA,
    ICA,
    DiagonalMixture,
    FactorialHMM,
    GaussianSearch,
    HiddenMarkov,
    LatentNetwork,
    LatentTree,
    MultiView,
    RegressionSearch,
    SphericalMixture,
    SubspaceSearch,
)
from distmom.simulate.chains import FactorialChains
from distmom.simulate.mixtures import RegressionPopulation, SubspacePopulation
from distmom.simulate.networks import NetworkPopulation
from distmom.simulate.sources import SourcePopulation, symmetric_law
from distmom.simulate.views import poisson_sentences

N_FEATURES, N_COMPONENTS = 100, 20
VIEWS = (34, 33, 33)
N_SYMBOLS, N_STATES = 500, 10
#: steps of a sequence of symbols, and of dense values
STEPS, DENSE_STEPS = 2_000, 100
N_NODES, PER_NODE = 10, 5
N_SOURCES = 20
N_LINES, N_PLANES, N_SEARCH_FEATURES, DIMENSION = 4, 4, 20, 2
#: states of the variables of a tree, columns of its six leaves, and the hidden variable above each
N_LEVELS, LEAF, ABOVE = 4, 8, (1, 1, 2, 2, 0, 0)
TREE = "((1,2),(3,4),5,6)"
N_FACTORS, N_FACTOR_FEATURES, N_VIEWS = 5, 30, 5
N_CHAINS, N_CHAIN_FEATURES = 4, 20
#: labelled rows of each component that is searched for
N_LABELLED = 200
ROWS, SYMBOLS = "rows", "symbols"


@dataclass(frozen=True)
class Data:
    """A planted corpus.

    Attributes
    ----------
    name : str
    draw : callable
        Draws a shard, given its number and its number of rows.
    shard_rows : int
        Rows of a shard.
    """

    name: str
    draw: Callable[[int, int], LayerShard]
    shard_rows: int


@dataclass(frozen=True)
class Kind:
    """Planted data, and the model that is fitted to them.

    Attributes
    ----------
    data : Data
    model : callable
        Returns the estimator.
    error : callable
        Returns the error of a fitted model.
    """

    data: Data
    model: Callable[[], Any]
    error: Callable[[Any], float]


def dense(rows: np.ndarray, starts: np.ndarray | None = None) -> LayerShard:
    """Return a shard of rows, of units that begin at ``starts`` if there are any."""
    layer = Layer(ROWS, "dense", "rows", rows.shape[1], "float32")
    return LayerShard((layer,), {ROWS: rows.astype(np.float32, copy=False)}, starts)


def unit_starts(n_rows: int, size: int) -> np.ndarray:
    """Return the first rows of units of equal size, and the number of all rows."""
    return np.arange(0, n_rows + 1, size, dtype=np.int64)


def matched(found: np.ndarray, truth: np.ndarray, order: int = 2) -> float:
    """Return the mean distance, by a norm of some order, of rows from the true ones that are matched to them."""
    distance = np.linalg.norm(found[:, None] - truth[None], axis=2, ord=order)
    return float(distance[linear_sum_assignment(distance)].mean())


# Gaussians


@cache
def gaussians() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, weights and standard deviations of the planted mixture."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((N_COMPONENTS, N_FEATURES)) * 0.5
    return means, rng.dirichlet(np.full(N_COMPONENTS, 10.0)), rng.uniform(0.8, 1.2, N_COMPONENTS)


def gaussian_rows(component: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw rows of given components, float32."""
    means, _, deviations = gaussians()
    rows = rng.standard_normal((len(component), N_FEATURES), np.float32)
    rows *= deviations[component, None].astype(np.float32)
    rows += means[component].astype(np.float32)
    return rows


def gaussian_shard(index: int, n: int) -> LayerShard:
    """Draw rows of the mixture."""
    rng = np.random.default_rng((1, index))
    return dense(gaussian_rows(rng.choice(N_COMPONENTS, n, p=gaussians()[1]), rng))


def error_of_means(model: Any) -> float:
    """Return the mean distance of means."""
    return matched(model.means_, gaussians()[0])


def error_of_components(model: Any) -> float:
    """Return the mean distance of the means of all views."""
    return matched(model.components_, gaussians()[0])


def error_of_found_means(model: Any) -> float:
    """Return the mean distance of the means found by labelled rows of each component."""
    means, rng = gaussians()[0], np.random.default_rng(0)
    labelled = (gaussian_rows(np.full(N_LABELLED, i), rng) for i in range(N_COMPONENTS))
    found = [model.search(rows=rows).mean for rows in labelled]
    return float(np.linalg.norm(np.array(found) - means, axis=1).mean())


# Regressions and subspaces


@cache
def regressions() -> RegressionPopulation:
    """Return the planted regressions, whose coefficients are orthogonal and of norm one."""
    rng = np.random.default_rng(0)
    coefs = np.linalg.qr(rng.standard_normal((N_SEARCH_FEATURES, N_LINES)))[0].T
    return RegressionPopulation(coefs, np.full(N_LINES, 1.0 / N_LINES), variances=0.1)


def regression_shard(index: int, n: int) -> LayerShard:
    """Draw features with the response as the last column."""
    drawn = regressions().sample(n, np.random.default_rng((4, index)))
    return dense(np.column_stack([drawn.X, drawn.responses]))


def error_of_coefficients(model: Any) -> float:
    """Return the mean distance of the coefficients found by vectors along the true ones."""
    coefs = regressions().coefs
    found = [model.search(along=own).coef for own in coefs]
    return float(np.linalg.norm(np.array(found) - coefs, axis=1).mean())


@cache
def planes() -> SubspacePopulation:
    """Return the planted subspaces."""
    rng = np.random.default_rng(0)
    bases = np.linalg.qr(rng.standard_normal((N_PLANES, N_SEARCH_FEATURES, DIMENSION)))[0]
    return SubspacePopulation(bases, np.full(N_PLANES, 1.0 / N_PLANES), variance=0.05)


def plane_shard(index: int, n: int) -> LayerShard:
    """Draw rows near the subspaces."""
    return dense(planes().sample(n, np.random.default_rng((5, index))).X)


def error_of_subspaces(model: Any) -> float:
    """Return the mean of the largest angles, in radians, of the subspaces found by vectors in them."""
    angles = [subspace_angles(model.search(along=own[:, 0]).basis, own).max() for own in planes().bases]
    return float(np.mean(angles))


# Sources and networks


@cache
def network() -> NetworkPopulation:
    """Return the planted network."""
    return population(N_NODES, PER_NODE, seed=0)


def network_shard(index: int, n: int) -> LayerShard:
    """Draw rows of the network."""
    return dense(network().sample(n, index)[0])


def error_of_weights(model: Any) -> float:
    """Return the relative error of the weights of the network."""
    return score(network(), (model.components_.T, model.adjacency_))["error"]


@cache
def sources() -> SourcePopulation:
    """Return the planted sources, whose excess kurtosis is from -1.5 to -0.5 and from 1 to 6."""
    mixing = np.random.default_rng(0).standard_normal((N_SOURCES, N_SOURCES))
    half = N_SOURCES // 2
    kurtosis = [*np.linspace(-1.5, -0.5, half), *np.linspace(1.0, 6.0, N_SOURCES - half)]
    return SourcePopulation([symmetric_law(each) for each in kurtosis], mixing)


def source_shard(index: int, n: int) -> LayerShard:
    """Draw rows of mixed sources."""
    return dense(sources().sample(n, np.random.default_rng((3, index))))


def error_of_mixing(model: Any) -> float:
    """Return the Amari index of the sources."""
    return amari(model.components_ @ sources().mixing)


# Trees and views


@cache
def tree() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distribution of the root, those of the two variables below it, and the means of all leaves.

    Means are of shape (n_leaves, N_LEVELS, LEAF).
    """
    rng = np.random.default_rng(0)
    below = 0.6 * np.eye(N_LEVELS) + 0.4 * rng.dirichlet(np.ones(N_LEVELS), (2, N_LEVELS))
    return np.array([0.4, 0.3, 0.2, 0.1]), below, rng.standard_normal((len(ABOVE), N_LEVELS, LEAF))


def tree_shard(index: int, n: int) -> LayerShard:
    """Draw the leaves of the tree, with Gaussian noise of variance one."""
    root, below, means = tree()
    rng = np.random.default_rng((6, index))
    top = rng.choice(N_LEVELS, n, p=root)
    inner = [(np.cumsum(law, axis=1)[top] < rng.random((n, 1))).sum(axis=1) for law in below]
    hidden = [top, *(np.minimum(states, N_LEVELS - 1) for states in inner)]
    rows = np.concatenate([own[hidden[h]] for own, h in zip(means, ABOVE, strict=True)], axis=1)
    return dense(rows + rng.standard_normal(rows.shape, np.float32))


def error_of_leaves(model: Any) -> float:
    """Return the mean distance of the means of a leaf, on average over the leaves."""
    found = np.split(model.components_, len(ABOVE), axis=1)
    return float(np.mean([matched(own, true) for own, true in zip(found, tree()[2], strict=True)]))


@cache
def sentences() -> tuple[np.ndarray, np.ndarray]:
    """Return a non-negative matrix (N_FACTOR_FEATURES, N_FACTORS), and the shapes of the gamma factors."""
    rates = np.random.default_rng(0).gamma(0.5, 2.0, (N_FACTOR_FEATURES, N_FACTORS))
    return rates, np.linspace(0.5, 1.5, N_FACTORS)


def sentence_shard(index: int, n: int) -> LayerShard:
    """Draw Poisson distributed counts of views."""
    O, shapes = sentences()  # noqa: E741
    views = poisson_sentences(O, shapes, n // N_VIEWS, N_VIEWS, seed=index)
    return dense(views.X, unit_starts(n, N_VIEWS))


def error_of_factors(model: Any) -> float:
    """Return the mean distance of columns of the factors, relative to their mean norm."""
    O, shapes = sentences()  # noqa: E741
    truth = (O * np.sqrt(shapes)).T
    return matched(model.components_, truth) / float(np.linalg.norm(truth, axis=1).mean())


# Sequences


@cache
def chain() -> tuple[np.ndarray, np.ndarray]:
    """Return transition and emission probabilities of the planted hidden Markov model; rows sum to one."""
    rng = np.random.default_rng(0)
    transition = 0.6 * np.eye(N_STATES) + 0.4 * rng.dirichlet(np.full(N_STATES, 0.5), N_STATES)
    return transition, rng.dirichlet(np.full(N_SYMBOLS, 0.05), N_STATES)


def symbol_shard(index: int, n: int) -> LayerShard:
    """Draw sequences; all of them take their steps at the same time."""
    transition, emission = chain()
    rng = np.random.default_rng((2, index))
    n_sequences = n // STEPS
    laws = np.cumsum(transition, axis=1)
    state = rng.integers(0, N_STATES, n_sequences)
    states = np.empty((n_sequences, STEPS), np.int8)
    for t in range(STEPS):
        states[:, t] = state
        draw = rng.random(n_sequences)
        state = np.minimum((laws[state] < draw[:, None]).sum(axis=1), N_STATES - 1)
    symbols = np.empty(states.shape, np.int32)
    for h in range(N_STATES):
        own = states == h
        edges = np.cumsum(emission[h])
        symbols[own] = np.minimum(np.searchsorted(edges, rng.random(int(own.sum()))), N_SYMBOLS - 1)
    layer = Layer(SYMBOLS, "symbols", "rows", N_SYMBOLS, "int32")
    return LayerShard((layer,), {SYMBOLS: symbols.ravel()}, unit_starts(n, STEPS))


def error_of_emissions(model: Any) -> float:
    """Return the mean L1 distance of emission probabilities."""
    return matched(model.emissionprob_, chain()[1], order=1)


@cache
def chains() -> FactorialChains:
    """Return the planted chains, which are at +1 in 20 to 35 % of the steps."""
    rng = np.random.default_rng(0)
    components = rng.standard_normal((N_CHAINS, N_CHAIN_FEATURES))
    share, memory = np.linspace(0.2, 0.35, N_CHAINS), np.linspace(0.5, 0.8, N_CHAINS)
    fall, rise = (1.0 - memory) * (1.0 - share), (1.0 - memory) * share
    return FactorialChains(components, rng.standard_normal(N_CHAIN_FEATURES), share, fall, rise)


def chain_shard(index: int, n: int) -> LayerShard:
    """Draw sequences of dense steps."""
    drawn = chains().sample(n // DENSE_STEPS, DENSE_STEPS, seed=index)
    return dense(drawn.X, unit_starts(n, DENSE_STEPS))


def error_of_chains(model: Any) -> float:
    """Return the mean distance of the components, relative to their mean norm."""
    truth = chains().components
    return matched(model.components_, truth) / float(np.linalg.norm(truth, axis=1).mean())


GAUSSIANS = Data("gaussian", gaussian_shard, 80_000)
KINDS = {
    "spherical": Kind(GAUSSIANS, partial(SphericalMixture, N_COMPONENTS), error_of_means),
    "diagonal": Kind(GAUSSIANS, partial(DiagonalMixture, N_COMPONENTS), error_of_means),
    "multiview": Kind(GAUSSIANS, partial(MultiView, N_COMPONENTS, widths=VIEWS), error_of_components),
    "gaussian-search": Kind(GAUSSIANS, partial(GaussianSearch, N_COMPONENTS), error_of_found_means),
    "regression-search": Kind(
        Data("regressions", regression_shard, 400_000), partial(RegressionSearch, N_LINES), error_of_coefficients
    ),
    "subspace-search": Kind(
        Data("subspaces", plane_shard, 400_000), partial(SubspaceSearch, N_PLANES, dimension=DIMENSION),
        error_of_subspaces,
    ),
    "network": Kind(Data("network", network_shard, 160_000), partial(LatentNetwork, N_NODES), error_of_weights),
    "ica": Kind(Data("sources", source_shard, 400_000), partial(ICA, N_SOURCES), error_of_mixing),
    "latent-tree": Kind(
        Data("tree", tree_shard, 160_000),
        partial(LatentTree, N_LEVELS, tree=TREE, widths=(LEAF,) * len(ABOVE)), error_of_leaves,
    ),
    "factors": Kind(Data("sentences", sentence_shard, 200_000), partial(ECA, N_FACTORS), error_of_factors),
    "hmm": Kind(
        Data("hmm", symbol_shard, 4_000_000), partial(HiddenMarkov, N_STATES, n_em_iter=0), error_of_emissions
    ),
    "factorial-hmm": Kind(
        Data("chains", chain_shard, 400_000), partial(FactorialHMM, N_CHAINS, n_em_iter=0), error_of_chains
    ),
}  # fmt: skip
