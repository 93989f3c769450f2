"""Generators with known truth: planted samples of any size, and exact populations of tiny ones."""

from distmom.simulate.corpora import PRESETS, Planted, Truth, load_truth, preset, synthesise
from distmom.simulate.multilabel import Documents, MultiLabelPopulation, planted
from distmom.simulate.topics import TopicPopulation

__all__ = [
    "PRESETS",
    "Documents",
    "MultiLabelPopulation",
    "Planted",
    "TopicPopulation",
    "Truth",
    "load_truth",
    "planted",
    "preset",
    "synthesise",
]
