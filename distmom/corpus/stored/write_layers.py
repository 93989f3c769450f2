"""Writing a corpus of layers: open, write each shard, finalise (see `distmom.corpus.stored.staging`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from scipy import sparse

from distmom.corpus.files.commit import sync_path, sync_tree
from distmom.corpus.files.encoding import encode_group, encode_layers
from distmom.corpus.files.records import dump_json
from distmom.corpus.files.storage import LocalStorage
from distmom.corpus.layers import Layer, check_layer_name
from distmom.corpus.names import check_names, is_id, number_lines
from distmom.corpus.open import open_layers
from distmom.corpus.stored.layered import LayeredCorpus, read_shard_record
from distmom.corpus.stored.manifest import CORPUS
from distmom.corpus.stored.shard import describe, put_shard, write_files
from distmom.corpus.stored.staging import StagedCorpus
from distmom.errors import InputError, StoreError, UsageError


@dataclass(frozen=True)
class LayerShard:
    """The content of one shard.

    Attributes
    ----------
    layers : tuple of Layer
        Layers of the shard; the first has the features. Widths of symbols may be smaller than those of the corpus.
    arrays : dict of str to ndarray or csr_array
        Arrays by name of the layer; those along rows begin with the context.
    starts : ndarray of shape (n_units + 1,), int64, or None
        As in `RowBlock`; None where every row is a unit.
    continued, continues : bool, default False
        Whether the first unit began in an earlier shard, and the last continues in the next.
    ids : tuple of str, default ()
        Ids of the units; empty for none.
    warnings : dict of str to int
        Number of repairs, by kind.
    """

    layers: tuple[Layer, ...]
    arrays: dict[str, Any]
    starts: np.ndarray | None = None
    continued: bool = False
    continues: bool = False
    ids: tuple[str, ...] = ()
    warnings: dict[str, int] = field(default_factory=dict)

    @property
    def context(self) -> int:
        """Number of rows of context."""
        return 0 if self.starts is None else int(self.starts[0])

    @property
    def n_units(self) -> int:
        """Number of units, or parts of units."""
        return self.n_rows if self.starts is None else len(self.starts) - 1

    @property
    def n_rows(self) -> int:
        """Number of rows, without context."""
        if self.starts is not None:
            return int(self.starts[-1] - self.starts[0])
        return int(next(self.arrays[layer.name].shape[0] for layer in self.layers))


@dataclass(frozen=True)
class LayerResult:
    """Result of writing one shard: its entry in the manifest and its contribution to the statistics.

    Attributes
    ----------
    index : int
    layers : tuple of Layer
    entry : dict
    rows_are_units, has_ids : bool
    sizes : tuple of (int, int)
        Rows of the first and of the last unit within the shard.
    largest : int
        Rows of the largest unit within the shard.
    statistics : dict of str to (ndarray, ndarray)
        Columns or symbols that occur in each layer that is not dense, and their numbers of entries.
    warnings : dict of str to int
    """

    index: int
    layers: tuple[Layer, ...]
    entry: dict[str, Any]
    rows_are_units: bool
    has_ids: bool
    sizes: tuple[int, int]
    largest: int
    statistics: dict[str, tuple[np.ndarray, np.ndarray]]
    warnings: dict[str, int]


def write_layer_shard(directory: str, index: int, shard: LayerShard) -> LayerResult:
    """Write one shard of a corpus that is being written; may run in any process.

    An existing shard is kept if it has the same content.

    Parameters
    ----------
    directory : str
        The corpus that is being written (`StagedCorpus.directory`).
    index : int
        Position of the shard.
    shard : LayerShard

    Raises
    ------
    InputError
        If layers have different numbers of rows or units, or ids are not text.
    """
    _check_lengths(index, shard)
    name = f"s{index:05d}"
    arrays = dict(shard.arrays)
    if shard.starts is not None:
        arrays["starts"] = np.asarray(shard.starts, np.int64)
    files = encode_layers(arrays)
    if shard.ids:
        files["ids.txt"] = "\n".join([*shard.ids, ""]).encode()
    record = {"n_units": shard.n_units, "n_rows": shard.n_rows, "files": describe(files)}
    content = dump_json(record)
    digest = hashlib.sha256(content).hexdigest()
    # A shard with other content, of an earlier attempt, is replaced as a damaged one is.
    is_whole = partial(_is_whole, directory, name, digest)
    if not is_whole():
        put_shard(directory, name, {**files, "shard.json": content}, is_whole)
    own = {layer.name: _own_rows(shard, layer) for layer in shard.layers}
    sizes = np.ones(shard.n_units, np.int64) if shard.starts is None else np.diff(shard.starts)
    entry = {
        "id": name, "n_units": shard.n_units, "n_rows": shard.n_rows, "context": shard.context,
        "continued": shard.continued, "continues": shard.continues, "digest": digest,
        "entries": {k: int(v.nnz) for k, v in shard.arrays.items() if sparse.issparse(v)},
    }  # fmt: skip
    return LayerResult(
        index, shard.layers, entry, shard.starts is None, bool(shard.ids),
        (int(sizes[0]), int(sizes[-1])) if len(sizes) else (0, 0), int(sizes.max(initial=0)),
        {
            layer.name: np.unique(_columns(own[layer.name]), return_counts=True)
            for layer in shard.layers if layer.kind != "dense"
        },
        shard.warnings,
    )  # fmt: skip


def _own_rows(shard: LayerShard, layer: Layer) -> Any:
    array = shard.arrays[layer.name]
    return array[shard.context :] if layer.along == "rows" else array


def _columns(array: Any) -> np.ndarray:
    return np.asarray(array.indices if sparse.issparse(array) else array)


def _check_lengths(index: int, shard: LayerShard) -> None:
    n_of = {"rows": shard.n_rows + shard.context, "units": shard.n_units}
    for layer in shard.layers:
        if (got := shard.arrays[layer.name].shape[0]) != n_of[layer.along]:
            what = f"number of {layer.along} of layer {layer.name} in shard {index}"
            raise InputError.at("layers", None, what, str(n_of[layer.along]), str(got))
    if shard.ids and len(shard.ids) != shard.n_units:
        raise InputError.at(
            "ids", None, f"number of ids in shard {index}", str(shard.n_units), str(len(shard.ids))
        )
    bad = next((text for text in shard.ids if not is_id(text)), None)
    if bad is not None:
        raise InputError.at("ids", None, "id", "text on one line without control characters", repr(bad))


def _is_whole(directory: str, name: str, digest: str) -> bool:
    storage = LocalStorage(directory)
    try:
        _, files = read_shard_record(storage, name, digest)
        storage.read_all({f"shards/{name}/{key}": entry for key, entry in files.items()})
    except StoreError:
        return False
    return True


class LayerWriter(StagedCorpus):
    """Write a corpus of layers shard by shard; a context manager (see `StagedCorpus`).

    Parameters
    ----------
    path, overwrite, fingerprint
        See `StagedCorpus`.
    """

    def __init__(self, path: Any, *, overwrite: bool = False, fingerprint: str = "") -> None:
        super().__init__(path, overwrite=overwrite, fingerprint=fingerprint)
        self._results: dict[int, LayerResult] = {}

    def write_shard(self, index: int, shard: LayerShard) -> LayerResult:
        """Write one shard, and register it; see `write_layer_shard`."""
        self.begin()
        result = write_layer_shard(self.directory, index, shard)
        self.add(result)
        return result

    def add(self, result: LayerResult) -> None:
        """Register a shard that `write_layer_shard` has written in another process."""
        self._results[result.index] = result

    def finalise(
        self,
        layers: Sequence[Layer],
        names: Mapping[str, Sequence[str]] | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        warnings: Mapping[str, int] | None = None,
    ) -> LayeredCorpus:
        """Commit the corpus.

        Parameters
        ----------
        layers : sequence of Layer
            Layers of all shards, with their widths: those of symbols may be larger than in any shard.
        names : mapping of str to sequence of str, optional
            Names of the columns or symbols of layers; their numbers by default.
        settings : mapping, optional
            Settings to store in the manifest, as JSON values; none by default.
        warnings : mapping of str to int, optional
            Number of repairs to the source, by kind; none by default.

        Raises
        ------
        InputError
            If there is no row, or a name contains a control character or occurs twice, or their number is wrong;
            or if shards have different layers, or only some have ids.
        UsageError
            If layers have the same name, or a name that files cannot have.
        StoreError
            If a shard is missing.
        """
        layers = tuple(layers)
        for position, layer in enumerate(layers):
            check_layer_name(layer.name)
            if layer.name in [other.name for other in layers[:position]]:
                raise UsageError(
                    f"layer: expected a name of its own for each layer, got {layer.name!r} twice"
                )
        self.check_begun()
        results = [self._results[index] for index in sorted(self._results)]
        layers = self._common_layers(results, layers)
        if not sum(result.entry["n_rows"] for result in results):
            raise InputError.at(str(self.path), None, "source", "at least one row", "none")
        names = dict(names or {})
        statistics = {
            layer.name: np.zeros(layer.width, np.int64) for layer in layers if layer.kind != "dense"
        }
        counts: dict[str, int] = dict(warnings or {})
        largest = unfinished = 0
        for result in results:
            for name, (columns, n_entries) in result.statistics.items():
                if len(columns) and columns[-1] >= len(statistics[name]):
                    what = f"symbols of layer {name} in shard {result.index}"
                    raise InputError.at(
                        "layers", None, what, f"below {len(statistics[name])}", str(columns[-1])
                    )
                statistics[name][columns] += n_entries
            for kind, count in result.warnings.items():
                counts[kind] = counts.get(kind, 0) + count
            unfinished = (unfinished if result.entry["continued"] else 0) + result.sizes[0]
            largest = max(largest, result.largest, unfinished)
            if result.entry["n_units"] > 1:
                unfinished = result.sizes[1]
        files = {f"statistics/{key}": content for key, content in encode_group(statistics).items()}
        for layer in layers:
            files[f"names/{layer.name}.txt"] = _name_lines(layer, names.get(layer.name))
        root = Path(self.directory)
        write_files(root, files)
        sync_path(root / "shards")
        for folder in ("statistics", "names"):
            sync_tree(root / folder)
        entries = [result.entry for result in results]
        manifest = {
            "layers": [layer.to_json() for layer in layers],
            "totals": {
                "n_units": sum(entry["n_units"] - entry["continued"] for entry in entries),
                "n_rows": sum(entry["n_rows"] for entry in entries),
                "largest": largest,
            },
            "rows_are_units": all(result.rows_are_units for result in results),
            "has_ids": any(result.has_ids for result in results),
            "shards": entries,
            "files": describe(files),
            "settings": dict(settings or {}),
            "warnings": {key: int(count) for key, count in sorted(counts.items()) if count},
            "written_with": {"zarr": zarr.__version__},
        }
        self.commit(CORPUS.dump(manifest), is_synced=True)
        return open_layers(self.path)

    def _common_layers(self, results: list[LayerResult], layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        def form(own: tuple[Layer, ...]) -> tuple[Layer, ...]:
            return tuple(replace(x, width=0) if x.kind == "symbols" else x for x in own)

        for position, result in enumerate(results):
            if result.index != position:
                raise StoreError(f"{self.partial}: shard {position} of {len(results)} has not been written")
            if form(result.layers) != form(layers):
                raise InputError.at(
                    "layers",
                    None,
                    f"layers of shard {position}",
                    _described(layers),
                    _described(result.layers),
                )
            if result.rows_are_units != results[0].rows_are_units:
                units = ["starts of units", "a unit per row"]
                expected = f"{units[results[0].rows_are_units]}, as in shard 0"
                raise InputError.at(
                    "layers", None, f"shard {position}", expected, units[result.rows_are_units]
                )
        # A shard without units has no ids.
        filled = [result for result in results if result.entry["n_units"]]
        bad = next((result for result in filled if result.has_ids != filled[0].has_ids), None)
        if bad is not None:
            has = ["no ids", "ids"]
            raise InputError.at("ids", None, f"shard {bad.index}", has[filled[0].has_ids], has[bad.has_ids])
        return layers


def _described(layers: Sequence[Layer]) -> str:
    return ", ".join(f"{layer.name} ({layer.width} {layer.kind}, {layer.dtype})" for layer in layers)


def _name_lines(layer: Layer, names: Sequence[str] | None) -> bytes:
    if names is None:
        return number_lines(layer.width)
    return "\n".join([*check_names(f"names of {layer.name}", names, layer.width), ""]).encode()
