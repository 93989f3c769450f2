"""Arrays that users give to estimators, checked by scikit-learn's rules."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_array, check_non_negative

from distmom.errors import InputError


def checked_rows(X: Any, min_samples: int, estimator: str) -> Any:
    """Return an array or CSR matrix that holds what scikit-learn allows, and nothing negative.

    Raises
    ------
    InputError
        If it does not.
    """
    try:
        X = check_array(X, accept_sparse="csr", ensure_min_samples=min_samples, input_name="X")
        if X.shape[0]:
            check_non_negative(X, estimator)
    except ValueError as error:
        raise InputError(str(error)) from error
    return X
