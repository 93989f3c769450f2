"""Reading shards. A fit in one process keeps the shards of a small stored corpus, which its passes read again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distmom.corpus import AnyCorpus, Block, Corpus

#: bytes in memory up to which the shards of a corpus are kept
KEPT_BYTES = 128 << 20


class _Kept:
    """The shards of the small corpus that was read last, kept while an engine is open in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_open = 0
        self._digest = ""
        self._shards: dict[int, Block] = {}

    def open(self, change: int) -> None:
        """Count an engine that opens (1) or closes (-1), and forget the shards."""
        with self._lock:
            self._n_open += change
            self._digest, self._shards = "", {}

    def get(self, digest: str, index: int) -> Block | None:
        with self._lock:
            return self._shards.get(index) if digest == self._digest else None

    def put(self, digest: str, index: int, shard: Block) -> None:
        with self._lock:
            if not self._n_open:
                return
            if digest != self._digest:
                self._digest, self._shards = digest, {}
            self._shards[index] = shard


_kept = _Kept()


@contextmanager
def keeping_shards() -> Iterator[None]:
    """Keep shards while an engine is open in this process; a context manager.

    Every engine reads and checks a corpus again. Workers of a cluster keep no shards.
    """
    _kept.open(1)
    try:
        yield
    finally:
        _kept.open(-1)


def read_shard(corpus: AnyCorpus, index: int) -> Any:
    """Return one shard of a corpus, which must not be changed.

    Parameters
    ----------
    corpus : AnyCorpus
    index : int
        Position in ``corpus.shards``.

    Raises
    ------
    StoreError
        If the shard has to be read and is damaged.
    """
    # Only the digest of a stored corpus determines its shards and all that they hold.
    if type(corpus) is not Corpus or not is_small(corpus):
        return corpus.read_shard(index)
    shard = _kept.get(corpus.digest, index)
    if shard is None:
        shard = corpus.read_shard(index)
        _kept.put(corpus.digest, index, shard)
    return shard


def is_small(corpus: AnyCorpus) -> bool:
    """Return whether the shards of a corpus take at most `KEPT_BYTES` of memory together."""
    total = 0
    for shard in corpus.shards:
        total += shard.block_bytes
        if total > KEPT_BYTES:
            return False
    return True
