"""Estimators: which passes, which corrections, how parameters come back."""

from typing import TYPE_CHECKING, Any

from distmom.models.fitting import HEADS
from distmom.models.heads import Scorer

if TYPE_CHECKING:
    from distmom.models.multilabel import MultiLabelMoM

__all__ = ["HEADS", "MultiLabelMoM", "Scorer"]


def __getattr__(name: str) -> Any:
    """Import an estimator when it is first asked for, as scikit-learn alone takes longer than all the rest."""
    if name == "MultiLabelMoM":
        from distmom.models.multilabel import MultiLabelMoM

        return MultiLabelMoM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
