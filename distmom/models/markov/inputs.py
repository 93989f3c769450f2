"""Sequences given in memory, as a corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from distmom.corpus import RowCorpus
from distmom.corpus.block import refuse_masked
from distmom.corpus.layers import refuse_corpus
from distmom.errors import InputError, UsageError
from distmom.spectral.inputs.tables import corpus_of_rows


def given_lengths(y: Any, lengths: Any) -> Any:
    """Return lengths of sequences that are given by position, as ``y``, or by name; a UsageError if both are.

    A pipeline of scikit-learn gives its last step ``y`` by position, and parameters of the step by name.
    """
    if y is not None and lengths is not None:
        raise UsageError("lengths: expected them once, got them both by position (y) and by name")
    return y if lengths is None else lengths


def sequences_in_memory(
    X: Any, lengths: Any, n_symbols: int | None = None, shard_rows: int | None = None, dense: bool = False
) -> RowCorpus:
    """Return sequences in memory as a corpus; one sequence by default, and symbols may be a column.

    A column of integers holds values where steps are known to be ``dense``.
    """
    refuse_corpus(X)
    refuse_masked(X, "X")
    try:
        given = X if sparse.issparse(X) else np.asarray(X)
    except ValueError as error:
        raise InputError.at(
            "X", None, "shape", "a vector of symbols or a matrix of steps, all sequences one after the other",
            "rows of different lengths",
        ) from error  # fmt: skip
    if not dense and given.ndim == 2 and given.shape[1] == 1 and given.dtype.kind in "iub":
        given = given[:, 0]
    if lengths is None and given.ndim and given.shape[0]:
        lengths = [given.shape[0]]
    if given.ndim != 1:
        n_symbols = None
    # A table with one column may hold symbols, whose names are not that of the column.
    named = X if given.ndim == 2 else None
    return corpus_of_rows(named, given, lengths, n_symbols=n_symbols, shard_rows=shard_rows)
