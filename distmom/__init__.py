"""Latent structure of large corpora of texts, rows and sequences by the method of moments, out of core on Dask.

Every public name is imported on first access, because the estimators and what they need take seconds to import.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For type checkers, which do not see what `__getattr__` imports; a test compares them with `__all__`.
    from distmom.corpus import ingest as ingest
    from distmom.corpus import open_corpus as open_corpus
    from distmom.evaluate.dispatch import evaluate as evaluate
    from distmom.evaluate.dispatch import write_report as write_report
    from distmom.jobs import submit as submit
    from distmom.models import ECA as ECA
    from distmom.models import ICA as ICA
    from distmom.models import AnchorTopics as AnchorTopics
    from distmom.models import DiagonalMixture as DiagonalMixture
    from distmom.models import FactorialHMM as FactorialHMM
    from distmom.models import GaussianSearch as GaussianSearch
    from distmom.models import HiddenMarkov as HiddenMarkov
    from distmom.models import IndependentTopics as IndependentTopics
    from distmom.models import LatentNetwork as LatentNetwork
    from distmom.models import LatentTree as LatentTree
    from distmom.models import MultiLabelMoM as MultiLabelMoM
    from distmom.models import MultiView as MultiView
    from distmom.models import ProductMixture as ProductMixture
    from distmom.models import RegressionSearch as RegressionSearch
    from distmom.models import SingleTopic as SingleTopic
    from distmom.models import SparseTopics as SparseTopics
    from distmom.models import SpectralLDA as SpectralLDA
    from distmom.models import SphericalMixture as SphericalMixture
    from distmom.models import SubspaceSearch as SubspaceSearch
    from distmom.models import TopicMoments as TopicMoments
    from distmom.models import TopicSearch as TopicSearch
    from distmom.models import load_model as load_model

__version__ = version("distmom")

# Not by a statement: every module of the package imports this one, and would seem to depend on the models.
_ESTIMATORS = import_module("distmom.models").ESTIMATORS
#: the modules of public names
_MODULES = {
    "ingest": "distmom.corpus",
    "load_model": "distmom.models",
    "open_corpus": "distmom.corpus",
    "submit": "distmom.jobs",
    "write_report": "distmom.evaluate.dispatch",
    **{listing.estimator: "distmom.models" for listing in _ESTIMATORS},
}

__all__ = sorted([*_MODULES, "evaluate"])


if not TYPE_CHECKING:
    # Type checkers know the names from the imports above, and report all others.
    def __getattr__(name: str) -> Any:
        if name == "evaluate":
            return import_module("distmom.evaluate")
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
