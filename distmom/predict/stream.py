"""Label predictions for any number of documents, computed shard by shard and written to disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.corpus.arrays import CHUNK_ELEMENTS, create_array
from distmom.engine import (
    Engine,
    Observer,
    Pass,
    PassResult,
    Rows,
    RunDirectory,
    Sums,
    SumSpec,
    open_engine,
    open_executor,
)
from distmom.errors import UsageError
from distmom.models.multilabel.blend import stored_scorer
from distmom.models.multilabel.estimator import MultiLabelMoM
from distmom.models.multilabel.heads import Scorer
from distmom.predict.aligned import align, check_words
from distmom.predict.output import put_in_place
from distmom.predict.pieces import in_pieces, stored_corpus
from distmom.spectral.capabilities import Capability, require


@dataclass(frozen=True)
class PredictPass(Pass):
    """Store the labels with the highest scores for every document.

    Attributes
    ----------
    scorer : Scorer
    top : int, default=5
        Number of labels per document.

    Notes
    -----
    Rows: ``labels`` (n, top) int32, ``scores`` (n, top) float32. Sums: ``n_documents``, ``n_empty`` (documents
    without any known word).
    """

    scorer: Scorer | None = None
    top: int = 5

    @property
    def name(self) -> str:
        return "predict"

    def specs(self) -> dict[str, SumSpec]:
        return {"n_documents": SumSpec(()), "n_empty": SumSpec(())}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.scorer is not None
        labels, scores = self.scorer.top(block, self.top)
        sums["n_documents"] += block.n_documents
        sums["n_empty"] += float((np.diff(block.words.indptr) == 0).sum())
        return {"labels": labels, "scores": scores}


def predict_corpus(
    model: MultiLabelMoM,
    corpus: Corpus | MemoryCorpus,
    out: str | os.PathLike[str],
    *,
    top: int = 5,
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the labels with the highest scores for every document of a corpus.

    The output directory contains:

    - ``predictions.zarr``, a CSR matrix of scores (n_documents, n_labels) in AnnData's layout.
    - ``predictions.tsv`` with one line per document: ``label<TAB>score`` repeated, by decreasing score.
    - ``predictions.json`` with sizes and digests of all files of both.

    Parameters
    ----------
    model : MultiLabelMoM
    corpus : Corpus or MemoryCorpus
    out : path-like
        Output directory.
    top : int, default=5
        Number of labels per document; all labels if the model has fewer.
    client : distributed.Client or Executor, optional
        Where the pass runs; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use.
    observer : callable, optional
        Receives progress events.
    overwrite : bool, default=False
        Replace earlier predictions.

    Returns
    -------
    dict
        ``n_documents``, ``n_empty`` (documents without any known word), ``n_unknown_words`` (occurrences of
        words unknown to the model) and ``out``.

    Raises
    ------
    UsageError
        If the model ranks no labels, if ``top`` is below 1, if the model knows none of the words, or if ``out``
        exists, unless it contains earlier predictions and ``overwrite`` is True.

    Notes
    -----
    A warning is logged if at least a tenth of the word occurrences are unknown.
    """
    require(model, Capability.LABELS)
    if top < 1:
        raise UsageError(f"top: expected at least 1, got {top}")
    n_unknown_words = check_words(corpus, model.vocabulary_)
    with put_in_place(out, "predictions", overwrite=overwrite) as place:
        top = min(top, model.scorer_.n_labels)
        aligned = in_pieces(align(corpus, model.vocabulary_, model.label_names_))
        with (
            open_executor(client) as executor,
            open_engine(
                aligned, RunDirectory(place.run, durable=False), executor, memory_limit, observer
            ) as engine,
        ):
            stored_corpus(engine)
            result = run_predictions(engine, model.scorer_, top)
            _write(place.out, result, len(aligned.shards), top, model.label_names_)
        n_documents, n_labels = int(result.sums["n_documents"]), len(model.label_names_)
        place.summary.update(n_documents=n_documents, n_labels=n_labels, top=top)
    return {
        "n_documents": n_documents,
        "n_empty": int(result.sums["n_empty"]),
        "n_unknown_words": n_unknown_words,
        "out": str(out),
    }


def run_predictions(engine: Engine, scorer: Scorer, top: int) -> PassResult:
    """Run `PredictPass` with the scorer stored for workers to memory-map."""
    return engine.run(PredictPass(engine.corpus.n_words, scorer=stored_scorer(engine, scorer), top=top))


def _write(out: Path, result: PassResult, n_shards: int, top: int, names: list[str]) -> None:
    n = int(result.sums["n_documents"])
    group = zarr.create_group(
        store=out / "predictions.zarr",
        attributes={"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n, len(names)]},
    )
    place, size = group.store_path, (n * top,)
    data = create_array(place, size, "float32", name="data", chunk_rows=CHUNK_ELEMENTS)
    indices = create_array(place, size, "int32", name="indices", chunk_rows=CHUNK_ELEMENTS)
    indptr = create_array(place, (n + 1,), "int64", name="indptr", chunk_rows=n + 1)
    indptr[...] = np.arange(0, n * top + 1, top, dtype=np.int64) if n else np.zeros(1, np.int64)
    at = 0
    with (out / "predictions.tsv").open("w", encoding="utf-8") as text:
        for labels, scores in _by_shard(result, n_shards):
            order = np.argsort(labels, axis=1)
            span = slice(at, at + labels.size)
            if labels.size:
                data[span] = np.take_along_axis(scores, order, axis=1).ravel()
                indices[span] = np.take_along_axis(labels, order, axis=1).ravel()
            at += labels.size
            for row, values in zip(labels.tolist(), scores.tolist(), strict=True):
                text.write("\t".join(f"{names[i]}\t{s:.6g}" for i, s in zip(row, values, strict=True)) + "\n")


def _by_shard(result: PassResult, n_shards: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in range(n_shards):
        yield result.rows["labels"].read(i), result.rows["scores"].read(i)
