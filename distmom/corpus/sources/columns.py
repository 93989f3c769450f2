"""Choice of the words and labels that become columns of a corpus, and maps from the numbers in parts to them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from distmom.corpus.names import NumberedNames
from distmom.corpus.sources.readers.part import Summary, Unlabelled, lookup
from distmom.corpus.sources.readers.spec import Spec
from distmom.corpus.sources.tokenize import choose_words, unspaced_phrase
from distmom.errors import InputError, UsageError

logger = logging.getLogger(__name__)


class Named(Protocol):
    """An object with the columns and settings of a corpus: a corpus, or a model fitted to one."""

    @property
    def vocabulary(self) -> Sequence[str]: ...

    @property
    def label_names(self) -> Sequence[str]: ...

    @property
    def settings(self) -> dict[str, object]: ...


def named(like: Any) -> Any:
    """Return the columns and settings of a corpus or of a fitted model; a UsageError for anything else.

    A corpus and None are returned as they are. A fitted model has the attributes of `Named` with an underscore.
    """
    if like is None or hasattr(like, "vocabulary"):
        return like
    if not hasattr(like, "vocabulary_"):
        raise UsageError(f"like: expected a corpus or a fitted model, got {type(like).__name__}")
    return SimpleNamespace(
        vocabulary=like.vocabulary_, label_names=getattr(like, "label_names_", []), settings=like.settings_
    )


@dataclass
class Survey:
    """Contents of all parts combined.

    Attributes
    ----------
    n_documents : int
    last_row : int
        Row of the last document in the source, from 1, counted over all files; 0 if rows are not counted.
    n_word_columns : int
        One more than the largest word number that occurs, if parts do not name their words.
    integral : bool
        Whether every value is a whole number.
    document_frequency : Counter
        Number of documents that contain each named word.
    label_places : dict of str to (str, int)
        File and line of the first occurrence of each named label.
    label_columns : list of ndarray of int
        Unnamed labels that occur, part by part.
    warnings : Counter
        Number of repairs, by kind.
    unlabelled : Unlabelled or None
        The first document, if no document has the field of the labels.
    """

    n_documents: int = 0
    last_row: int = 0
    n_word_columns: int = 0
    integral: bool = True
    document_frequency: Counter[str] = field(default_factory=Counter)
    label_places: dict[str, tuple[str, int]] = field(default_factory=dict)
    label_columns: list[np.ndarray] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)
    unlabelled: Unlabelled | None = None

    def add(self, part: Summary, count_words: bool, file: str, rows_before: int = 0) -> None:
        """Add a part of a file that follows on some rows; ``count_words`` if the vocabulary is to be learned."""
        if not self.n_documents or (part.n_documents and part.unlabelled is None):
            self.unlabelled = part.unlabelled
        self.n_documents += part.n_documents
        self.last_row = max(self.last_row, rows_before + part.last_row)
        self.integral = self.integral and part.integral
        if part.words is None:
            self.n_word_columns = max(self.n_word_columns, part.n_word_columns)
        elif count_words:
            for word, count in zip(part.words, part.document_frequency.tolist(), strict=True):
                self.document_frequency[word] += count
        self.label_columns.append(part.label_columns)
        if part.labels is not None:
            for name, line in zip(part.labels, part.label_lines.tolist(), strict=True):
                self.label_places.setdefault(name, (file, line))
        self.warnings += part.warnings


@dataclass(frozen=True)
class Columns:
    """Columns of words or of labels.

    Attributes
    ----------
    n : int
        Number of columns.
    names : list of str or None
        Names in column order; None if columns are named by their numbers.
    numbers : dict of str to int
        Column of each name that a part may use, aliases included.
    new : ndarray or None
        Column of each number of a source that does not name its columns, -1 for none; None if numbers are
        kept.
    """

    n: int
    names: list[str] | None
    numbers: dict[str, int]
    new: np.ndarray | None = None

    def of(self, names: Sequence[str] | None) -> np.ndarray | None:
        """Return the column of each number used in a part; ``names`` are the part's own names, if it has any."""
        return self.new if names is None else lookup(names, self.numbers)


