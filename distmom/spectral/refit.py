"""Fits that leave their estimator as it was where they fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

_Fit = TypeVar("_Fit", bound=Callable[..., Any])


def all_or_nothing(fit: _Fit) -> _Fit:
    """Decorate a method so that, where it fails, the estimator keeps the model and the seed of its last fit."""

    @wraps(fit)
    def whole(self: Any, *arguments: Any, **options: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *arguments, **options)
        except BaseException:
            vars(self).update(before)
            for name in vars(self).keys() - before.keys():
                delattr(self, name)
            raise

    return cast(_Fit, whole)
