"""Label predictions for any number of documents, computed shard by shard and written to disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.corpus.files.encoding import CHUNK_ELEMENTS, create_array
from distmom.corpus.layers import check_corpus
from distmom.engine import (
    Observer,
    Pass,
    PassResult,
    Rows,
    Sums,
    SumSpec,
)
from distmom.errors import UsageError
from distmom.models.multilabel.blend.probabilities import checked_threshold
from distmom.models.multilabel.estimator import MultiLabelMoM
from distmom.models.multilabel.heads.candidates import stored_heads
from distmom.models.multilabel.heads.chosen_labels import label_numbers, of_labels
from distmom.models.multilabel.heads.scorer import Scorer
from distmom.predict.aligned import check_words
from distmom.predict.appended import AppendedArray
from distmom.predict.lines import AnswerLines, answer_lines, check_output_format
from distmom.predict.output import put_in_place
from distmom.predict.pieces import in_pieces
from distmom.spectral.capabilities import Capability, require
from distmom.spectral.inputs.aligned import align


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
    threshold : float or None, default=None
        Probability from which labels are kept; None for all of the best ``top``.

    Notes
    -----
    Rows: ``labels`` (n, top) int32, -1 at the end where a document has fewer, ``values`` (n, top) float32,
    probabilities if the scorer has them, else scores. Sums: ``n_documents``, ``n_empty`` (documents without any
    known word), ``n_predicted`` (pairs of a document and a label).
    """

    scorer: Scorer | None = None
    top: int = 5
    fill: bool = False
    threshold: float | None = None

    @property
    def name(self) -> str:
        return "predict"

    def specs(self) -> dict[str, SumSpec]:
        return {"n_documents": SumSpec(()), "n_empty": SumSpec(()), "n_predicted": SumSpec(())}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.scorer is not None
        labels, values = self.scorer.top(block, self.top)
        if self.scorer.has_probabilities:
            values = self.scorer.probabilities(values)
        if self.threshold is not None:
            # Scores and probabilities need not have the same order.
            low = values < np.float32(self.threshold)
            order = np.argsort(low, axis=1, kind="stable")
            labels = np.take_along_axis(np.where(low, np.int32(-1), labels), order, axis=1)
            values = np.take_along_axis(values, order, axis=1)
        is_empty = np.diff(block.words.indptr) == 0
        if not self.fill:
            labels = np.where(is_empty[:, None], np.int32(-1), labels)
        sums["n_documents"] += block.n_documents
        sums["n_empty"] += float(is_empty.sum())
        sums["n_predicted"] += float(np.count_nonzero(labels >= 0))
        return {"labels": labels, "values": values}


