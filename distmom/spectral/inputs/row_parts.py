"""The parts of a row, such as its views: their columns side by side, and the number of columns of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csr_array
from sklearn.utils.validation import check_is_fitted

from distmom.corpus.rows import checked_rows_of_layer
from distmom.errors import InputError, UsageError
from distmom.moments.dense_rows import view_slices
from distmom.moments.three_views import N_GROUPS
from distmom.spectral.inputs.checks import check_n_features
from distmom.spectral.inputs.tables import check_column_names


def widths_of(corpus: Any, given: str | Sequence[int] | None, n: int, parts: str) -> tuple[int, ...]:
    """Return the numbers of columns of the parts of a row.

    Parameters
    ----------
    corpus : RowCorpus or layer of a corpus
        Its setting ``widths``, if it has one, holds the numbers that are known.
    given : str, sequence of int or None
        The parameter ``widths``; None for the known numbers.
    n : int
        Number of parts.
    parts : str
        Their name in errors.

    Raises
    ------
    UsageError
        If the numbers do not suit the corpus, or there are none.
    """
    d, stored = corpus.n_words, corpus.settings.get("widths")
    given = stored if given is None else given
    expected = f"widths: expected the numbers of columns of {n} {parts} that add up to {d}"
    if given is None:
        # A list of n vectors is read as a matrix of n rows.
        advice = f"; give {parts} as matrices or tables, not as vectors" if corpus.n_rows == n else ""
        raise UsageError(f"{expected}, got none{advice}")
    try:
        widths = tuple(int(part) for part in (given.split(",") if isinstance(given, str) else given))
    except (TypeError, ValueError):
        widths = ()
    if len(widths) != n or min(widths) < 1 or sum(widths) != d:
        raise UsageError(f"{expected}, got {given}")
    if stored is not None and widths != tuple(stored):
        raise UsageError(f"widths: expected {', '.join(map(str, stored))} as the {parts} have, got {given}")
    return widths


def _is_matrix(X: Any) -> bool:
    """Whether X is a matrix or a table. Tables of Polars and Arrow have no number of dimensions."""
    return bool(getattr(X, "ndim", 2 if hasattr(X, "columns") else 0) == 2)


def joined_views(X: Any, n_views: int = N_GROUPS) -> tuple[Any, tuple[int, ...] | None]:
    """Return the columns of views side by side, with the widths; None for a single matrix."""
    several = isinstance(X, tuple) or (isinstance(X, list) and any(map(_is_matrix, X)))
    if not several:
        rows, kind, _ = checked_rows_of_layer(X, "X")
        if kind == "symbols":
            raise InputError.at(
                "X", None, "shape", f"a matrix of rows and columns, or {n_views} of them", f"{rows.shape}"
            )
        return rows, None
    if len(X) != n_views:
        raise InputError.at("X", None, "number of views", f"{n_views}", f"{len(X)}")
    views = [checked_rows_of_layer(view, f"X[{t}]") for t, view in enumerate(X)]
    for t, (rows, kind, _) in enumerate(views):
        if kind == "symbols":
            raise InputError.at(f"X[{t}]", None, "shape", "a matrix of rows and columns", f"{rows.shape}")
        if rows.shape[0] != (n := views[0][0].shape[0]):
            raise InputError.at(f"X[{t}]", None, "number of rows", f"{n} as in X[0]", f"{rows.shape[0]}")
    widths = tuple(width for _, _, width in views)
    if any(kind == "csr" for _, kind, _ in views):
        return csr_array(sparse.hstack([rows for rows, _, _ in views], format="csr")), widths
    return np.hstack([rows for rows, _, _ in views]), widths


def checked_views(model: Any, X: Any, n_views: int = N_GROUPS) -> Any:
    """Return the columns of the views of rows side by side, as a fitted model takes them.

    Raises
    ------
    UsageError
        If the views have other columns than those of the fit.
    InputError
        If a value is not finite, or views have different numbers of rows.
    """
    check_is_fitted(model)
    rows, widths = joined_views(X, n_views)
    check_column_names(model, X, None if widths is None else view_slices(tuple(model.widths_)))
    check_n_features(rows.shape[1], model.n_features_in_, type(model).__name__)
    if widths is not None and widths != tuple(model.widths_):
        wanted, got = (", ".join(map(str, each)) for each in (model.widths_, widths))
        raise UsageError(f"X: expected views of {wanted} columns, got {got}")
    return rows
