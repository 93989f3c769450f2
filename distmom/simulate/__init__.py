"""Generators with known truth: planted samples of any size, and small populations enumerated exactly."""

from distmom.simulate.corpora import Truth, load_truth, synthesise
from distmom.simulate.mixtures import (
    GaussianPopulation,
    RegressionPopulation,
    SubspacePopulation,
    draw_labels,
)
from distmom.simulate.multilabel import Documents, MultiLabelPopulation, planted
from distmom.simulate.planted_model import PRESETS, Planted, preset
from distmom.simulate.topics import TopicPopulation

__all__ = [
    "PRESETS",
    "Documents",
    "GaussianPopulation",
    "MultiLabelPopulation",
    "Planted",
    "RegressionPopulation",
    "SubspacePopulation",
    "TopicPopulation",
    "Truth",
    "draw_labels",
    "load_truth",
    "planted",
    "preset",
    "synthesise",
]
