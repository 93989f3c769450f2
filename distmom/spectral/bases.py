"""Base classes of scikit-learn, with types for checkers, and with texts as inputs.

scikit-learn has no annotations. To a type checker a class with a base of unknown type accepts every call of its
constructor and has every attribute, so checkers read declarations of what estimators inherit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:

    class BaseEstimator:
        """Declaration of `sklearn.base.BaseEstimator`."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the parameters by name."""

        def set_params(self, **params: Any) -> Self:
            """Set parameters by name."""

        def __sklearn_tags__(self) -> Any: ...

    class TransformerMixin:
        """Declaration of `sklearn.base.TransformerMixin`."""

        def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
            """Fit to documents and transform them."""

        def set_output(self, *, transform: str | None = None) -> Self:
            """Set the container of the output of `transform`."""

        def __sklearn_tags__(self) -> Any: ...

    class ClassNamePrefixFeaturesOutMixin:
        """Declaration of `sklearn.base.ClassNamePrefixFeaturesOutMixin`."""

        def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
            """Return the names of the columns of the output."""

    class DensityMixin:
        """Declaration of `sklearn.base.DensityMixin`."""

        def __sklearn_tags__(self) -> Any: ...

else:
    from sklearn import base
    from sklearn.base import BaseEstimator, DensityMixin

    class TransformerMixin(base.TransformerMixin):
        """Transformers as in scikit-learn, whose outputs have the same type for all types of inputs."""

        def __sklearn_tags__(self):
            tags = super().__sklearn_tags__()
            tags.transformer_tags.preserves_dtype = []
            return tags

    class ClassNamePrefixFeaturesOutMixin(base.ClassNamePrefixFeaturesOutMixin):
        """Names of outputs as in scikit-learn, also for models of texts, which are a single input."""

        def get_feature_names_out(self, input_features=None):
            # scikit-learn compares the names of the inputs with the words.
            if "tokenizer" in getattr(self, "settings_", {}):
                input_features = None
            return super().get_feature_names_out(input_features)


__all__ = ["BaseEstimator", "ClassNamePrefixFeaturesOutMixin", "DensityMixin", "TransformerMixin"]
