"""Topic shares of any number of documents, computed shard by shard and written to Zarr."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.corpus.files.commit import write_atomic
from distmom.corpus.files.encoding import create_array
from distmom.corpus.layers import check_corpus
from distmom.digits import significant
from distmom.engine import Observer, Pass, Rows, Sums, SumSpec
from distmom.models.topics.program import TopicModel
from distmom.models.topics.shares import DocumentReader
from distmom.predict.aligned import check_words
from distmom.predict.appended import AppendedArray
from distmom.predict.lines import answer_lines, check_output_format
from distmom.predict.output import put_in_place
from distmom.predict.pieces import in_pieces
from distmom.spectral.capabilities import Capability, require
from distmom.spectral.inputs.aligned import align

#: number of representative documents per topic
N_REPRESENTATIVES = 10
#: smallest share of a topic in a document that is written as text
LEAST_SHARE = 0.01
#: maximum number of labels for which mean shares are computed
MAX_LABELS = 100_000


@dataclass(frozen=True)
class SharesPass(Pass):
    """Store the topic shares of every document.

    Attributes
    ----------
    reader : DocumentReader
        Reader of a topic model.
    n_topics, n_labels : int, default=0
        Number of topics, and of labels; without labels, sums by label are omitted.

    Notes
    -----
    Rows: ``shares`` (n, k) float32. Sums: ``n_documents``, ``n_empty`` (documents without any known word),
    ``shares`` (k,), the sum of the shares, and ``products`` (k, k), the sum of their products within documents.
    With labels, also ``by_label`` (n_labels, k), the sum of the shares over the documents with each label, and
    ``n_by_label`` (n_labels,), the number of these documents.
    """

    reader: DocumentReader | None = None
    n_topics: int = 0
    n_labels: int = 0

    block_rows = 4096

    @property
    def name(self) -> str:
        return "transform"

    def specs(self) -> dict[str, SumSpec]:
        k, n_labels = self.n_topics, self.n_labels
        specs = {
            "n_documents": SumSpec(()),
            "n_empty": SumSpec(()),
            "shares": SumSpec((k,)),
            "products": SumSpec((k, k)),
        }
        if n_labels:
            specs |= {"by_label": SumSpec((n_labels, k)), "n_by_label": SumSpec((n_labels,))}
        return specs

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.reader is not None
        shares = self.reader.shares(block)
        sums["n_documents"] += block.n_documents
        sums["n_empty"] += float((np.diff(block.words.indptr) == 0).sum())
        wide = shares.astype(np.float64)
        sums["shares"] += wide.sum(axis=0)
        sums["products"] += wide.T @ wide
        if self.n_labels:
            sums["by_label"] += block.labels.T.astype(np.float64) @ wide
            sums["n_by_label"] += np.bincount(block.labels.indices, minlength=self.n_labels)
        return {"shares": shares}


def transform_corpus(
    model: TopicModel,
    corpus: Corpus | MemoryCorpus,
    out: str | os.PathLike[str],
    *,
    method: str = "vb",
    output_format: str = "tsv",
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the topic shares of every document of a corpus.

    The output directory contains:

    - ``shares.zarr``, an array (n_documents, k) float32 for the k topics of the model; rows are in the order of
      the corpus and sum to 1.
    - ``ids.txt`` with the ids of the documents, one per line: the ids of the corpus, or numbers from 1.
    - ``shares.tsv`` with a header and one line ``id<TAB>topic<TAB>share`` per document and topic with a share of
      at least `LEAST_SHARE`, by decreasing share within a document; or ``shares.jsonl``, one object
      ``{"id": ..., "topics": [...], "shares": [...]}`` per document. Topics are numbered from 0.
    - ``topics.json`` with the mean share of every topic, the correlations between the shares of topics over
      documents, and for every topic the `N_REPRESENTATIVES` documents with the largest shares.
    - ``labels.tsv``, if the corpus has labels (a year, an author, a class) and at most `MAX_LABELS` of them, with
      one line per label: its name, its number of documents, and the mean share of every topic in them.
    - ``shares.json`` with sizes and digests of all these files.

    Parameters
    ----------
    model : TopicModel
    corpus : Corpus or MemoryCorpus
    out : path-like
        Output directory, or a URL (``s3://BUCKET/PREFIX``).
    method : {"vb", "fast"}, default="vb"
        As in `SpectralLDA.transform`.
    output_format : {"tsv", "jsonl", "zarr"}, default="tsv"
        Whether shares are also written as tab-separated lines, as JSON lines, or as neither.
    client : distributed.Client or Executor, optional
        Where the pass runs; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use; no limit by default.
    observer : callable, optional
        Receives progress events; none by default.
    overwrite : bool, default=False
        Replace earlier shares.

    Returns
    -------
    dict
        ``n_documents``, ``n_empty`` (documents without any known word), ``n_unknown_words`` (occurrences of
        words unknown to the model), ``mean_shares`` rounded to six digits, and ``out``.

    Raises
    ------
    UsageError
        If the model infers no shares of topics, if the method or ``output_format`` is unknown, if the model knows
        none of the words, or if ``out`` exists, unless it contains earlier shares and ``overwrite`` is True.

    Notes
    -----
    A warning is logged if at least a tenth of the word occurrences are unknown.
    """
    require(model, Capability.SHARES)
    check_corpus(corpus)
    check_output_format(output_format)
    k = len(model.alpha_)
    n_unknown_words = check_words(corpus, model.vocabulary_)
    with put_in_place(out, "shares", overwrite=overwrite) as place:
        aligned = align(corpus, model.vocabulary_, [])
        # Every piece reads its whole shard, which takes longer than the sparse product of "fast".
        if method != "fast":
            aligned = in_pieces(aligned)
        with place.engine(aligned, client, memory_limit, observer) as engine:
            reader = model.reader(method).stored(engine.put)
            # A source without labels, ingested like the model, still has the label names of the model.
            labelled = any(shard.nnz_labels for shard in corpus.shards)
            n_labels = aligned.n_labels if labelled and aligned.n_labels <= MAX_LABELS else 0
            pass_ = SharesPass(engine.corpus.n_words, reader=reader, n_topics=k, n_labels=n_labels)
            result = engine.run(pass_)
            n, stored = int(result.sums["n_documents"]), result.rows["shares"]
            at, best = 0, Representatives(k)
            names = list(map(str, range(k)))
            with (
                AppendedArray(create_array(place.out / "shares.zarr", (n, k), "float32", level=1)) as array,
                answer_lines(
                    place.out, "shares", output_format, corpus, names, ("topic", "share")
                ) as answers,
            ):
                for shard in range(len(aligned.shards)):
                    rows = stored.read(shard)
                    array.append(rows)
                    best.add(rows, at)
                    at += len(rows)
                    order = np.argsort(-rows, axis=1, kind="stable")
                    sorted_shares = np.take_along_axis(rows, order, axis=1)
                    answers.write(order, sorted_shares, (sorted_shares >= LEAST_SHARE).sum(axis=1))
            mean = np.asarray(result.sums["shares"]) / max(1, n)
            covariance = np.asarray(result.sums["products"]) / max(1, n) - np.outer(mean, mean)
            summary = {
                "mean_shares": mean.tolist(),
                "correlation": correlation(covariance).tolist(),
                "representatives": best.to_json(),
            }
            if n_labels:
                _write_labels(place.out / "labels.tsv", aligned.label_names, result.sums)
            write_atomic(place.out / "topics.json", json.dumps(summary, indent=1).encode())
        place.summary.update(n_documents=n, n_topics=k, method=method)
    return {
        "n_documents": n,
        "n_empty": int(result.sums["n_empty"]),
        "n_unknown_words": n_unknown_words,
        "mean_shares": significant(mean),
        "out": str(out),
    }


