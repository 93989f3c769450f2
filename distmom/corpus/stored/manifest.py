"""The manifest of a corpus and the records of its shards: content, format and validation.

Layout of a corpus of words and labels, version 1::

    manifest.json               written last; the corpus exists once it is there
    vocabulary.txt labels.txt   one entry per line, in column order
    statistics/                 Zarr group: document_frequency, word_frequency, label_frequency
    shards/s00000/              Zarr group: words and labels, each a CSR matrix in AnnData's layout
    shards/s00000/ids.txt       ids of the documents, if they have any; then the manifest has the entry ``has_ids``
    shards/s00000/shard.json    counts of the shard, size and sha256 of each of its files

Layout of a corpus of other layers, version 2::

    manifest.json               layers, number of units and rows, shards
    names/LAYER.txt             names of the columns or symbols of a layer, one per line
    statistics/                 Zarr group: LAYER, the number of entries of each column or symbol
    shards/s00000/              Zarr group: a dense matrix, a vector of symbols or a CSR matrix for each layer, and
                                ``starts`` of the units unless every row is a unit; ``ids.txt`` if units have ids
    shards/s00000/shard.json    counts of the shard, size and sha256 of each of its files

The manifest holds the digests of the name files, the statistics and every ``shard.json``, and its own checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from distmom.corpus.files.records import RecordFormat, are_files, parse_json
from distmom.corpus.layers import AXES, KINDS
from distmom.errors import StoreError

CORPUS = RecordFormat("distmom-corpus", 2, "ingest it again", older=(1,))
#: version of a corpus of words and labels
WORDS_VERSION = 1
VALUE_TYPES = {"counts": "int32", "weights": "float32"}
TOTALS = (
    "n_documents",
    "n_words",
    "n_labels",
    "nnz_words",
    "nnz_labels",
    "n_empty_documents",
    "n_unlabelled",
    "sum_n",
    "sum_n2",
    "sum_n3",
    "sum_n2m",
)
STATISTICS = ("document_frequency", "word_frequency", "label_frequency")


@dataclass(frozen=True)
class ShardInfo:
    """The manifest's entry for one shard.

    Attributes
    ----------
    id : str
        Name of its directory.
    first : int
        Position of its first document in the corpus.
    n_documents, nnz_words, nnz_labels : int
        Number of rows, and of stored elements of the two matrices.
    digest : str
        sha256 of its ``shard.json``, which in turn holds the digests of all files of the shard.
    """

    id: str
    first: int
    n_documents: int
    nnz_words: int
    nnz_labels: int
    digest: str

    @property
    def n_rows(self) -> int:
        """Number of rows of its block."""
        return self.n_documents

    @property
    def n_entries(self) -> int:
        """Number of stored values of the words."""
        return self.nnz_words

    @property
    def n_targets(self) -> int:
        """Number of stored labels."""
        return self.nnz_labels

    @property
    def block_bytes(self) -> int:
        """Bytes of its block in memory, including the parts it is divided into."""
        return 3 * 12 * (self.nnz_words + self.nnz_labels)


def parse_manifest(place: str, content: bytes) -> tuple[dict[str, Any], str]:
    """Parse a manifest, validate it and return it with its checksum.

    Raises
    ------
    StoreError
        If it is not a manifest, is of a newer version, or differs in any byte from the one written.
    """
    manifest, checksum = CORPUS.parse(place, content)
    good = _are_words(manifest) if manifest["format_version"] == WORDS_VERSION else _are_layers(manifest)
    if not good:
        raise StoreError(f"{place}: an entry is missing or of the wrong type")
    return manifest, checksum


def _are_words(manifest: dict[str, Any]) -> bool:
    totals, shards = manifest.get("totals"), manifest.get("shards")
    return (
        isinstance(totals, dict)
        and set(totals) == set(TOTALS)
        and all(map(_is_count, totals.values()))
        and isinstance(shards, list)
        and all(map(_is_shard, shards))
        and sum(entry["n_documents"] for entry in shards) == totals["n_documents"]
        and manifest.get("values") in tuple(VALUE_TYPES)
        and type(manifest.get("has_ids", False)) is bool
        and _has_common(manifest)
        and {"vocabulary.txt", "labels.txt"} <= set(manifest["files"])
    )


def _has_common(manifest: dict[str, Any]) -> bool:
    return (
        isinstance(manifest.get("settings"), dict)
        and isinstance(manifest.get("warnings"), dict)
        and are_files(manifest.get("files"))
    )


def _are_layers(manifest: dict[str, Any]) -> bool:
    totals, shards, layers = manifest.get("totals"), manifest.get("shards"), manifest.get("layers")
    return (
        isinstance(totals, dict)
        and set(totals) == {"n_units", "n_rows", "largest"}
        and all(map(_is_count, totals.values()))
        and isinstance(layers, list)
        and bool(layers)
        and all(map(_is_layer, layers))
        and len({layer["name"] for layer in layers}) == len(layers)
        and type(manifest.get("rows_are_units")) is bool
        and type(manifest.get("has_ids")) is bool
        and isinstance(shards, list)
        and all(map(_is_row_shard, shards))
        and all(
            set(entry["entries"]) == {x["name"] for x in layers if x["kind"] == "csr"} for entry in shards
        )
        and sum(entry["n_rows"] for entry in shards) == totals["n_rows"]
        and sum(entry["n_units"] - entry["continued"] for entry in shards) == totals["n_units"]
        and all(a["continues"] == b["continued"] for a, b in pairwise(shards))
        and not (shards and (shards[0]["continued"] or shards[-1]["continues"]))
        and _has_common(manifest)
        and {f"names/{layer['name']}.txt" for layer in layers} <= set(manifest["files"])
    )


def _is_layer(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"name", "kind", "along", "width", "dtype"}
        and isinstance(entry["name"], str)
        and entry["name"].isidentifier()
        and entry["kind"] in KINDS
        and entry["along"] in AXES
        and _is_count(entry["width"])
        and entry["dtype"] in (("int32",) if entry["kind"] == "symbols" else ("float32", "float64"))
    )


def _is_row_shard(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry)
        == {"id", "n_units", "n_rows", "entries", "context", "continued", "continues", "digest"}
        and all(_is_count(entry[name]) for name in ("n_units", "n_rows", "context"))
        and all(type(entry[name]) is bool for name in ("continued", "continues"))
        and isinstance(entry["entries"], dict)
        and all(map(_is_count, entry["entries"].values()))
        and _is_shard_id(entry)
    )


def _is_shard_id(entry: dict[str, Any]) -> bool:
    return (
        isinstance(entry["digest"], str)
        and isinstance(entry["id"], str)
        and entry["id"][:1] == "s"
        and entry["id"][1:].isdecimal()
        and entry["id"].isascii()
    )


def parse_shard_record(place: str, content: bytes, shard: ShardInfo) -> dict[str, dict[str, Any]]:
    """Return size and sha256 of each file in a ``shard.json``; StoreError if it is not the record of ``shard``."""
    record = parse_json(place, content)
    entries: Any = record.get("files")
    counts = {name: record.get(name) for name in ("n_documents", "nnz_words", "nnz_labels")}
    if not are_files(entries) or any(counts[name] != getattr(shard, name) for name in counts):
        raise StoreError(f"{place}: expected the counts of {shard}, got {counts}")
    files: dict[str, dict[str, Any]] = entries
    return files


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_shard(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"id", "n_documents", "nnz_words", "nnz_labels", "digest"}
        and all(_is_count(entry[name]) for name in ("n_documents", "nnz_words", "nnz_labels"))
        and _is_shard_id(entry)
    )
