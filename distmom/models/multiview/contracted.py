"""Components of three views by contractions of their third moment, which is never formed.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
theorem 3.6 and section 6.1.2. Pairs of views give the maps that turn each view into a whitened copy y_t of the
last one (`distmom.spectral.steps.three_views`). With one component per row, the whitened third moment is
``E[y_1 (x) y_2 (x) y_3]``, averaged over all orders of the views, and nothing has to be subtracted from it:

    T(I, I, h) = avg_t sym(E[y_s y_u' (y_t'h)])        T(I, v, v) = avg_t E[y_t (y_s'v) (y_u'v)]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine.directory.run_directory import load_sums
from distmom.linalg import slice_directions
from distmom.moments.rows.contracted import ViewContractionsPass, view_contraction
from distmom.moments.rows.multiview import MultiViewMomentsPass
from distmom.moments.three_views import N_GROUPS, GroupPairs
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.centred_views import conditioning, extended_pairs, of_one_component
from distmom.spectral.steps.contracted import Contracted, find_by_contractions, sliced_facts
from distmom.spectral.steps.three_views import (
    AlignedViews,
    ViewMaps,
    WhitenedViews,
    align_whitened,
    load_pairs,
    whiten_views,
)


def contraction_passes(pairs: MultiViewMomentsPass, k: int, n_steps: int) -> list[ViewContractionsPass]:
    """Return the passes over the same rows that contract the third moment, without new arrays."""
    slices = ViewContractionsPass(
        pairs.n_features, widths=pairs.widths, degree=pairs.degree, units=pairs.units, averages=pairs.averages,
        basis=pairs.basis, rank=pairs.rank, n_whitened=k, n_vectors=slice_directions(k).shape[1],
    )  # fmt: skip
    return [slices, *([replace(slices, n_vectors=k, steps=True)] if n_steps else [])]


def decomposed_by_contractions(
    run: Run, pairs: MultiViewMomentsPass, directory: str, k: int, seed: int, n_steps: int, where: str
) -> AlignedViews:
    """Find k components by slices of the third moment and by power steps, each by one more pass.

    Parameters
    ----------
    run : Run
    pairs : MultiViewMomentsPass
        Pass of the moments up to the second order.
    directory : str
        Directory of the committed sums of the pass.
    k, seed : int
    n_steps : int
        Number of power steps.
    where : {"scheduler", "client"}

    Raises
    ------
    NumericalError
        If the moments carry fewer than k components.
    """
    views = run.small(
        whitened, partial(load_pairs, directory), k, where=where, out=_unknown_views(pairs.rank, k)
    )
    slices, *_ = contraction_passes(pairs, k, 0)
    slices = replace(slices, whiteners=run.put(views.whiteners))
    directions = slice_directions(k, seed)

    def contracted(vectors: np.ndarray, steps: bool) -> Callable[[], np.ndarray]:
        pass_ = replace(slices, vectors=run.put(vectors), n_vectors=vectors.shape[1], steps=steps)
        return partial(load_contraction, run.scan(pass_).directory)

    found = find_by_contractions(
        run, directions, contracted(directions, False), partial(contracted, steps=True), n_steps, where
    )
    return run.apply(
        aligned_views, directory, views, directions, found, k,
        out=AlignedViews(unknown(N_GROUPS, pairs.rank, k), unknown(k), unknown()),
    )  # fmt: skip


def _unknown_views(r: int, k: int) -> WhitenedViews:
    maps = ViewMaps(unknown(k, k), unknown(k, k), unknown(), unknown())
    coordinates = (unknown(r + 1, k), unknown(r + 1, k), unknown(r + 1, k))
    return WhitenedViews(coordinates, maps, unknown(N_GROUPS, r + 1, k))


def whitened(moments: GroupPairs, k: int) -> WhitenedViews:
    """Return the maps that whiten the views, with a constant coordinate first; runs on the scheduler node."""
    return whiten_views(of_one_component(extended_pairs(moments), k), k)


def load_contraction(directory: str) -> np.ndarray:
    """Return the slices or power steps that a committed pass has added up; runs on a worker."""
    with one_blas_thread():
        return view_contraction(load_sums(directory)[0])


def aligned_views(
    directory: str, views: WhitenedViews, directions: np.ndarray, found: Contracted, k: int
) -> AlignedViews:
    """Return the components of all views in their bases."""
    moments = of_one_component(extended_pairs(load_pairs(directory)), k)
    own = align_whitened(moments, views, found.found)
    diagnostics = {
        **own.diagnostics,
        "conditioning": conditioning(moments, k),
        **sliced_facts(directions, found),
    }
    return AlignedViews(own.means[:, 1:], own.weights, diagnostics)
