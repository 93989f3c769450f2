"""Expectation-maximisation (EM) for a tree, starting from its moments.

Leaves whose columns are indicators of a category have probabilities, so that EM is that of a Bayesian network. The
columns of all other leaves count as Gaussian given the state above them, with a covariance that the states share:
that of all rows, less what lies between the states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.blas import one_blas_thread
from distmom.engine import PassResult, StoredArray, StoredColumns
from distmom.models.trees.posterior import TreeEMPass
from distmom.models.trees.structure import Tree
from distmom.moments.dense_rows import view_slices
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.scores import scores_by_covariance, whitening_of
from distmom.spectral.steps.em import iterate

#: least probability of a category or a state
_LEAST = 1e-15
#: least probability with which EM starts, as a share of the average one
_START_SHARE = 0.01
#: largest deviation from the moments of indicators that is rounding, as a share of the means of the columns
_ROUNDING = 1e-9
#: share of all rows up to which a state is empty
_EMPTY = 1e-12


@dataclass(frozen=True)
class TreeLaw:
    """The parameters of a tree during a fit.

    Attributes
    ----------
    deviations : ndarray of shape (d, k)
        Means of the columns given the states above them, minus the means of all rows.
    weights : ndarray of shape (n_hidden, k)
    transitions : ndarray of shape (n_hidden - 1, k, k)
    """

    deviations: np.ndarray
    weights: np.ndarray
    transitions: np.ndarray


@dataclass(frozen=True)
class LeafScores:
    """The parameters as an EM pass reads them.

    Attributes
    ----------
    coefficients : ndarray of shape (d, k)
    offsets : ndarray of shape (n_hidden, k)
    constant : float
        Added to the log-likelihood of a row.
    """

    coefficients: np.ndarray
    offsets: np.ndarray
    constant: float


def refined(
    run: Run,
    law: TreeLaw,
    tree: Tree,
    whitenings: list[np.ndarray | None],
    averages: StoredArray,
    widths: tuple[int, ...],
    n_iter: int,
) -> tuple[TreeLaw, list[float]]:
    """Make EM passes, and return the parameters and the log-likelihoods per row before each pass.

    Parameters
    ----------
    run : Run
    law : TreeLaw
    tree : Tree
    whitenings : list of ndarray or None
        By `leaf_whitenings`.
    averages : StoredArray
    widths : tuple of int
        Numbers of columns of the leaves.
    n_iter : int
    """
    (d, k), h = law.deviations.shape, tree.n_hidden
    law = run.apply(started, law, tree, whitenings, averages, widths, out=law)

    def expect(law: TreeLaw) -> tuple[Any, ...]:
        scores = run.apply(
            scores_of, law, tree, whitenings, averages, widths,
            out=LeafScores(unknown(d, k), unknown(h, k), unknown()),
        )  # fmt: skip
        pass_ = TreeEMPass(
            d, widths=widths, parents=tree.parents, of_leaves=tree.of_leaves, n_components=k, averages=averages,
            coefficients=run.put(scores.coefficients), offsets=run.put(scores.offsets),
            root=run.put(run.apply(_root, law, out=unknown(k))), transitions=run.put(law.transitions),
        )  # fmt: skip
        return run.scan(pass_), law, tree, widths, scores.constant

    law, likelihoods = iterate(run, law, n_iter, expect, maximised)
    return run.apply(ordered, law, tree, widths, out=law), likelihoods


def _root(law: TreeLaw) -> np.ndarray:
    return np.array(law.weights[0])


def leaf_whitenings(
    pairs: PassResult, averages: StoredArray, squares: StoredColumns, widths: tuple[int, ...]
) -> list[np.ndarray | None]:
    """Return for every leaf a matrix that whitens its columns, minus their means; None for categories.

    Parameters
    ----------
    pairs : PassResult
        Result of `distmom.moments.rows.trees.TreeMomentsPass`, with moments of pairs.
    averages, squares : StoredArray and StoredColumns
        Averages and mean squares of the columns.
    widths : tuple of int
        Numbers of columns of the leaves.
    """
    mean, factors = np.asarray(averages.load(), np.float64).T
    mean_squares = np.asarray(squares.parts[0].load(), np.float64)[:, 0]
    mass = float(pairs.sums["mass"])
    found: list[np.ndarray | None] = []
    inverse = np.where(factors > 0.0, 1.0 / np.where(factors > 0.0, factors, 1.0), 0.0)
    for cut in view_slices(widths):
        first = np.asarray(pairs.sums["means"][cut]) / mass
        second = np.asarray(pairs.sums["pairs"][cut, cut]) / mass - np.outer(first, first)
        covariance = second * np.outer(inverse[cut], inverse[cut])
        products = covariance + np.outer(mean[cut], mean[cut])
        np.fill_diagonal(products, mean_squares[cut] - mean[cut])
        # x_j^2 = x_j, and of the columns of a row at most one is 1. In a large unit all moments are small, so
        # rounding is relative.
        own = np.maximum(mean[cut], 0.0)
        rounding = _ROUNDING * np.sqrt(np.outer(own, own))
        if mean[cut].min() >= 0.0 and (np.abs(products) <= rounding).all():
            found.append(None)
            continue
        with one_blas_thread():
            found.append(factors[cut, None] * whitening_of(second))
    return found


def are_categories(whitenings: list[np.ndarray | None]) -> bool:
    """Return whether the columns of every leaf are indicators of a category."""
    return all(each is None for each in whitenings)


def started(
    law: TreeLaw,
    tree: Tree,
    whitenings: list[np.ndarray | None],
    averages: StoredArray,
    widths: tuple[int, ...],
) -> TreeLaw:
    """Return the initial parameters of EM: small probabilities are raised, as EM keeps probabilities of 0."""
    mean = np.asarray(averages.load(), np.float64)[:, 0]
    deviations, k = law.deviations.copy(), law.weights.shape[1]
    for cut, W in zip(view_slices(widths), whitenings, strict=True):
        if W is None:
            rest = max(1.0 - mean[cut].sum(), 0.0)
            chances = law.deviations[cut] + mean[cut, None]
            own = _raised(np.vstack([chances, 1.0 - chances.sum(axis=0)]), np.append(mean[cut], rest))
            deviations[cut] = own[:-1] - mean[cut, None]
    even = np.full(k, 1.0 / k)
    weights = [_raised(law.weights[0, :, None], even)[:, 0]]
    transitions = np.empty(law.transitions.shape)
    for g, parent in enumerate(tree.parents[1:]):
        transitions[g] = _raised(law.transitions[g].T, even).T
        weights.append(weights[parent] @ transitions[g])
    return TreeLaw(deviations, np.stack(weights), transitions)


def _raised(laws: np.ndarray, average: np.ndarray) -> np.ndarray:
    """Return distributions (n, k) with every probability at least a small share of the average one."""
    found = np.maximum(laws, _START_SHARE * average[:, None])
    return np.asarray(found / found.sum(axis=0))


def scores_of(
    law: TreeLaw,
    tree: Tree,
    whitenings: list[np.ndarray | None],
    averages: StoredArray,
    widths: tuple[int, ...],
) -> LeafScores:
    """Return the scores of the leaves by the parameters."""
    mean = np.asarray(averages.load(), np.float64)[:, 0]
    coefficients, offsets = np.empty(law.deviations.shape), np.zeros(law.weights.shape)
    constant = 0.0
    for cut, W, h in zip(view_slices(widths), whitenings, tree.of_leaves, strict=True):
        if W is None:
            chances = np.maximum(law.deviations[cut] + mean[cut, None], _LEAST)
            coefficients[cut] = np.log(chances)
            # The probability that no column is 1.
            if 1.0 - mean[cut].sum() > _ROUNDING:
                rest = np.log(np.maximum(1.0 - chances.sum(axis=0), _LEAST))
                coefficients[cut] -= rest
                offsets[h] += rest
            continue
        with one_blas_thread():
            deviations = W.T @ law.deviations[cut]
            own, part = scores_by_covariance(deviations, law.weights[h])
            coefficients[cut] = W @ own
        constant += part
        offsets[h] -= 0.5 * np.einsum("rk,rk->k", deviations, own) + mean[cut] @ coefficients[cut]
    return LeafScores(coefficients, offsets, constant)


def maximised(
    scanned: PassResult, before: TreeLaw, tree: Tree, widths: tuple[int, ...], constant: float
) -> tuple[TreeLaw, float]:
    """Return the parameters after an EM pass, and the log-likelihood per row with those before it.

    A state without rows keeps its means and its transitions.
    """
    sums: Any = scanned.sums
    mass, p = float(sums["mass"]), np.asarray(sums["p"])
    some = p > _EMPTY * mass
    share = np.where(some, p, 1.0)
    deviations = before.deviations.copy()
    for cut, h in zip(view_slices(widths), tree.of_leaves, strict=True):
        deviations[cut] = np.where(some[h], np.asarray(sums["px"][cut]) / share[h], before.deviations[cut])
    transitions = before.transitions.copy()
    for g, parent in enumerate(tree.parents[1:]):
        counts = np.maximum(np.asarray(sums["edges"][g]), _LEAST * mass)
        rows = counts / counts.sum(axis=1, keepdims=True)
        transitions[g] = np.where(some[parent, :, None], rows, before.transitions[g])
    law = TreeLaw(deviations, p / p.sum(axis=1, keepdims=True), transitions)
    return law, float(sums["evidence"]) / mass + constant


def ordered(law: TreeLaw, tree: Tree, widths: tuple[int, ...]) -> TreeLaw:
    """Return the states of the root by descending probability, and all others matched with those of the parent."""
    orders = [np.argsort(-law.weights[0], kind="stable")]
    transitions, deviations = law.transitions.copy(), law.deviations.copy()
    for g, parent in enumerate(tree.parents[1:], start=1):
        edge = law.transitions[g - 1][orders[parent]]
        orders.append(linear_sum_assignment(-edge)[1])
        transitions[g - 1] = edge[:, orders[g]]
    weights = np.stack([own[order] for own, order in zip(law.weights, orders, strict=True)])
    for cut, h in zip(view_slices(widths), tree.of_leaves, strict=True):
        deviations[cut] = law.deviations[cut][:, orders[h]]
    return TreeLaw(deviations, weights, transitions)
