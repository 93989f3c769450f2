"""The moments of three centred views, and their decomposition with a coordinate that is constant."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from distmom.blas import one_blas_thread
from distmom.moments.three_views import N_GROUPS, PAIRS, GroupMoments, GroupPairs
from distmom.spectral.steps.three_views import AlignedViews, align_views

_Moments = TypeVar("_Moments", bound=GroupPairs)


def extended(moments: GroupMoments, constant: float = 1.0) -> GroupMoments:
    """Return the moments of views with a first coordinate that is constant, 1 by default, in every row.

    Centred views have linearly dependent conditional means; with the coordinate they are linearly independent if
    the means are affinely independent.
    """
    of = extended_pairs(moments, constant)
    first, second, third = constant * of.pairs
    triples = np.empty((of.means.shape[1],) * N_GROUPS)
    triples[0], triples[:, 0], triples[:, :, 0] = third, second, first
    triples[1:, 1:, 1:] = moments.triples
    return GroupMoments(of.means, of.pairs, triples)


def extended_pairs(moments: GroupPairs, constant: float = 1.0) -> GroupPairs:
    """Return the moments up to the second order of the views that `extended` describes."""
    means, pairs = moments.means, moments.pairs
    n = means.shape[1] + 1
    more_means = np.concatenate([np.full((N_GROUPS, 1), constant), means], axis=1)
    more_pairs = np.empty((len(PAIRS), n, n))
    for i, (s, t) in enumerate(PAIRS):
        more_pairs[i, 0, :], more_pairs[i, :, 0] = constant * more_means[t], constant * more_means[s]
        more_pairs[i, 1:, 1:] = pairs[i]
    return GroupPairs(more_means, more_pairs)


def of_one_component(moments: _Moments, k: int) -> _Moments:
    """Return moments of views with a constant coordinate as k components have them: one has no covariances.

    The range of one component is that of its mean, which the constant coordinate has. Where views determine each
    other, a direction of theirs is as large, and rounding would decide which of the two a decomposition takes.
    """
    if k > 1:
        return moments
    pairs = moments.pairs.copy()
    pairs[:, 1:, 1:] = 0.0
    if not isinstance(moments, GroupMoments):
        return replace(moments, pairs=pairs)
    triples = np.zeros_like(moments.triples)
    triples[0, 0], triples[0, :, 0], triples[:, 0, 0] = (
        moments.triples[0, 0], moments.triples[0, :, 0], moments.triples[:, 0, 0],
    )  # fmt: skip
    return replace(moments, pairs=pairs, triples=triples)


def decomposed_views(moments: GroupMoments, k: int, method: str) -> AlignedViews:
    """Decompose the moments of centred views, with k components; runs on the scheduler node.

    Returns
    -------
    AlignedViews
        ``conditioning`` is one of the diagnostics.

    Raises
    ------
    NumericalError
        If the moments carry fewer than k components.
    """
    found = measured_views(extended(moments), k, method)
    return replace(found, means=found.means[:, 1:])


def measured_views(moments: GroupMoments, k: int, method: str) -> AlignedViews:
    """Return `distmom.spectral.steps.three_views.align_views`, with the `conditioning` of the moments."""
    found = align_views(moments, k, method)
    return replace(found, diagnostics={**found.diagnostics, "conditioning": conditioning(moments, k)})


def conditioning(moments: GroupPairs, k: int) -> list[float]:
    """Return singular value number k of the moment of every two views, as a share of the largest."""
    with one_blas_thread():
        values = [np.linalg.svd(moments.pair(*pair), compute_uv=False) for pair in PAIRS]
    return [float(each[k - 1] / each[0]) for each in values]
