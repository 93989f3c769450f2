"""Estimators: which passes, which corrections, how parameters come back."""

from distmom.models.fitting import HEADS
from distmom.models.heads import Scorer
from distmom.models.multilabel import MultiLabelMoM

__all__ = ["HEADS", "MultiLabelMoM", "Scorer"]
