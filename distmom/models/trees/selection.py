"""The choice of three leaves that show a hidden variable, from the moments of pairs of leaves.

Leaves a and b in two branches of a hidden variable with k states have the cross covariance
``A_a (diag(w) - w w') A_b'`` of rank k - 1 at most. Its singular value number k - 1 after both leaves are
whitened, a canonical correlation, measures how well the two distinguish the states. It depends neither on the
units of columns nor on the basis of a leaf. The largest singular value that independent leaves have in as many
rows is subtracted; an enumerated population has no such errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from distmom.blas import one_blas_thread
from distmom.models.trees.structure import Candidate
from distmom.moments.dense_rows import view_slices
from distmom.moments.rows.trees import TreeMoments, Triple

#: least variance of a direction, as a share of the largest, that is not rounding
_LEAST_SHARE = 1e-9
#: difference of correlations that is rounding
_EQUAL = 1e-9


@dataclass(frozen=True)
class _Pairs:
    """Correlations of pairs of leaves, each computed once."""

    moments: TreeMoments
    k: int
    whiteners: dict[int, np.ndarray] = field(default_factory=dict)
    known: dict[tuple[int, int], float] = field(default_factory=dict)

    def score(self, a: int, b: int) -> float:
        """Return the correlation number k - 1 of two leaves, less its error."""
        pair = (min(a, b), max(a, b))
        if pair not in self.known:
            self.known[pair] = self._score(*pair)
        return self.known[pair]

    def _score(self, a: int, b: int) -> float:
        left, right = self._whitener(a), self._whitener(b)
        values = np.linalg.svd(left.T @ self._covariance(a, b) @ right, compute_uv=False)
        # The first coordinate of every leaf, which is one, has a correlation of one with that of the other leaf.
        values = np.concatenate([[1.0], values, np.zeros(self.k)])
        # The largest singular value of the cross covariance of two independent whitened leaves, for many rows.
        error = (left.shape[1] ** 0.5 + right.shape[1] ** 0.5) / self.moments.n_rows**0.5
        return float(values[self.k - 1] - error)

    def _covariance(self, a: int, b: int) -> np.ndarray:
        cuts, means = view_slices(self.moments.widths), self.moments.means
        return np.asarray(self.moments.pairs[cuts[a], cuts[b]] - np.outer(means[cuts[a]], means[cuts[b]]))

    def _whitener(self, leaf: int) -> np.ndarray:
        if leaf not in self.whiteners:
            values, vectors = np.linalg.eigh(self._covariance(leaf, leaf))
            kept = values > max(_LEAST_SHARE * values[-1], 0.0)
            self.whiteners[leaf] = vectors[:, kept] / np.sqrt(values[kept])
        return self.whiteners[leaf]


def choose_triples(moments: TreeMoments, candidates: Sequence[list[Candidate]], k: int) -> tuple[Triple, ...]:
    """Choose three leaves for every hidden variable; runs on the scheduler node.

    Of all triples of candidates in three branches, the one is taken whose pairs distinguish the states best,
    judged by the worst of the three pairs. If several are equal, the next worst decides, and finally the
    distance.

    Parameters
    ----------
    moments : TreeMoments
        Moments of pairs.
    candidates : sequence of list of (int, int)
        For every hidden variable, as in `Tree.candidates`.
    k : int
        Number of states of every hidden variable.
    """
    pairs = _Pairs(moments, k)
    with one_blas_thread():
        return tuple(_best(pairs, own) for own in candidates)


def _best(pairs: _Pairs, candidates: list[Candidate]) -> Triple:
    leaves, branches = np.array(candidates).T
    scores = np.zeros((len(leaves), len(leaves)))
    for i, j in combinations(range(len(leaves)), 2):
        if branches[i] != branches[j]:
            scores[i, j] = pairs.score(int(leaves[i]), int(leaves[j]))
    # In the order of the candidates: the first that is left has the nearest leaves.
    triples = np.array(list(combinations(range(len(leaves)), 3)))
    a, b, c = branches[triples].T
    triples = triples[(a != b) & (a != c) & (b != c)]
    a, b, c = triples.T
    values = np.sort(np.column_stack([scores[a, b], scores[a, c], scores[b, c]]), axis=1)
    kept = np.arange(len(triples))
    for each in values.T:
        kept = kept[each[kept] >= each[kept].max() - _EQUAL]
    first, second, third = (int(leaf) for leaf in leaves[triples[kept[0]]])
    return first, second, third


def nearest_triple(candidates: list[Candidate]) -> Triple:
    """Return the three nearest leaves in different branches."""
    found: dict[int, int] = {}
    for leaf, branch in candidates:
        found.setdefault(branch, leaf)
    first, second, third = list(found.values())[:3]
    return first, second, third


def widest_triple(candidates: list[Candidate], widths: Sequence[int]) -> Triple:
    """Return the three widest leaves in different branches: no triple has larger moments."""
    return nearest_triple(sorted(candidates, key=lambda each: -widths[each[0]]))
