"""Texts and label names in memory as a corpus, read in the same way as a source of texts is ingested."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csr_array

from distmom.corpus.block import refuse_lazy
from distmom.corpus.memory import MemoryCorpus
from distmom.corpus.sources.columns import Survey, label_columns, named, word_columns
from distmom.corpus.sources.ingest import given_names, stop_word_list, tokenizer_of
from distmom.corpus.sources.readers.part import Part, renumber
from distmom.corpus.sources.readers.source import Tally
from distmom.corpus.sources.readers.spec import Spec
from distmom.corpus.sources.readers.text import encode_texts, name_labels
from distmom.corpus.sources.tokenize import Tokenizer, warn_of_lost_words
from distmom.errors import InputError, UsageError

#: documents that are encoded at once
_CHUNK = 20_000


def text_corpus(
    texts: Iterable[str],
    labels: Any = None,
    *,
    label_names: Sequence[str] | None = None,
    vocabulary: str | os.PathLike[str] | Sequence[str] | None = None,
    min_df: int = 2,
    max_df: float | int = 1.0,
    stop_words: str | os.PathLike[str] | Sequence[str] | None = None,
    ngram_max: int = 1,
    lowercase: bool = True,
    min_word_length: int = 2,
    token_pattern: str | None = None,
    ngram_min: int = 1,
    analyzer: str = "word",
    like: Any = None,
    shard_documents: int = 20_000,
) -> MemoryCorpus:
    """Return texts in memory as a corpus.

    The words, the labels and their order are those that `ingest` gives for the same texts and options.

    Parameters
    ----------
    texts : iterable of str
        One text per document.
    labels : list of (str or iterable of str), or matrix of shape (n_documents, n_labels), optional
        The label or the labels of every document by name, or a matrix, dense or sparse, whose nonzero entries are
        labels. No labels by default.
    label_names : sequence of str, optional
        Names of the columns of a matrix of labels; their numbers by default. With labels by name, those that come
        first.
    vocabulary : path-like or sequence of str, optional
        The words to keep, in column order; learned by default.
    min_df : int, default=2
    max_df : float or int, default=1.0
        Bounds on the document frequency of words in a learned vocabulary, see `Tokenizer`.
    stop_words : {"english"}, path-like or sequence of str, optional
        Words to leave out: a built-in list, a file, or a list; none by default.
    ngram_max : int, default=1
    lowercase : bool, default=True
    min_word_length : int, default=2
    token_pattern : str, optional
    ngram_min : int, default=1
    analyzer : {"word", "char", "char_wb"}, default="word"
        How text is split into words or n-grams of characters, see `Tokenizer`.
    like : object, optional
        A corpus or fitted model that provides vocabulary, label names and tokenizer, as in `ingest`.
    shard_documents : int, default=20_000
        Maximum number of documents in a shard.

    Returns
    -------
    MemoryCorpus
        Its ``settings`` hold the tokenizer, which models keep to read new texts alike.

    Raises
    ------
    InputError
        If a text or a label is not a string, labels are numbers other than a matrix, the numbers of texts and
        labels differ, or no word remains. The message gives the position of the document, from 0.
    UsageError
        If an option is invalid, or ``texts`` is a single string.
    """
    found = as_texts(texts if isinstance(texts, str) or hasattr(texts, "__len__") else list(texts))
    if found is None:
        raise InputError.at("texts", None, "type", "a list of strings", type(texts).__name__)
    like = named(like)
    tokenizer = tokenizer_of(like) or Tokenizer(
        min_df, max_df, stop_word_list(stop_words), ngram_max, lowercase, min_word_length, token_pattern,
        ngram_min, analyzer,
    )  # fmt: skip
    if like is not None and vocabulary is not None:
        raise UsageError("vocabulary: cannot be combined with `like`, which provides the vocabulary")
    words_given = given_names("vocabulary", vocabulary, tokenizer.analyzer != "word")
    if like is None:
        warn_of_lost_words(tokenizer, words_given or ())
    spec, survey = Spec("texts", tokenizer=tokenizer), Survey()
    parts: list[Part] = []
    learns = vocabulary is None and like is None
    for start in range(0, len(found), _CHUNK):
        some = found[start : start + _CHUNK]
        lines = range(start, start + len(some))
        parts.append(encode_texts(spec, Tally(spec.path), some, [[] for _ in some], lines))
        survey.add(parts[-1].summary(), learns, spec.path)
    words = word_columns(spec, survey, words_given, like, named=True)
    own_rows = [renumber(p.word_ptr, p.word_ids, p.values, words.of(p.words), words.n) for p in parts]
    X = sparse.vstack(own_rows, format="csr") if own_rows else csr_array((0, words.n), dtype=np.int32)
    lists = as_label_lists(labels)
    Y: Any = labels
    if labels is not None and lists is None and np.ndim(labels) == 1:
        raise InputError.at(
            "labels", None, "type", "names or lists of names, or a matrix", f"{next(iter(labels))!r:.60}, ..."
        )
    if labels is None and like is not None:
        lists = [[] for _ in found]
    if lists is not None:
        first = label_names if label_names is not None else () if like is None else like.label_names
        Y, label_names, repairs = label_columns_of(lists, first)
        survey.warnings += repairs
    corpus = MemoryCorpus(X, Y, words.names, label_names, shard_documents)
    corpus.settings = {"format": "texts", "tokenizer": tokenizer.settings()}
    corpus.warnings = {kind: int(count) for kind, count in sorted(survey.warnings.items()) if count}
    total = sum(float(part.values.sum()) for part in parts)
    if not learns and (unknown := round(total - float(corpus.word_frequency.sum()))):
        corpus.warnings["unknown_words"] = unknown
    return corpus


def label_columns_of(
    lists: Sequence[Sequence[str]], first: Sequence[str] = ()
) -> tuple[csr_array, list[str], Counter[str]]:
    """Number labels given by name, as `distmom.corpus.ingest` does.

    Parameters
    ----------
    lists : sequence of sequence of str
        Labels of every document.
    first : sequence of str, optional
        Labels that come first; others follow as in `distmom.corpus.ingest`. None by default.

    Returns
    -------
    labels : csr_array of shape (n_documents, n_labels)
        Ones.
    label_names : list of str
    repairs : Counter
        Number of repairs, by kind.

    Raises
    ------
    InputError
        If a name is empty or contains a control character; the message gives the position of the document, from 0.
    """
    nothing = np.zeros(0, np.int64)
    part = Part(
        np.zeros(len(lists) + 1, np.int64), nothing, nothing, np.zeros(1, np.int64), nothing, words=[]
    )
    name_labels(part, Tally("y"), [list(names) for names in lists], range(len(lists)))
    survey = Survey()
    survey.add(part.summary(), count_words=False, file="y")
    like = SimpleNamespace(vocabulary=(), label_names=first, settings={}) if len(first) else None
    columns = label_columns(Spec("y"), survey, None, like, named=True)
    new = columns.of(part.labels)
    Y = renumber(part.label_ptr, part.label_ids, np.ones(len(part.label_ids)), new, columns.n)
    return Y, columns.names or [], survey.warnings


def as_texts(X: Any) -> list[str] | None:
    """Return documents as a list of texts, empty for an empty list, or None if they are a matrix.

    Raises
    ------
    UsageError
        If a single text, an iterator, a set, a table of texts or lists of words are given.
    InputError
        If only some of the documents are texts.
    """
    if isinstance(X, str):
        raise UsageError("X: expected a list of texts, got a single text")
    _check_order(X, "X", "texts")
    if column := _only_column(X, "X"):
        raise UsageError(f"X: expected a list of texts, got a table with a column of texts: use {column}")
    # Pandas reads a column in which all texts are missing as NaN.
    of_floats = getattr(X, "ndim", 0) == 1 and getattr(getattr(X, "dtype", None), "kind", "O") == "f"
    listed = np.asarray(X).tolist() if of_floats and len(X) and np.isnan(X).all() else as_list(X)
    if listed is None:
        return None
    if any(not isinstance(each, str) and _holds_names(each) for each in listed):
        raise UsageError(
            "X: expected a list of texts, got lists of words: join the words of every document with spaces; "
            r"text_corpus(..., token_pattern=r'\S+') leaves such words as they are"
        )
    if (
        listed
        and not any(isinstance(each, (str, bytes)) for each in listed)
        and not all(map(_is_missing, listed))
    ):
        return None
    for position, each in enumerate(listed):
        if not isinstance(each, str):
            raise InputError.at("X", position, "document", "a text", f"{each!r:.60} ({type(each).__name__})")
    return listed


def as_label_lists(y: Any) -> list[list[str]] | None:
    """Return labels given by name as a list for every document, or None if they are something else.

    Parameters
    ----------
    y : list of str, list of iterables of str, or another type
        A list, tuple, one-dimensional array or Series. A string is the only label of its document.

    Raises
    ------
    InputError
        If only some of the labels are strings; the message gives the position of the document, from 0.
    UsageError
        If an iterator, a set or a table of names is given.
    """
    _check_order(y, "y", "labels")
    if column := _only_column(y, "y"):
        raise UsageError(f"y: expected a list of labels, got a table with a column of labels: use {column}")
    listed = as_list(y)
    if listed is None:
        return None
    no_labels = bool(listed) and all(as_list(each, sets=True) == [] for each in listed)
    if not no_labels and not any(_holds_names(each) for each in listed):
        return None
    found: list[list[str]] = []
    for position, each in enumerate(listed):
        own = [each] if isinstance(each, str) else as_list(each, sets=True)
        if own is None or not all(isinstance(name, str) for name in own):
            raise InputError.at("y", position, "labels", "a name or a list of names", f"{each!r:.60}")
        found.append([str(name) for name in own])
    return found


def as_list(X: Any, *, sets: bool = False) -> list[Any] | None:
    """Return a one-dimensional container of strings or lists as a list; None for numbers and matrices."""
    # A Series of Dask has columns, too.
    is_table = hasattr(X, "columns") and getattr(X, "ndim", 2) != 1
    if X is None or sparse.issparse(X) or is_table or getattr(X, "ndim", 1) != 1:
        return None
    if getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        return None
    if isinstance(X, (list, tuple)) or (sets and isinstance(X, (set, frozenset))):
        return sorted(X, key=str) if isinstance(X, (set, frozenset)) else list(X)
    # Arrays, and columns of tables, whose own items need not be Python objects.
    return list(np.asarray(X)) if hasattr(X, "__array__") and hasattr(X, "__len__") else None


def _check_order(X: Any, name: str, what: str) -> None:
    """Refuse what can be read only once, has no order of documents, or is lazy, with a UsageError."""
    refuse_lazy(X, name)
    if isinstance(X, (Iterator, Set)):
        raise UsageError(
            f"{name}: expected a list of {what} or a matrix, got a {type(X).__name__}: use a list"
        )


def _only_column(X: Any, name: str) -> str | None:
    """Return the expression for the only column of a table, if it has strings or lists of them; else None."""
    # Tables of Polars and Arrow have no number of dimensions.
    is_table = hasattr(X, "columns") and hasattr(X, "shape") and getattr(X, "ndim", 2) == 2
    if sparse.issparse(X) or not (is_table or getattr(X, "ndim", 1) == 2) or X.shape[1] != 1 or not len(X):
        return None
    if not _holds_names(np.asarray(X)[0, 0]):
        return None
    if not is_table:
        return f"{name}[:, 0]"
    names = X.column_names if type(X).__module__.startswith("pyarrow") else X.columns
    return f"{name}[{names[0]!r}]"


def _is_missing(value: Any) -> bool:
    """Whether a value stands for a missing text: None, NaN, or that of nullable columns of pandas."""
    return (
        value is None
        or type(value).__name__ == "NAType"
        or (isinstance(value, (float, np.floating)) and value != value)
    )


def _holds_names(value: Any) -> bool:
    if isinstance(value, str):
        return True
    own = as_list(value, sets=True)
    return own is not None and any(isinstance(name, str) for name in own)