class Representatives:
    """The documents with the largest shares of every topic.

    Parameters
    ----------
    n_topics : int
    n_documents : int, default=10
        Number of documents per topic.
    """

    def __init__(self, n_topics: int, n_documents: int = N_REPRESENTATIVES) -> None:
        self._size = n_documents
        self._best: list[list[tuple[float, int]]] = [[] for _ in range(n_topics)]

    def add(self, shares: np.ndarray, first: int) -> None:
        """Add the documents ``first``, ``first + 1``, ... with the given shares, of shape (n, k)."""
        depth = min(self._size, len(shares))
        if depth == 0:
            return
        for topic, known in enumerate(self._best):
            column = shares[:, topic]
            # Ties go to the earlier document, as in a stable sort of all documents.
            least = np.partition(column, len(column) - depth)[len(column) - depth]
            some = np.flatnonzero(column > least).tolist()
            some += np.flatnonzero(column == least)[: depth - len(some)].tolist()
            known += [(-float(column[i]), first + i) for i in some]
            self._best[topic] = sorted(known)[: self._size]

    def to_json(self) -> list[list[dict[str, float]]]:
        """Return documents and shares for every topic, by decreasing share, ties by document number."""
        return [[{"document": i, "share": -share} for share, i in known] for known in self._best]


def _write_labels(path: Path, names: list[str], sums: Mapping[str, Any]) -> None:
    counts = np.asarray(sums["n_by_label"])
    means = np.asarray(sums["by_label"]) / np.maximum(counts, 1.0)[:, None]
    with path.open("w", encoding="utf-8") as text:
        for name, count, row in zip(names, counts.tolist(), means.tolist(), strict=True):
            text.write("\t".join([name, f"{count:.0f}", *(f"{share:.6g}" for share in row)]) + "\n")


def correlation(covariance: np.ndarray) -> np.ndarray:
    """Convert covariances to correlations, 0 where a variance is 0."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.outer(spread, spread)
    return np.asarray(np.divide(covariance, scale, out=np.zeros_like(covariance), where=scale > 0.0))
