"""Ingest: convert a source in any supported format to a corpus on disk, resumably and in bounded memory."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distmom.corpus.names import check_names
from distmom.corpus.sources.columns import Named, named
from distmom.corpus.sources.files import SourceFiles, described, format_of_all, paths_of
from distmom.corpus.sources.formats import FORMATS, WITH_FIELDS
from distmom.corpus.sources.pipeline import Job, Map, Progress
from distmom.corpus.sources.readers.documents import open_documents
from distmom.corpus.sources.readers.name_files import read_labels, read_names
from distmom.corpus.sources.readers.source import bare_name
from distmom.corpus.sources.readers.spec import Spec
from distmom.corpus.sources.readers.text import check_fields
from distmom.corpus.sources.tokenize import ENGLISH_STOP_WORDS, Tokenizer, warn_of_lost_words
from distmom.corpus.stored.words import Corpus
from distmom.corpus.stored.write_words import CorpusWriter
from distmom.errors import UsageError

#: incremented whenever the encoding of a source into parts changes
ENCODING_VERSION = 6


def ingest(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    format: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    vocabulary: str | os.PathLike[str] | Sequence[str] | None = None,
    label_source: str | os.PathLike[str] | None = None,
    min_df: int = 2,
    max_df: float | int = 1.0,
    stop_words: str | os.PathLike[str] | Sequence[str] | None = None,
    ngram_max: int = 1,
    lowercase: bool = True,
    min_word_length: int = 2,
    token_pattern: str | None = None,
    ngram_min: int = 1,
    analyzer: str = "word",
    shard_documents: int = 20_000,
    strict: bool = False,
    overwrite: bool = False,
    like: Any = None,
    zero_based: bool | None = None,
    text_field: str = "text",
    labels_field: str = "labels",
    label_separator: str = ",",
    id_column: str | None = None,
    map: Map | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Convert a source to a corpus on disk.

    Parameters
    ----------
    source : path-like or sequence of path-like
        A file, or several of one format, which are read in this order; ``.gz``, ``.xz``, ``.zst`` and ``.bz2``
        are decompressed while reading, except for Parquet and Arrow. Only formats that contain words by name
        may have several files.
    destination : path-like
        Directory of the corpus. Until the corpus is complete, only ``<destination>.partial`` exists.
    format : str, optional
        One of `FORMATS`; by default determined by the file's name.
    labels : path-like, optional
        File of label names with one ``name`` or ``id<TAB>name`` per line.
    vocabulary : path-like or sequence of str, optional
        For texts, the words to keep, in column order; learned by default. For other formats, the names of the
        source's columns; by default their numbers. For ``uci``, a file ``vocab.*`` beside ``docword.*`` is used
        by default.
    label_source : path-like, optional
        Second file of a pair, which holds the labels (``xmc``, ``npz``).
    min_df : int, default=2
    max_df : float or int, default=1.0
        Bounds on the document frequency of words in a learned vocabulary, see `Tokenizer`.
    stop_words : {"english"}, path-like or sequence of str, optional
        Words to leave out: a built-in list, a file, or a list; none by default.
    ngram_max : int, default=1
    lowercase : bool, default=True
    min_word_length : int, default=2
    token_pattern : str, optional
    ngram_min : int, default=1
    analyzer : {"word", "char", "char_wb"}, default="word"
        How text is split into words or n-grams of characters, see `Tokenizer`.
    shard_documents : int, default=20_000
        Number of documents in a shard.
    strict : bool, default=False
        Raise InputError with file and line for anything that is otherwise repaired and counted in
        ``Corpus.warnings``.
    overwrite : bool, default=False
        Replace an existing corpus, once the new one is complete.
    like : object, optional
        A corpus or fitted model that provides vocabulary, label names and tokenizer. Unknown words are counted and
        left out; unknown labels are appended after the known ones.
    zero_based : bool, optional
        Whether the source numbers words from 0. Required for ``svmlight``, unused otherwise.
    text_field : str, default="text"
    labels_field : str, default="labels"
        Names of the fields in ``jsonl`` and ``csv``, or of the columns in ``parquet`` and ``arrow``. By default
        the field "label" takes the place of a missing "labels".
    label_separator : str, default=","
        Separator of the labels of a document in ``tsv`` and ``csv``; empty if documents have at most one label.
    id_column : str, optional
        Name of the field or column with the id of a document, in ``jsonl``, ``csv``, ``parquet`` and ``arrow``.
        By default documents have no ids, and are identified by their row: the number of the line in ``tsv``,
        ``jsonl``, ``lines`` and ``svmlight``, of the record in ``csv``, and otherwise of the document, each
        from 1. Counting continues from file to file.
    map : callable, optional
        ``map(function, iterable)`` that yields results in order; functions and values are picklable. The
        built-in `map` by default.
    progress : callable, optional
        Called with the stage ("read" in bytes, "write" in documents), the amount done, and the total.

    Returns
    -------
    Corpus

    Raises
    ------
    InputError
        If the source is not valid in its declared format; nothing is left behind.
    UsageError
        If arguments are invalid or contradict each other, or the destination exists, is inside a corpus, model,
        run or output, or is being written to.
    """
    paths = paths_of(source)
    like = named(like)
    name = format_of_all(paths, format)
    given = Tokenizer(
        min_df, max_df, stop_word_list(stop_words), ngram_max, lowercase, min_word_length, token_pattern,
        ngram_min, analyzer,
    )  # fmt: skip
    _check_options(name, label_source, id_column, shard_documents, given)
    kind = FORMATS[name]
    if like is not None and vocabulary is not None and kind.names_words:
        raise UsageError("vocabulary: cannot be combined with `like`, which provides the vocabulary")
    if name == "uci" and vocabulary is None:
        vocabulary = _vocabulary_beside(paths[0])
    tokenizer = tokenizer_of(like) or given
    words = given_names("vocabulary", vocabulary, tokenizer.analyzer != "word")
    if kind.names_words and like is None:
        warn_of_lost_words(tokenizer, words or ())
    label_names, label_ids = (None, []) if labels is None else read_labels(os.fspath(labels))
    spec = Spec(
        path=paths[0],
        label_path=None if label_source is None else os.fspath(label_source),
        strict=strict,
        tokenizer=tokenizer,
        n_words=None if kind.names_words or words is None else len(words),
        n_labels=0 if name == "ldac" else None,
        zero_based=zero_based,
        text_field=text_field,
        labels_field=labels_field,
        label_separator=label_separator,
        id_field=id_column,
    )
    check_fields(spec)
    settings = _settings(name, spec, shard_documents)
    if len(paths) > 1:
        settings |= {"n_files": len(paths)}
    read = SourceFiles(paths)
    files = read if label_source is None else SourceFiles([*paths, label_source])
    fingerprint = _fingerprint(
        [files.state, settings, words, label_names]
        + ([list(like.vocabulary), list(like.label_names)] if like is not None else [])
    )
    job = Job(
        [replace(spec, path=each) for each in paths], kind.open, described(paths), shard_documents, words,
        label_names, like, kind.names_words, kind.names_labels, label_ids,
    )  # fmt: skip
    return job.run(
        CorpusWriter(destination, overwrite=overwrite, fingerprint=fingerprint),
        settings,
        builtins.map if map is None else map,
        progress or (lambda stage, done, total: None),
        read.n_bytes,
        files.check_unchanged,
    )


