"""Components or hidden states of any number of rows or documents, computed shard by shard and written to Zarr."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from distmom.corpus.files.encoding import create_array
from distmom.corpus.layers import check_corpus
from distmom.engine import Observer
from distmom.predict.aligned import check_words
from distmom.predict.appended import AppendedArray
from distmom.predict.lines import document_ids
from distmom.predict.output import put_in_place
from distmom.spectral.capabilities import Capability, require
from distmom.spectral.inputs.aligned import align
from distmom.spectral.inputs.checks import check_columns, with_layer
from distmom.spectral.program.execute import execute


def assign_rows(
    model: Any,
    corpus: Any,
    out: str | os.PathLike[str],
    *,
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the component or hidden state of every row or document of a corpus, and their probabilities.

    The output directory contains:

    - ``components.zarr``, a group of arrays along the rows of the corpus, or its documents: those that the method
      ``assign`` of the model returns, such as ``components`` (n_rows,) and ``probabilities`` (n_rows, k).
    - ``starts.npy`` (n_units + 1,) int64: unit i has the rows ``starts[i] : starts[i + 1]``; a document is a unit
      of one row.
    - ``ids.txt``, the ids of the units, one per line, if the corpus has them; documents without ids have their
      numbers from 1.
    - ``components.json`` with sizes and digests of all files.

    Parameters
    ----------
    model : SpectralEstimator
    corpus : LayeredCorpus or RowCorpus, or Corpus or MemoryCorpus for a model of documents
    out : path-like
        Output directory, or a URL (``s3://BUCKET/PREFIX``).
    client : distributed.Client or Executor, optional
        Where the passes run; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use; no limit by default.
    observer : callable, optional
        Receives progress events; none by default.
    overwrite : bool, default=False
        Replace an earlier output.

    Returns
    -------
    dict
        ``n_units``, ``n_rows``, ``arrays`` and ``out``.

    Raises
    ------
    UsageError
        If the model does not assign rows, if the corpus has other features or symbols than the model, or none of
        its words, or if ``out`` exists, unless it contains an earlier output and ``overwrite`` is True.

    Notes
    -----
    A warning is logged if at least a tenth of the word occurrences of documents are unknown.
    """
    require(model, Capability.COMPONENTS)
    check_corpus(corpus)
    corpus = with_layer(corpus, model.reads, getattr(model, "layer", None), type(model).__name__)
    has_documents, source = model.can(Capability.DOCUMENTS), corpus
    if has_documents:
        check_words(source, model.vocabulary_)
        # Not in pieces, each of which would read its whole shard for a single sparse product.
        corpus = align(source, model.vocabulary_, [])
    else:
        check_columns(model, corpus)
    with put_in_place(out, "components", overwrite=overwrite) as place:
        with place.engine(corpus, client, memory_limit, observer) as engine:
            stored = execute(model.assign, engine)
            if has_documents:
                ids, sizes = document_ids(source), np.ones(source.n_documents, np.int64)
            else:
                ids, sizes = _unit_ids(source), _sizes(source)
            n_rows = int(sizes.sum())
            arrays: dict[str, AppendedArray] = {}
            with (place.out / "ids.txt").open("w", encoding="utf-8") as id_file:
                id_file.writelines(f"{text}\n" for text in ids)
            with ExitStack() as opened:
                for index in range(len(corpus.shards)):
                    for key, rows in stored.items():
                        values = rows.read(index)
                        if key not in arrays:
                            array = create_array(
                                place.out / "components.zarr", (n_rows, *values.shape[1:]), values.dtype,
                                name=key, level=1,
                            )  # fmt: skip
                            arrays[key] = opened.enter_context(AppendedArray(array))
                        arrays[key].append(values)
        if not (place.out / "ids.txt").stat().st_size:
            (place.out / "ids.txt").unlink()
        np.save(place.out / "starts.npy", np.concatenate([[0], np.cumsum(sizes)]), allow_pickle=False)
        place.summary.update(n_units=corpus.n_documents, n_rows=n_rows, arrays=sorted(arrays))
    return {"n_units": corpus.n_documents, "n_rows": n_rows, "arrays": sorted(arrays), "out": str(out)}


def _sizes(corpus: Any) -> np.ndarray:
    """Return the number of rows of every unit of a corpus of rows."""
    sizes = np.zeros(corpus.n_documents, np.int64)
    for index, shard in enumerate(corpus.shards):
        sizes[shard.first : shard.first + shard.n_documents] += corpus.read_sizes(index)
    return sizes


def _unit_ids(corpus: Any) -> Iterator[str]:
    """Yield the ids of the units of a corpus of rows, if it has them."""
    for index, shard in enumerate(corpus.shards):
        # The first unit of a shard may have begun in an earlier one.
        yield from (corpus.read_ids(index) or [])[shard.continued :]
