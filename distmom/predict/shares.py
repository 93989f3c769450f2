"""Shares of topics in any number of documents, shard by shard, written to Zarr."""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.corpus.commit import put_directory, restore_replaced
from distmom.engine import Observer, Pass, Rows, Sums, SumSpec, open_engine, open_executor
from distmom.errors import UsageError
from distmom.models.topics import DocumentReader, TopicModel
from distmom.predict.aligned import align, unknown_words
from distmom.predict.pieces import in_pieces, stored_corpus


@dataclass(frozen=True)
class SharesPass(Pass):
    """Store the shares of topics in every document.

    Attributes
    ----------
    reader : DocumentReader
        Of a topic model.

    Notes
    -----
    Rows: ``shares`` (n, k) float32. Sums: ``n_documents``, ``n_empty`` (documents without any known word),
    ``shares`` (k,).
    """

    reader: DocumentReader | None = None
    n_topics: int = 0

    block_rows = 4096

    @property
    def name(self) -> str:
        return "transform"

    def specs(self) -> dict[str, SumSpec]:
        return {"n_documents": SumSpec(()), "n_empty": SumSpec(()), "shares": SumSpec((self.n_topics,))}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.reader is not None
        shares = self.reader.shares(block)
        sums["n_documents"] += block.n_documents
        sums["n_empty"] += float((np.diff(block.words.indptr) == 0).sum())
        sums["shares"] += shares.sum(axis=0, dtype=np.float64)
        return {"shares": shares}


def transform_corpus(
    model: TopicModel,
    corpus: Corpus | MemoryCorpus,
    out: str | os.PathLike[str],
    *,
    method: str = "vb",
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the shares of topics in every document of a corpus.

    The output directory holds ``shares.zarr``, an array (n_documents, n_components) float32 whose rows sum to one,
    in the order of the corpus.

    Parameters
    ----------
    model : TopicModel
    corpus : Corpus or MemoryCorpus
    out : path-like
    method : {"vb", "fast"}
        As in `SpectralLDA.transform`.
    client : distributed.Client or Executor, optional
    memory_limit : int, optional
    observer : callable, optional
    overwrite : bool
        Replace earlier shares.

    Returns
    -------
    dict
        ``n_documents``, ``n_empty`` (documents without any known word), ``n_unknown_words`` (occurrences of
        words that the model does not know), ``mean_shares`` and ``out``.

    Raises
    ------
    UsageError
        If the output exists.
    """
    target = Path(out).absolute()
    restore_replaced(target)
    if target.exists() and not (overwrite and (target / "shares.zarr").exists()):
        raise UsageError(f"{target}: exists; choose another path, or overwrite earlier shares")
    target.parent.mkdir(parents=True, exist_ok=True)
    aligned = in_pieces(align(corpus, model.vocabulary_, []))
    temporary = target.parent / f".tmp-{target.name}-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    k = len(model.alpha_)
    try:
        with (
            open_executor(client) as executor,
            open_engine(aligned, temporary / "run", executor, memory_limit, observer) as engine,
        ):
            stored_corpus(engine)
            reader = model.reader(method).stored(engine.put)
            result = engine.run(SharesPass(engine.corpus.n_words, reader=reader, n_topics=k))
            n, stored = int(result.sums["n_documents"]), result.rows["shares"]
            (temporary / "out").mkdir()
            array = zarr.create_array(
                store=str(temporary / "out" / "shares.zarr"), shape=(n, k), dtype="float32",
                chunks=(max(1, min(n, (4 << 20) // (4 * k))), k), compressors=[ZstdCodec(level=1), Crc32cCodec()],
                config={"write_empty_chunks": True},
            )  # fmt: skip
            at = 0
            for shard in range(len(aligned.shards)):
                rows = stored.read(shard)
                array[at : at + len(rows)] = rows
                at += len(rows)
            total = np.asarray(result.sums["shares"])
        put_directory(temporary / "out", target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {
        "n_documents": n,
        "n_empty": int(result.sums["n_empty"]),
        "n_unknown_words": unknown_words(corpus, model.vocabulary_),
        "mean_shares": [round(float(x), 6) for x in total / max(1, n)],
        "out": str(out),
    }
