"""Documents of several views in passes: selection, projection onto a basis, and random parts of documents.

Sums are kept separately for `N_PARTS` random parts of the documents; their differences estimate the sampling
errors of moments (see `contrasts`). Documents with weights are an enumerated population, which has no sampling
errors, and are all in the first part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import Block, RowBlock
from distmom.engine.passes import WHOLE_SHARD
from distmom.moments.counter import uniforms
from distmom.moments.dense_rows import project
from distmom.moments.sketching import ProjectedPass

#: number of random parts of the documents
N_PARTS = 8
#: rows that are centred and multiplied at a time
PIECE_ROWS = 4096


@dataclass(frozen=True)
class ProjectedViewsPass(ProjectedPass):
    """Base class of passes that project views onto a basis and keep sums by parts of the documents.

    Attributes
    ----------
    min_views : int
        Documents of fewer views are left out.
    origin : ndarray of shape (n_words,), optional
        Subtracted from every view; zero by default.
    basis : matrix of shape (n_words, r)
        An array, or slabs of columns.
    rank : int
        r.
    seed : int
        Seed of the assignment of documents to parts.
    """

    min_views: int = 3
    origin: Any = None
    basis: Any = None
    rank: int = 0
    seed: int = 0

    block_rows = WHOLE_SHARD

    def parts(self, block: RowBlock) -> Iterator[tuple[int, RowBlock, np.ndarray]]:
        """Yield the number of every part that is not empty, with its documents and their weights."""
        if block.weights is not None:
            used, weights = used_groups(block, self.min_views)
            if used.n_documents:
                yield 0, used, weights
            return
        index = part_numbers(block, self.seed)
        index[block.sizes < self.min_views] = -1
        for part in range(N_PARTS):
            if (index == part).any():
                used = block.take(index == part)
                yield part, used, np.ones(used.n_documents)

    def project(self, block: RowBlock) -> np.ndarray:
        """Return the views of a block, less the origin, in the basis, float64."""
        return project(block.rows, self.origin, self.basis, PIECE_ROWS)


def part_numbers(block: Block | RowBlock, seed: int) -> np.ndarray:
    """Return the number of the random part of every unit of a block, (n_units,) int64."""
    positions = np.arange(block.first, block.first + block.n_documents)
    return (N_PARTS * uniforms(positions, 1, seed=seed)[:, 0]).astype(np.int64)


def used_groups(block: RowBlock, min_views: int) -> tuple[RowBlock, np.ndarray]:
    """Return the documents of a block that have enough views, and their weights."""
    enough = block.sizes >= min_views
    used = block if bool(enough.all()) else block.take(enough)
    return used, np.ones(used.n_documents) if used.weights is None else used.weights


def mean_of_parts(parts: list[np.ndarray], mass: np.ndarray) -> np.ndarray:
    """Return the average of a statistic over parts, weighted by mass."""
    return np.asarray(sum(own * part for own, part in zip(mass.tolist(), parts, strict=True)) / mass.sum())


def contrasts(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return independent draws of the sampling error of a statistic of all documents.

    Parameters
    ----------
    parts : sequence of ndarray
        The statistic for each of p parts of about equal size.

    Returns
    -------
    ndarray of shape (..., p - 1), float64
        Orthogonal contrasts of the parts, divided by the square root of p, since each part has p times the
        variance of the statistic of all documents. The mean of the parts cancels.
    """
    p = len(parts)
    # Helmert contrasts: part j against the mean of the parts before it.
    helmert = np.array([[1.0] * j + [-float(j)] + [0.0] * (p - j - 1) for j in range(1, p)]).reshape(p - 1, p)
    helmert /= np.linalg.norm(helmert, axis=1, keepdims=True) * np.sqrt(p)
    return np.tensordot(np.stack(parts, axis=-1), helmert, axes=([-1], [1]))
