"""The pipeline from the chunks of a source to the shards of a corpus: encode, choose columns, write.

Every chunk is encoded once into a part with its own numbering; once all parts exist, the columns are chosen
and each part becomes a shard. Parts and shards finished by an interrupted run are reused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distmom.corpus.block import MAX_VALUE, csr_from_parts
from distmom.corpus.open import open_words
from distmom.corpus.sources.columns import Columns, Named, Survey, label_columns, word_columns
from distmom.corpus.sources.readers.part import Part, Unlabelled, renumber
from distmom.corpus.sources.readers.source import Chunk
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.corpus.stored.shard import ShardResult, write_shard
from distmom.corpus.stored.words import Corpus
from distmom.corpus.stored.write_words import CorpusWriter
from distmom.errors import InputError, StoreError

logger = logging.getLogger(__name__)

#: share of the labels that occur once from which a warning is logged, if there are at least so many labels
SINGLE_SHARE, FEWEST_LABELS = 0.9, 20
#: share of the labels of documents, with another separator or a bracket in their names, that gives a warning
JOINED_SHARE = 0.1

Progress = Callable[[str, int, int | None], None]
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Job:
    """The two steps of an ingest.

    Attributes
    ----------
    source : Source
    shard_documents : int
        Number of documents in a shard.
    vocabulary, label_names : sequence of str or None
        Names given by the caller.
    like : Named or None
        Corpus or model that provides the columns.
    names_words, names_labels : bool
        Whether the source contains words and labels by name.
    """

    source: Source
    shard_documents: int
    vocabulary: Sequence[str] | None
    label_names: Sequence[str] | None
    like: Named | None
    names_words: bool
    names_labels: bool
    label_ids: Sequence[str] = ()

    def run(
        self,
        writer: CorpusWriter,
        settings: dict[str, Any],
        run_map: Map,
        progress: Progress,
        n_bytes: int | None,
        check_unchanged: Callable[[], None],
    ) -> Corpus:
        """Encode all chunks, choose the columns, write all shards and commit the corpus.

        Parameters
        ----------
        writer : CorpusWriter
            Not entered yet.
        settings : dict
            Settings to store in the manifest.
        run_map, progress
            See `distmom.corpus.sources.ingest.ingest`.
        n_bytes : int or None
            Size of the source.
        check_unchanged : callable
            Raises if the source has changed; called before the commit.
        """
        with writer:
            if writer.is_finished:
                return open_words(writer.path)
            parts = self._encode(writer.partial / "parts", run_map, progress, n_bytes)
            survey = Survey(warnings=self.source.tally.counts.copy())
            learns = self.names_words and self.vocabulary is None and self.like is None
            for path in parts:
                survey.add(Part.load_summary(path), learns)
            spec = self.source.spec
            if not survey.n_documents:
                raise InputError.at(spec.path, None, "content", "at least one document", "none")
            if survey.unlabelled is not None:
                check_label_field(spec, survey.unlabelled, is_new=self.like is not None)
            words = word_columns(spec, survey, self.vocabulary, self.like, self.names_words)
            labels = label_columns(
                spec, survey, self.label_names, self.like, self.names_labels, self.label_ids
            )
            # Without a row that is left out, the rows follow from the positions of the documents.
            with_rows = survey.last_row > survey.n_documents
            tasks = self._finishing(writer.directory, parts, words, labels, survey.integral, with_rows)
            done = unknown = 0
            for result, dropped in run_map(finish_part, tasks):
                writer.add(result)
                done += result.entry["n_documents"]
                unknown += dropped
                progress("write", done, survey.n_documents)
            check_unchanged()
            if not learns:
                survey.warnings["unknown_words"] = unknown
            corpus = writer.finalise(words.names, labels.names, settings=settings, warnings=survey.warnings)
        if self.names_labels and self.label_names is None and self.like is None:
            warn_of_single_labels(spec.path, corpus)
            if settings["format"] in ("csv", "tsv") and spec.label_separator == ",":
                warn_of_joined_labels(spec.path, corpus)
                warn_of_listed_labels(spec.path, corpus)
        return corpus

    def _encode(self, folder: Path, run_map: Map, progress: Progress, n_bytes: int | None) -> list[Path]:
        """Encode every chunk that has no part yet, and return the paths of all parts."""
        folder.mkdir(exist_ok=True)
        parts: list[Path] = []

        def missing() -> Iterator[_Encoding]:
            for index, chunk in enumerate(self.source.chunks(self.shard_documents)):
                parts.append(folder / f"p{index:05d}")
                if not _is_part(parts[-1]):
                    yield _Encoding(parts[-1], chunk, self.source.spec, self.source.encode)

        for _ in run_map(encode_chunk, missing()):
            progress("read", self.source.bytes_done(), n_bytes)
        return parts

    def _finishing(
        self,
        directory: str,
        parts: list[Path],
        words: Columns,
        labels: Columns,
        integral: bool,
        with_rows: bool,
    ) -> Iterator[_Finishing]:
        for index, path in enumerate(parts):
            part = Part.load_names(path)
            yield _Finishing(
                directory,
                index,
                path,
                words.of(part[0]),
                words.n,
                labels.of(part[1]),
                labels.n,
                "int32" if integral else "float32",
                with_rows,
            )


def check_label_field(spec: Spec, document: Unlabelled, *, is_new: bool) -> None:
    """Check that labels are not missing because their field has another name.

    Parameters
    ----------
    spec : Spec
    document : Unlabelled
        The first document of a source in which no document has the field of the labels.
    is_new : bool
        Whether documents are read with the columns of a model, and may well have no labels.

    Raises
    ------
    InputError
        If the field was named. Else a warning is logged if another field may contain the labels.
    """
    if spec.labels_field != Spec.labels_field:
        raise InputError.at(
            spec.path, document.line, "line", f"a field {spec.labels_field!r} (--labels-field) here or in another "
            "line", f"fields {document.fields}"[:200],
        )  # fmt: skip
    if document.candidates and not is_new:
        logger.warning(
            "%s: no line has a field 'labels' or 'label', so the documents have no labels; if another field "
            "contains them (%s), use --labels-field", spec.path, ", ".join(document.candidates)[:200],
        )  # fmt: skip


def warn_of_single_labels(path: str, corpus: Corpus) -> None:
    """Log a warning if nearly every label of a corpus occurs once, as if texts had been read as labels."""
    frequency = corpus.label_frequency
    n_labels, single = int((frequency > 0).sum()), np.flatnonzero(frequency == 1)
    if n_labels < FEWEST_LABELS or len(single) < SINGLE_SHARE * n_labels:
        return
    logger.warning(
        "%s: %s of %s labels occur once, such as %r: are texts and labels in each other's place, do labels "
        "contain their separator, or is a header read as data?", path, f"{len(single):,}", f"{n_labels:,}",
        corpus.label_names[single[0]][:60],
    )  # fmt: skip


def warn_of_joined_labels(path: str, corpus: Corpus) -> None:
    """Log a warning if many labels, which commas separate, have another separator in their names."""
    frequency = corpus.label_frequency
    for separator in (";", "|"):
        joined = [i for i, name in enumerate(corpus.label_names) if separator in name]
        n_joined, n = int(frequency[joined].sum()), int(frequency.sum())
        if n_joined >= max(1.0, JOINED_SHARE * n):
            logger.warning(
                "%s: %s of %s labels of documents contain %r, such as %r: if it separates labels, use "
                "--label-separator %r", path, f"{n_joined:,}", f"{n:,}", separator,
                corpus.label_names[joined[0]][:60], separator,
            )  # fmt: skip


def warn_of_listed_labels(path: str, corpus: Corpus) -> None:
    """Log a warning if many labels begin with a bracket, as in a table whose fields are printed lists."""
    frequency = corpus.label_frequency
    listed = [i for i, name in enumerate(corpus.label_names) if name[:1] in ("[", "{")]
    n_listed, n = int(frequency[listed].sum()), int(frequency.sum())
    if n_listed >= max(1.0, JOINED_SHARE * n):
        logger.warning(
            "%s: %s of %s labels of documents begin with a bracket, such as %r: if fields contain lists, write "
            "their labels without brackets and quotation marks, or use jsonl", path, f"{n_listed:,}", f"{n:,}",
            corpus.label_names[listed[0]][:60],
        )  # fmt: skip


@dataclass(frozen=True)
class _Encoding:
    path: Path
    chunk: Chunk
    spec: Spec
    encode: Callable[[Chunk, Spec], Part]


@dataclass(frozen=True)
class _Finishing:
    directory: str
    index: int
    path: Path
    new_words: np.ndarray | None
    n_words: int
    new_labels: np.ndarray | None
    n_labels: int
    dtype: str
    with_rows: bool


def encode_chunk(task: _Encoding) -> None:
    """Encode one chunk into a part on disk; may run in any process."""
    part = task.encode(task.chunk, task.spec)
    if (large := part.values > MAX_VALUE).any():
        # Single values are checked when read, so only the sum of repeated entries can exceed the limit.
        at = int(np.argmax(large))
        document = task.chunk.first_document + int(np.searchsorted(part.word_ptr, at, side="right")) - 1
        raise InputError.at(
            task.spec.path,
            None,
            f"sum of values in document {document}",
            f"at most {MAX_VALUE}",
            str(part.values[at]),
        )
    part.save(task.path)


def finish_part(task: _Finishing) -> tuple[ShardResult, int]:
    """Turn a part into a shard and return it with the number of words dropped; may run in any process."""
    part = Part.load(task.path)
    words = renumber(part.word_ptr, part.word_ids, part.values, task.new_words, task.n_words)
    labels = renumber(
        part.label_ptr, part.label_ids, np.ones(len(part.label_ids)), task.new_labels, task.n_labels
    )
    dropped = round(float(part.values.sum() - words.data.sum()))
    ones = csr_from_parts(np.ones(labels.nnz, np.uint8), labels.indices, labels.indptr, labels.shape)
    words = words.astype(task.dtype)
    # A small weight may underflow to zero in float32.
    words.eliminate_zeros()
    ids = part.ids
    if ids is None and part.rows is not None and task.with_rows:
        ids = [str(row) for row in part.rows.tolist()]
    return write_shard(task.directory, task.index, words, ones, ids), dropped


def _is_part(path: Path) -> bool:
    try:
        Part.load(path)
        Part.load_summary(path)
    except StoreError:
        return False
    return True
