"""Generators with known truth: planted samples of any size, and exact populations of tiny ones."""

from distmom.simulate.multilabel import Documents, MultiLabelPopulation, planted
from distmom.simulate.planted import PRESETS, Planted, Truth, load_truth, preset, synthesise

__all__ = [
    "PRESETS",
    "Documents",
    "MultiLabelPopulation",
    "Planted",
    "Truth",
    "load_truth",
    "planted",
    "preset",
    "synthesise",
]
