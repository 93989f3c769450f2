"""Options of ``ingest`` for rows and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distmom.corpus.sources.row_formats import ROW_FORMATS
from distmom.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--lengths", type=click.Path(), help="File (.npy) with the number of rows of each sequence or group."),
    click.option("--layer", default="rows", show_default=True, help="Name of the layer of rows or symbols."),
    click.option("--columns", help="Columns of a table to read, separated by commas. [default: all]"),
    click.option("--group-column", help="Column of a table with the group of each row; the rows of a group must be consecutive."),
    click.option(
        "--min-count", type=click.IntRange(min=1), default=1, show_default=True,
        help="Symbols of a text that occur less often are put into a class of rare symbols.",
    ),
    click.option(
        "--rare-suffix", type=click.IntRange(min=0), default=0, show_default=True,
        help="Number of letters at the end of a rare symbol that determine its class; 0 for a single class.",
    ),
    click.option(
        "--n-symbols", type=click.IntRange(min=1), help="Number of symbols of an array. [default: the largest + 1]"
    ),
    click.option("--shard-rows", type=click.IntRange(min=8), help="Largest number of rows per shard. [default: 32 MiB, at most 1048576]"),
)  # fmt: skip
#: parameters of the command that apply only to rows, and only to documents
_OF_ROWS = (
    "lengths",
    "n_symbols",
    "layer",
    "columns",
    "group_column",
    "min_count",
    "rare_suffix",
    "shard_rows",
)
_OF_DOCUMENTS = (
    "labels", "label_source", "zero_based", "text_field", "labels_field", "label_separator", "min_df", "max_df", "stop_words", "ngrams", "analyzer",
    "shard_docs",
)  # fmt: skip
#: parameters of documents that do not apply to their views
_NOT_OF_VIEWS = (
    "format_",
    "labels",
    "vocab",
    "label_source",
    "zero_based",
    "labels_field",
    "label_separator",
    "id_column",
    "ngrams",
    "analyzer",
)


def row_options(command: F) -> F:
    """Add the options for rows and sequences."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def row_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as arguments of `distmom.corpus.ingest_rows`."""
    columns = options.pop("columns")
    return {**options, "columns": tuple(name.strip() for name in columns.split(",")) if columns else ()}


def refuse_others(context: click.Context, *, format_: str | None = None, has_views: bool = False) -> None:
    """Raise UsageError for an option that was given but does not apply to the source.

    Parameters
    ----------
    context : click.Context
    format_ : str, optional
        The format; None, the default, if the name of the source does not indicate a format of rows.
    has_views : bool, default False
        Whether sentences are views of documents.
    """
    is_rows = format_ in ROW_FORMATS and not has_views
    reasons = dict.fromkeys(
        _OF_DOCUMENTS if is_rows else _OF_ROWS,
        f"is for documents only, and {format_} is a format of rows and sequences"
        if is_rows
        else "is for rows and sequences only",
    )
    if has_views:
        reasons |= dict.fromkeys(_NOT_OF_VIEWS, "cannot be combined with --views")
    elif format_ in ROW_FORMATS and "names" not in ROW_FORMATS[format_].options:
        reasons["vocab"] = f"does not apply to the format {format_}, which has its own symbols"
    for name, reason in reasons.items():
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            flag = "--" + name.rstrip("_").replace("_", "-")
            raise UsageError(f"{flag}: {reason}")