def word_columns(
    spec: Spec, survey: Survey, vocabulary: Sequence[str] | None, like: Named | None, named: bool
) -> Columns:
    """Choose the words.

    Parameters
    ----------
    spec : Spec
    survey : Survey
    vocabulary : sequence of str or None
        Vocabulary given by the caller: the allowed words, or the names of the source's columns.
    like : Named or None
        Corpus or model with the vocabulary to use.
    named : bool
        Whether the source contains words by name.

    Raises
    ------
    InputError
        If the columns of the source do not match the vocabulary, no word remains, or an empty vocabulary is given.
    """
    if named:
        fixed = like.vocabulary if like is not None else vocabulary
        if fixed is None:
            tokenizer = spec.tokenizer
            phrase = unspaced_phrase(survey.document_frequency) if tokenizer.analyzer == "word" else None
            if phrase is not None:
                logger.warning(
                    "%s: most words are phrases of a script that has no spaces, such as %r: separate their words "
                    "by spaces, or use pairs of characters (--analyzer char --ngrams 2)", spec.path, phrase[:40],
                )  # fmt: skip
            fixed = choose_words(
                survey.document_frequency, survey.n_documents, tokenizer.min_df, tokenizer.max_df
            )
            if not fixed:
                n_words, n_documents = len(survey.document_frequency), survey.n_documents
                bounds = (
                    f"{tokenizer.max_df} of all" if isinstance(tokenizer.max_df, float) else tokenizer.max_df
                )
                expected = f"a word in at least {tokenizer.min_df} and at most {bounds} documents"
                got = f"{n_words} words in {n_documents} documents, none within the bounds"
                if not n_words:
                    got = (
                        f"no word in {n_documents} documents (texts are split into runs of letters, unless the "
                        "analyzer is 'char')"
                    )
                raise InputError.at(spec.path, None, "vocabulary", expected, got)
        elif like is None and not len(fixed):
            raise InputError.at("vocabulary", None, "content", "at least one word", "none")
        return Columns(len(fixed), list(fixed), {word: i for i, word in enumerate(fixed)})
    n_words = spec.n_words if spec.n_words is not None else survey.n_word_columns
    if like is None:
        return Columns(n_words, None if vocabulary is None else list(vocabulary), {})
    names = list(like.vocabulary)
    if vocabulary is not None:
        return Columns(len(names), names, {}, lookup(vocabulary, {word: i for i, word in enumerate(names)}))
    if spec.n_words is not None and spec.n_words != len(names):
        raise InputError.at(
            spec.path, 1, "number of words", f"{len(names)} as in the model", str(spec.n_words)
        )
    new = np.arange(max(n_words, 1))
    new[len(names) :] = -1
    return Columns(len(names), names, {}, new)


def label_columns(
    spec: Spec, survey: Survey, label_names: Sequence[str] | None, like: Named | None, named: bool,
    label_ids: Sequence[str] = (),
) -> Columns:  # fmt: skip
    """Choose the labels.

    In a source with named labels, the names are read as line numbers of the label file, from 0, if there is one
    and every label in the source is a whole number. The columns are those of ``like``, else those of the label
    file, else all names in sorted order; other labels that occur are appended and counted as
    ``unknown_labels``. Names are equal if their normal forms C are.

    Raises
    ------
    InputError
        If a line number is beyond the end of the label file, or the id on that line (``label_ids``) is another
        number; or the file does not have one name per column.
    """
    alias: dict[str, str] = {}
    if named:
        alias = {name: name for name in survey.label_places}
        if label_names is not None and alias and all(map(_is_number, alias)):
            for name in alias:
                if int(name) >= len(label_names):
                    n = len(label_names)
                    expected = f"a line number from 0 to {n - 1}" if n else "names in the label file"
                    raise InputError.at(*survey.label_places[name], "label", expected, name)
                id = label_ids[int(name)] if label_ids else ""
                if _is_number(id) and int(id) != int(name):
                    raise InputError.at(
                        *survey.label_places[name], "label", "a line number of the label file, from 0, "
                        "which is also the id on that line if it is a whole number",
                        f"{name}, where the id is {id}",
                    )  # fmt: skip
                alias[name] = label_names[int(name)]
    else:
        n_labels = spec.n_labels or 0
        if label_names is not None and len(label_names) != n_labels:
            raise InputError.at(
                spec.path, None, "number of labels", f"{len(label_names)} as in the label file", str(n_labels)
            )
        if label_names is None and like is None:
            return Columns(n_labels, None, {})
        own = label_names or (like.label_names if like is not None else ())
        column_names = [*own[:n_labels], *(str(i) for i in range(len(own), n_labels))]
        if like is None:
            return Columns(n_labels, column_names, {})
        occurring = np.unique(np.concatenate([*survey.label_columns, np.zeros(0, np.int64)]))
        alias = {column_names[i]: column_names[i] for i in occurring.tolist()}
    base = list(like.label_names if like is not None else label_names or ())
    # Labels of the source are in normal form C; those of a model or a caller may not be.
    columns: dict[str, int] = NumberedNames(base)
    rest = sorted(set(alias.values()) - columns.keys(), key=_natural)
    if base and rest:
        survey.warnings["unknown_labels"] += len(rest)
        if spec.strict and like is None:
            path, line = survey.label_places.get(rest[0], (spec.path, None))
            raise InputError.at(path, line, "label", "a name of the label file", repr(rest[0]))
    names = base + rest
    columns |= {name: i for i, name in enumerate(rest, len(base))}
    if named:
        return Columns(len(names), names, {raw: columns[name] for raw, name in alias.items()})
    return Columns(len(names), names, {}, lookup(column_names, columns))


def _natural(name: str) -> tuple[bool, int, str]:
    """Sort key that orders whole numbers by value, before all other names."""
    is_number = _is_number(name.removeprefix("-"))
    return not is_number, int(name) if is_number else 0, name


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= 18
