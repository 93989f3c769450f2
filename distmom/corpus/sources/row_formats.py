"""Formats of rows and sequences, and the options that apply to each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distmom.corpus.sources.readers.arrays import open_npy, open_npz, open_zarr
from distmom.corpus.sources.readers.arrow import open_arrow, open_parquet
from distmom.corpus.sources.readers.rows import RowSource, RowSpec
from distmom.corpus.sources.readers.sequences import open_sequences, open_tagged
from distmom.corpus.sources.readers.source import bare_name
from distmom.corpus.sources.readers.tables import open_table
from distmom.errors import UsageError


@dataclass(frozen=True)
class RowFormat:
    """A format of rows.

    Attributes
    ----------
    description : str
    open : callable
        ``open(spec, map)`` returns a `RowSource`.
    suffixes : tuple of str, default ()
        Endings of names of files or directories that identify the format.
    options : tuple of str, default ()
        Arguments of `ingest_rows` that apply to this format, in addition to those that apply to all.
    """

    description: str
    open: Callable[[RowSpec, Any], RowSource]
    suffixes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


#: arguments of `distmom.corpus.ingest_rows` that go with arrays, tables and texts
OF_ARRAYS = ("lengths", "names", "n_symbols")
OF_TABLES = ("names", "columns", "group_column", "id_column")
OF_TEXTS = ("min_count", "rare_suffix")


#: formats of rows and sequences by name; those of documents are in `distmom.corpus.sources.formats`
ROW_FORMATS: dict[str, RowFormat] = {
    "npy": RowFormat("NumPy array of rows or symbols", open_npy, (".npy",), OF_ARRAYS),
    "rows-npz": RowFormat("NumPy archive of rows: values and lengths, or one array", open_npz, (), OF_ARRAYS),
    "zarr": RowFormat("Zarr array of rows or symbols", open_zarr, (".zarr",), OF_ARRAYS),
    "table": RowFormat("CSV table of numbers with a header row", open_table, (), OF_TABLES),
    "parquet": RowFormat("Parquet table of numbers", open_parquet, (".parquet", ".pq"), OF_TABLES),
    "arrow": RowFormat("Arrow IPC table of numbers", open_arrow, (".arrow", ".feather"), OF_TABLES),
    "sequences": RowFormat(
        "texts, one sequence of symbols per line", open_sequences, (".seq", ".seq.txt"), OF_TEXTS
    ),
    "tagged": RowFormat(
        "texts, one sequence of word/TAG per line", open_tagged, (".tagged", ".tagged.txt"), OF_TEXTS
    ),
}


def detect_row_format(path: str) -> str | None:
    """Return the format of rows that a name indicates; None if it indicates none."""
    name = bare_name(path.rstrip("/"))
    return next((key for key, known in ROW_FORMATS.items() if name.endswith(known.suffixes or ("\0",))), None)


def refuse_options(name: str, options: Sequence[str], **given: Any) -> None:
    """Raise UsageError for an argument that does not apply to a format, rather than ignore it."""
    for option, value in given.items():
        if value is not None and option not in options:
            raise UsageError(f"{option}: does not apply to {name}, which takes {', '.join(options)}")


def whole_number(name: str, value: Any, least: int) -> int | None:
    """Return an optional number as an int; UsageError if it is not whole or too small."""
    if value is None:
        return None
    try:
        whole = operator.index(value)
    except TypeError:
        raise UsageError(f"{name}: expected a whole number, got {value!r}") from None
    if whole < least:
        raise UsageError(f"{name}: expected at least {least}, got {whole}")
    return whole


def spec_like(spec: RowSpec, like: Any, options: Sequence[str]) -> RowSpec:
    """Return the specification with the symbols or columns of a corpus or model."""
    if spec.names:
        raise UsageError("names: expected none, as they are those of the model or corpus")
    known = tuple(like.vocabulary)
    if options == OF_TEXTS:
        own = dict(getattr(like, "settings", {}))
        return replace(spec, symbols=known, rare_suffix=int(own.get("rare_suffix", spec.rare_suffix)))
    if options == OF_TABLES:
        return replace(spec, columns=spec.columns or known)
    return replace(spec, names={spec.layer: known})
