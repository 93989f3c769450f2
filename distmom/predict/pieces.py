"""Show a corpus in smaller shards, so that slow work on few large ones spreads over all workers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.engine import Engine, StoredArray
from distmom.predict.aligned import AlignedCorpus

#: documents of a piece: some seconds of scoring
PIECE_DOCUMENTS = 4096


class Pieces:
    """A corpus whose shards are pieces of those of another.

    Parameters
    ----------
    corpus : Corpus, MemoryCorpus or AlignedCorpus
    n_documents : int
        Documents of a piece at most.

    Attributes
    ----------
    shards : tuple of ShardInfo
        In the order of the documents.
    """

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
        # The numbers of entries stay those of the whole shard, which is read for every piece: memory is planned
        # from them.
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
        """Words in column order; not held here, as tasks carry a copy of this object."""
        return self._corpus.vocabulary

    @property
    def label_names(self) -> list[str]:
        """Labels in column order."""
        return self._corpus.label_names

    def with_stored(self, put: Callable[[np.ndarray], StoredArray]) -> Pieces:
        """Return the same with large arrays stored for workers to map."""
        if not isinstance(self._corpus, AlignedCorpus):
            return self
        other = copy(self)
        other._corpus = self._corpus.with_stored(put)
        return other

    def read_shard(self, index: int) -> Block:
        """Read one piece."""
        i, start, stop = self._pieces[index]
        return self._corpus.read_shard(i).take(slice(start, stop))


def stored_corpus(engine: Engine) -> None:
    """Store what the tasks of an engine would carry of its corpus."""
    if isinstance(engine.corpus, AlignedCorpus | Pieces):
        engine.corpus = engine.corpus.with_stored(engine.put)


def in_pieces(corpus: Any) -> Any:
    """Return the corpus itself where no shard is larger than a piece, else `Pieces`."""
    if all(shard.n_documents <= PIECE_DOCUMENTS for shard in corpus.shards):
        return corpus
    return Pieces(corpus, PIECE_DOCUMENTS)
