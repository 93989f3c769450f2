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
from distmom.predict.lines import AnswerLines, answer_lines, check_output_format
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
    fill : bool, default=False
        Whether documents without any known word have labels, too.

    Notes
    -----
    Rows: ``labels`` (n, top) int32, -1 where a document has none, ``scores`` (n, top) float32. Sums:
    ``n_documents``, ``n_empty`` (documents without any known word).
    """

    scorer: Scorer | None = None
    top: int = 5
    fill: bool = False

    @property
    def name(self) -> str:
        return "predict"

    def specs(self) -> dict[str, SumSpec]:
        return {"n_documents": SumSpec(()), "n_empty": SumSpec(())}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.scorer is not None
        labels, scores = self.scorer.top(block, self.top)
        is_empty = np.diff(block.words.indptr) == 0
        if not self.fill:
            labels = np.where(is_empty[:, None], np.int32(-1), labels)
        sums["n_documents"] += block.n_documents
        sums["n_empty"] += float(is_empty.sum())
        return {"labels": labels, "scores": scores}


def predict_corpus(
    model: MultiLabelMoM,
    corpus: Corpus | MemoryCorpus,
    out: str | os.PathLike[str],
    *,
    top: int = 5,
    fill: bool = False,
    output_format: str = "tsv",
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the labels with the highest scores for every document of a corpus.

    The output directory contains:

    - ``predictions.zarr``, a CSR matrix of scores (n_documents, n_labels) in AnnData's layout, and ``labels.txt``
      with the names of its columns, one per line.
    - ``ids.txt`` with the ids of the documents, the rows of the matrix, one per line: the ids of the corpus, or
      numbers from 1.
    - ``predictions.tsv`` with a header and one line ``id<TAB>label<TAB>score`` per document and label, by
      decreasing score within a document, text as from `distmom.predict.lines.escaped`; or
      ``predictions.jsonl``, one object ``{"id": ..., "labels": [...], "scores": [...]}`` per document.
    - ``predictions.json`` with sizes and digests of all these files.

    Parameters
    ----------
    model : MultiLabelMoM
    corpus : Corpus or MemoryCorpus
    out : path-like
        Output directory.
    top : int, default=5
        Number of labels per document; all labels if the model has fewer.
    fill : bool, default=False
        Whether documents without any known word get labels, too, which are the same for all of them.
    output_format : {"tsv", "jsonl", "zarr"}, default="tsv"
        Whether predictions are also written as tab-separated lines, as JSON lines, or as neither.
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
        If the model ranks no labels, if ``top`` is below 1, if ``output_format`` is unknown, if the model knows
        none of the words, or if ``out`` exists, unless it contains earlier predictions and ``overwrite`` is True.

    Notes
    -----
    A warning is logged if at least a tenth of the word occurrences are unknown.
    """
    require(model, Capability.LABELS)
    if top < 1:
        raise UsageError(f"top: expected at least 1, got {top}")
    check_output_format(output_format)
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
            scorer = stored_scorer(engine, model.scorer_)
            pass_ = PredictPass(engine.corpus.n_words, scorer=scorer, top=top, fill=fill)
            result = engine.run(pass_)
            names = model.label_names_
            with answer_lines(
                place.out, "predictions", output_format, corpus, names, ("label", "score")
            ) as answers:
                _write(place.out, result, len(aligned.shards), pass_, len(names), answers)
        (place.out / "labels.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        n_documents, n_labels = int(result.sums["n_documents"]), len(model.label_names_)
        place.summary.update(n_documents=n_documents, n_labels=n_labels, top=top, fill=fill)
    return {
        "n_documents": n_documents,
        "n_empty": int(result.sums["n_empty"]),
        "n_unknown_words": n_unknown_words,
        "out": str(out),
    }


def _write(
    out: Path, result: PassResult, n_shards: int, pass_: PredictPass, n_labels: int, answers: AnswerLines
) -> None:
    """Write predictions as arrays and as lines."""
    n, top = int(result.sums["n_documents"]), pass_.top
    n_without = 0 if pass_.fill else int(result.sums["n_empty"])
    group = zarr.create_group(
        store=out / "predictions.zarr",
        attributes={"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n, n_labels]},
    )
    place, size = group.store_path, ((n - n_without) * top,)
    data = create_array(place, size, "float32", name="data", chunk_rows=CHUNK_ELEMENTS)
    indices = create_array(place, size, "int32", name="indices", chunk_rows=CHUNK_ELEMENTS)
    indptr = create_array(place, (n + 1,), "int64", name="indptr", chunk_rows=n + 1)
    ends, first, at = np.zeros(n + 1, np.int64), 0, 0
    for labels, scores in _by_shard(result, n_shards):
        has_labels = labels[:, 0] >= 0
        answers.write(labels, scores, top * has_labels)
        ends[first + 1 : first + 1 + len(labels)] = at + np.cumsum(top * has_labels)
        first += len(labels)
        labels, scores = labels[has_labels], scores[has_labels]
        order = np.argsort(labels, axis=1)
        span = slice(at, at + labels.size)
        if labels.size:
            data[span] = np.take_along_axis(scores, order, axis=1).ravel()
            indices[span] = np.take_along_axis(labels, order, axis=1).ravel()
        at += labels.size
    indptr[...] = ends


def _by_shard(result: PassResult, n_shards: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in range(n_shards):
        yield result.rows["labels"].read(i), result.rows["scores"].read(i)
