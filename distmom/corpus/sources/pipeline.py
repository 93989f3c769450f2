"""The pipeline from the chunks of a source to the shards of a corpus: encode, choose columns, write.

Every chunk is encoded once into a part with its own numbering; once all parts exist, the columns are chosen
and each part becomes a shard, together with the next ones if they are small, as those of small files are. Parts
and shards finished by an interrupted run are reused.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.block import MAX_VALUE, csr_from_parts
from distmom.corpus.open import open_words
from distmom.corpus.sources.columns import Columns, Named, Survey, label_columns, word_columns
from distmom.corpus.sources.readers.part import Part, Unlabelled, offsets, renumber
from distmom.corpus.sources.readers.source import Chunk
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.corpus.stored.shard import ShardResult, write_shard
from distmom.corpus.stored.words import Corpus
from distmom.corpus.stored.write_words import CorpusWriter
from distmom.errors import InputError

logger = logging.getLogger(__name__)

#: share of the labels that occur once from which a warning is logged, if there are at least that many labels
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
    specs : sequence of Spec
        One for each file of the source; the files are read one after the other. Only a source that contains words
        and labels by name may have several.
    open : callable
        Opens a file.
    name : str
        Name of the whole source, for messages.
    shard_documents : int
        Largest number of documents in a shard.
    vocabulary, label_names : sequence of str or None
        Names given by the caller.
    like : Named or None
        Corpus or model that provides the columns.
    names_words, names_labels : bool
        Whether the source contains words and labels by name.
    label_ids : sequence of str, default ()
        Ids of the names given by the caller, from the file of labels; empty for none.
    """

    specs: Sequence[Spec]
    open: Callable[[Spec], Source]
    name: str
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
            reading = _Reading(self.specs[0])
            encoded = self._encode(reading, writer.work / "parts", run_map, progress, n_bytes)
            survey = Survey(warnings=reading.warnings)
            learns = self.names_words and self.vocabulary is None and self.like is None
            parts = _surveyed(encoded, survey, learns)
            spec = replace(reading.spec, path=self.name)
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
            for result, dropped in run_map(finish_parts, tasks):
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

    def _encode(
        self, reading: _Reading, folder: Path, run_map: Map, progress: Progress, n_bytes: int | None
    ) -> list[tuple[str, Path]]:
        """Encode every chunk that has no part yet, and return the file and the path of all parts."""
        folder.mkdir(exist_ok=True)
        parts: list[tuple[str, Path]] = []

        def missing() -> Iterator[_Encoding]:
            chunks = reading.chunks(map(self._opened, self.specs), self.shard_documents)
            for index, (source, chunk) in enumerate(chunks):
                path = folder / f"p{index:05d}"
                parts.append((source.spec.path, path))
                if not Part.is_whole(path):
                    yield _Encoding(path, chunk, source.spec, source.encode)

        for _ in run_map(encode_chunk, missing()):
            progress("read", reading.bytes_done, n_bytes)
        return parts

    def _opened(self, spec: Spec) -> Source:
        """Open a file; an InputError if its header has another number of words than the vocabulary."""
        source = self.open(spec)
        if self.vocabulary is not None and source.spec.n_words not in (None, len(self.vocabulary)):
            raise InputError.at(
                spec.path, 1, "number of words", f"{len(self.vocabulary)} as in the vocabulary",
                str(source.spec.n_words),
            )  # fmt: skip
        return source

    def _finishing(
        self,
        directory: str,
        parts: list[_Encoded],
        words: Columns,
        labels: Columns,
        integral: bool,
        with_rows: bool,
    ) -> Iterator[_Finishing]:
        dtype = "int32" if integral else "float32"
        for index, together in enumerate(_together(parts, self.shard_documents)):
            numbered = []
            for part in together:
                own_words, own_labels = Part.load_names(part.path)
                numbered.append(
                    _Numbered(part.path, part.rows_before, words.of(own_words), labels.of(own_labels))
                )
            yield _Finishing(directory, index, numbered, words.n, labels.n, dtype, with_rows)


