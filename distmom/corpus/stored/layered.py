"""Reading a corpus of layers along units or rows, with every byte checked before use.

The layout of the files is described in `distmom.corpus.stored.manifest`.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import sparse

from distmom.clock import spend
from distmom.corpus.block import RowBlock
from distmom.corpus.files.decoding import decode_array, decode_group, decode_matrix, files_below
from distmom.corpus.files.records import MAX_RECORD_BYTES, are_files, parse_json
from distmom.corpus.files.storage import Storage, check_digest
from distmom.corpus.layers import Layer, RowShard, row_bytes_of, select_layers
from distmom.corpus.stored.base import StoredCorpus, lines_of
from distmom.errors import StoreError


class LayeredCorpus(StoredCorpus):
    """A corpus of dense rows, symbols or sparse rows, on disk or in an object store; opened with `open_corpus`.

    Attributes
    ----------
    path : str
        Absolute path, or URL, of the corpus.
    digest : str
        Checksum of the manifest, which covers every byte of the corpus, and of the selection of layers.
    layers : tuple of Layer
        The layers that are read; the first has the features.
    shards : tuple of RowShard
        All shards, in order.
    n_documents, n_rows, n_words : int
        Number of units, of rows, and of columns or symbols of the first layer.
    largest : int
        Number of rows of the largest unit.
    settings : dict
        Settings of the ingest.
    warnings : dict of str to int
        Number of repairs to the source, by kind.
    """

    n_labels = 0

    def __init__(
        self, path: str, digest: str, manifest: dict[str, Any] | None = None, selected: tuple[str, ...] = ()
    ) -> None:
        self._manifest_digest, self._selected = digest, selected
        if selected:
            digest = hashlib.sha256(" ".join((digest, *selected)).encode()).hexdigest()
        super().__init__(path, digest, manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_selected, (self.path, self._manifest_digest, self._selected)

    def __repr__(self) -> str:
        if "_manifest" not in vars(self):
            # Logging the corpus on a worker must not read the manifest.
            return f"LayeredCorpus({self.path!r})"
        names = ", ".join(layer.name for layer in self.layers)
        return (
            f"LayeredCorpus({self.path!r}, n_documents={self.n_documents}, n_rows={self.n_rows}, "
            f"layers=({names}), shards={len(self.shards)})"
        )

    @property
    def _own_digest(self) -> str:
        return self._manifest_digest

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that are read; the first has the features."""
        layers = tuple(Layer(**entry) for entry in self._manifest["layers"])
        return select_layers(layers, self._selected) if self._selected else layers

    def select(self, *names: str) -> Self:
        """Return the corpus restricted to some layers, in the given order; a UsageError if one is missing."""
        select_layers(self.layers, names)
        return type(self)(self.path, self._manifest_digest, self._manifest, names)

    @cached_property
    def shards(self) -> tuple[RowShard, ...]:
        """All shards, in order."""
        main, shards, first, first_row = self.layers[0], [], 0, 0
        row_bytes = row_bytes_of(self.layers)
        n_sparse = [layer.name for layer in self.layers if layer.kind == "csr"]
        for entry in self._manifest["shards"]:
            first -= entry["continued"]
            n_values = sum(entry["entries"][name] for name in n_sparse)
            n_entries = entry["entries"][main.name] if main.kind == "csr" else entry["n_rows"]
            shards.append(
                RowShard(
                    entry["id"], first, entry["n_units"], f"{entry['digest']}:{self.digest}", first_row,
                    entry["n_rows"], n_entries * (main.width if main.kind == "dense" else 1),
                    # Files, values as stored and in memory (twice if units are left out), and a number per row.
                    4 * (entry["n_rows"] * (row_bytes + 8) + 12 * n_values),
                    entry["continued"], entry["continues"],
                )
            )  # fmt: skip
            first += entry["n_units"]
            first_row += entry["n_rows"]
        return tuple(shards)

    @property
    def n_documents(self) -> int:
        """Number of units."""
        return int(self._manifest["totals"]["n_units"])

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self._manifest["totals"]["n_rows"])

    @property
    def largest(self) -> int:
        """Number of rows of the largest unit."""
        return int(self._manifest["totals"]["largest"])

    @property
    def n_words(self) -> int:
        """Number of columns or symbols of the first layer."""
        return self.layers[0].width

    @property
    def has_ids(self) -> bool:
        """Whether units have ids (see `read_ids`)."""
        return bool(self._manifest["has_ids"])

    @cached_property
    def vocabulary(self) -> list[str]:
        """Names of the columns or symbols of the first layer."""
        return self.names(self.layers[0].name)

    @property
    def label_names(self) -> list[str]:
        """An empty list: there are no labels."""
        return []

    def names(self, layer: str) -> list[str]:
        """Return the names of the columns or symbols of a layer; UsageError if there is no such layer."""
        (found,) = select_layers(self.layers, (layer,))
        return self._lines(f"names/{layer}.txt", found.width)

    @property
    def document_frequency(self) -> np.ndarray:
        """Number of rows with a value of each column, or with each symbol, of the first layer, (n_words,)."""
        main = self.layers[0]
        if main.kind == "dense":
            return np.full(main.width, self.n_rows if main.along == "rows" else self.n_documents)
        return self._statistics[main.name]

    @property
    def label_frequency(self) -> np.ndarray:
        """An empty array: there are no labels."""
        return np.zeros(0, np.int64)

    def read_shard(self, index: int) -> RowBlock:
        """Read the selected layers of one shard and check them.

        Parameters
        ----------
        index : int
            Position in ``shards``.

        Raises
        ------
        StoreError
            If a file of the shard is missing, differs from the one written, or is not a valid part of the corpus.
        """
        entry, shard = self._manifest["shards"][index], self.shards[index]
        prefix = f"shards/{entry['id']}"
        place = f"{self.path}/{prefix}"
        with spend("read"):
            _, files = self.shard_files(index)
            wanted = ("zarr.json", "starts/", *(f"{layer.name}/" for layer in self.layers))
            files = {key: value for key, value in files.items() if key.startswith(wanted)}
            content = self._storage.read_all({f"{prefix}/{key}": value for key, value in files.items()})
        with spend("decompress"):
            parts = {key: content[f"{prefix}/{key}"] for key in files}
            starts = self._starts(place, parts, entry)
            n_of = {"rows": entry["n_rows"] + entry["context"], "units": entry["n_units"]}
            arrays = {
                layer.name: _decode_layer(place, parts, layer, n_of[layer.along], entry["entries"])
                for layer in self.layers
            }
        main = self.layers[0]
        along = {layer.name: layer.along for layer in self.layers[1:]}
        return RowBlock(
            arrays[main.name], starts, shard.first, None, shard.continued, shard.continues,
            {name: arrays[name] for name, axis in along.items() if axis == "rows"},
            {name: arrays[name] for name, axis in along.items() if axis == "units"},
        )  # fmt: skip

    def read_sizes(self, index: int) -> np.ndarray:
        """Return the number of rows of each unit, or part of a unit, of one shard, without reading the rows."""
        entry = self._manifest["shards"][index]
        prefix = f"shards/{entry['id']}"
        files = {key: value for key, value in self.shard_files(index)[1].items() if key.startswith("starts/")}
        content = self._storage.read_all({f"{prefix}/{key}": value for key, value in files.items()})
        parts = {key: content[f"{prefix}/{key}"] for key in files}
        return np.diff(self._starts(f"{self.path}/{prefix}", parts, entry))

    def read_ids(self, index: int) -> list[str] | None:
        """Return the ids of the units of one shard; None if units have no ids. StoreError if they are damaged."""
        if not self.has_ids:
            return None
        entry = self._manifest["shards"][index]
        key = f"shards/{entry['id']}/ids.txt"
        file = self.shard_files(index)[1].get("ids.txt")
        if file is None and not entry["n_units"]:
            return []
        if file is None:
            raise StoreError(f"{self.path}/{key}: expected ids, got no such file")
        content = self._storage.read_checked(key, file["size"], file["sha256"])
        return lines_of(f"{self.path}/{key}", content, entry["n_units"])

    @property
    def group_names(self) -> np.ndarray:
        """The ids of all units, or their numbers, of shape (n_documents,)."""
        if not self.has_ids:
            return np.arange(self.n_documents)
        found: list[str] = []
        for index, shard in enumerate(self.shards):
            # The first unit of a shard may have begun in an earlier one.
            found += (self.read_ids(index) or [])[shard.continued :]
        return np.array(found)

    def shard_files(self, index: int) -> tuple[bytes, dict[str, dict[str, Any]]]:
        """Return ``shard.json`` of a shard and the size and sha256 of its other files; StoreError if damaged."""
        entry = self._manifest["shards"][index]
        return read_shard_record(self._storage, entry["id"], entry["digest"])

    def verify(self) -> list[str]:
        """Read all layers and return the problems found, one sentence per damaged file or shard."""
        whole = self if not self._selected else type(self)(self.path, self._manifest_digest, self._manifest)
        return whole._problems()

    def _problems(self) -> list[str]:
        problems: list[str] = []
        counted = {
            layer.name: np.zeros(layer.width, np.int64) for layer in self.layers if layer.kind != "dense"
        }

        def count(index: int) -> None:
            block = self.read_shard(index).with_context(0)
            arrays = {self.layers[0].name: block.rows, **block.others, **block.of_units}
            for name, total in counted.items():
                values = arrays[name].indices if sparse.issparse(arrays[name]) else arrays[name]
                total += np.bincount(values, minlength=len(total))
            self.read_ids(index)

        checks: list[Any] = [lambda layer=layer: self.names(layer.name) for layer in self.layers]
        checks += [lambda: self._statistics, *(lambda i=i: count(i) for i in range(len(self.shards)))]
        for check in checks:
            try:
                check()
            except StoreError as error:
                problems.append(str(error))
        if not problems:
            problems = [
                f"{self.path}/statistics/{name}: does not agree with the shards"
                for name, total in counted.items()
                if not np.array_equal(total, self._statistics[name])
            ]
        return problems

    @cached_property
    def _statistics(self) -> dict[str, np.ndarray]:
        prefix = "statistics/"
        entries = {key: entry for key, entry in self._files.items() if key.startswith(prefix)}
        files = {key.removeprefix(prefix): value for key, value in self._storage.read_all(entries).items()}
        layers = [Layer(**entry) for entry in self._manifest["layers"]]
        sizes = {layer.name: ("int64", layer.width) for layer in layers if layer.kind != "dense"}
        return decode_group(f"{self.path}/statistics", files, sizes)

    def _starts(self, place: str, files: dict[str, bytes], entry: dict[str, Any]) -> np.ndarray:
        n_rows, context, n_units = entry["n_rows"], entry["context"], entry["n_units"]
        if self._manifest["rows_are_units"]:
            return np.arange(n_rows + 1, dtype=np.int64)
        starts = decode_array(f"{place}/starts", files_below(files, "starts"), "int64", (n_units + 1,))
        if starts[0] != context or starts[-1] != context + n_rows or np.any(np.diff(starts) < 1):
            raise StoreError(
                f"{place}/starts: expected increasing starts from {context} to {context + n_rows}, got "
                f"{starts[0]} to {starts[-1]}"
            )
        return starts