def _check_options(
    name: str,
    label_source: str | os.PathLike[str] | None,
    id_column: str | None,
    shard_documents: int,
    tokenizer: Tokenizer,
) -> None:
    """Raise a UsageError if an option is invalid, or not for sources of this format."""
    if label_source is not None and name not in ("xmc", "npz"):
        raise UsageError(
            f"label_source: expected none with format {name}, as only xmc and npz have a file of labels"
        )
    if id_column is not None and name not in WITH_FIELDS:
        raise UsageError(
            f"id_column: expected none with format {name}, as only {', '.join(WITH_FIELDS[:-1])} and "
            f"{WITH_FIELDS[-1]} have fields with names"
        )
    if shard_documents < 1:
        raise UsageError(f"shard_documents: expected at least 1, got {shard_documents}")
    if not FORMATS[name].names_words and (changed := tokenizer.changed()):
        raise UsageError(
            f"{', '.join(changed)}: expected none with format {name}, whose documents have numbers of words "
            "rather than texts"
        )


def _settings(name: str, spec: Spec, shard_documents: int) -> dict[str, Any]:
    """Return the settings of an ingest that the manifest holds and the fingerprint covers."""
    settings: dict[str, Any] = {"format": name, "source": os.path.basename(spec.path)}
    settings |= {"shard_documents": shard_documents, "strict": spec.strict}
    if FORMATS[name].names_words:
        settings |= {"tokenizer": spec.tokenizer.settings()}
    if name in WITH_FIELDS:
        settings |= {"text_field": spec.text_field, "labels_field": spec.labels_field}
    # Left out at their defaults, as in corpora of versions without these options.
    if spec.label_separator != "," and name in ("tsv", "csv"):
        settings |= {"label_separator": spec.label_separator}
    if spec.id_field is not None:
        settings |= {"id_column": spec.id_field}
    if name == "svmlight":
        settings |= {"zero_based": spec.zero_based}
    return settings


