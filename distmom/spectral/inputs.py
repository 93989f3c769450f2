"""Arrays that users give to estimators, checked by scikit-learn's rules, and corpora that must hold counts."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def check_counts(corpus: Any, name: str) -> None:
    """Refuse a corpus of weights, naming its first value that is not a whole number.

    A corpus knows whether it holds counts, so that shards are read only where it does not. Whole numbers that are
    stored as weights pass.

    Parameters
    ----------
    corpus : Corpus, MemoryCorpus or Totals
    name : str
        Of what needs the counts.

    Raises
    ------
    InputError
        If a value is not a whole number.
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
