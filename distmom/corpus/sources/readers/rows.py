"""Data structures common to the readers of rows: their specification, their tasks, and the units of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmom.corpus.files.npy import check_npy_mark
from distmom.corpus.rows import starts_of
from distmom.corpus.stored.write_layers import LayerShard
from distmom.errors import InputError


@dataclass(frozen=True)
class RowSpec:
    """How rows are read.

    Attributes
    ----------
    path : str
        Path of the source, or the name of an array in memory for messages.
    layer : str
        Name of the layer.
    shard_rows : int or None
        Largest number of rows of a shard; None for about 32 MiB.
    lengths : path, array or None
        Number of rows of each unit; None where every row is a unit.
    names : dict of str to sequence of str
        Names of columns or symbols by layer; empty where they are numbers or the source has them.
    n_symbols : int or None
        Number of symbols; None for one more than the largest.
    columns : tuple of str
        Columns of a table; empty for all that are not used otherwise.
    group_column, id_column : str or None
        Columns of a table with the unit of every row, whose rows are consecutive, and with the ids of units.
    min_count : int
        Number of occurrences below which a symbol of a text is put into a class of rare symbols.
    rare_suffix : int
        Number of letters at the end of a rare symbol that determine its class; 0 for a single class.
    symbols : tuple of str or None
        Known symbols of a text; None to learn them.
    strict : bool
        Refuse defects that could be repaired.
    """

    path: str
    layer: str = "rows"
    shard_rows: int | None = None
    lengths: Any = None
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    n_symbols: int | None = None
    columns: tuple[str, ...] = ()
    group_column: str | None = None
    id_column: str | None = None
    min_count: int = 1
    rare_suffix: int = 0
    symbols: tuple[str, ...] | None = None
    strict: bool = False


@dataclass
class RowSource:
    """A source of rows.

    Attributes
    ----------
    tasks : callable
        Returns the tasks in order; each loads one shard, in any process.
    names : dict of str to sequence of str
        Names of columns or symbols by layer; numbers for other layers.
    n_rows : int or None
        Number of rows, where it is known.
    warnings : dict of str to int
        Number of repairs, by kind.
    """

    tasks: Callable[[], Iterable[Callable[[], LayerShard]]]
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    n_rows: int | None = None
    warnings: dict[str, int] = field(default_factory=dict)


def units_of(spec: RowSpec, n_rows: int) -> np.ndarray | None:
    """Return the starts of units from the lengths of a specification; None where every row is a unit."""
    if spec.lengths is None:
        return None
    if isinstance(spec.lengths, str | os.PathLike):
        path = os.fspath(spec.lengths)
        try:
            check_npy_mark(path)
            given = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path}: not an .npy file of lengths: {error}") from error
        return starts_of(given, n_rows, path)
    return starts_of(spec.lengths, n_rows)