def write_corpus(
    path: str | os.PathLike[str],
    documents: Iterable[Any],
    *,
    vocabulary: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
    min_df: int = 1,
    max_df: float | int = 1.0,
    shard_documents: int = 20_000,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Write documents from an iterable as a corpus.

    Parameters
    ----------
    path : path-like
        Directory of the corpus.
    documents : iterable of (words, labels)
        ``words`` is a list of words, or a mapping of words to counts or weights; ``labels`` is a list of names.
        Only one shard's documents are in memory at a time.
    vocabulary : sequence of str, optional
        Words to keep, in column order; learned by default.
    label_names : sequence of str, optional
        Labels in column order; others that occur are appended.
    min_df : int, default=1
    max_df : float or int, default=1.0
        Bounds on the document frequency of words in a learned vocabulary, see `Tokenizer`.
    shard_documents : int, default=20_000
        Number of documents in a shard.
    overwrite : bool, default=False
        Replace an existing corpus.
    progress : callable, optional
        As in `ingest`.

    Returns
    -------
    Corpus

    Raises
    ------
    InputError
        If a document is not such a pair; the message gives its position, from 0.
    UsageError
        If arguments are invalid, or the destination exists or is being written to.
    """
    if shard_documents < 1:
        raise UsageError(f"shard_documents: expected at least 1, got {shard_documents}")
    spec = Spec("documents", tokenizer=Tokenizer(min_df=min_df, max_df=max_df))
    words = None if vocabulary is None else check_names("vocabulary", vocabulary, len(vocabulary))
    names = None if label_names is None else check_names("label names", label_names, len(label_names))
    job = Job(
        [spec], lambda spec: open_documents(spec, documents), spec.path, shard_documents, words, names, None,
        True, True,
    )  # fmt: skip
    return job.run(
        CorpusWriter(path, overwrite=overwrite),
        {"format": "documents", "shard_documents": shard_documents},
        builtins.map,
        progress or (lambda stage, done, total: None),
        None,
        lambda: None,
    )


def given_names(
    what: str, given: str | os.PathLike[str] | Sequence[str] | None, with_spaces: bool = False
) -> list[str] | None:
    """Return names of a file, whose spaces may be part of them, or as given."""
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        return read_names(os.fspath(given), with_spaces=with_spaces)
    return check_names(what, given, len(given))


def tokenizer_of(like: Named | None) -> Tokenizer | None:
    """Return the tokenizer of a corpus or model; None if it has none."""
    settings: Any = None if like is None else like.settings.get("tokenizer")
    return Tokenizer.from_settings(settings) if settings else None


def stop_word_list(given: str | os.PathLike[str] | Sequence[str] | None) -> tuple[str, ...]:
    """Return stop words: of a built-in list (``"english"``), of a file, as given, or none."""
    if given == "english":
        return ENGLISH_STOP_WORDS
    return tuple(given_names("stop words", given) or ())


def _vocabulary_beside(path: str) -> str | None:
    """Return the file ``vocab.*``, compressed or not, beside a UCI file ``docword.*``, or None."""
    name = bare_name(path)
    if not name.startswith("docword."):
        return None
    folder = Path(path).parent
    wanted = f"vocab.{name.removeprefix('docword.')}"
    found = [str(entry) for entry in sorted(folder.iterdir()) if bare_name(str(entry)) == wanted]
    return found[0] if len(found) == 1 else None


def _fingerprint(values: Any) -> str:
    return hashlib.sha256(json.dumps([ENCODING_VERSION, values]).encode()).hexdigest()
