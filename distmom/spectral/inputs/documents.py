"""Documents in memory as estimators take them: texts, arrays, sparse matrices and tables with named columns."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block, MemoryCorpus, text_corpus
from distmom.corpus.sources.texts import as_label_lists, as_texts, label_columns_of
from distmom.errors import InputError, UsageError
from distmom.spectral.inputs.checks import check_n_features, checked_rows
from distmom.spectral.inputs.tables import NAMED_COLUMNS, check_column_names, column_names

logger = logging.getLogger(__name__)

#: share of occurrences of words unknown to a model from which a warning is logged
WARN_SHARE = 0.1


def corpus_in_memory(
    X: Any, y: Any, estimator: str, label_names: Sequence[str] | None = None
) -> MemoryCorpus:
    """Return documents given to ``fit`` as a corpus.

    Parameters
    ----------
    X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
        Texts, which are tokenized as by `distmom.corpus.text_corpus` with its defaults, or counts or weights.
        The names of the columns of a table become the vocabulary.
    y : labels or None
        As the argument ``labels`` of `distmom.corpus.text_corpus`.
    estimator : str
        Name for messages.
    label_names : sequence of str, optional
        As in `distmom.corpus.text_corpus`; the names of the columns of a table of labels by default.

    Raises
    ------
    InputError
        If a value is invalid, or there are fewer than two documents.
    """
    label_names = column_names(y, "y") if label_names is None else label_names
    if texts := as_texts(X):
        _check_number(texts, 2)
        return text_corpus(texts, y, label_names=label_names)
    names = column_names(X)
    rows = checked_rows(X, 2, estimator)
    if (lists := as_label_lists(y)) is not None:
        y, label_names, _ = label_columns_of(lists, label_names or ())
    corpus = MemoryCorpus(rows, y, names, label_names)
    if names is not None:
        corpus.settings[NAMED_COLUMNS] = True
    return corpus


def block_in_memory(model: Any, X: Any, min_samples: int = 0) -> Block:
    """Return documents given to a fitted model as a block; parameters as for `documents_in_memory`."""
    corpus = documents_in_memory(model, X, min_samples)
    if corpus.n_documents == 0:
        return Block(csr_array((0, corpus.n_words), dtype=np.int32), csr_array((0, 0), dtype=np.uint8), 0)
    return corpus.read_shard(0)


def documents_in_memory(model: Any, X: Any, min_samples: int = 0) -> MemoryCorpus:
    """Return documents given to a fitted model as a corpus of one shard in its vocabulary.

    Parameters
    ----------
    model : SpectralEstimator
        A fitted model.
    X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
        If at least a tenth of the words of texts are unknown to the model, a warning is logged.
    min_samples : int, default 0
        Smallest number of documents.

    Raises
    ------
    UsageError
        If the number or the names of the columns differ from those of the fit, or X has texts and the model was
        not fitted to texts.
    InputError
        If a value is invalid.
    """
    name = type(model).__name__
    texts = as_texts(X)
    if texts is not None and (texts or "tokenizer" in model.settings_):
        if "tokenizer" not in model.settings_:
            raise UsageError(
                f"X: expected rows with the {model.n_features_in_} features of the fit, got texts: this {name} "
                "was not fitted to texts and has no tokenizer"
            )
        _check_number(texts, min_samples)
        corpus = text_corpus(texts, like=model, shard_documents=max(1, len(texts)))
        _warn_of_unknown(corpus)
        return corpus
    check_column_names(model, X)
    rows = checked_rows(X, min_samples, name)
    check_n_features(rows.shape[1], model.n_features_in_, name)
    return MemoryCorpus(rows, shard_documents=max(1, rows.shape[0]))


def _check_number(texts: list[str], least: int) -> None:
    if len(texts) < least:
        raise InputError(f"X: number of documents: expected at least {least}, got {len(texts)}")


def _warn_of_unknown(corpus: MemoryCorpus) -> None:
    """Log a warning if at least a tenth of the words of texts are unknown to a model."""
    n_unknown = int(corpus.warnings.get("unknown_words", 0))
    total = n_unknown + round(float(np.asarray(corpus.word_frequency).sum()))
    if n_unknown and n_unknown >= WARN_SHARE * total:
        logger.warning(
            "the model does not know %.0f %% of the words of the texts (%s of %s); they are left out",
            100.0 * n_unknown / total, f"{n_unknown:,}", f"{total:,}",
        )  # fmt: skip
