"""The conditional distributions of a latent tree from the moments of pairs and triples of its leaves.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3 and theorem 3.6, and Chang, "Full reconstruction of Markov models on evolutionary trees" (1996). Leaves
a, b, c in three branches of a hidden variable h are independent given h, and their third moment gives the
conditional means ``A_a``, ``A_b``, ``A_c`` and the distribution w of h. Every other leaf l follows from a leaf m
of the three in another branch: ``E[x_l x_m'] = A_l diag(w) A_m'``. With C the leaves below a hidden variable g and
R all others, ``E[x_C x_R'] = B_C J A_R'``, where J is the joint distribution of g and its parent h, B are means
given g and A means given h.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.blas import one_blas_thread
from distmom.errors import NumericalError
from distmom.linalg.simplex import simplex_rows
from distmom.models.trees.structure import Tree
from distmom.moments.dense_rows import view_slices
from distmom.moments.rows.trees import TreeMoments
from distmom.moments.three_views import PAIRS, GroupMoments
from distmom.spectral.steps.centred_views import of_one_component
from distmom.spectral.steps.three_views import align_views


@dataclass(frozen=True)
class RecoveredTree:
    """The parameters of a latent tree.

    Attributes
    ----------
    means : ndarray of shape (d, k)
        Means of the columns of every leaf given the hidden variable above it, in the units of the moments.
    weights : ndarray of shape (n_hidden, k)
        Distribution of every hidden variable.
    transitions : ndarray of shape (n_hidden - 1, k, k)
        For every hidden variable but the root, its distribution given each state of its parent; rows sum to one.
    diagnostics : dict
    """

    means: np.ndarray
    weights: np.ndarray
    transitions: np.ndarray
    diagnostics: dict[str, Any]


@dataclass(frozen=True)
class _Hidden:
    """A hidden variable: the means of all leaves given its states, and the probabilities of these."""

    means: list[np.ndarray]
    weights: np.ndarray
    diagnostics: dict[str, Any]

    def stacked(self, leaves: list[int]) -> np.ndarray:
        """Return the means of some leaves, one below another."""
        return np.concatenate([self.means[leaf] for leaf in leaves])

    def ordered(self, order: np.ndarray) -> _Hidden:
        """Return the hidden variable with its states in another order."""
        return _Hidden([each[:, order] for each in self.means], self.weights[order], self.diagnostics)


def recover(moments: TreeMoments, tree: Tree, k: int, method: str, seed: int = 0) -> RecoveredTree:
    """Recover a latent tree; runs on the scheduler node.

    Parameters
    ----------
    moments : TreeMoments
        With the triple of every hidden variable of the tree.
    tree : Tree
    k : int
        Number of states of every hidden variable.
    method : str
        A method of `distmom.linalg.decompose`.
    seed : int, default 0
        Seed of the method.

    Raises
    ------
    NumericalError
        If the moments of a triple carry fewer than k states.
    """
    hidden: list[_Hidden] = []
    transitions, clipped = [], []
    with one_blas_thread():
        for h in range(tree.n_hidden):
            variable = _decomposed(moments, tree, h, k, method, seed)
            if h == 0:
                hidden.append(variable.ordered(np.argsort(-variable.weights, kind="stable")))
                continue
            parent, below = hidden[tree.parents[h]], tree.below(h)
            others = [leaf for leaf in range(len(tree.of_leaves)) if leaf not in below]
            joint = np.linalg.pinv(variable.stacked(below)) @ moments.block(below, others)
            joint = joint @ np.linalg.pinv(parent.stacked(others)).T
            law = (joint / joint.sum(axis=0)).T
            order = linear_sum_assignment(-law)[1]
            law = law[:, order]
            hidden.append(variable.ordered(order))
            transitions.append(simplex_rows(law))
            clipped.append(float(np.maximum(-law, 0.0).sum(axis=1).max()))
    cuts = np.cumsum((0, *moments.widths))
    means = np.empty((int(cuts[-1]), k))
    for leaf, above in enumerate(tree.of_leaves):
        means[cuts[leaf] : cuts[leaf + 1]] = hidden[above].means[leaf][1:]
    names = ("asymmetry", "residual", "sum_weights", "conditioning")
    diagnostics = {name: [each.diagnostics[name] for each in hidden] for name in names}
    weights = np.stack([each.weights / each.weights.sum() for each in hidden])
    mismatch = _mismatch(moments, tree, means, weights[0], transitions)
    return RecoveredTree(
        means,
        weights,
        np.stack(transitions) if transitions else np.zeros((0, k, k)),
        {**diagnostics, "clipped": clipped, "mismatch": mismatch},
    )


def _mismatch(
    moments: TreeMoments, tree: Tree, means: np.ndarray, root: np.ndarray, transitions: list[np.ndarray]
) -> float:
    """Return the relative distance of the moments of pairs of leaves from those of the tree that was found."""
    cuts, laws = view_slices(moments.widths), [root]
    for parent, law in zip(tree.parents[1:], transitions, strict=True):
        laws.append(laws[parent] @ law)
    # Means of all leaves below a hidden variable given its states, from the last hidden variable to the root.
    below: list[dict[int, np.ndarray]] = [{} for _ in laws]
    missed = total = 0.0
    for leaf, above in enumerate(tree.of_leaves):
        below[above][leaf] = means[cuts[leaf]]
    branch = {leaf: -1 - leaf for leaf in range(len(cuts))}
    for h in reversed(range(tree.n_hidden)):
        for a, b in combinations(below[h], 2):
            # Pairs whose paths meet here.
            if branch[a] != branch[b]:
                expected = (below[h][a] * laws[h]) @ below[h][b].T
                found = moments.pairs[cuts[a], cuts[b]]
                missed += float(np.sum((found - expected) ** 2))
                total += float(np.sum(found**2))
        if h:
            branch.update(dict.fromkeys(below[h], h))
            law = transitions[h - 1]
            below[tree.parents[h]].update({leaf: own @ law.T for leaf, own in below[h].items()})
    return float((missed / max(total, np.finfo(float).tiny)) ** 0.5)


def _decomposed(moments: TreeMoments, tree: Tree, h: int, k: int, method: str, seed: int) -> _Hidden:
    """Decompose the triple of a hidden variable, and return the means of all leaves given its states."""
    leaves = moments.leaves[h]
    try:
        found = align_views(of_one_component(_three_views(moments, h), k), k, method, seed)
    except NumericalError as error:
        shown = ", ".join(str(leaf + 1) for leaf in leaves)
        raise NumericalError(f"hidden variable {h}, seen by leaves {shown}: {error}") from error
    weights, n = found.weights, len(tree.of_leaves)
    own = {
        leaf: np.asarray(mean[: moments.widths[leaf] + 1])
        for leaf, mean in zip(leaves, found.means, strict=True)
    }
    means: list[np.ndarray] = [own.get(leaf, np.zeros(0)) for leaf in range(n)]
    for branch in tree.branches(h):
        known = [leaf for leaf in leaves if leaf not in branch]
        # E[x_l x_m'] = A_l diag(w) A_m'
        inverse = np.linalg.pinv((np.concatenate([own[leaf] for leaf in known]) * weights).T)
        for leaf in branch:
            if leaf not in own:
                means[leaf] = moments.block([leaf], known) @ inverse
    values = [np.linalg.svd(moments.pair(leaves[s], leaves[t]), compute_uv=False) for s, t in PAIRS]
    conditioning = min(float(each[k - 1] / each[0]) for each in values)
    return _Hidden(means, weights, {**found.diagnostics, "conditioning": conditioning})


def _three_views(moments: TreeMoments, index: int) -> GroupMoments:
    """Return the moments of a triple, with zeros where a leaf has fewer columns than another."""
    leaves = moments.leaves[index]
    sizes = [moments.widths[leaf] + 1 for leaf in leaves]
    r = max(sizes)
    means, pairs, triples = np.zeros((3, r)), np.zeros((len(PAIRS), r, r)), np.zeros((r, r, r))
    for i, (s, t) in enumerate(PAIRS):
        pairs[i, : sizes[s], : sizes[t]] = moments.pair(leaves[s], leaves[t])
    for t in range(3):
        means[t, : sizes[t]] = moments.pair(leaves[t], leaves[t])[0]
    triples[: sizes[0], : sizes[1], : sizes[2]] = moments.triple(index)
    return GroupMoments(means, pairs, triples)
