"""Mixtures of spherical Gaussians by contractions of their third moment, which is never formed.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorem 3.3 and section 6.1.2. With y the extended rows of `distmom.spectral.steps.spherical`, c the extended means
weighted by variances, and G the covariance of y under noise of variance one, zero for the constant coordinate,

    T = E[y (x) y (x) y] - sym3(c (x) G)
    T(I, I, h) = E[y y'(y'h)] - (c'h) G - c (Gh)' - (Gh) c'
    T(I, v, v) = E[y (y'v)^2] - (v'Gv) c - 2 (c'v) Gv

The passes of `distmom.moments.rows.contracted` add up the expectations, and c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import PassResult
from distmom.engine.directory.run_directory import load_sums
from distmom.linalg import slice_directions
from distmom.moments.rows.contracted import RowContractionsPass, row_contraction
from distmom.moments.rows.gaussian import RowMomentsPass
from distmom.moments.weighting import positive
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.contracted import Contracted, find_by_contractions, sliced_facts
from distmom.spectral.steps.core import unknown_whitening
from distmom.spectral.steps.spherical import (
    Found,
    WhitenedRows,
    mixture,
    single,
    weighted_means,
    whitened_rows,
)


def recover_by_contractions(
    run: Run,
    pairs: RowMomentsPass,
    k: int,
    common: bool,
    seed: int,
    offset: float,
    lower: bool,
    n_steps: int,
    where: str,
    load: Callable[[], Any],
) -> Found:
    """Find k components by slices of the third moment and by power steps, each by one more pass.

    Parameters
    ----------
    run : Run
    pairs : RowMomentsPass
        Pass of the moments up to the second order.
    k, common, seed, offset, lower
        As for `distmom.spectral.steps.spherical.recover`.
    n_steps : int
        Number of power steps.
    where : {"scheduler", "client"}
    load : callable
        Loads the moments that ``pairs`` has added up.

    Raises
    ------
    NumericalError
        As for `distmom.spectral.steps.spherical.recover`.
    """
    d, r = pairs.n_features, pairs.rank
    known = unknown(r), unknown(r, r), unknown(), unknown(), unknown_whitening(r, k - 1)
    of = run.small(
        whitened_rows, load, k, d, offset, lower, where=where,
        out=WhitenedRows(k, *known, unknown(pairs.n_kept, r + 1)),
    )  # fmt: skip
    k = of.n_components
    whitener = run.put(run.apply(extended_whitener, of, out=unknown(r + 1, k)))
    contractions = RowContractionsPass(
        d, basis=pairs.basis, origin=pairs.origin, rank=r, whitener=whitener, n_whitened=k
    )
    directions = slice_directions(k, seed)
    slices = run.scan(replace(contractions, vectors=run.put(directions), n_vectors=directions.shape[1]))
    mixed = run.apply(mixed_of, slices, of, d, common, out=unknown(k))
    load_slices = partial(load_contraction, slices.directory, of.white.W, mixed, directions)

    def steps(vectors: np.ndarray) -> Callable[[], np.ndarray]:
        pass_ = replace(contractions, vectors=run.put(vectors), n_vectors=k, steps=True)
        return partial(load_contraction, run.scan(pass_).directory, of.white.W, mixed, vectors)

    found = find_by_contractions(run, directions, load_slices, steps, n_steps, where)
    return run.apply(_mixture, of, directions, found, mixed, out=Found.upto(r, k, pairs.n_kept))


def contraction_passes(pairs: RowMomentsPass, k: int, n_steps: int) -> list[RowContractionsPass]:
    """Return the passes over the same rows that contract the third moment, without arrays."""
    m = slice_directions(k).shape[1]
    slices = RowContractionsPass(pairs.n_features, rank=pairs.rank, n_whitened=k, n_vectors=m)
    return [slices, *([replace(slices, n_vectors=k, steps=True)] if n_steps else [])]


def extended_whitener(of: WhitenedRows) -> np.ndarray:
    """Return the map of a constant coordinate and a projected row to an extended row, (r + 1, k)."""
    r, k = len(of.values), of.n_components
    extended = np.zeros((r + 1, k))
    extended[1:, :-1], extended[0, -1] = of.white.W, 1.0
    return extended


def mixed_of(slices: PassResult, of: WhitenedRows, d: int, common: bool) -> np.ndarray:
    """Return the extended means weighted by variances, (k,), from the sums of the slices."""
    beyond = np.asarray(slices.sums["ys"])[:-1] / positive(slices.sums["mass"])
    return weighted_means(beyond, of.noise, d, common)


def load_contraction(directory: str, W: np.ndarray, mixed: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the slices or power steps of the extended third moment; runs on a worker.

    Parameters
    ----------
    directory : str
        Directory of the committed sums of a `RowContractionsPass`.
    W : ndarray of shape (r, k - 1)
    mixed : ndarray of shape (k,)
    vectors : ndarray of shape (k, m)
        As in the pass.

    Returns
    -------
    ndarray of shape (k, k, m) or (k, m), float64
    """
    with one_blas_thread():
        return corrected(row_contraction(load_sums(directory)[0]), W, mixed, vectors)


def corrected(found: np.ndarray, W: np.ndarray, mixed: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Subtract the contractions of ``sym3(c (x) G)``; parameters as for `load_contraction`."""
    gram = np.zeros((len(mixed), len(mixed)))
    gram[:-1, :-1] = W.T @ W
    along, across = mixed @ vectors, gram @ vectors
    if found.ndim == 2:
        squares = np.einsum("al,al->l", vectors, across)
        return np.asarray(found - np.outer(mixed, squares) - 2.0 * along * across)
    crossed = mixed[:, None, None] * across
    return np.asarray(found - along * gram[:, :, None] - crossed - crossed.transpose(1, 0, 2))


def _mixture(of: WhitenedRows, directions: np.ndarray, found: Contracted, mixed: np.ndarray) -> Found:
    if of.n_components == 1:
        return single(of)
    with one_blas_thread():
        return mixture(of, found.found, mixed, sliced_facts(directions, found))
