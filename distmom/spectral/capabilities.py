"""Capabilities of models, on which commands, predictions and reports depend instead of on classes of models."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any

from distmom.errors import UsageError


class Capability(StrEnum):
    """Something that models of some classes can do.

    The capabilities of a class are its attribute ``capabilities``. Where one depends on data, such as topics of a
    model whose states could not be fitted, the method ``can`` of a fitted model gives the answer.
    """

    #: is fitted to documents: a corpus of words
    DOCUMENTS = "documents"
    #: is fitted to groups of views: a `distmom.corpus.ViewCorpus`
    VIEWS = "views"
    #: is fitted to rows or sequences: a `distmom.corpus.LayeredCorpus`
    ROWS = "rows"
    #: is fitted to kept moments (`distmom.models.TopicMoments`) too, by ``fit_moments``
    MOMENTS = "moments"
    #: ranks labels for documents: ``scorer_``
    LABELS = "labels"
    #: infers the shares of topics in documents: ``reader``
    SHARES = "shares"
    #: has word probabilities of topics or states: ``components_``, ``weights_`` and ``topics``
    TOPICS = "topics"
    #: infers the factors of groups of views: ``components_`` and ``unmixing_``
    FACTORS = "factors"
    #: assigns rows to components or hidden states: ``assign``
    COMPONENTS = "components"
    #: finds one component of rows from side information: ``search``
    SEARCH = "search"


_PHRASES = {
    Capability.DOCUMENTS: "is fitted to documents",
    Capability.VIEWS: "is fitted to groups of views",
    Capability.ROWS: "is fitted to rows",
    Capability.MOMENTS: "is fitted to kept moments",
    Capability.LABELS: "ranks labels",
    Capability.SHARES: "infers shares of topics",
    Capability.TOPICS: "has topics or latent states",
    Capability.FACTORS: "infers factors",
    Capability.COMPONENTS: "assigns rows to components",
    Capability.SEARCH: "finds one component of rows from side information",
}


def check_model(model: Any) -> None:
    """Check that an argument is a model; else a UsageError."""
    if hasattr(model, "can"):
        return
    found = f"the path {str(model)!r}" if isinstance(model, str | os.PathLike) else type(model).__name__
    raise UsageError(f"model: expected a fitted model, as distmom.load_model(path) returns it, got {found}")


def require(model: Any, capability: Capability, place: object = None, hint: str = "") -> None:
    """Refuse a fitted model that lacks a capability.

    Parameters
    ----------
    model : SpectralEstimator
    capability : Capability
    place : object, optional
        Path of the model or option that needs the capability, to be named in the error; none by default.
    hint : str, default ""
        What to do instead.

    Raises
    ------
    UsageError
        If it is not a model, or lacks the capability.
    """
    check_model(model)
    if model.can(capability):
        return
    name, start = type(model).__name__, "" if place is None else f"{place}: "
    error = f"{start}expected a model that {_PHRASES[capability]}, got one of class {name}"
    raise UsageError(f"{error}; {hint}" if hint else error)
