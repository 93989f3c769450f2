"""A view of a corpus with smaller shards, so that slow work on a few large shards spreads over all workers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from distmom.corpus import Block, Corpus, MemoryCorpus, ShardInfo
from distmom.engine import StoredArray
from distmom.spectral.inputs.aligned import AlignedCorpus

#: maximum number of documents in a piece; scoring one takes a few seconds
PIECE_DOCUMENTS = 4096


class Pieces:
    """A corpus whose shards are pieces of the shards of another corpus.

    Parameters
    ----------
    corpus : Corpus, MemoryCorpus or AlignedCorpus
    n_documents : int
        Maximum number of documents in a piece.

    Attributes
    ----------
    shards : tuple of ShardInfo
        One entry per piece, in document order.
    """

    n_documents: int
    n_words: int
    n_labels: int
    digest: str
    shards: tuple[ShardInfo, ...]

    def __init__(self, corpus: Corpus | MemoryCorpus | AlignedCorpus, n_documents: int) -> None:
        self._corpus = corpus
        self.n_documents, self.n_words, self.n_labels = corpus.n_documents, corpus.n_words, corpus.n_labels
        self.digest = f"{corpus.digest}:{n_documents}"
        pieces = [
            (i, start, min(start + n_documents, shard.n_documents))
            for i, shard in enumerate(corpus.shards)
            for start in range(0, max(1, shard.n_documents), n_documents)
        ]
        self._pieces = pieces
        # Numbers of entries remain those of the whole shard, which is read for every piece, because memory is
        # planned from them.
        self.shards = tuple(
            replace(
                (shard := corpus.shards[i]),
                id=f"{shard.id}-{start}",
                first=shard.first + start,
                n_documents=stop - start,
                digest=f"{shard.digest}:{start}:{stop}",
            )
            for i, start, stop in pieces
        )

    @property
    def vocabulary(self) -> list[str]:
        """Words in column order; read from the corpus, as every task carries a copy of this object."""
        return self._corpus.vocabulary

    @property
    def label_names(self) -> list[str]:
        """Labels in column order."""
        return self._corpus.label_names

    def with_stored(self, put: Callable[[np.ndarray], StoredArray]) -> Pieces:
        """Return a copy whose large arrays are stored for workers to memory-map."""
        if not isinstance(self._corpus, AlignedCorpus):
            return self
        other = copy(self)
        other._corpus = self._corpus.with_stored(put)
        return other

    def read_shard(self, index: int) -> Block:
        """Read one piece."""
        i, start, stop = self._pieces[index]
        return self._corpus.read_shard(i).take(slice(start, stop))


def in_pieces(corpus: Any) -> Any:
    """Return the corpus itself if no shard is larger than a piece, else `Pieces`."""
    if all(shard.n_documents <= PIECE_DOCUMENTS for shard in corpus.shards):
        return corpus
    return Pieces(corpus, PIECE_DOCUMENTS)