@dataclass
class _Reading:
    """The files of a source, which are opened and read one after the other.

    Attributes
    ----------
    spec : Spec
        Of the last file that was opened, completed with information from its header.
    warnings : Counter
        Number of repairs in the lines of all files read so far, by kind.
    """

    spec: Spec
    warnings: Counter[str] = field(default_factory=Counter)
    _source: Source | None = None
    _bytes_before: int = 0

    def chunks(self, sources: Iterable[Source], size: int) -> Iterator[tuple[Source, Chunk]]:
        """Yield the chunks of ``size`` documents of all files, each with its file."""
        for source in sources:
            self.spec, self._source = source.spec, source
            for chunk in source.chunks(size):
                yield source, chunk
            self.warnings += source.tally.counts
            self._source, self._bytes_before = None, self.bytes_done

    @property
    def bytes_done(self) -> int:
        """Bytes of all files read so far."""
        return self._bytes_before + (self._source.bytes_done() if self._source is not None else 0)


@dataclass(frozen=True)
class _Encoded:
    """A part on disk, and the number of rows in the files before its own."""

    path: Path
    n_documents: int
    rows_before: int


def _surveyed(encoded: list[tuple[str, Path]], survey: Survey, learns: bool) -> list[_Encoded]:
    """Add all parts to a survey, and return them with their numbers of documents and of rows before them."""
    parts = []
    for file, of_file in groupby(encoded, key=lambda each: each[0]):
        rows_before = survey.last_row
        for _, path in of_file:
            summary = Part.load_summary(path)
            survey.add(summary, learns, file, rows_before)
            parts.append(_Encoded(path, summary.n_documents, rows_before))
    return parts


def _together(parts: list[_Encoded], shard_documents: int) -> Iterator[list[_Encoded]]:
    """Yield the parts of each shard: neighbours, as many as it can hold."""
    together, n_documents = list[_Encoded](), 0
    for part in parts:
        if together and n_documents + part.n_documents > shard_documents:
            yield together
            together, n_documents = [], 0
        together.append(part)
        n_documents += part.n_documents
    if together:
        yield together


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
            document.path, document.line, "line",
            f"a field {spec.labels_field!r} (--labels-field) here or in another line",
            f"fields {document.fields}"[:200],
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
        "%s: %s of %s labels occur once, such as %r: are texts and labels swapped, do labels "
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
class _Numbered:
    path: Path
    rows_before: int
    new_words: np.ndarray | None
    new_labels: np.ndarray | None


@dataclass(frozen=True)
class _Finishing:
    directory: str
    index: int
    parts: list[_Numbered]
    n_words: int
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


def finish_parts(task: _Finishing) -> tuple[ShardResult, int]:
    """Turn parts into one shard and return it with the number of words dropped; may run in any process."""
    all_words, all_labels, ids, n_values = [], [], list[str](), 0.0
    for numbered in task.parts:
        part = Part.load(numbered.path)
        all_words.append(
            renumber(part.word_ptr, part.word_ids, part.values, numbered.new_words, task.n_words)
        )
        ones = np.ones(len(part.label_ids))
        all_labels.append(renumber(part.label_ptr, part.label_ids, ones, numbered.new_labels, task.n_labels))
        n_values += float(part.values.sum())
        if part.ids is not None:
            ids += part.ids
        elif part.rows is not None and task.with_rows:
            ids += map(str, (part.rows + numbered.rows_before).tolist())
    words, labels = _stacked(all_words), _stacked(all_labels)
    dropped = round(n_values - float(words.data.sum()))
    words = words.astype(task.dtype)
    # A small weight may underflow to zero in float32.
    words.eliminate_zeros()
    return write_shard(task.directory, task.index, words, labels.astype(np.uint8), ids or None), dropped


def _stacked(matrices: Sequence[csr_array]) -> csr_array:
    """Return CSR matrices of equal width below each other."""
    lengths = np.concatenate([np.diff(each.indptr) for each in matrices])
    values, columns = (
        np.concatenate([getattr(each, name) for each in matrices]) for name in ("data", "indices")
    )
    return csr_from_parts(values, columns, offsets(lengths), (len(lengths), matrices[0].shape[1]))
