"""Posterior probabilities of the components of rows: normalised, collected, and stored by a pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.dense_rows import dense_rows, mass_of


class Posterior(Protocol):
    """Posterior probabilities by the parameters of a mixture."""

    def pieces(self, X: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows in pieces, with their posterior probabilities.

        Each item has the positions of the rows, the rows in the units of the parameters, the squares of the rows
        that EM adds up, the probabilities (n, k) and the log-densities (n,). Arrays are valid until the next item
        is taken.
        """


def normalise(joint: np.ndarray) -> np.ndarray:
    """Turn ``log(w_i p(x | i))`` into posterior probabilities in place, and return ``log p(x)``, (n,).

    Where all densities are zero, at rows whose squared norms overflow, all components are equally probable.
    """
    # Minus infinity minus itself would be NaN.
    top = np.maximum(joint.max(axis=1, keepdims=True), np.finfo(float).min)
    joint -= top
    np.exp(joint, out=joint)
    total = joint.sum(axis=1, keepdims=True)
    if not total.all():
        joint[total[:, 0] == 0.0] = 1.0 / joint.shape[1]
    joint /= np.where(total == 0.0, 1.0, total)
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(total) + top)[:, 0])


def logs_of(probabilities: np.ndarray) -> np.ndarray:
    """Return the logarithms of probabilities, minus infinity where they are zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities))


def posterior_of(X: np.ndarray, posterior: Posterior, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior probabilities (n, k) and the log-density (n,) of rows."""
    found, densities = np.empty((len(X), k)), np.empty(len(X))
    for rows, _, _, p, density in posterior.pieces(X):
        found[rows], densities[rows] = p, density
    return found, densities


class MixturePass(Pass):
    """Base class of passes that read the parameters of a mixture.

    Attributes
    ----------
    n_components : int
    """

    n_components: int

    def posterior(self) -> Posterior:
        """Return the `Posterior` by the parameters of the pass."""
        raise TypeError(f"{type(self).__name__} does not define its posterior")


class StoredPosteriorPass(Pass):
    """Base class of passes that store the most probable component of every row, and the probabilities of all.

    Attributes
    ----------
    n_components : int

    Notes
    -----
    Rows: ``components`` (n,), int32, and ``probabilities`` (n, k), float32. Sums: ``mass`` ().
    """

    n_components: int

    row_axis = "rows"

    @property
    def name(self) -> str:
        return "assign"

    @property
    def row_bytes(self) -> int:
        return 4 + 4 * self.n_components

    def specs(self) -> dict[str, SumSpec]:
        return {"mass": SumSpec(())}


class AssignPass(StoredPosteriorPass, MixturePass):
    """Store the components of rows and their probabilities by the parameters of a mixture.

    Notes
    -----
    Rows as in `StoredPosteriorPass`. Sums: ``log_likelihood`` (), ``mass`` ().
    """

    def working_bytes(self, n_rows: int) -> int:
        return super().working_bytes(n_rows) + 8 * (self.n_components + 1) * n_rows

    def specs(self) -> dict[str, SumSpec]:
        return {"log_likelihood": SumSpec(()), **super().specs()}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        X, weights = dense_rows(block)
        sums["mass"] += mass_of(X, weights)
        components = np.empty(len(X), np.int32)
        probabilities = np.empty((len(X), self.n_components), np.float32)
        for piece, _, _, p, density in self.posterior().pieces(X):
            components[piece] = p.argmax(axis=1)
            probabilities[piece] = p
            sums["log_likelihood"] += density.sum() if weights is None else weights[piece] @ density
        return {"components": components, "probabilities": probabilities}
