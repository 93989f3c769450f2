"""Trees of hidden variables whose leaves are observed, from moments of pairs and triples of leaves.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3, which names latent trees among the models that can be learned from three views; see
`distmom.models.trees.recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from distmom.engine import PassResult, StoredArray, TallResult
from distmom.engine.directory.run_directory import load_sums
from distmom.engine.sums.additive import Sums
from distmom.errors import UsageError
from distmom.linalg import METHODS
from distmom.models.trees.em import (
    LeafScores,
    TreeLaw,
    are_categories,
    leaf_whitenings,
    refined,
    scores_of,
)
from distmom.models.trees.fitted import FittedTree
from distmom.models.trees.recovery import RecoveredTree, recover
from distmom.models.trees.selection import choose_triples, nearest_triple, widest_triple
from distmom.models.trees.structure import Candidate, Tree
from distmom.moments.rows.multiview import MultiViewColumnsPass
from distmom.moments.rows.trees import TreeMoments, TreeMomentsPass, Triple, tree_moments
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import layer_parameter, place_parameter
from distmom.spectral.inputs.checks import check_n_rows
from distmom.spectral.inputs.row_parts import joined_views, widths_of
from distmom.spectral.inputs.tables import corpus_of_rows, corpus_of_views
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.fields import array, value
from distmom.spectral.seeds import Seed, seed_parameter
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.view_basis import averages_of

#: EM passes by default, where leaves are categories
_N_EM_ITER = 10


@dataclass(frozen=True)
class LatentTreeState:
    """The state of a fitted tree; shapes are those on disk.

    Attributes
    ----------
    components : ndarray of shape (d, k)
    weights : ndarray of shape (h, k)
    transitions : ndarray of shape (h - 1, k, k)
    widths : list of int
    diagnostics : dict
    coefficients : ndarray of shape (d, k) or None
    offsets : ndarray of shape (h, k) or None
        Offsets of the scores by which rows are read; None in models of earlier versions.
    has_categories : bool
        Whether the columns of every leaf are indicators of a category.
    tree : str
        Empty in models of earlier versions.
    """

    components: np.ndarray = array("d", "k", transposed=True)
    weights: np.ndarray = array("h", "k", least=0.0)
    transitions: np.ndarray = array("edges*", "k", "k", least=0.0)
    widths: list[int] = value()
    diagnostics: dict[str, Any] = value()
    coefficients: np.ndarray | None = array("d", "k", types=("<f8",), optional=True)
    offsets: np.ndarray | None = array("h", "k", types=("<f8",), optional=True)
    has_categories: bool = value(default=False)
    tree: str = value(default="")


class LatentTree(FittedTree):
    """Tree of hidden variables with a known structure, whose leaves are observed.

    Given its parent in the tree, a variable is independent of all that is not below it. Leaves are vectors, such
    as indicators of categories, whose means depend on the hidden variable above them.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Mean of every column given each state of the hidden variable above its leaf; probabilities for
        indicators.
    weights_ : ndarray of shape (n_hidden, n_components)
        Distribution of every hidden variable; the first is the root, and each comes before those below it.
    transitions_ : ndarray of shape (n_hidden - 1, n_components, n_components)
        Entry (g - 1, i, j) is the probability of state j of hidden variable g, given state i of its parent.
        States of the root are in the order of their probabilities; those of another variable are matched with the
        states of its parent.
    widths_ : list of int
        Numbers of columns of the leaves.
    diagnostics_ : dict
        For every hidden variable, from the three leaves chosen for it: ``asymmetry``, ``residual``,
        ``sum_weights`` and ``conditioning``, the ratio of the n_components-th to the largest singular value,
        the smallest over the pairs; for every edge between hidden variables ``clipped``, the largest negative
        mass of an estimated distribution; ``mismatch``, the relative distance of the moments of pairs of leaves
        from those of the tree before EM; ``log_likelihoods``, on average per row before each EM pass (see
        docs/trees.md).
    coefficients_ : ndarray of shape (n_features, n_components)
    offsets_ : ndarray of shape (n_hidden, n_components)
        Offsets of the linear scores by which `predict_proba` reads rows.
    has_categories_ : bool
        Whether the columns of every leaf are indicators of a category.
    tree_ : str
        The tree of the fit.
    vocabulary_ : list of str
        Names of the columns.
    n_features_in_ : int
        Number of columns of all leaves.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> root = rng.integers(0, 2, 20000)
    >>> below = np.where(rng.random(20000) < 0.2, 1 - root, root)
    >>> leaves = tuple(h + rng.normal(size=(2, 20000)).T for h in (3 * below[:, None], 3 * below[:, None]))
    >>> more = tuple(h + rng.normal(size=(2, 20000)).T for h in (3 * root[:, None], 3 * root[:, None]))
    >>> model = LatentTree(2, tree="((1,2),3,4)").fit((*leaves, *more))
    >>> bool(np.abs(model.transitions_[0] - [[0.8, 0.2], [0.2, 0.8]]).max() < 0.05)
    True
    """

    State = LatentTreeState
    reads = ("dense", "csr")
    capabilities = frozenset({Capability.ROWS, Capability.COMPONENTS})
    shown = ("conditioning", "asymmetry", "residual", "sum_weights", "clipped", "mismatch")

    n_components: int = parameter(
        "Number of states of every hidden variable.", default=2, least=1, kw_only=False
    )
    tree: str = parameter(
        "The tree, such as ((1,2),3,4): a pair of parentheses is a hidden variable and encloses the nodes "
        "below it; a leaf is its number, from 1.",
        default="(1,2,3)",
    )
    widths: str | Sequence[int] | None = parameter(
        "Numbers of columns of the leaves, in the order of the columns of a row, such as 2,2,3,2.",
        default=None, kind=str, none=True, unset="those of the leaves given to fit",
    )  # fmt: skip
    decomposition: str = parameter(
        "Method for the whitened third moments.", default="joint", choices=tuple(METHODS)
    )
    n_em_iter: int | None = parameter(
        "Number of expectation-maximisation (EM) iterations after the moments, one pass each.",
        default=None, kind=int, least=0, none=True,
        unset=f"{_N_EM_ITER} where the columns of every leaf are indicators of a category, otherwise 0",
    )  # fmt: skip
    layer: str | None = layer_parameter()
    decompose_on: str = place_parameter()
    random_state: Seed = seed_parameter()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit rows in memory.

        Parameters
        ----------
        X : tuple or list of arrays or sparse matrices of shape (n_rows, d_t), or one of shape (n_rows, d)
            Finite numbers: the leaves, or, with ``widths``, their columns side by side.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If a parameter is invalid, or a leaf has too few columns.
        InputError
            If a value is not finite, or leaves have different numbers of rows.
        NumericalError
            If the moments carry fewer states than requested.
        """
        rows, widths = joined_views(X, len(Tree.parse(self.tree).of_leaves))
        if widths is None:
            return self.fit_corpus(corpus_of_rows(X, rows))
        return self.fit_corpus(corpus_of_views(X, rows, widths))

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus; else a UsageError."""
        super().check(corpus)
        tree, widths, k = Tree.parse(self.tree), self._widths(corpus), self.n_components
        # Of each branch the widest leaf may be taken, and a hidden variable needs three branches.
        narrowest = min(
            sorted(max(widths[leaf] for leaf in branch) for branch in tree.branches(h))[-3]
            for h in range(tree.n_hidden)
        )
        if k > narrowest + 1:
            raise UsageError(
                f"n_components: expected at most {narrowest + 1}, one more than the columns of the narrowest leaf "
                f"in a triple, got {k}"
            )
        check_n_rows(corpus.n_rows, k)

    def _keep(self, state: LatentTreeState) -> None:
        # Models of earlier versions have the tree of their parameters.
        super()._keep(state if state.tree else replace(state, tree=self.tree))

    def _widths(self, corpus: Any) -> tuple[int, ...]:
        return widths_of(corpus, self.widths, len(Tree.parse(self.tree).of_leaves), "leaves")

    def program(self, run: Run) -> LatentTreeState:
        """Fit the model by the passes of a run and return its state."""
        d, widths, tree = run.corpus.n_words, self._widths(run.corpus), Tree.parse(self.tree)
        out = TallResult({"averages": unknown_columns(d, 2), "squares": unknown_columns(d, 1)}, {})
        counted = run.scan(MultiViewColumnsPass(d, widths=(d,)), averages_of, widths, out=out)
        (averages,) = counted.states["averages"].parts
        usable = [width >= self.n_components - 1 for width in widths]
        candidates = [tree.candidates(h, usable) for h in range(tree.n_hidden)]
        if tree.n_hidden > 1:
            pairs, load = self._chosen(run, widths, averages, candidates)
        else:
            # Every branch is one leaf: a pass to choose between branches is not made.
            leaves = tuple(map(nearest_triple, candidates))
            pairs = run.scan(TreeMomentsPass(d, widths=widths, averages=averages, leaves=leaves))
            load = partial(_load, (pairs.directory,), widths, leaves)
        k, h = self.n_components, tree.n_hidden
        found = run.small(
            recover, load, tree, k, self.decomposition, self._seed, where=self.decompose_on,
            out=RecoveredTree(unknown(d, k), unknown(h, k), unknown(h - 1, k, k), unknown()),
        )  # fmt: skip
        law = run.apply(
            _law_of, averages, found, out=TreeLaw(unknown(d, k), unknown(h, k), unknown(h - 1, k, k))
        )
        after: tuple[TreeLaw, list[float]] = (law, [])
        squares = counted.states["squares"]
        whitenings = run.apply(leaf_whitenings, pairs, averages, squares, widths, out=unknown())
        of_em = (law, tree, whitenings, averages, widths)
        if self.n_em_iter is None:
            after = run.when(
                partial(are_categories, whitenings), refined, *of_em, _N_EM_ITER, otherwise=after
            )
        elif self.n_em_iter:
            after = refined(run, *of_em, self.n_em_iter)
        law, likelihoods = after
        scores = run.apply(
            scores_of, law, tree, whitenings, averages, widths,
            out=LeafScores(unknown(d, k), unknown(h, k), unknown()),
        )  # fmt: skip
        state: LatentTreeState = run.apply(
            _state_of,
            averages,
            widths,
            law,
            scores,
            whitenings,
            likelihoods,
            found.diagnostics,
            self.tree,
            out=unknown(),
        )
        return state

    def _chosen(
        self, run: Run, widths: tuple[int, ...], averages: StoredArray, candidates: list[list[Candidate]]
    ) -> tuple[PassResult, Callable[[], TreeMoments]]:
        """Add up the moments of pairs, choose triples by them, and add up the moments of these.

        Returns
        -------
        pairs : PassResult
        load : callable
            Returns the moments of both passes.
        """
        d = run.corpus.n_words
        pairs = run.scan(TreeMomentsPass(d, widths=widths, averages=averages))
        # No triple that may be chosen is larger, so that the plan holds for all.
        largest = tuple(widest_triple(own, widths) for own in candidates)
        leaves = run.small(
            choose_triples, partial(_load, (pairs.directory,), widths, ()), candidates, self.n_components,
            where=self.decompose_on, out=largest,
        )  # fmt: skip
        n_products = max(widths[a] * widths[b] for a, b, _ in largest)
        triples = run.scan(
            TreeMomentsPass(
                d, widths=widths, averages=averages, leaves=leaves, with_pairs=False, n_products=n_products
            )
        )
        return pairs, partial(_load, (pairs.directory, triples.directory), widths, leaves)


def _load(directories: tuple[str, ...], widths: tuple[int, ...], leaves: tuple[Triple, ...]) -> TreeMoments:
    """Return the moments that committed passes have added up."""
    sums = Sums()
    for directory in directories:
        sums.update(load_sums(directory)[0])
    return tree_moments(sums, widths, leaves)


def _law_of(averages: StoredArray, found: RecoveredTree) -> TreeLaw:
    """Return the parameters with the means in the units of the columns."""
    factors = np.asarray(averages.load(), np.float64)[:, 1]
    varying = factors > 0.0
    deviations = np.zeros(found.means.shape)
    deviations[varying] = found.means[varying] / factors[varying, None]
    return TreeLaw(deviations, found.weights, found.transitions)


def _state_of(
    averages: StoredArray,
    widths: tuple[int, ...],
    law: TreeLaw,
    scores: LeafScores,
    whitenings: list[np.ndarray | None],
    likelihoods: list[float],
    diagnostics: dict[str, Any],
    tree: str,
) -> LatentTreeState:
    """Return the state of a model."""
    mean = np.asarray(averages.load(), np.float64)[:, 0]
    more = {"log_likelihoods": likelihoods} if likelihoods else {}
    return LatentTreeState(
        law.deviations + mean[:, None], law.weights, law.transitions, list(widths), diagnostics | more,
        scores.coefficients, scores.offsets, are_categories(whitenings), tree,
    )  # fmt: skip
