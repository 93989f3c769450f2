"""Ingest of rows and sequences: from arrays, tables and texts to a corpus of layers, resumably."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from distmom.corpus.layers import CONTEXT_ROWS, Layer, check_layer_name
from distmom.corpus.names import check_names
from distmom.corpus.open import open_layers
from distmom.corpus.rows import as_array
from distmom.corpus.sources.columns import named
from distmom.corpus.sources.files import SourceFiles
from distmom.corpus.sources.formats import detect_format
from distmom.corpus.sources.ingest import stop_word_list
from distmom.corpus.sources.pipeline import Map, Progress
from distmom.corpus.sources.readers.arrays import open_array
from distmom.corpus.sources.readers.name_files import read_names
from distmom.corpus.sources.readers.rows import RowSource, RowSpec
from distmom.corpus.sources.readers.sentences import SentenceSpec, open_sentences
from distmom.corpus.sources.readers.source import check_file
from distmom.corpus.sources.row_formats import (
    OF_ARRAYS,
    OF_TEXTS,
    ROW_FORMATS,
    detect_row_format,
    refuse_options,
    spec_like,
    whole_number,
)
from distmom.corpus.sources.tokenize import Tokenizer, warn_of_lost_words
from distmom.corpus.stored.layered import LayeredCorpus
from distmom.corpus.stored.write_layers import LayerResult, LayerShard, LayerWriter, write_layer_shard
from distmom.errors import InputError, UsageError


def ingest_rows(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    format: str | None = None,
    lengths: Any = None,
    layer: str = "rows",
    names: str | os.PathLike[str] | Sequence[str] | None = None,
    n_symbols: int | None = None,
    columns: Sequence[str] = (),
    group_column: str | None = None,
    id_column: str | None = None,
    min_count: int = 1,
    rare_suffix: int = 0,
    like: Any = None,
    shard_rows: int | None = None,
    strict: bool = False,
    overwrite: bool = False,
    map: Map | None = None,
    progress: Progress | None = None,
) -> LayeredCorpus:
    """Convert rows or sequences to a corpus on disk.

    Parameters
    ----------
    source : path-like, array_like or sparse matrix
        A file or a Zarr array, or rows in memory: a matrix of numbers, or a vector of symbols.
    destination : path-like
        Directory of the corpus. Until the corpus is complete, only ``<destination>.partial`` exists.
    format : str, optional
        One of `ROW_FORMATS`; by default determined by the name of the source. Not for rows in memory.
    lengths : path-like or array_like, optional
        Number of rows of each unit (sequence, group), in order; an ``.npy`` file or an array. For arrays only; by
        default every row is a unit.
    layer : str, default "rows"
        Name of the layer; of texts, that of the symbols.
    names : path-like or sequence of str, optional
        Names of the columns or symbols of arrays, by default their numbers; or of the columns of tables, by
        default those of the header. Not for texts.
    n_symbols : int, optional
        Number of symbols of arrays; by default the number of ``names``, or one more than the largest symbol.
    columns : sequence of str, optional
        Columns of a table that are read; by default all that are not used otherwise.
    group_column, id_column : str, optional
        Columns of a table: the unit of each row, equal in consecutive rows, and the id of each unit.
    min_count : int, default 1
        Symbols of texts with fewer occurrences become the symbol ``<rare>``.
    rare_suffix : int, default 0
        Number of letters at the end of a rare symbol that determine its class ``<rare-SUFFIX>``, if the class has
        ``min_count`` occurrences; with 0, all rare symbols are in the class ``<rare>``.
    like : object, optional
        A corpus or fitted model that provides the symbols of texts, the names of the columns or symbols of arrays,
        or the columns of tables. By default they are those of the source.
    shard_rows : int, optional
        Largest number of rows of a shard, at least 8; by default as many as take about 32 MiB, at most 1,048,576.
        Longer units of arrays are cut.
    strict : bool, default False
        Refuse blank lines and the like, which are otherwise left out and counted in ``LayeredCorpus.warnings``.
    overwrite : bool, default False
        Replace an existing corpus, once the new one is complete.
    map : callable, optional
        ``map(function, iterable)`` that yields results in order. The built-in `map` by default.
    progress : callable, optional
        Called with the stage ("write", in rows), the amount done, and the total or None; none by default.

    Returns
    -------
    LayeredCorpus

    Raises
    ------
    InputError
        If the source is not valid; the message has file, and row or line. Nothing is left behind.
    UsageError
        If arguments are invalid, contradict each other or do not apply to the format, or the destination exists or
        is being written to.
    """
    is_path = isinstance(source, str | os.PathLike)
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else "array"
    name = format or (detect_row_format(path) if is_path else "array")
    if name is None or (is_path and name not in ROW_FORMATS):
        raise UsageError(
            f"{path}: format: expected one of {', '.join(ROW_FORMATS)}, got {name or 'another name'}"
        )
    if is_path:
        check_file(path, may_be_folder=True)
    if not is_path and format is not None:
        raise UsageError(f"format: expected none with rows in memory, got {format}")
    options = ROW_FORMATS[name].options if is_path else OF_ARRAYS
    refuse_options(
        name, options, lengths=lengths, names=names, n_symbols=n_symbols, columns=tuple(columns) or None,
        group_column=group_column, id_column=id_column, min_count=None if min_count == 1 else min_count,
        rare_suffix=rare_suffix or None,
    )  # fmt: skip
    check_layer_name(layer)
    known: list[str] | None = None
    if names is not None:
        known = read_names(os.fspath(names)) if isinstance(names, str | os.PathLike) else list(names)
        known = check_names("names", known, len(known))
    spec = RowSpec(
        path, layer, whole_number("shard_rows", shard_rows, CONTEXT_ROWS),
        os.fspath(lengths) if isinstance(lengths, os.PathLike) else lengths,
        {} if known is None else {layer: known}, whole_number("n_symbols", n_symbols, 1), tuple(columns),
        group_column, id_column, whole_number("min_count", min_count, 1) or 1,
        whole_number("rare_suffix", rare_suffix, 0) or 0, None, strict,
    )  # fmt: skip
    if like is not None:
        spec = spec_like(spec, named(like), options)
    if options == OF_ARRAYS and layer in spec.names:
        n_names = len(spec.names[layer])
        if spec.n_symbols not in (None, n_names):
            raise UsageError(f"n_symbols: expected {n_names}, the number of names, got {spec.n_symbols}")
        spec = replace(spec, n_symbols=n_names)
    settings: dict[str, Any] = {"format": name, "source": os.path.basename(path.rstrip("/"))}
    settings |= {"min_count": spec.min_count, "rare_suffix": spec.rare_suffix} if options == OF_TEXTS else {}
    run_map = builtins.map if map is None else map
    files = SourceFiles(
        [each for each in (path, lengths) if isinstance(each, str | os.PathLike)] if is_path else []
    )
    fingerprint = _fingerprint([files.state, _plain(spec)]) if is_path else ""
    writer = LayerWriter(destination, overwrite=overwrite, fingerprint=fingerprint)
    return write_rows(
        writer,
        lambda: ROW_FORMATS[name].open(spec, run_map) if is_path else open_array(spec, source),
        settings,
        run_map,
        progress or (lambda stage, done, total: None),
        files,
    )


def ingest_sentences(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    min_df: int = 2,
    max_df: float | int = 1.0,
    stop_words: str | os.PathLike[str] | Sequence[str] | None = None,
    text_field: str = "text",
    like: Any = None,
    shard_documents: int = 20_000,
    strict: bool = False,
    overwrite: bool = False,
    map: Map | None = None,
    progress: Progress | None = None,
) -> LayeredCorpus:
    """Convert texts to a corpus whose units are documents and whose rows are the word counts of their sentences.

    Parameters
    ----------
    source : path-like
        JSON objects (``.jsonl``, ``.ndjson``), lines ``labels<TAB>text`` (``.tsv``), or one text per line.
    destination : path-like
        Directory of the corpus.
    min_df : int or float, default 2
        Lower bound on the document frequency of words, see `Tokenizer`.
    max_df : int or float, default 1.0
        Upper bound on the document frequency of words, see `Tokenizer`.
    stop_words : {"english"}, path-like or sequence of str, optional
        Words to leave out, as in `ingest`.
    text_field : str, default "text"
        Field of JSON objects.
    like : object, optional
        A corpus or fitted model that provides the words; learned by default.
    shard_documents : int, default 20_000
        Largest number of documents of a shard.
    strict : bool, default False
        Refuse documents without a word, blank lines and the like, which are otherwise left out and counted in
        ``LayeredCorpus.warnings``.
    overwrite, map, progress
        As in `ingest_rows`.

    Raises
    ------
    InputError
        If the source is not valid; the message has file and line. Nothing is left behind.
    UsageError
        If arguments are invalid, or the destination exists or is being written to.
    """
    path = os.fspath(source)
    check_file(path)
    shard_documents = whole_number("shard_documents", shard_documents, 1) or 1
    if not isinstance(min_df, float):
        min_df = whole_number("min_df", min_df, 1) or 1
    try:
        found = detect_format(path)
    except UsageError:
        found = "text"
    if found not in ("jsonl", "tsv", "text", "lines"):
        raise UsageError(f"{path}: format: expected JSON objects, tsv, or one text per line, got {found}")
    tokenizer = Tokenizer(min_df, max_df, stop_word_list(stop_words))
    if like is None:
        warn_of_lost_words(tokenizer, ())
    words = None if like is None else tuple(named(like).vocabulary)
    spec = SentenceSpec(path, tokenizer, text_field, words, shard_documents, strict)
    files = SourceFiles([path])
    fingerprint = _fingerprint(
        [files.state, tokenizer.settings(), text_field, words and list(words), shard_documents]
    )
    run_map = builtins.map if map is None else map
    return write_rows(
        LayerWriter(destination, overwrite=overwrite, fingerprint=fingerprint),
        lambda: open_sentences(spec, run_map),
        {"format": "sentences of texts", "source": os.path.basename(path), "tokenizer": tokenizer.settings()},
        run_map,
        progress or (lambda stage, done, total: None),
        files,
    )


def write_rows(
    writer: LayerWriter,
    open_source: Callable[[], RowSource],
    settings: dict[str, Any],
    run_map: Map,
    progress: Progress,
    files: SourceFiles | None = None,
) -> LayeredCorpus:
    """Write all shards of a source and commit the corpus.

    Parameters
    ----------
    writer : LayerWriter
        A writer whose context has not been entered.
    open_source : callable
        Opens the source.
    settings : dict
        Settings to store in the manifest.
    run_map, progress
        See `ingest_rows`.
    files : SourceFiles, optional
        Files of the source, which must not change during ingest; none by default.
    """
    with writer:
        if writer.is_finished:
            return open_layers(writer.path)
        source = open_source()
        done = 0
        layers: tuple[Layer, ...] = ()
        tasks = enumerate(source.tasks())
        for result in run_map(partial(_write_task, writer.directory), tasks):
            writer.add(result)
            layers = _widest(layers, result)
            done += result.entry["n_rows"]
            progress("write", done, source.n_rows)
        if files is not None:
            files.check_unchanged()
        if not done:
            raise InputError.at(
                str(settings.get("source", "source")), None, "rows", "at least one row", "none"
            )
        names = {layer.name: source.names[layer.name] for layer in layers if layer.name in source.names}
        layers = tuple(
            replace(layer, width=len(names[layer.name]))
            if layer.kind == "symbols" and layer.name in names
            else layer
            for layer in layers
        )
        return writer.finalise(layers, names, settings=settings, warnings=source.warnings)


def _write_task(directory: str, task: tuple[int, Callable[[], LayerShard]]) -> LayerResult:
    index, load = task
    return write_layer_shard(directory, index, load())


def _widest(layers: tuple[Layer, ...], result: LayerResult) -> tuple[Layer, ...]:
    """Return the layers of the shards so far: symbols have the largest width, others must agree."""
    if not layers:
        return result.layers
    for old, new in zip(layers, result.layers, strict=True):
        if replace(old, width=0) != replace(new, width=0) or (
            old.kind != "symbols" and old.width != new.width
        ):
            what = f"columns of layer {new.name} in shard {result.index}"
            expected, got = (f"{x.width} {x.kind}, {x.dtype}" for x in (old, new))
            raise InputError.at("rows", None, what, expected, got)
    return tuple(
        replace(old, width=max(old.width, new.width)) for old, new in zip(layers, result.layers, strict=True)
    )


def _plain(spec: RowSpec) -> dict[str, Any]:
    values = dict(vars(spec))
    if isinstance(spec.lengths, np.ndarray) or hasattr(spec.lengths, "__len__"):
        given = spec.lengths
        is_path = isinstance(given, str)
        numbers = as_array(given, "lengths")
        content = f"{numbers.dtype.str}".encode() + numbers.tobytes()
        values["lengths"] = given if is_path else hashlib.sha256(content).hexdigest()
    values["names"] = {key: list(value) for key, value in spec.names.items()}
    return values


def _fingerprint(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
