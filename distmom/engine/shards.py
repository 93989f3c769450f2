"""Reading shards. A process keeps those of a small stored corpus, which many short passes would read again."""

from __future__ import annotations

import threading
from typing import Any

from distmom.corpus import AnyCorpus, Block, Corpus

#: bytes in memory up to which the shards of a corpus are kept
KEPT_BYTES = 16 << 20


class _Kept:
    """The shards of the last small corpus that was read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digest = ""
        self._shards: dict[int, Block] = {}

    def get(self, digest: str, index: int) -> Block | None:
        with self._lock:
            return self._shards.get(index) if digest == self._digest else None

    def clear(self) -> None:
        with self._lock:
            self._digest, self._shards = "", {}

    def put(self, digest: str, index: int, shard: Block) -> None:
        with self._lock:
            if digest != self._digest:
                self._digest, self._shards = digest, {}
            self._shards[index] = shard


_kept = _Kept()


def forget_shards() -> None:
    """Forget the shards that this process keeps, so that the next work reads and checks them again."""
    _kept.clear()


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
        If the shard is read and damaged.
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
