"""Present a corpus in a model's vocabulary and label names, and report what the model does not know."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block, Corpus, MemoryCorpus, ShardInfo
from distmom.corpus.block import renumbered
from distmom.engine import StoredArray
from distmom.errors import UsageError

logger = logging.getLogger(__name__)

#: share of unknown occurrences from which a warning is logged
WARN_SHARE = 0.1
#: number of unknown names shown in a message
N_EXAMPLES = 5


class AlignedCorpus:
    """A corpus with the column numbering of a model.

    Words unknown to the model are left out. Unknown labels are appended to the model's labels, so that an
    evaluation counts them.

    Parameters
    ----------
    corpus : Corpus
    vocabulary, label_names : list of str
        Words and labels of the model, in column order.

    Attributes
    ----------
    n_unknown_labels : int
        Number of labels of the corpus that the model does not know.
    """

    n_documents: int
    n_words: int
    n_labels: int
    n_unknown_labels: int
    vocabulary: list[str]
    label_names: list[str]
    digest: str
    shards: tuple[ShardInfo, ...]

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
        """Return a copy without names whose numberings are stored for workers to memory-map."""
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
    """Return the corpus itself if it already has the model's numbering, else an `AlignedCorpus`."""
    same_words = list(corpus.vocabulary) == vocabulary
    if same_words and list(corpus.label_names)[: len(label_names)] == label_names:
        return corpus
    return AlignedCorpus(corpus, vocabulary, label_names)


def unknown_words(corpus: Corpus | MemoryCorpus, vocabulary: list[str]) -> int:
    """Return the number of occurrences of words outside a vocabulary, including those left out at ingest."""
    known = set(vocabulary)
    unknown = np.fromiter((word not in known for word in corpus.vocabulary), bool, corpus.n_words)
    kept = round(float(np.asarray(corpus.word_frequency)[unknown].sum()))
    return kept + int(corpus.warnings.get("unknown_words", 0))


def check_words(corpus: Corpus | MemoryCorpus, vocabulary: list[str]) -> int:
    """Log a warning if at least a tenth of the word occurrences in a corpus are unknown to a model.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    vocabulary : list of str
        Words of the model.

    Returns
    -------
    int
        Number of occurrences of unknown words, see `unknown_words`.

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
    """Log a warning if at least a tenth of the label occurrences in a corpus are unknown to a model.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    label_names : list of str
        Labels of the model.

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
    """Warn about unknown names with the most frequent as examples; UsageError if no known name occurs."""
    if not n_unknown:
        return
    known = set(own)
    by_frequency = (names[i] for i in np.argsort(-frequency, kind="stable") if frequency[i] > 0)
    examples = _examples([name for name in by_frequency if name not in known])
    advice = (
        "ingest the documents with 'distmom ingest --like MODEL' to use the words and labels of the model"
    )
    if n_unknown == total:
        raise UsageError(
            f"{what} of the documents: expected names known to the model{_examples(own)}, "
            f"got none of them{examples}; {advice}"
        )
    counts = {"words": "are left out", "labels": "count as misses"}[what]
    # Without examples, the unknown names were left out at ingest, so the advice was followed.
    logger.warning(
        "the model does not know %.0f %% of the %s of the documents (%s of %s)%s; they %s%s",
        100.0 * n_unknown / total, what, f"{n_unknown:,}", f"{total:,}", examples, counts,
        f"; {advice}" if examples else "",
    )  # fmt: skip


def _examples(names: list[str]) -> str:
    """Return the first names as the end of a clause."""
    return f", such as {', '.join(map(repr, names[:N_EXAMPLES]))}" if names else ""


def _renumbered(matrix: csr_array, numbers: np.ndarray, n_columns: int) -> csr_array:
    out = renumbered(matrix, numbers, n_columns)
    out.sort_indices()
    return out
