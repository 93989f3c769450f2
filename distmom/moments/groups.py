"""Groups of views in passes: which count, their views in a basis, and random parts of the groups.

Sums are kept for `N_PARTS` random parts of the groups apart, whose differences are as large as the errors of
moments by sampling (see `contrasts`). Groups with weights of their own are an enumerated population, without such
errors, and all of them are in the first part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from distmom.corpus import RowBlock
from distmom.engine.passes import Pass
from distmom.engine.state import Columns
from distmom.moments.counter import uniforms
from distmom.moments.sketching import n_stored_slabs

#: random parts of the groups that sums are kept of
N_PARTS = 8
#: rows that are centred and multiplied at a time
PIECE_ROWS = 4096
#: more documents than any shard has: a shard is one block, as the views in a number of groups are not bounded
WHOLE_SHARD = 1 << 40


@dataclass(frozen=True)
class ProjectedViewsPass(Pass):
    """Base of passes that project views onto a basis, and keep sums by parts of the groups.

    Attributes
    ----------
    min_views : int
        Groups of fewer views are left out.
    origin : ndarray of shape (n_words,), optional
        Taken from every view.
    basis : matrix of shape (n_words, r)
        An array, or slabs of columns.
    rank : int
        r.
    seed : int
        Seed of the parts.
    """

    min_views: int = 3
    origin: Any = None
    basis: Any = None
    rank: int = 0
    seed: int = 0

    block_rows = WHOLE_SHARD

    @property
    def n_stored_slabs(self) -> int:
        return n_stored_slabs(self.basis)

    @property
    def mapped_bytes(self) -> int:
        return 8 * self.n_features * self.rank

    def parts(self, block: RowBlock) -> Iterator[tuple[int, RowBlock, np.ndarray]]:
        """Yield number and groups of every part that has any, with how often each group counts."""
        if block.weights is not None:
            used, weights = used_groups(block, self.min_views)
            if used.n_documents:
                yield 0, used, weights
            return
        positions = np.arange(block.first, block.first + block.n_documents)
        index = (N_PARTS * uniforms(positions, 1, seed=self.seed)[:, 0]).astype(np.int64)
        index[block.sizes < self.min_views] = -1
        for part in range(N_PARTS):
            if (index == part).any():
                used = block.take(index == part)
                yield part, used, np.ones(used.n_documents)

    def project(self, block: RowBlock) -> np.ndarray:
        """Return the views of a block, less the origin, in the basis, float64."""
        return project(block.rows, self.origin, self.basis)


def used_groups(block: RowBlock, min_views: int) -> tuple[RowBlock, np.ndarray]:
    """Return the groups of a block that have enough views, and how often each counts."""
    enough = block.sizes >= min_views
    used = block if bool(enough.all()) else block.take(enough)
    return used, np.ones(used.n_documents) if used.weights is None else used.weights


def centred_pieces(X: np.ndarray, origin: np.ndarray | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield centred rows, some at a time."""
    for start in range(0, len(X), PIECE_ROWS):
        piece = slice(start, min(start + PIECE_ROWS, len(X)))
        yield piece, X[piece] if origin is None else X[piece] - origin


def project(X: Any, origin: np.ndarray | None, matrix: Any) -> np.ndarray:
    """Return ``(x - origin)' B`` of every row, float64."""
    parts = matrix.each() if isinstance(matrix, Columns) else iter((matrix,))
    found = []
    for part in parts:
        B = np.asarray(part, np.float64)
        if sparse.issparse(X):
            product = np.asarray(X @ B)
            found.append(product if origin is None else product - origin @ B)
        else:
            pieces = [centred @ B for _, centred in centred_pieces(X, origin)]
            found.append(np.concatenate(pieces) if pieces else np.zeros((0, B.shape[1])))
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def mean_of_parts(parts: list[np.ndarray], mass: np.ndarray) -> np.ndarray:
    """Return the average of a statistic of parts, each by its mass."""
    return np.asarray(sum(own * part for own, part in zip(mass.tolist(), parts, strict=True)) / mass.sum())


def contrasts(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return independent draws of the error that a statistic of all groups has by sampling.

    Parameters
    ----------
    parts : sequence of ndarray
        The statistic of p parts of about equal size.

    Returns
    -------
    ndarray of shape (..., p - 1), float64
        Orthogonal contrasts of the parts over the root of p: as the parts are, each has p times the variance of
        the statistic of all groups, and their mean is not in it.
    """
    p = len(parts)
    # Helmert's: part j against the mean of those before it.
    helmert = np.array([[1.0] * j + [-float(j)] + [0.0] * (p - j - 1) for j in range(1, p)]).reshape(p - 1, p)
    helmert /= np.linalg.norm(helmert, axis=1, keepdims=True) * np.sqrt(p)
    return np.tensordot(np.stack(parts, axis=-1), helmert, axes=([-1], [1]))
