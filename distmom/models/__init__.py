"""The estimators, and their names on the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from distmom.errors import StoreError, UsageError

if TYPE_CHECKING:
    # For type checkers, which do not see what `__getattr__` imports; a test compares them with `ESTIMATORS`.
    from distmom.models.diagonal.estimator import DiagonalMixture as DiagonalMixture
    from distmom.models.eca.estimator import ECA as ECA
    from distmom.models.factorial.estimator import FactorialHMM as FactorialHMM
    from distmom.models.gaussian.estimator import SphericalMixture as SphericalMixture
    from distmom.models.ica.estimator import ICA as ICA
    from distmom.models.markov.estimator import HiddenMarkov as HiddenMarkov
    from distmom.models.multilabel.estimator import MultiLabelMoM as MultiLabelMoM
    from distmom.models.multiview.estimator import MultiView as MultiView
    from distmom.models.network.estimator import LatentNetwork as LatentNetwork
    from distmom.models.product.estimator import ProductMixture as ProductMixture
    from distmom.models.search.gaussian import GaussianSearch as GaussianSearch
    from distmom.models.search.regression import RegressionSearch as RegressionSearch
    from distmom.models.search.subspace import SubspaceSearch as SubspaceSearch
    from distmom.models.topics.estimators import AnchorTopics as AnchorTopics
    from distmom.models.topics.estimators import IndependentTopics as IndependentTopics
    from distmom.models.topics.estimators import SingleTopic as SingleTopic
    from distmom.models.topics.estimators import SpectralLDA as SpectralLDA
    from distmom.models.topics.kept import TopicMoments as TopicMoments
    from distmom.models.topics.search import TopicSearch as TopicSearch
    from distmom.models.topics.sparse import SparseTopics as SparseTopics
    from distmom.models.trees.estimator import LatentTree as LatentTree


@dataclass(frozen=True)
class Listing:
    """Location of an estimator, and its name on the command line.

    Attributes
    ----------
    name : str
        On the command line.
    estimator : str
        The class.
    module : str
        Its module in this package.
    command : str
        The command that fits it.
    """

    name: str
    estimator: str
    module: str
    command: str = "fit"


#: all estimators; those of ``fit`` are the models that can be saved, in the order in which they are shown
ESTIMATORS = (
    Listing("multilabel", "MultiLabelMoM", "multilabel.estimator"),
    Listing("lda", "SpectralLDA", "topics.estimators"),
    Listing("single-topic", "SingleTopic", "topics.estimators"),
    Listing("anchors", "AnchorTopics", "topics.estimators"),
    Listing("eca", "IndependentTopics", "topics.estimators"),
    Listing("sparse", "SparseTopics", "topics.sparse"),
    Listing("factors", "ECA", "eca.estimator"),
    Listing("product", "ProductMixture", "product.estimator"),
    Listing("multiview", "MultiView", "multiview.estimator"),
    Listing("network", "LatentNetwork", "network.estimator"),
    Listing("latent-tree", "LatentTree", "trees.estimator"),
    Listing("gaussian", "SphericalMixture", "gaussian.estimator"),
    Listing("diagonal", "DiagonalMixture", "diagonal.estimator"),
    Listing("ica", "ICA", "ica.estimator"),
    Listing("hmm", "HiddenMarkov", "markov.estimator"),
    Listing("factorial-hmm", "FactorialHMM", "factorial.estimator"),
    Listing("gaussian-search", "GaussianSearch", "search.gaussian"),
    Listing("regression-search", "RegressionSearch", "search.regression"),
    Listing("subspace-search", "SubspaceSearch", "search.subspace"),
    Listing("moments", "TopicMoments", "topics.kept", command="moments"),
    Listing("search", "TopicSearch", "topics.search", command="search"),
)
_MODULES = {listing.estimator: listing.module for listing in ESTIMATORS}

__all__ = ["ESTIMATORS", "Listing", "estimator", "load_model", *sorted(_MODULES)]


def _imported(name: str) -> Any:
    """Import an estimator on first access, because importing scikit-learn takes longer than all else."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:
    # Type checkers know the names from the imports above, and report all others.
    __getattr__ = _imported


def __dir__() -> list[str]:
    return __all__


def estimator(name: str) -> Any:
    """Return the class of an estimator by its name on the command line; UsageError if there is none."""
    for listing in ESTIMATORS:
        if listing.name == name:
            return _imported(listing.estimator)
    names = ", ".join(listing.name for listing in ESTIMATORS)
    raise UsageError(f"model: expected one of {names}, got {name!r}")


def load_model(path: str | os.PathLike[str]) -> Any:
    """Read a model of any kind.

    Parameters
    ----------
    path : path-like
        A directory written by ``save``, or its URL, whose files are downloaded to ``TMPDIR``.

    Raises
    ------
    UsageError
        If there is no model.
    StoreError
        If the model is damaged, of another version or of an unknown class.
    """
    # Imported here, because it takes long and the command line often does not need it.
    from distmom.spectral.saved.artifact import load_record, local_model

    with local_model(path) as place:
        kind = str(load_record(place).get("model"))
        if kind == "TopicMoments":
            raise UsageError(f"{path}: holds kept moments, not a model; fit a model to them first")
        kinds = [listing.estimator for listing in ESTIMATORS if listing.command == "fit"]
        if kind not in kinds:
            raise StoreError(f"{path}: expected a model of {', '.join(kinds)}, got {kind!r}")
        return _imported(kind).load(place)
