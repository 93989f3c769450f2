"""Estimators: which passes, which corrections, how parameters come back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distmom.models.fitting import HEADS
from distmom.models.heads import Scorer

if TYPE_CHECKING:
    from distmom.models.multilabel import MultiLabelMoM
    from distmom.models.topics import SpectralLDA

__all__ = ["HEADS", "MultiLabelMoM", "Scorer", "SpectralLDA"]

_ESTIMATORS = {"MultiLabelMoM": "multilabel", "SpectralLDA": "topics"}


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first asked for, as scikit-learn alone takes longer than all the rest."""
    if name in _ESTIMATORS:
        return getattr(import_module(f"distmom.models.{_ESTIMATORS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
