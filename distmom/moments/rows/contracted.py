"""Passes that contract the whitened third moment of rows, which they never form.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 6.1.2. A row gives whitened coordinates: y for a mixture of Gaussians (`RowContractionsPass`), and y_1, y_2
and y_3 for three views (`ViewContractionsPass`), which have the same conditional means. Each is a linear function
of the projected row and of a coordinate that is constantly one. Given some vectors, a pass adds up one of

    slices T(I, I, h_l):          y (y'h_l) y'     or, for views, the sum over t of y_s (y_t'h_l) y_u'
    power steps T(I, v_l, v_l):   y (y'v_l)^2      or, for views, the sum over t of y_t (y_s'v_l) (y_u'v_l)

with s and u the two views other than t. A slice has as many entries as the second moment, and a power step one
for every coordinate. The terms that the model subtracts from the moments are left to the functions that load
the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import aligned, dense_rows, mass_of, piece_bytes
from distmom.moments.kernels import BLOCK_ROWS, add_slices, fill_pairs, product_bytes
from distmom.moments.rows.gaussian import RowMomentsPass
from distmom.moments.rows.multiview import MultiViewMomentsPass
from distmom.moments.three_views import N_GROUPS
from distmom.moments.weighting import positive

#: the two views other than each view
OTHERS = ((1, 2), (0, 2), (0, 1))


@dataclass(frozen=True)
class ContractionsPass(Pass):
    """Base class of passes that contract whitened third moments with some vectors.

    Attributes
    ----------
    vectors : ndarray of shape (k, m)
    n_whitened, n_vectors : int
        k and m.
    steps : bool
        Whether power steps are added up; False (default) means slices.

    Notes
    -----
    Sum ``contracted``, of slices (k, m, k) or of power steps (k, m).
    """

    vectors: Any = None
    n_whitened: int = 0
    n_vectors: int = 0
    steps: bool = False

    @property
    def name(self) -> str:
        return "tensor-power" if self.steps else "slices"

    @property
    def finish_bytes(self) -> int:
        # The memory-mapped total, its copy, and two reordered copies.
        return 8 * 4 * self.n_vectors * self.n_whitened ** (1 if self.steps else 2)

    def product_bytes(self, n_rows: int) -> int:
        """Return the bytes of products with the vectors, and of what is added up from them."""
        k, m = self.n_whitened, self.n_vectors
        # Products and factors with their weights; of a step, also the product that is added to the sum.
        own = 8 * m * (2 * n_rows + (k if self.steps else 0))
        return own if self.steps else own + 8 * n_rows * k + product_bytes(n_rows, k, 8)

    def specs(self) -> dict[str, SumSpec]:
        k, m = self.n_whitened, self.n_vectors
        return {"contracted": SumSpec((k, m) if self.steps else (k, m, k)), "mass": SumSpec(())}


@dataclass(frozen=True)
class RowContractionsPass(ContractionsPass, RowMomentsPass):
    """Contract the third moment of whitened rows with some vectors.

    Attributes
    ----------
    whitener : ndarray of shape (r + 1, k)
        W; ``y = W'(1, Q'(x - origin))``.

    Notes
    -----
    Other fields as in `ContractionsPass` and `RowMomentsPass`. Sums: ``contracted``, of slices by blocks (see
    `distmom.moments.kernels.fill_pairs`), ``mass`` () and ``sampled`` (). With slices also ``ys`` (k,) of y times
    the squared distance of ``x - origin`` from the span of the columns of W, which are orthogonal but for the
    constant coordinate.
    """

    third: bool = False
    whitener: Any = None

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, BLOCK_ROWS)
        # Projected rows, whitened rows and their squares, in addition to the products.
        own = 8 * n * (self.rank + 2 * self.n_whitened)
        return piece_bytes(n_rows, self.n_features) + own + self.product_bytes(n)

    def specs(self) -> dict[str, SumSpec]:
        specs = super().specs() | {"sampled": SumSpec(())}
        return specs if self.steps else specs | {"ys": SumSpec((self.n_whitened,))}

    def add_projected(
        self, sums: Sums, block: RowBlock, many: slice, Y: np.ndarray, s: np.ndarray, own: np.ndarray | None
    ) -> None:
        W, vectors = np.asarray(self.whitener), np.asarray(self.vectors)
        white = Y @ W[1:]
        if not self.steps:
            squares = np.einsum("ij,ij->j", W[1:], W[1:])
            inverse = np.divide(1.0, squares, out=np.zeros(len(squares)), where=squares > 0.0)
            rest = s - white**2 @ inverse
        white += W[0]
        along = white @ vectors
        if self.steps:
            _add_steps(sums["contracted"], white, along**2, own)
        else:
            add_slices(sums["contracted"], white, white, along, own)
            sums["ys"] += (rest if own is None else rest * own) @ white


@dataclass(frozen=True)
class ViewContractionsPass(ContractionsPass, MultiViewMomentsPass):
    """Contract the symmetrised third moment of three whitened views with some vectors.

    Attributes
    ----------
    whiteners : ndarray of shape (3, r + 1, k)
        ``y_t = whiteners_t'(1, z_t)``.

    Notes
    -----
    Other fields as in `ContractionsPass` and `MultiViewMomentsPass`. Sums: ``contracted``, of slices that are not
    symmetric, and ``mass`` ().
    """

    whiteners: Any = None

    def working_bytes(self, n_rows: int) -> int:
        n = min(n_rows, BLOCK_ROWS)
        # Factors of the other views, and whitened views, in addition to the products.
        rows = n * ((N_GROUPS - 1) * self.n_vectors + (N_GROUPS + 1) * self.n_whitened)
        return self.projected_bytes(n) + 8 * rows + self.product_bytes(n)

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        vectors = np.asarray(self.vectors)
        for start in range(0, X.shape[0], BLOCK_ROWS):
            many = slice(start, min(start + BLOCK_ROWS, X.shape[0]))
            own = None if weights is None else weights[many]
            views = [
                z @ W[1:] + W[0]
                for z, W in zip(self.projected(aligned(X[many])), np.asarray(self.whiteners), strict=True)
            ]
            along = [y @ vectors for y in views]
            for t, (s, u) in enumerate(OTHERS):
                if self.steps:
                    _add_steps(sums["contracted"], views[t], along[s] * along[u], own)
                else:
                    add_slices(sums["contracted"], views[s], views[u], along[t], own)
        return None


def row_contraction(sums: Sums) -> np.ndarray:
    """Turn the sums of `RowContractionsPass` into slices (k, k, m) or power steps (k, m) of their moment."""
    found = np.array(sums["contracted"])
    if found.ndim == 3:
        found = np.ascontiguousarray(fill_pairs(found.transpose(0, 2, 1)))
    return np.asarray(found / positive(sums["mass"]))


def view_contraction(sums: Sums) -> np.ndarray:
    """Turn the sums of `ViewContractionsPass` into slices (k, k, m) or power steps (k, m).

    They are those of the third moment of the three views, averaged over all orders of the views.
    """
    found = np.array(sums["contracted"])
    if found.ndim == 3:
        found = (found + found.transpose(2, 1, 0)).transpose(0, 2, 1) / 2.0
    return np.asarray(found / (N_GROUPS * positive(sums["mass"])))


def _add_steps(total: np.ndarray, rows: np.ndarray, factors: np.ndarray, weight: np.ndarray | None) -> None:
    total += rows.T @ (factors if weight is None else factors * weight[:, None])
