"""The sums that a model keeps for updates, in addition to its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.engine import Csr
from distmom.models.multilabel.heads.linear import KeptStage
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead
from distmom.spectral.saved.fields import array, group, record, value, variants
from distmom.spectral.saved.layout import Matrix


@dataclass(frozen=True)
class CrossSum:
    """The cross moment of features and labels.

    Attributes
    ----------
    matrix : Csr
        A'Y (d + 1, m).
    """

    matrix: Csr = record({"": Matrix(("d1", "m"))})


@dataclass(frozen=True)
class LinearSum:
    """The sum of the linear head.

    Attributes
    ----------
    weights : Csr
        ``D W`` (d + 1, m).
    stages : tuple of (str, KeptStage)
        The stages in which further documents are added, each with its number from 1.
    share : float
        Share of ``D^-1 A'Y`` in W by least squares; labels without weights in the stages get this share.
    """

    weights: Csr = record({"": Matrix(("d1", "m"))})
    stages: tuple[tuple[str, KeptStage], ...] = variants(KeptStage)
    share: float = 1.0


@dataclass(frozen=True)
class RidgeSum:
    """The sums of `distmom.moments.features.regression.RidgePass`.

    Attributes
    ----------
    zz : ndarray of shape (r, r)
    z : ndarray of shape (r,)
    zy : ndarray of shape (m, r)
    """

    zz: np.ndarray = array("r", "r")
    z: np.ndarray = array("r")
    zy: np.ndarray = array("m", "r")


@dataclass(frozen=True)
class KeptSums:
    """The sums that a model keeps in addition to its heads.

    Attributes
    ----------
    squares : ndarray of shape (d + 1,)
        diag(A'A).
    cross : CrossSum or None
        Kept for label centroids.
    linear : LinearSum or None
        Kept for the linear head.
    ridge : RidgeSum or None
        Kept for heads on the sketch.
    documents : NeighborsHead or None
        The documents, where a head needs them and the model has no head ``neighbors``, which holds them.
    corpora : list of [str, int]
        Digests of the corpora whose documents were added (1) or removed (-1).
    """

    squares: np.ndarray = array("d1", least=0.0)
    cross: CrossSum | None = group(CrossSum, may_lack=True)
    linear: LinearSum | None = group(LinearSum, may_lack=True)
    ridge: RidgeSum | None = group(RidgeSum, may_lack=True)
    documents: NeighborsHead | None = group(NeighborsHead, may_lack=True)
    corpora: list[list[Any]] = value(default=())


def check_kept(sums: KeptSums, basis: np.ndarray | None) -> None:
    """Check kept sums beyond the shapes of their arrays; a ValueError if a model cannot have such sums."""
    stages = () if sums.linear is None else sums.linear.stages
    if len({len(stage.weights.data) for _, stage in stages}) > 1:
        raise ValueError("expected the same number of weights in all stages")
    if sums.ridge is not None and basis is None:
        raise ValueError("expected a basis of the sketch, got none")
    for name, count in sums.corpora:
        if not isinstance(name, str) or type(count) is not int:
            raise ValueError(f"expected digests of corpora and numbers, got {name!r} and {count!r}")
