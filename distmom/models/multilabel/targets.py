"""Labels given to a multi-label model in memory: their forms, names, order and type."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import coo_array, issparse
from sklearn.exceptions import DataConversionWarning

from distmom.corpus.block import plain_values, refuse_masked, sparse_type
from distmom.corpus.names import composed
from distmom.corpus.sources.texts import as_label_lists, as_list, label_columns_of
from distmom.errors import InputError, UsageError

logger = logging.getLogger(__name__)

#: setting of a model that was fitted in memory: the form of its labels, which is that of its predictions
TARGETS = "targets"
#: setting of a model that was fitted to one label per document or to a matrix: their type, as from `label_type`
TARGET_TYPE = "target_type"
#: forms of one label per document: names, and numbers of classes, which are stored as names
ONE_LABEL = ("names", "numbers")


def checked_targets(y: Any) -> tuple[Any, str]:
    """Check labels given to ``fit``.

    Parameters
    ----------
    y : list of str, list of lists of str, list or array of int, or array, sparse matrix or table of shape \
            (n_documents, n_labels)

    Returns
    -------
    y
        As given, as an array, or numbers of classes as names.
    form : {"names", "numbers", "lists", "matrix", "sparse"}
        A name or a number for every document, a list of names, or a dense or sparse matrix.

    Raises
    ------
    InputError
        If labels are neither names nor numbers, some are masked, or a matrix has other values than 0 and 1.
    UsageError
        If numbers are neither whole numbers of classes nor a matrix, or a table of names is given.
    """
    refuse_masked(y, "y")
    if as_label_lists(y) is not None:
        return y, "names" if all(isinstance(each, str) for each in as_list(y) or ()) else "lists"
    if issparse(y):
        _check_indicators(coo_array(y))
        return y, "sparse"
    try:
        values = np.asarray(plain_values(y))
    except ValueError as error:
        raise InputError(
            "Unknown label type: y: expected names or a matrix of numbers, got lists of different lengths without "
            "names"
        ) from error
    if values.dtype.kind == "c":
        raise InputError("Complex data not supported: y: expected names or numbers, got complex numbers")
    if values.dtype.kind not in "biuf":
        got = f"such as {values.flat[:1].tolist()[0]!r:.60}" if values.size else f"of type {values.dtype}"
        raise InputError(f"Unknown label type: y: expected names or numbers, got others, {got}")
    column = values
    if values.ndim == 2 and values.shape[1] == 1 and len(values):
        message = "y: a column of numbers was given, and is read as one label per document"
        warnings.warn(message, DataConversionWarning, stacklevel=3)
        column = values[:, 0]
    if values.ndim == 1 and not values.size:
        raise InputError("y: expected the labels of at least one document, got none")
    if column.ndim == 1 and not np.isfinite(column).all():
        place = int(np.argmin(np.isfinite(column)))
        raise InputError.at("y", place, "label", "a whole number", str(column[place]))
    if (names := _names_of_numbers(column)) is not None:
        return names, "numbers"
    if values.ndim != 2:
        raise UsageError(
            "Unknown label type: y: expected names or whole numbers of labels, or a matrix of shape (n_documents, "
            f"n_labels), got {values.dtype} of shape {values.shape}"
        )
    _check_indicators(coo_array(sparse_type(values)))
    return y if hasattr(y, "columns") else values, "matrix"


def first_names(y: Any, form: str, classes: Sequence[Any] | None) -> list[str] | None:
    """Return the names of labels in the order of their columns, as far as it differs from that of `ingest`.

    Parameters
    ----------
    y, form
        As from `checked_targets`. Labels given one per document are in scikit-learn's order.
    classes : sequence of str or int or None
        Labels that documents may have.

    Returns
    -------
    list of str or None
        None for a matrix, and for lists without ``classes``.

    Raises
    ------
    UsageError
        If there are ``classes`` and ``y`` is a matrix, or they are not names or numbers as in ``y``.
    """
    lists = as_label_lists(y)
    if lists is None:
        if classes is not None:
            raise UsageError("classes: expected none with a matrix of labels, whose columns are the labels")
        return None
    names = [] if classes is None else _checked_classes(classes, form == "numbers")
    if form not in ONE_LABEL:
        return names or None
    found = label_columns_of(lists)[1]
    if form == "names" and (changed := sorted({*map("".join, lists)} - {*found})):
        logger.warning(
            "white space around labels is removed, and they are converted to Unicode normal form C, as in %r: "
            "predictions are the labels that result",
            changed[0][:60],
        )  # fmt: skip
    return sorted({*names, *found}, key=int if form == "numbers" else None)


def _checked_classes(classes: Sequence[Any], are_numbers: bool) -> list[str]:
    """Return classes as names; a UsageError if they are not names or, for numbers, whole numbers."""
    listed = None if isinstance(classes, str) else list(classes) if np.iterable(classes) else None
    expected = "whole numbers" if are_numbers else "names"
    if listed is not None and are_numbers:
        listed = _names_of_numbers(np.array(listed)) if listed else []
    elif listed is not None and not all(isinstance(each, str) for each in listed):
        listed = None
    if listed is None:
        raise UsageError(f"classes: expected a list of {expected} as in y, got {classes!r:.80}")
    return [composed(str(each)) for each in listed]


def _check_indicators(matrix: coo_array) -> None:
    """Check that a matrix of labels has no other values than 0 and 1; else an InputError."""
    bad = np.flatnonzero((matrix.data != 0) & (matrix.data != 1))
    if len(bad):
        raise InputError.at(
            "y", None, f"value in row {matrix.row[bad[0]]}, column {matrix.col[bad[0]]}",
            "0 or 1 in a matrix of labels",
            f"{matrix.data[bad[0]]}; give one number per document as a vector, and several labels by their names",
        )  # fmt: skip


def _names_of_numbers(values: np.ndarray) -> list[str] | None:
    """Return a vector of whole numbers as names; None for anything else."""
    if values.dtype.kind not in "biuf" or values.ndim != 1 or not np.all(np.isfinite(values)):
        return None
    if not np.all(values % 1 == 0):
        return None
    return [str(int(each)) for each in values]


def names_of(labels: Sequence[Any]) -> list[str]:
    """Return the names of labels, which may be whole numbers."""
    names = _names_of_numbers(np.asarray(labels))
    return [str(each) for each in labels] if names is None else names


def label_type(y: Any) -> str:
    """Return the NumPy type of labels or of a matrix, given to ``fit``; ``"U"`` for text of any length."""
    found = y.dtype if issparse(y) else np.asarray(plain_values(y)).dtype
    return "U" if found.kind in "UT" else found.str
