"""Rows in memory as estimators take them: arrays, and tables with named columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from distmom.corpus import RowCorpus
from distmom.errors import InputError, UsageError
from distmom.spectral.inputs.checks import check_n_features, checked_dense

#: setting of a corpus whose columns were named by a table, and of models fitted to it: one value, or one per view
NAMED_COLUMNS = "named_columns"


def corpus_of_rows(
    X: Any, rows: Any, lengths: Any = None, *, further: Sequence[str] = (), **options: Any
) -> RowCorpus:
    """Return rows given to ``fit`` as a corpus, with the names of the columns if they are a table.

    Parameters
    ----------
    X : array_like, sparse matrix or table of shape (n_rows, n_features)
        What was given.
    rows : array_like or sparse matrix of shape (n_rows, n_features + n_further)
        Its values, in the order of ``lengths``, and those of further columns.
    lengths : array_like of shape (n_units,), optional
        Number of rows of each unit.
    further : sequence of str, default ()
        Names of the further columns. Without names, the columns of X are then named by their numbers.
    **options
        Of `distmom.corpus.RowCorpus`.
    """
    named = column_names(X)
    names = named
    if further:
        names = [*(named or map(str, range(rows.shape[1] - len(further)))), *further]
    corpus = RowCorpus(rows, lengths, names=names, **options)
    if named is not None:
        corpus.settings[NAMED_COLUMNS] = True
    return corpus


def corpus_of_views(views: Sequence[Any], rows: Any, widths: Sequence[int]) -> RowCorpus:
    """Return views given to ``fit`` as a corpus of rows.

    Column c of view t, counted from 1, is named ``"t.c"``; c is its name if the view is a table, else its number.

    Parameters
    ----------
    views : sequence of array_like, sparse matrix or table, of shapes (n_rows, d_t)
        What was given.
    rows : ndarray or csr_array of shape (n_rows, sum of d_t)
        The columns side by side.
    widths : sequence of int
        Numbers of columns of the views.
    """
    named = [column_names(view) for view in views]
    parts = [range(width) if own is None else own for own, width in zip(named, widths, strict=True)]
    corpus = RowCorpus(rows, names=[f"{t + 1}.{c}" for t, part in enumerate(parts) for c in part])
    corpus.settings |= {"widths": list(widths), NAMED_COLUMNS: [own is not None for own in named]}
    return corpus


def rows_in_memory(model: Any, X: Any, min_samples: int = 0) -> np.ndarray:
    """Return dense rows given to a fitted model.

    Parameters
    ----------
    model : SpectralEstimator
        A fitted model.
    X : array_like or table of shape (n_rows, n_features)
    min_samples : int, default 0
        Smallest number of rows.

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


def column_names(X: Any, name: str = "X") -> list[str] | None:
    """Return the names of the columns of a table by scikit-learn's rules; None for arrays and unnamed columns.

    Parameters
    ----------
    X : array_like, sparse matrix or table
    name : str, default "X"
        Name of the table in messages.

    Raises
    ------
    InputError
        If only some of the names are strings, or two columns have the same name.
    """
    if not hasattr(X, "columns"):
        return None
    probe = BaseEstimator()
    try:
        validate_data(probe, X, skip_check_array=True, ensure_2d=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
    names = getattr(probe, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def check_column_names(model: Any, X: Any, cuts: Sequence[slice] | None = None) -> None:
    """Compare the names of the columns of a table with those of the fit by scikit-learn's rules.

    Parameters
    ----------
    model : SpectralEstimator
        A fitted model.
    X : array_like, sparse matrix or table, or sequence of them
    cuts : sequence of slice, optional
        Columns of every view, if X is a sequence of views.

    Raises
    ------
    UsageError
        If they differ. If only one of the two has names, a warning is issued, as in scikit-learn.
    """
    if cuts is None:
        _compare(model, X)
        return
    named = model.settings_.get(NAMED_COLUMNS, False)
    for t, (view, cut) in enumerate(zip(X, cuts, strict=True)):
        names, known = model.vocabulary_[cut], named
        if isinstance(named, list):  # the views of the fit were given separately
            names, known = [name.partition(".")[2] for name in names], named[t]
        fitted = type(model)()
        if known:
            fitted.feature_names_in_ = np.array(names, dtype=object)
        _compare(fitted, view, f"X[{t}]: ")


def _compare(model: Any, X: Any, place: str = "") -> None:
    try:
        validate_data(model, X, reset=False, skip_check_array=True, ensure_2d=False)
    except ValueError as error:
        raise UsageError(f"{place}{error}") from error
    except TypeError as error:
        raise InputError(f"{place}{error}") from error
