"""Show a corpus with a model's vocabulary and label names, and say how much of it the model does not know."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.corpus.block import renumbered
from distmom.engine import StoredArray
from distmom.errors import UsageError

logger = logging.getLogger(__name__)

#: share of all occurrences from which a warning says that they are unknown
WARN_SHARE = 0.1
#: unknown names that a message shows
N_EXAMPLES = 5


class AlignedCorpus:
    """A corpus whose words and labels are numbered as a model numbers them.

    Words that the model does not know are left out and counted; labels that it does not know follow its own,
    so that an evaluation counts them.

    Parameters
    ----------
    corpus : Corpus
    vocabulary, label_names : list of str
        The model's.

    Attributes
    ----------
    n_unknown_labels : int
        Labels of the corpus that the model does not know.
    """

    def __init__(self, corpus: Corpus | MemoryCorpus, vocabulary: list[str], label_names: list[str]) -> None:
        self._corpus = corpus
        words = {word: i for i, word in enumerate(vocabulary)}
        labels = {name: i for i, name in enumerate(label_names)}
        own_words, own_labels = list(corpus.vocabulary), list(corpus.label_names)
        self._words: np.ndarray | StoredArray = np.array(
            [words.get(word, -1) for word in own_words], np.int32
        )
        unknown = [name for name in own_labels if name not in labels]
        for name in unknown:
            labels[name] = len(labels)
        self._labels: np.ndarray | StoredArray = np.array([labels[name] for name in own_labels], np.int32)
        self.n_unknown_labels = len(unknown)
        self.n_words, self.n_labels = len(vocabulary), len(labels)
        self.vocabulary, self.label_names = vocabulary, [*label_names, *unknown]
        self.n_documents, self.shards = corpus.n_documents, corpus.shards
        key = hashlib.sha256(corpus.digest.encode())
        for names in (vocabulary, self.label_names):
            key.update("\n".join(names).encode() + b"\0")
        self.digest = key.hexdigest()

    def with_stored(self, put: Callable[[np.ndarray], StoredArray]) -> AlignedCorpus:
        """Return the same with its numberings stored for workers to map, and without names."""
        other = copy(self)
        other.vocabulary, other.label_names = [], []
        if isinstance(self._words, np.ndarray) and isinstance(self._labels, np.ndarray):
            other._words, other._labels = put(self._words), put(self._labels)
        return other

    def read_shard(self, i: int) -> Block:
        """Read a shard in the model's numbering."""
        block = self._corpus.read_shard(i)
        words, labels = (x.load() if isinstance(x, StoredArray) else x for x in (self._words, self._labels))
        return Block(
            words=_renumbered(block.words, words, self.n_words),
            labels=_renumbered(block.labels, labels, self.n_labels),
            first=block.first,
        )


def align(corpus: Corpus | MemoryCorpus, vocabulary: list[str], label_names: list[str]) -> Any:
    """Return the corpus itself when its numbering is the model's, else an `AlignedCorpus`."""
    same_words = list(corpus.vocabulary) == vocabulary
    if same_words and list(corpus.label_names)[: len(label_names)] == label_names:
        return corpus
    return AlignedCorpus(corpus, vocabulary, label_names)


def unknown_words(corpus: Corpus | MemoryCorpus, vocabulary: list[str]) -> int:
    """Return how often words occur that a vocabulary does not hold, those left out at ingest included."""
    known = set(vocabulary)
    unknown = np.fromiter((word not in known for word in corpus.vocabulary), bool, corpus.n_words)
    kept = round(float(np.asarray(corpus.word_frequency)[unknown].sum()))
    return kept + int(corpus.warnings.get("unknown_words", 0))


def check_words(corpus: Corpus | MemoryCorpus, vocabulary: list[str]) -> int:
    """Warn where a model does not know a tenth of the words of a corpus or more.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    vocabulary : list of str
        The model's.

    Returns
    -------
    int
        Occurrences of unknown words, as `unknown_words`.

    Raises
    ------
    UsageError
        If the model knows none of the words.
    """
    n_unknown = unknown_words(corpus, vocabulary)
    frequency = np.asarray(corpus.word_frequency, np.float64)
    total = round(float(frequency.sum())) + int(corpus.warnings.get("unknown_words", 0))
    if n_unknown >= WARN_SHARE * total:
        _say_unknown("words", n_unknown, total, corpus.vocabulary, frequency, vocabulary)
    return n_unknown


def check_labels(corpus: Corpus | MemoryCorpus, label_names: list[str]) -> None:
    """Warn where a model does not know a tenth of the labels of documents or more, counted as they occur.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    label_names : list of str
        The model's.

    Raises
    ------
    UsageError
        If the model knows none of the labels.
    """
    known, frequency = set(label_names), np.asarray(corpus.label_frequency, np.float64)
    unknown = np.fromiter((name not in known for name in corpus.label_names), bool, corpus.n_labels)
    n_unknown, total = round(float(frequency[unknown].sum())), round(float(frequency.sum()))
    if n_unknown >= WARN_SHARE * total:
        _say_unknown("labels", n_unknown, total, corpus.label_names, frequency, label_names)


def _say_unknown(
    what: str, n_unknown: int, total: int, names: list[str], frequency: np.ndarray, own: list[str]
) -> None:
    """Warn of unknown names by the most frequent of them; UsageError where all that occur are unknown."""
    if not n_unknown:
        return
    known = set(own)
    by_frequency = (names[i] for i in np.argsort(-frequency, kind="stable") if frequency[i] > 0)
    examples = _examples([name for name in by_frequency if name not in known])
    advice = "documents are given the words and labels of a model by 'distmom ingest --like MODEL'"
    if n_unknown == total:
        raise UsageError(
            f"{what} of the documents: expected names of the model{_examples(own)}, "
            f"got none of them{examples}; {advice}"
        )
    counts = {"words": "are left out", "labels": "count as missed"}[what]
    # Without an example they were left out at ingest, as advised.
    logger.warning(
        "the model does not know %.0f %% of the %s of the documents (%s of %s)%s; they %s%s",
        100.0 * n_unknown / total, what, f"{n_unknown:,}", f"{total:,}", examples, counts,
        f"; {advice}" if examples else "",
    )  # fmt: skip


def _examples(names: list[str]) -> str:
    """Return some names as the end of a clause."""
    return f", such as {', '.join(map(repr, names[:N_EXAMPLES]))}" if names else ""


def _renumbered(matrix: csr_array, numbers: np.ndarray, n_columns: int) -> csr_array:
    out = renumbered(matrix, numbers, n_columns)
    out.sort_indices()
    return out
