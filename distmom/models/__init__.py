"""The estimators, and their names on the command line."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from distmom.errors import StoreError, UsageError
from distmom.models.multilabel.heads import Scorer
from distmom.models.multilabel.program import HEADS
from distmom.spectral.artifact import load_record

if TYPE_CHECKING:
    from distmom.models.eca.estimator import ECA
    from distmom.models.multilabel.estimator import MultiLabelMoM
    from distmom.models.topics.estimators import AnchorTopics, IndependentTopics, SingleTopic, SpectralLDA
    from distmom.models.topics.kept import TopicMoments
    from distmom.models.topics.search import TopicSearch

__all__ = [
    "ECA",
    "HEADS",
    "MODELS",
    "AnchorTopics",
    "IndependentTopics",
    "MultiLabelMoM",
    "Scorer",
    "SingleTopic",
    "SpectralLDA",
    "TopicMoments",
    "TopicSearch",
    "estimator",
    "load_model",
]

#: names of the estimators on the command line
MODELS = {
    "multilabel": "MultiLabelMoM",
    "lda": "SpectralLDA",
    "single-topic": "SingleTopic",
    "anchors": "AnchorTopics",
    "eca": "IndependentTopics",
}
#: estimators that are saved but do not model documents
OTHERS = ("ECA",)
_MODULES = {
    "MultiLabelMoM": "multilabel.estimator",
    "SpectralLDA": "topics.estimators",
    "SingleTopic": "topics.estimators",
    "AnchorTopics": "topics.estimators",
    "IndependentTopics": "topics.estimators",
    "TopicMoments": "topics.kept",
    "TopicSearch": "topics.search",
    "ECA": "eca.estimator",
}


def __getattr__(name: str) -> Any:
    """Import an estimator on first use: importing scikit-learn takes longer than everything else together."""
    if name in _MODULES:
        return getattr(import_module(f"distmom.models.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def estimator(name: str) -> Any:
    """Return the estimator with a name on the command line; a KeyError if there is none."""
    return __getattr__(MODELS[name])


def load_model(path: str | os.PathLike[str]) -> Any:
    """Read a model of any class.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    UsageError
        If there is no model at the path, or there are kept moments.
    StoreError
        If the model is damaged.
    """
    kind, kinds = str(load_record(path).get("model")), (*MODELS.values(), *OTHERS)
    if kind == "TopicMoments":
        raise UsageError(f"{path}: kept moments, not a model; fit a model to them first")
    if kind not in kinds:
        raise StoreError(f"{path}: expected a model of {', '.join(kinds)}, got {kind!r}")
    return __getattr__(kind).load(path)
