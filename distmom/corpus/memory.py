"""A corpus over matrices that are already in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from distmom.corpus.block import Block, label_matrix, word_matrix
from distmom.corpus.layers import Layer, word_layers
from distmom.corpus.names import check_names
from distmom.corpus.stored.manifest import ShardInfo
from distmom.corpus.stored.shard import count_totals
from distmom.errors import UsageError


class MemoryCorpus:
    """Matrices in memory with the interface of a `Corpus`.

    Parameters
    ----------
    X : array_like or sparse of shape (n_documents, n_words)
        Counts or weights.
    Y : array_like or sparse of shape (n_documents, n_labels), optional
        Every nonzero entry is a label; no labels by default.
    vocabulary, label_names : sequence of str, optional
        Names of the columns; by default their numbers.
    shard_documents : int, default=20_000
        Maximum number of documents in a shard.

    Raises
    ------
    InputError
        If a value is negative, not finite or too large, if X and Y differ in their number of rows, or if names
        are invalid.
    UsageError
        If ``shard_documents`` is below 1.
    """

    n_documents: int
    n_words: int
    n_labels: int
    values: str
    vocabulary: list[str]
    label_names: list[str]
    totals: dict[str, int]
    document_frequency: np.ndarray
    word_frequency: np.ndarray
    label_frequency: np.ndarray
    digest: str
    shards: tuple[ShardInfo, ...]

    def __init__(
        self,
        X: Any,
        Y: Any = None,
        vocabulary: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        shard_documents: int = 20_000,
    ) -> None:
        if shard_documents < 1:
            raise UsageError(f"shard_documents: expected at least 1, got {shard_documents}")
        words = word_matrix(X)
        labels = label_matrix(Y, words.shape[0])
        self._all = Block(words, labels, 0)
        self.n_documents, self.n_words = map(int, words.shape)
        self.n_labels = int(labels.shape[1])
        self.values = "counts" if words.dtype.kind == "i" else "weights"
        self.vocabulary = check_names("vocabulary", vocabulary, self.n_words)
        self.label_names = check_names("label names", label_names, self.n_labels)
        self.settings: dict[str, Any] = {"format": "arrays"}
        self.warnings: dict[str, int] = {}
        self.totals = {
            **count_totals(words, labels),
            "n_words": self.n_words,
            "n_labels": self.n_labels,
        }
        self.document_frequency = np.bincount(words.indices, minlength=self.n_words)
        frequency = np.bincount(words.indices, words.data, minlength=self.n_words)
        self.word_frequency = frequency.astype(np.int64) if self.values == "counts" else frequency
        self.label_frequency = np.bincount(labels.indices, minlength=self.n_labels)
        self.digest = _digest(self._all)
        self.shards = tuple(
            ShardInfo(
                id=f"s{index:05d}",
                first=first,
                n_documents=(last := min(first + shard_documents, self.n_documents)) - first,
                nnz_words=int(words.indptr[last] - words.indptr[first]),
                nnz_labels=int(labels.indptr[last] - labels.indptr[first]),
                digest=f"{self.digest}:{first}:{last}",
            )
            for index, first in enumerate(range(0, self.n_documents, shard_documents))
        )

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers ``words`` and ``labels``, both along units."""
        return word_layers(self)

    def read_shard(self, index: int) -> Block:
        """Return the rows of one shard."""
        shard = self.shards[index]
        return self._all.take(slice(shard.first, shard.first + shard.n_documents))

    @property
    def has_ids(self) -> bool:
        """False: documents in memory have no ids."""
        return False

    def read_ids(self, index: int) -> list[str] | None:
        """Return None: documents in memory have no ids."""
        return None

    def verify(self) -> list[str]:
        """Return an empty list: the matrices were checked when the corpus was created."""
        return []


def _digest(block: Block) -> str:
    digest = hashlib.sha256()
    for matrix in (block.words, block.labels):
        digest.update(f"{matrix.shape}{matrix.dtype.str}".encode())
        for array, dtype in ((matrix.data, matrix.dtype), (matrix.indices, "i4"), (matrix.indptr, "i8")):
            digest.update(np.ascontiguousarray(array, dtype).data)
    return digest.hexdigest()
