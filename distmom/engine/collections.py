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

from distmom.corpus.ingest_rows import write_rows
from distmom.corpus.layer_write import LayerShard, LayerWriter
from distmom.corpus.layered import LayeredCorpus
from distmom.corpus.layers import Layer
from distmom.corpus.readers.rows import RowSource
from distmom.corpus.readers.sequences import Numbering, learned
from distmom.corpus.rows import checked_rows_of_layer
from distmom.errors import DistmomError, InputError, UsageError

#: partitions that are computed at a time, so that no more wait for their turn in memory
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
        Column of a DataFrame with the ids of rows.
    names : sequence of str, optional
        Names of the columns of an array, or of its symbols; by default their numbers.
    n_symbols : int, optional
        Number of symbols of an array; by default one more than the largest.
    min_count, rare_suffix : int
        Classes of rare symbols, as in `distmom.corpus.ingest_rows`; none by default.
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
        If a value is not finite or not of the right kind; the message has the partition and the row.
    UsageError
        If the collection is of another kind, or the destination exists or is being written to.
    """
    module = type(collection).__module__
    kind = next((kind for kind, own in _MODULES.items() if module.startswith(own)), "")
    if not kind:
        raise UsageError(
            f"collection: expected a Dask array, DataFrame or bag, got {module}.{type(collection).__name__}"
        )
    run = partial(_in_order, client)
    found: dict[str, Sequence[str]] = {} if names is None else {layer: list(names)}
    load: Callable[[Any, int], LayerShard]
    if kind == "array":
        if collection.ndim == 2:
            collection = collection.rechunk({1: -1})
        parts = list(collection.to_delayed().ravel())
        load = partial(_array_shard, layer, len(names) if names is not None else n_symbols)
    elif kind == "dataframe":
        used = list(columns) or [name for name in collection.columns if name != id_column]
        if missing := [
            c for c in (*used, *([id_column] if id_column else [])) if c not in collection.columns
        ]:
            raise UsageError(f"columns: expected some of {', '.join(collection.columns)}, got {missing[0]!r}")
        parts = collection.to_delayed()
        found = {layer: used}
        load = partial(_frame_shard, layer, used, id_column)
    else:
        parts = collection.to_delayed()
        counts: Counter[str] = Counter()
        for own in run([dask.delayed(_count)(part) for part in parts]):
            counts.update(own)
        symbols = learned(counts, min_count, rare_suffix) if counts else None
        found = {} if symbols is None else {layer: symbols}
        numbering = None if symbols is None else Numbering.of(symbols, rare_suffix)
        load = partial(_bag_shard, layer, numbering)

    def run_map(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        own = dask.delayed(partial(_write_partition, function, load))
        return run([own(index, part) for index, part in tasks])

    # The partition itself stands for its task: it is loaded where it is written.
    source = RowSource(lambda: parts, found)
    settings = {"format": f"dask {kind}", "min_count": min_count, "rare_suffix": rare_suffix}
    writer = LayerWriter(destination, overwrite=overwrite)
    return write_rows(writer, lambda: source, settings, run_map, lambda stage, done, total: None)


#: modules of the classes of Dask's collections; DataFrames have had two
_MODULES = {"array": ("dask.array",), "dataframe": ("dask.dataframe", "dask_expr"), "bag": ("dask.bag",)}


def _write_partition(
    function: Callable[[Any], Any], load: Callable[[Any, int], LayerShard], index: int, part: Any
) -> Any:
    try:
        return function((index, partial(load, part, index)))
    except DistmomError as error:
        # Raised when all partitions of its batch are done: what is removed then is no longer written to.
        return error


def _in_order(client: Client | None, tasks: Sequence[Any]) -> Iterator[Any]:
    """Compute delayed values, some at a time, and yield them in order."""
    for start in range(0, len(tasks), _AHEAD):
        some = tasks[start : start + _AHEAD]
        computed = (
            dask.compute(*some, scheduler="threads")
            if client is None
            else client.gather(client.compute(some))
        )
        for result in computed:
            if isinstance(result, DistmomError):
                raise result
            yield result


def _array_shard(layer: str, n_symbols: int | None, part: Any, index: int) -> LayerShard:
    rows, kind, width = checked_rows_of_layer(part, f"partition {index}", n_symbols)
    return LayerShard((Layer(layer, kind, "rows", width, str(rows.dtype)),), {layer: rows})


def _frame_shard(layer: str, columns: list[str], id_column: str | None, part: Any, index: int) -> LayerShard:
    name = f"partition {index}"
    for column in columns:
        if part[column].dtype.kind not in "iubf":
            raise InputError.at(name, None, f"column {column!r}", "numbers", str(part[column].dtype))
    rows, kind, width = checked_rows_of_layer(part[columns].to_numpy(), name)
    ids = () if id_column is None else tuple(map(str, part[id_column]))
    return LayerShard((Layer(layer, kind, "rows", width, str(rows.dtype)),), {layer: rows}, ids=ids)


def _symbols(item: Any) -> list[str] | None:
    """Return the symbols of a sequence; None for a matrix of steps."""
    if isinstance(item, str):
        return item.split()
    if isinstance(item, np.ndarray) and item.ndim == 2:
        return None
    return list(map(str, item))


def _count(part: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in part:
        counts.update(_symbols(item) or ())
    return counts


def _bag_shard(layer: str, numbering: Numbering | None, part: Any, index: int) -> LayerShard:
    name = f"partition {index}"
    steps: list[np.ndarray] = []
    for position, item in enumerate(part):
        symbols = _symbols(item)
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
        joined = np.concatenate(steps) if steps else np.zeros((0, 1))
    rows, kind, width = checked_rows_of_layer(
        joined, name, None if numbering is None else len(numbering.numbers)
    )
    return LayerShard((Layer(layer, kind, "rows", width, str(rows.dtype)),), {layer: rows}, starts)
