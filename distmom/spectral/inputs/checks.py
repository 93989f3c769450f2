"""Checks of the inputs of estimators: arrays by scikit-learn's rules, and corpora that must hold counts."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array, check_non_negative

from distmom.corpus.block import refuse_masked
from distmom.corpus.layers import check_corpus, refuse_corpus
from distmom.corpus.names import are_numbers
from distmom.corpus.rows import as_array, as_numbers, checked_rows_of_layer
from distmom.errors import InputError, UsageError
from distmom.spectral.parameters import Parameter

#: the kinds of corpora that a model of words is fitted to
WORDS = ("words",)


def checked_rows(X: Any, min_samples: int, estimator: str) -> Any:
    """Check samples and return them as an array or CSR matrix.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_samples, n_features)
    min_samples : int
        Smallest number of rows.
    estimator : str
        Name for messages.

    Raises
    ------
    InputError
        If scikit-learn's checks fail, or a value is masked or negative.
    """
    X = _read(X, "X")
    try:
        found = check_array(X, accept_sparse="csr", ensure_min_samples=min_samples, input_name="X")
        # Columns of categories remain Python objects.
        found = as_numbers(found, "X")
        if found.shape[0]:
            check_non_negative(found, estimator)
    except (TypeError, ValueError) as error:
        _refuse(X, "X", error)
    return found


def checked_dense(X: Any, min_samples: int, name: str = "X") -> np.ndarray:
    """Check dense rows of finite numbers of either sign, and return them in single or double precision.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_features)
    min_samples : int
        Smallest number of rows.
    name : str, default "X"
        Name of the array in messages.

    Raises
    ------
    InputError
        If X is sparse, scikit-learn's checks fail, or a value is masked.
    """
    X = _read(X, name)
    if issparse(X):
        raise InputError(f"{name}: expected dense rows, got a sparse matrix; use {name}.toarray()")
    try:
        found = check_array(
            X, dtype=[np.float64, np.float32], ensure_min_samples=min_samples, input_name=name
        )
    except (TypeError, ValueError) as error:
        _refuse(X, name, error)
    return np.asarray(found)


def _refuse(X: Any, name: str, error: TypeError | ValueError) -> NoReturn:
    """Raise an InputError for rows that scikit-learn's checks refuse; for tables, it names the value."""
    if isinstance(error, InputError):
        raise error
    if hasattr(X, "columns"):
        checked_rows_of_layer(X, name)
    elif isinstance(error, TypeError):
        raise error
    raise InputError(str(error)) from error


def _read(X: Any, name: str) -> Any:
    """Return lists as an array, and anything else as it is; InputError if something is missing in it."""
    if isinstance(X, list | tuple):
        return as_array(X, name)
    refuse_corpus(X, name)
    refuse_masked(X, name)
    return X


def check_n_features(n: int, expected: int, estimator: str) -> None:
    """Check that rows have the number of features of the fit; else a UsageError."""
    if n != expected:
        raise UsageError(f"X has {n} features, but {estimator} is expecting {expected} features as input")


def check_columns(model: Any, corpus: Any) -> None:
    """Check that the columns or symbols of a corpus are those of a fitted model, in the same order.

    Names are compared where both have them: files of views have none.

    Raises
    ------
    UsageError
        If their number or their names differ.
    """
    name = type(model).__name__
    if corpus.n_words != model.n_features_in_:
        raise UsageError(f"expected the {model.n_features_in_} features of {name}, got {corpus.n_words}")
    names, fitted = list(getattr(corpus, "vocabulary", ())), list(model.vocabulary_)
    if names and fitted and names != fitted:
        advice = "ingest the source with '--like MODEL'"
        if are_numbers(fitted):
            advice = (
                f"the model was fitted without names, so that its columns are numbers 0 to {len(fitted) - 1}: "
                "ingest the source with these as names ('--vocab FILE', one per line)"
            )
        raise UsageError(f"expected the columns or symbols of {name} in the same order, got others; {advice}")


def check_n_rows(n_rows: int, n_components: int) -> None:
    """Check that there are rows, else an InputError, and as many as components, else a UsageError."""
    if n_rows == 0:
        raise InputError("X: expected at least one row, got none")
    if n_components > n_rows:
        raise UsageError(f"n_components: expected at most {n_rows}, the number of rows, got {n_components}")


def check_size(name: str, n: Any) -> None:
    """Check that a number of things to draw or return is a whole number from 0; else a UsageError."""
    Parameter(0, "", int, least=0).check(name, n)


def check_counts(corpus: Any, name: str) -> None:
    """Check that the words of a corpus are counts.

    A corpus declares whether it holds counts, so shards are read only where it does not. Whole numbers stored as
    weights are accepted.

    Parameters
    ----------
    corpus : Corpus, MemoryCorpus or Totals
    name : str
        What needs the counts, for the message.

    Raises
    ------
    InputError
        If a value is not a whole number; the message names the first one.
    """
    if corpus.values == "counts":
        return
    for index in range(len(corpus.shards)):
        block = corpus.read_shard(index)
        words = block.words
        found = np.flatnonzero(words.data != np.trunc(words.data))
        if len(found):
            at = int(found[0])
            row = block.first + int(np.searchsorted(words.indptr, at, side="right")) - 1
            raise InputError.at(
                f"document {row}", None, f"word {corpus.vocabulary[words.indices[at]]!r}", "a count",
                f"{words.data[at]:g}; {name} needs counts of words, not weights such as tf-idf: give the raw "
                "counts, or ingest the texts, whose words are counted",
            )  # fmt: skip


def with_layer(corpus: Any, reads: tuple[str, ...], name: str | None, model: str) -> Any:
    """Return a corpus whose first layer is one that a model reads.

    Parameters
    ----------
    corpus : AnyCorpus
    reads : tuple of str
        `WORDS`, or the kinds of layers along rows.
    name : str or None
        Name of the layer; None for the only one of these kinds.
    model : str
        Name of the model, for messages.

    Raises
    ------
    UsageError
        If it is not a corpus, or has no such layer, or has several and none is named.
    """
    check_corpus(corpus)
    layers = corpus.layers
    has = ", ".join(f"{layer.name} ({layer.kind} along {layer.along})" for layer in layers)
    if reads == WORDS:
        if layers[0].name != "words":
            raise UsageError(
                f"{model}: expected a corpus of words, got one of {has}; ingest a matrix of counts, or of 0 and "
                "1, as a sparse one: a file .npz, written by scipy.sparse.save_npz"
            )
        return corpus
    candidates = [layer for layer in layers if layer.kind in reads and layer.along == "rows"]
    if name is not None:
        candidates = [layer for layer in candidates if layer.name == name]
    if len(candidates) == 1:
        return corpus if layers[0] == candidates[0] else corpus.select(candidates[0].name)
    if candidates:
        raise UsageError(f"{model}: layer: expected one of {', '.join(x.name for x in candidates)}, got none")
    wanted = f"a layer {name!r}" if name is not None else "a layer"
    raise UsageError(f"{model}: expected {wanted} along rows of kind {' or '.join(reads)}, got {has}")
