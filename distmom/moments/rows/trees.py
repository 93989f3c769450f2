"""Passes over rows whose columns are the leaves of a tree: moments of all pairs and of some triples of leaves.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3: three leaves in different branches of a hidden variable are three views of it. Columns are centred and
scaled first, so that their units and origins do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from distmom.corpus import RowBlock
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import aligned, dense_rows, mass_of, piece_rows, view_slices
from distmom.moments.weighting import positive

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class TreeMomentsPass(Pass):
    """Add up the moments of all pairs of leaves, of some triples, or of both.

    Attributes
    ----------
    widths : tuple of int
        Numbers of columns of the leaves; they add up to ``n_features``.
    averages : ndarray of shape (n_features, 2)
        Mean of every column, and the factor that scales it.
    leaves : tuple of (int, int, int)
        The triples.
    with_pairs : bool
        Whether moments of pairs are added up; True by default.
    n_products : int
        Number of products of two columns that a piece of rows has room for, at least. With it, a plan that is
        made before the triples are chosen has the same pieces; 0 by default.

    Notes
    -----
    Sums of centred and scaled columns z: ``mass`` (), for triple i ``triples_i`` (d_a, d_b, d_c), and with pairs
    ``means`` (n_features,), ``pairs`` (n_features, n_features), and ``sampled`` (), the number of rows of blocks
    without weights, which are samples.
    """

    widths: tuple[int, ...] = ()
    averages: Any = None
    leaves: tuple[Triple, ...] = ()
    with_pairs: bool = True
    n_products: int = 0

    block_rows = WHOLE_SHARD

    @property
    def name(self) -> str:
        if not self.with_pairs:
            return "triples"
        return "moments" if self.leaves else "pairs"

    @property
    def _largest(self) -> int:
        """Largest number of products of two columns of the first two leaves of a triple."""
        return max([self.n_products, *(self.widths[a] * self.widths[b] for a, b, _ in self.leaves)])

    @property
    def piece_rows(self) -> int:
        """Number of rows of a piece."""
        return piece_rows(self.n_features + self._largest)

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, self.piece_rows)
        # Rows as they are, scaled and weighted, products of two leaves, and what is added to a sum.
        largest = max(spec.projected_bytes for spec in self.specs().values())
        return 8 * n * (4 * self.n_features + self._largest) + largest

    @property
    def finish_bytes(self) -> int:
        return 3 * sum(spec.projected_bytes for spec in self.specs().values())

    def specs(self) -> dict[str, SumSpec]:
        d = self.n_features
        triples = {
            f"triples_{i}": SumSpec(tuple(self.widths[leaf] for leaf in leaves))
            for i, leaves in enumerate(self.leaves)
        }
        pairs = {"means": SumSpec((d,)), "pairs": SumSpec((d, d)), "sampled": SumSpec(())}
        return {**(pairs if self.with_pairs else {}), "mass": SumSpec(()), **triples}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        if self.with_pairs and weights is None:
            sums["sampled"] += X.shape[0]
        (mean, factors), cuts = np.asarray(self.averages).T, view_slices(self.widths)
        for start in range(0, X.shape[0], self.piece_rows):
            part = slice(start, start + self.piece_rows)
            x = aligned(X[part])
            z = ((x.toarray() if sparse.issparse(x) else x) - mean) * factors
            weighted = z if weights is None else z * weights[part, None]
            if self.with_pairs:
                sums["means"] += weighted.sum(axis=0)
                sums["pairs"] += z.T @ weighted
            for i, (a, b, c) in enumerate(self.leaves):
                sums[f"triples_{i}"] += _third_moment(z[:, cuts[a]], z[:, cuts[b]], weighted[:, cuts[c]])
        return None


def _third_moment(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the sum of ``x (x) y (x) z`` over rows."""
    products = (x[:, :, None] * y[:, None, :]).reshape(len(x), -1)
    return np.asarray((products.T @ z).reshape(x.shape[1], y.shape[1], z.shape[1]))


@dataclass(frozen=True)
class TreeMoments:
    """Moments of pairs and triples of leaves, each with a first coordinate that is one in every row.

    Attributes
    ----------
    widths : tuple of int
        Numbers of columns of the leaves, without that coordinate.
    means : ndarray of shape (d,)
    pairs : ndarray of shape (d, d)
    leaves : tuple of (int, int, int)
    triples : tuple of ndarray of shape (d_a, d_b, d_c)
    n_rows : float
        Number of rows of the sample; infinite for an enumerated population.
    """

    widths: tuple[int, ...]
    means: np.ndarray
    pairs: np.ndarray
    leaves: tuple[Triple, ...]
    triples: tuple[np.ndarray, ...]
    n_rows: float

    def pair(self, a: int, b: int) -> np.ndarray:
        """Return ``E[(1, z_a) (1, z_b)']``, (d_a + 1, d_b + 1)."""
        cuts = view_slices(self.widths)
        found = np.empty((self.widths[a] + 1, self.widths[b] + 1))
        found[0, 0], found[0, 1:], found[1:, 0] = 1.0, self.means[cuts[b]], self.means[cuts[a]]
        found[1:, 1:] = self.pairs[cuts[a], cuts[b]]
        return found

    def block(self, some: Sequence[int], others: Sequence[int]) -> np.ndarray:
        """Return the moments of pairs of some leaves, one below another, with others, side by side."""
        return np.block([[self.pair(a, b) for b in others] for a in some])

    def triple(self, index: int) -> np.ndarray:
        """Return ``E[(1, z_a) (x) (1, z_b) (x) (1, z_c)]`` of a triple."""
        a, b, c = self.leaves[index]
        found = np.empty([self.widths[leaf] + 1 for leaf in (a, b, c)])
        found[0], found[:, 0], found[:, :, 0] = self.pair(b, c), self.pair(a, c), self.pair(a, b)
        found[1:, 1:, 1:] = self.triples[index]
        return found


def tree_moments(sums: Sums, widths: tuple[int, ...], leaves: tuple[Triple, ...]) -> TreeMoments:
    """Turn sums of `TreeMomentsPass`, those of pairs among them, into moments."""
    mass = positive(sums["mass"])
    triples = tuple(np.asarray(sums[f"triples_{i}"]) / mass for i in range(len(leaves)))
    return TreeMoments(
        widths, np.asarray(sums["means"]) / mass, np.asarray(sums["pairs"]) / mass, leaves, triples,
        float(sums["sampled"]) or np.inf,
    )  # fmt: skip
