"""Show a corpus in smaller shards, so that slow work on few large ones spreads over all workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distmom.corpus import Block, Corpus, MemoryCorpus

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

    def __init__(self, corpus: Corpus | MemoryCorpus, n_documents: int) -> None:
        self._corpus = corpus
        self.n_documents, self.n_words, self.n_labels = corpus.n_documents, corpus.n_words, corpus.n_labels
        self.vocabulary, self.label_names = corpus.vocabulary, corpus.label_names
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

    def read_shard(self, index: int) -> Block:
        """Read one piece."""
        i, start, stop = self._pieces[index]
        return self._corpus.read_shard(i).take(slice(start, stop))


def in_pieces(corpus: Any) -> Any:
    """Return the corpus itself where no shard is larger than a piece, else `Pieces`."""
    if all(shard.n_documents <= PIECE_DOCUMENTS for shard in corpus.shards):
        return corpus
    return Pieces(corpus, PIECE_DOCUMENTS)
