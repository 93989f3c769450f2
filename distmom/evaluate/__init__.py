"""Metrics and reports of fitted models. The package can be called: ``distmom.evaluate(model, corpus)``.

A function ``distmom.evaluate`` would be replaced by this package as soon as one of its modules is imported, so the
package itself is callable.
"""

import sys
from types import ModuleType
from typing import Any


class _Evaluate(ModuleType):
    """The package as a function; see `distmom.evaluate.dispatch.evaluate`."""

    def __call__(self, model: Any, corpus: Any, **options: Any) -> dict[str, float]:
        """Evaluate a fitted model; see `distmom.evaluate.dispatch.evaluate`."""
        # Imported on the first call, because estimators and their dependencies take long to import.
        from distmom.evaluate.dispatch import evaluate

        return evaluate(model, corpus, **options)


sys.modules[__name__].__class__ = _Evaluate