def read_shard_record(storage: Storage, shard: str, digest: str) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Read and check ``shard.json``, and return it with the entries of the other files; StoreError if damaged."""
    key = f"shards/{shard}/shard.json"
    place = f"{storage.root}/{key}"
    record = storage.read_bytes(key, MAX_RECORD_BYTES)
    check_digest(place, record, digest)
    files = parse_json(place, record).get("files")
    if not are_files(files):
        raise StoreError(f"{place}: expected size and digest of every file")
    return record, dict(files)  # type: ignore[arg-type]


def _decode_layer(place: str, files: dict[str, bytes], layer: Layer, n: int, entries: dict[str, int]) -> Any:
    if layer.kind == "csr":
        n_entries = entries.get(layer.name)
        matrix = decode_matrix(
            place, files, layer.name, (n, layer.width), layer.dtype, n_entries, is_signed=True
        )
        return matrix.astype(np.float64)
    shape = (n,) if layer.kind == "symbols" else (n, layer.width)
    array = decode_array(f"{place}/{layer.name}", files_below(files, layer.name), layer.dtype, shape)
    if layer.kind == "symbols":
        if n and not (array.min() >= 0 and array.max() < layer.width):
            raise StoreError(
                f"{place}/{layer.name}: expected symbols from 0 to {layer.width - 1}, got {array.min()} to "
                f"{array.max()}"
            )
        return array
    wide = np.asarray(array, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        # A sum needs no temporary array; it may overflow for finite values, which are then checked one by one.
        total = wide.sum()
    if not np.isfinite(total) and not np.isfinite(wide).all():
        raise StoreError(f"{place}/{layer.name}: expected finite values")
    return wide


def _reopen_selected(path: str, digest: str, selected: tuple[str, ...]) -> LayeredCorpus:
    return LayeredCorpus(path, digest, None, selected)