def predict_corpus(
    model: MultiLabelMoM,
    corpus: Corpus | MemoryCorpus,
    out: str | os.PathLike[str],
    *,
    top: int = 5,
    fill: bool = False,
    threshold: float | str | None = None,
    labels: Sequence[str] | None = None,
    output_format: str = "tsv",
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the labels with the highest scores for every document of a corpus.

    The output directory contains:

    - ``predictions.zarr``, a CSR matrix of probabilities (n_documents, n_labels) in AnnData's layout, and
      ``labels.txt`` with the names of its columns, one per line.
    - ``ids.txt`` with the ids of the documents, the rows of the matrix, one per line: the ids of the corpus, or
      numbers from 1.
    - ``predictions.tsv`` with a header and one line ``id<TAB>label<TAB>probability`` per document and label, by
      decreasing score within a document, text as from `distmom.predict.lines.escaped`; or
      ``predictions.jsonl``, one object ``{"id": ..., "labels": [...], "probabilities": [...]}`` per document.
    - ``predictions.json`` with sizes and digests of all these files, and ``values``, which is "probability" or
      "score".

    A model without probabilities (see `MultiLabelMoM.predict_proba`) writes scores in their place; column and
    key are then ``score`` and ``scores``.

    Parameters
    ----------
    model : MultiLabelMoM
    corpus : Corpus or MemoryCorpus
    out : path-like
        Output directory, or a URL (``s3://BUCKET/PREFIX``).
    top : int, default=5
        Number of labels per document; all labels if the model has fewer.
    fill : bool, default=False
        Whether documents without any known word get labels, too, which are the same for all of them.
    threshold : float or "best", optional
        Only labels of at least this probability, at most ``top`` of them; "best" for
        `MultiLabelMoM.threshold_`. By default all of the best ``top``.
    labels : sequence of str, optional
        Names of the labels that are scored and ranked, which are then the columns of the matrix; all by default.
    output_format : {"tsv", "jsonl", "zarr"}, default="tsv"
        Whether predictions are also written as tab-separated lines, as JSON lines, or as neither.
    client : distributed.Client or Executor, optional
        Where the pass runs; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use; no limit by default.
    observer : callable, optional
        Receives progress events; none by default.
    overwrite : bool, default=False
        Replace earlier predictions.

    Returns
    -------
    dict
        ``n_documents``, ``n_empty`` (documents without any known word), ``n_unknown_words`` (occurrences of
        words unknown to the model), with a threshold also ``threshold`` and ``n_predicted`` (pairs of a document
        and a label), and ``out``.

    Raises
    ------
    UsageError
        If the model ranks no labels, if ``top`` is below 1, if the threshold is not from 0 to 1 or the model has
        no probabilities, if the model lacks one of ``labels``, if ``output_format`` is unknown, if the model knows
        none of the words, or if ``out`` exists, unless it contains earlier predictions and ``overwrite`` is True.

    Notes
    -----
    A warning is logged if at least a tenth of the word occurrences are unknown.
    """
    require(model, Capability.LABELS)
    check_corpus(corpus)
    if top < 1:
        raise UsageError(f"top: expected at least 1, got {top}")
    check_output_format(output_format)
    if threshold is not None:
        model.require_probabilities("threshold")
        threshold = checked_threshold(threshold, model.threshold_)
    chosen, names = model.scorer_, model.label_names_
    if labels is not None:
        numbers = label_numbers(labels, names)
        chosen, names = of_labels(chosen, numbers), [names[number] for number in numbers]
    field = "probability" if model.scorer_.has_probabilities else "score"
    n_unknown_words = check_words(corpus, model.vocabulary_)
    with put_in_place(out, "predictions", overwrite=overwrite) as place:
        top = min(top, chosen.n_labels)
        aligned = in_pieces(align(corpus, model.vocabulary_, model.label_names_))
        with place.engine(aligned, client, memory_limit, observer) as engine:
            scorer = stored_heads(engine, chosen)
            pass_ = PredictPass(engine.corpus.n_words, scorer=scorer, top=top, fill=fill, threshold=threshold)
            result = engine.run(pass_)
            with answer_lines(
                place.out, "predictions", output_format, corpus, names, ("label", field)
            ) as answers:
                _write(place.out, result, len(aligned.shards), len(names), answers)
        (place.out / "labels.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        n_documents, n_labels = int(result.sums["n_documents"]), len(names)
        place.summary.update(
            n_documents=n_documents, n_labels=n_labels, top=top, fill=fill, values=field, threshold=threshold
        )
    assigned = {"threshold": threshold, "n_predicted": int(result.sums["n_predicted"])}
    return {
        "n_documents": n_documents,
        "n_empty": int(result.sums["n_empty"]),
        "n_unknown_words": n_unknown_words,
        **(assigned if threshold is not None else {}),
        "out": str(out),
    }


def _write(out: Path, result: PassResult, n_shards: int, n_labels: int, answers: AnswerLines) -> None:
    """Write predictions as arrays and as lines."""
    n = int(result.sums["n_documents"])
    group = zarr.create_group(
        store=out / "predictions.zarr",
        attributes={"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n, n_labels]},
    )
    place, size = group.store_path, (int(result.sums["n_predicted"]),)
    create = partial(create_array, place, chunk_rows=CHUNK_ELEMENTS)
    with (
        AppendedArray(create(size, "float32", name="data")) as data,
        AppendedArray(create(size, "int32", name="indices")) as indices,
        AppendedArray(create_array(place, (n + 1,), "int64", name="indptr", chunk_rows=n + 1)) as indptr,
    ):
        indptr.append(np.zeros(1, np.int64))
        end = 0
        for labels, values in _by_shard(result, n_shards):
            has_label = labels >= 0
            counts = has_label.sum(axis=1)
            answers.write(labels, values, counts)
            ends = end + np.cumsum(counts)
            indptr.append(ends)
            end = int(ends[-1]) if len(ends) else end
            # By column, places without a label last.
            order = np.argsort(np.where(has_label, labels, n_labels), axis=1, kind="stable")
            labels, values, has_label = (
                np.take_along_axis(x, order, axis=1) for x in (labels, values, has_label)
            )
            data.append(values[has_label])
            indices.append(labels[has_label])


def _by_shard(result: PassResult, n_shards: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in range(n_shards):
        yield result.rows["labels"].read(i), result.rows["values"].read(i)
