"""Ingest of Dask collections: an array, a DataFrame or a bag becomes a corpus, one shard per partition."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import dask
import numpy as np
from distributed import Client

from distmom.corpus.layers import Layer, check_layer_name
from distmom.corpus.names import check_names
from distmom.corpus.rows import checked_rows_of_layer
from distmom.corpus.sources.ingest_rows import write_rows
from distmom.corpus.sources.readers.rows import RowSource, RowSpec
from distmom.corpus.sources.readers.sequences import Numbering, learned
from distmom.corpus.sources.readers.tables import position_of, used_columns
from distmom.corpus.sources.row_formats import refuse_options, whole_number
from distmom.corpus.stored.layered import LayeredCorpus
from distmom.corpus.stored.write_layers import LayerShard, LayerWriter
from distmom.engine.executors.cluster import OnCluster
from distmom.errors import DistmomError, InputError, UsageError

#: number of partitions that are computed at a time: computed partitions wait in memory to be written
_AHEAD = 32


def ingest_collection(
    collection: Any,
    destination: str | os.PathLike[str],
    *,
    layer: str = "rows",
    columns: Sequence[str] = (),
    id_column: str | None = None,
    names: Sequence[str] | None = None,
    n_symbols: int | None = None,
    min_count: int = 1,
    rare_suffix: int = 0,
    client: Client | None = None,
    overwrite: bool = False,
) -> LayeredCorpus:
    """Write a Dask collection as a corpus; partitions are loaded by the workers, one at a time.

    Parameters
    ----------
    collection : dask.array.Array, dask.dataframe.DataFrame or dask.bag.Bag
        Rows of numbers, or a vector of symbols; a table; or sequences. A sequence is a list of symbols, a text
        whose words are the symbols, or a matrix of dense steps.
    destination : path-like
        Directory of the corpus, which all workers must see.
    layer : str, default "rows"
        Name of the layer.
    columns : sequence of str, optional
        Columns of a DataFrame that are read; by default all except ``id_column``.
    id_column : str, optional
        Column of a DataFrame with the ids of rows; none by default.
    names : sequence of str, optional
        Names of the columns of an array, or of its symbols; by default their numbers.
    n_symbols : int, optional
        Number of symbols of an array; by default one more than the largest.
    min_count : int, default 1
    rare_suffix : int, default 0
        Classes of rare symbols of a bag, as in `distmom.corpus.ingest_rows`; none by default.
    client : distributed.Client, optional
        Runs the tasks and is left open. By default they run in threads of this process.
    overwrite : bool, default False
        Replace an existing corpus, once the new one is complete.

    Returns
    -------
    LayeredCorpus

    Raises
    ------
    InputError
        If a value is missing, not finite or not of the right kind; the message has the partition and the row.
    UsageError
        If the collection is of another kind, an argument is invalid or does not apply to it, or the destination
        exists or is being written to.
    ClusterError
        If the cluster is lost, has no workers, or runs other versions than this process.
    """
    executor = None if client is None else OnCluster(client)
    if executor is not None:
        executor.check()
    module = type(collection).__module__
    kind = next((kind for kind, own in _MODULES.items() if module.startswith(own)), "")
    if not kind:
        raise UsageError(
            f"collection: expected a Dask array, DataFrame or bag, got {module}.{type(collection).__name__}"
        )
    refuse_options(
        kind, _OPTIONS[kind], columns=tuple(columns) or None, id_column=id_column, names=names,
        n_symbols=n_symbols, min_count=None if min_count == 1 else min_count, rare_suffix=rare_suffix or None,
    )  # fmt: skip
    check_layer_name(layer)
    min_count = whole_number("min_count", min_count, 1) or 1
    rare_suffix = whole_number("rare_suffix", rare_suffix, 0) or 0
    n_symbols = whole_number("n_symbols", n_symbols, 1)
    run = partial(_in_order, executor)
    found: dict[str, Sequence[str]] = {}
    load: Callable[[Any, int], LayerShard]
    if kind == "array":
        if names is not None:
            found = {layer: check_names("names", list(names), len(names))}
            if n_symbols not in (None, len(names)):
                raise UsageError(f"n_symbols: expected {len(names)}, the number of names, got {n_symbols}")
            n_symbols = len(names)
        if collection.ndim == 2:
            # Dask represents an unknown number of columns by NaN.
            if names is not None and not np.isnan(collection.shape[1]):
                check_names("names", list(names), int(collection.shape[1]))
            collection = collection.rechunk({1: -1})
        parts = list(collection.to_delayed().ravel())
        load = partial(_array_shard, layer, n_symbols)
    elif kind == "dataframe":
        if collection.ndim != 2:
            raise UsageError("collection: expected a Dask array, DataFrame or bag, got a Series")
        header = [str(name) for name in collection.columns]
        used = used_columns(RowSpec("DataFrame", layer, columns=tuple(columns), id_column=id_column), header)
        positions = {name: header.index(name) for name in used}
        parts = collection.to_delayed()
        found = {layer: used}
        position = None if id_column is None else position_of("DataFrame", header, id_column)
        load = partial(_frame_shard, layer, positions, position)
    else:
        parts = collection.to_delayed()
        counts: Counter[str] = Counter()
        empty = np.zeros((0, 1))
        for own, matrix in run([dask.delayed(_count)(part, index) for index, part in enumerate(parts)]):
            counts.update(own)
            empty = empty if matrix is None else matrix
        symbols = learned(counts, min_count, rare_suffix) if counts else None
        found = {} if symbols is None else {layer: symbols}
        numbering = None if symbols is None else Numbering.of(symbols, rare_suffix)
        load = partial(_bag_shard, layer, numbering, empty)

    def run_map(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        own = dask.delayed(partial(_write_partition, function, load))
        return run([own(index, part) for index, part in tasks])

    # Tasks are the partitions themselves, so that a partition is loaded where it is written.
    source = RowSource(lambda: parts, found)
    settings = {"format": f"dask {kind}", "min_count": min_count, "rare_suffix": rare_suffix}
    writer = LayerWriter(destination, overwrite=overwrite)
    return write_rows(writer, lambda: source, settings, run_map, lambda stage, done, total: None)


#: modules of the classes of Dask's collections; DataFrames have had two
_MODULES = {"array": ("dask.array",), "dataframe": ("dask.dataframe", "dask_expr"), "bag": ("dask.bag",)}
#: arguments of `ingest_collection` that apply to one kind of collection
_OPTIONS = {
    "array": ("names", "n_symbols"),
    "dataframe": ("columns", "id_column"),
    "bag": ("min_count", "rare_suffix"),
}


def _write_partition(
    function: Callable[[Any], Any], load: Callable[[Any, int], LayerShard], index: int, part: Any
) -> Any:
    try:
        return function((index, partial(load, part, index)))
    except DistmomError as error:
        # Raised when all partitions of its batch are done: threads cannot be cancelled, and must not write to
        # files that are being removed.
        return error


def _in_order(executor: OnCluster | None, tasks: Sequence[Any]) -> Iterator[Any]:
    """Compute delayed values, some at a time, and yield them in order."""
    for start in range(0, len(tasks), _AHEAD):
        some = tasks[start : start + _AHEAD]
        computed = (
            dask.compute(*some, scheduler="threads") if executor is None else executor.compute(some, "ingest")
        )
        for result in computed:
            if isinstance(result, DistmomError):
                raise result
            yield result


def _array_shard(layer: str, n_symbols: int | None, part: Any, index: int) -> LayerShard:
    rows, kind, width = checked_rows_of_layer(part, f"partition {index}", n_symbols)
    return LayerShard((Layer(layer, kind, "rows", width, str(rows.dtype)),), {layer: rows})


def _frame_shard(
    layer: str, positions: dict[str, int], id_position: int | None, part: Any, index: int
) -> LayerShard:
    place = f"partition {index}"
    header = [str(name) for name in part.columns]
    columns = []
    for name, position in positions.items():
        if header[position : position + 1] != [name]:
            raise InputError.at(place, None, "columns", f"{name!r} as number {position}", ", ".join(header))
        column = part.iloc[:, position]
        if column.dtype.kind not in "iubf":
            raise InputError.at(place, None, f"column {name!r}", "numbers", str(column.dtype))
        _refuse_missing(place, name, column, "a finite number")
        # Types of pandas that allow missing values wrap a type of NumPy.
        columns.append(column.to_numpy(dtype=getattr(column.dtype, "numpy_dtype", None)))
    rows, kind, width = checked_rows_of_layer(np.stack(columns, axis=1), place)
    ids: tuple[str, ...] = ()
    if id_position is not None:
        column = part.iloc[:, id_position]
        _refuse_missing(place, str(column.name), column, "an id")
        ids = tuple(map(str, column))
    return LayerShard((Layer(layer, kind, "rows", width, str(rows.dtype)),), {layer: rows}, ids=ids)


def _refuse_missing(place: str, name: str, column: Any, expected: str) -> None:
    missing = np.flatnonzero(np.asarray(column.isna()))
    if len(missing):
        raise InputError.at(place, None, f"row {missing[0]}, column {name!r}", expected, "a missing value")


def _symbols(item: Any, place: str, position: int) -> list[str] | None:
    """Return the symbols of a sequence; None for a matrix of steps; InputError for another item."""
    if isinstance(item, str):
        return item.split()
    if isinstance(item, np.ndarray) and item.ndim == 2:
        return None
    is_list = isinstance(item, list | tuple) or (isinstance(item, np.ndarray) and item.ndim == 1)
    if not is_list or not all(isinstance(symbol, str | int | np.integer) for symbol in item):
        expected = "a text, a list of symbols or a matrix of steps"
        raise InputError.at(
            place, None, f"item {position}", expected, f"{type(item).__name__} {str(item)[:40]}"
        )
    return list(map(str, item))


def _count(part: Any, index: int) -> tuple[Counter[str], np.ndarray | None]:
    """Return the occurrences of symbols, and a matrix without steps if there are matrices."""
    counts: Counter[str] = Counter()
    matrix = None
    for position, item in enumerate(part):
        symbols = _symbols(item, f"partition {index}", position)
        if symbols is None:
            matrix = item[:0]
        else:
            counts.update(symbols)
    return counts, matrix


def _bag_shard(
    layer: str, numbering: Numbering | None, empty: np.ndarray, part: Any, index: int
) -> LayerShard:
    name = f"partition {index}"
    steps: list[np.ndarray] = []
    for position, item in enumerate(part):
        symbols = _symbols(item, name, position)
        if (symbols is None) != (numbering is None):
            expected = "a sequence of symbols" if numbering is not None else "a matrix of steps"
            raise InputError.at(name, None, f"item {position}", expected, type(item).__name__)
        own = (
            item
            if symbols is None or numbering is None
            else np.array([numbering.find(s) for s in symbols], int)
        )
        if not len(own):
            raise InputError.at(name, None, f"item {position}", "at least one step", "an empty sequence")
        steps.append(own)
    starts = np.concatenate([[0], np.cumsum([len(own) for own in steps])]).astype(np.int64)
    if numbering is not None:
        joined: Any = np.concatenate(steps) if steps else np.zeros(0, int)
    else:
        if len({own.shape[1] for own in steps}) > 1:
            widths = sorted({own.shape[1] for own in steps})
            raise InputError.at(name, None, "columns of steps", str(widths[0]), str(widths[-1]))
        joined = np.concatenate(steps) if steps else empty
    rows, kind, width = checked_rows_of_layer(
        joined, name, None if numbering is None else len(numbering.numbers)
    )
    return LayerShard((Layer(layer, kind, "rows", width, str(rows.dtype)),), {layer: rows}, starts)
