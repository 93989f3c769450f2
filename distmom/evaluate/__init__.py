"""Metrics and reports of fitted models. The package can be called: ``distmom.evaluate(model, corpus)``.

A function of the package ``distmom`` of the same name would give way to this package as soon as one of its modules
is imported, so the package itself is what evaluates a model.
"""

import sys
from types import ModuleType
from typing import Any


class _Evaluate(ModuleType):
    """The package as a function; see `distmom.evaluate.dispatch.evaluate`."""

    def __call__(self, model: Any, corpus: Any, **options: Any) -> dict[str, float]:
        """Evaluate a fitted model; see `distmom.evaluate.dispatch.evaluate`."""
        # Imported on the first call, because estimators and what they need take long to import.
        from distmom.evaluate.dispatch import evaluate

        return evaluate(model, corpus, **options)


sys.modules[__name__].__class__ = _Evaluate
