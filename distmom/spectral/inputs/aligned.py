"""A view of a corpus in the vocabulary and the label names of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block, Corpus, MemoryCorpus, ShardInfo
from distmom.corpus.block import renumbered
from distmom.corpus.names import NumberedNames
from distmom.engine import StoredArray


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
        own_words, own_labels = list(corpus.vocabulary), list(corpus.label_names)
        self._words: np.ndarray | StoredArray = np.array(
            [words.get(word, -1) for word in own_words], np.int32
        )
        labels, unknown = _numbers_of_labels(own_labels, label_names)
        self._labels: np.ndarray | StoredArray = np.array(labels, np.int32)
        self.n_unknown_labels = len(unknown)
        self.n_words, self.n_labels = len(vocabulary), len(label_names) + len(unknown)
        self.vocabulary, self.label_names = vocabulary, [*label_names, *unknown]
        self.n_documents, self.shards = corpus.n_documents, corpus.shards
        key = hashlib.sha256(corpus.digest.encode())
        for names in (vocabulary, self.label_names):
            key.update("\n".join(names).encode() + b"\0")
        self.digest = key.hexdigest()

    @property
    def document_frequency(self) -> np.ndarray:
        """Number of documents of the corpus with each word of the model, (n_words,) int64."""
        return _spread(self._corpus.document_frequency, self._words, self.n_words)

    @property
    def label_frequency(self) -> np.ndarray:
        """Number of documents of the corpus with each label, (n_labels,) int64."""
        return _spread(self._corpus.label_frequency, self._labels, self.n_labels)

    def with_stored(self, put: Callable[[np.ndarray], StoredArray]) -> AlignedCorpus:
        """Return a copy without names; its numberings are stored so that workers memory-map them."""
        other = copy(self)
        other.vocabulary, other.label_names = [], []
        if isinstance(self._words, np.ndarray) and isinstance(self._labels, np.ndarray):
            other._words, other._labels = put(self._words), put(self._labels)
        return other

    def read_shard(self, i: int) -> Block:
        """Read a shard in the model's numbering."""
        block = self._corpus.read_shard(i)
        return Block(
            words=_renumbered(block.words, _loaded(self._words), self.n_words),
            labels=_renumbered(block.labels, _loaded(self._labels), self.n_labels),
            first=block.first,
        )


def align(corpus: Corpus | MemoryCorpus, vocabulary: list[str], label_names: list[str]) -> Any:
    """Return the corpus itself if it already has the model's numbering, else an `AlignedCorpus`."""
    same_words = list(corpus.vocabulary) == vocabulary
    if same_words and list(corpus.label_names)[: len(label_names)] == label_names:
        return corpus
    return AlignedCorpus(corpus, vocabulary, label_names)


def _numbers_of_labels(own: list[str], known: list[str]) -> tuple[list[int], list[str]]:
    """Return the numbers of the labels of a corpus in a model, and those that the model does not know.

    No two labels have one number, even if they differ only in their Unicode normal form.
    """
    numbers, unknown = NumberedNames(known), list[str]()
    exact = {name: number for number, name in enumerate(known)}
    taken = {exact[name] for name in own if name in exact}
    found = []
    for name in own:
        number = exact.get(name)
        if number is None and (number := numbers.find(name)) in taken:
            number = None
        if number is None:
            number = len(known) + len(unknown)
            unknown.append(name)
        taken.add(number)
        found.append(number)
    return found, unknown


def _loaded(numbers: np.ndarray | StoredArray) -> np.ndarray:
    return np.asarray(numbers.load() if isinstance(numbers, StoredArray) else numbers)


def _spread(counts: np.ndarray, numbers: np.ndarray | StoredArray, n: int) -> np.ndarray:
    """Return counts of the corpus in the order of the model; zeros for names that the corpus does not have."""
    own = _loaded(numbers)
    out = np.zeros(n, np.int64)
    out[own[own >= 0]] = np.asarray(counts)[own >= 0]
    return out


def _renumbered(matrix: csr_array, numbers: np.ndarray, n_columns: int) -> csr_array:
    out = renumbered(matrix, numbers, n_columns)
    out.sort_indices()
    return out
