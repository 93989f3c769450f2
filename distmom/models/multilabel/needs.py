"""Methods that a fitted model has only if its fit made the parts that they need."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any


def needs(require: Callable[[Any, str], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for methods that a fitted model has only if it has the parts that they need.

    Parameters
    ----------
    require : callable
        Called with the model and the name of the method; raises an AttributeError if the model lacks what the
        method needs.
    """
    return lambda method: _Needing(method, require)


class _Needing:
    """A descriptor: scikit-learn takes the presence of a method as a sign that it works."""

    def __init__(self, method: Callable[..., Any], require: Callable[[Any, str], Any]) -> None:
        self._method, self._require = method, require
        self.__doc__ = method.__doc__

    def __get__(self, model: Any, owner: Any = None) -> Any:
        if model is None:
            return self._method
        if hasattr(model, "scorer_"):
            self._require(model, self._method.__name__)
        return MethodType(self._method, model)
