"""Rows in memory as estimators take them: arrays and tables, whose columns have names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from distmom.corpus import RowCorpus
from distmom.errors import InputError, UsageError
from distmom.spectral.inputs import check_n_features, checked_dense

#: setting of a corpus whose columns were named by a table, and of models fitted to it
NAMED_COLUMNS = "named_columns"


def corpus_of_rows(
    X: Any, rows: Any, lengths: Any = None, *, names: Sequence[str] | None = None, **options: Any
) -> RowCorpus:
    """Return rows given to ``fit`` as a corpus, with the names of the columns if they are a table.

    Parameters
    ----------
    X : array_like, sparse matrix or table of shape (n_rows, n_features)
        What was given.
    rows : array_like or sparse matrix of shape (n_rows, n_features)
        Its values, in the order of ``lengths``.
    lengths : array_like of shape (n_units,), optional
        Number of rows of each unit.
    names : sequence of str, optional
        Names of the columns if X is not a table.
    **options
        Of `distmom.corpus.RowCorpus`.
    """
    named = column_names(X)
    corpus = RowCorpus(rows, lengths, names=names if named is None else named, **options)
    if named is not None:
        corpus.settings[NAMED_COLUMNS] = True
    return corpus


def rows_in_memory(model: Any, X: Any, min_samples: int = 0) -> np.ndarray:
    """Return dense rows given to a fitted model.

    Parameters
    ----------
    model : SpectralEstimator
        A fitted model.
    X : array_like or table of shape (n_rows, n_features)
    min_samples : int, default 0
        Least number of rows.

    Raises
    ------
    UsageError
        If the number or the names of the columns differ from those of the fit.
    InputError
        If a value is not finite.
    """
    check_is_fitted(model)
    check_column_names(model, X)
    rows = checked_dense(X, min_samples)
    check_n_features(rows.shape[1], model.n_features_in_, type(model).__name__)
    return rows


def column_names(X: Any) -> list[str] | None:
    """Return the names of the columns of a table by scikit-learn's rules; None for arrays and unnamed columns.

    Raises
    ------
    InputError
        If only some of the names are strings.
    """
    if not hasattr(X, "columns"):
        return None
    probe = BaseEstimator()
    try:
        validate_data(probe, X, skip_check_array=True, ensure_2d=False)
    except TypeError as error:
        raise InputError(str(error)) from error
    names = getattr(probe, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def check_column_names(model: Any, X: Any) -> None:
    """Compare the names of the columns of a table with those of the fit by scikit-learn's rules.

    Raises
    ------
    UsageError
        If they differ. Names on one side only give a warning, as in scikit-learn.
    """
    try:
        validate_data(model, X, reset=False, skip_check_array=True, ensure_2d=False)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except TypeError as error:
        raise InputError(str(error)) from error
