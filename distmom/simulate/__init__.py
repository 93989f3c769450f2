"""Generators with known truth: planted samples of any size, and exact populations of tiny ones."""

from distmom.simulate.multilabel import Documents, MultiLabelPopulation, planted

__all__ = ["Documents", "MultiLabelPopulation", "planted"]
