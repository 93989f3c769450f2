"""The manifest of a corpus and the records of its shards: what they hold, how they are written, and their check.

Layout of a corpus::

    manifest.json               written last; its presence makes the corpus
    vocabulary.txt labels.txt   one entry a line, in column order
    statistics/                 Zarr group: document_frequency, word_frequency, label_frequency
    shards/s00000/              Zarr group: words and labels, each a CSR matrix as AnnData writes it
    shards/s00000/shard.json    counts of the shard, size and sha256 of each of its files

The manifest holds the digests of the first three and of every ``shard.json``, and a checksum of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distmom.errors import StoreError

FORMAT = "distmom-corpus"
FORMAT_VERSION = 1
#: a larger manifest or shard.json is not read
MAX_RECORD_BYTES = 256 << 20
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
    """What the manifest says of one shard.

    Attributes
    ----------
    id : str
        Name of its directory.
    first : int
        Position in the corpus of its first document.
    n_documents, nnz_words, nnz_labels : int
        Rows, and stored elements of the two matrices.
    digest : str
        sha256 of its ``shard.json``, and through that of all its files.
    """

    id: str
    first: int
    n_documents: int
    nnz_words: int
    nnz_labels: int
    digest: str

    @property
    def n_rows(self) -> int:
        """Rows of its block."""
        return self.n_documents

    @property
    def block_bytes(self) -> int:
        """Bytes of its block in memory, and of the parts that it is cut into."""
        return 3 * 12 * (self.nnz_words + self.nnz_labels)


def dump_record(content: Mapping[str, Any]) -> bytes:
    """Return the one form in which records are written as JSON."""
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def parse_record(place: str, content: bytes) -> dict[str, Any]:
    """Parse a JSON object, or raise StoreError."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{place}: is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise StoreError(f"{place}: expected a JSON object, got {type(record).__name__}")
    return record


def dump_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest, with its checksum."""
    checksum = hashlib.sha256(dump_record(manifest)).hexdigest()
    return dump_record({**manifest, "checksum": checksum})


def parse_manifest(place: str, content: bytes) -> tuple[dict[str, Any], str]:
    """Parse a manifest, check all of it and return it with its checksum.

    Raises
    ------
    StoreError
        If it is not a manifest, of a newer version, or not byte for byte what was written.
    """
    manifest = parse_record(place, content)
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{place}: format: expected {FORMAT!r}, got {manifest.get('format')!r}")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{place}: format_version: expected {FORMAT_VERSION}, got {version!r}: written by a newer distmom"
        )
    checksum = manifest.pop("checksum", None)
    if dump_manifest(manifest) != content or not isinstance(checksum, str):
        raise StoreError(f"{place}: checksum: expected {checksum!r}, got another; the file was altered")
    totals, shards = manifest.get("totals"), manifest.get("shards")
    good = (
        isinstance(totals, dict)
        and set(totals) == set(TOTALS)
        and all(map(_is_count, totals.values()))
        and isinstance(shards, list)
        and all(map(_is_shard, shards))
        and sum(entry["n_documents"] for entry in shards) == totals["n_documents"]
        and manifest.get("values") in VALUE_TYPES
        and isinstance(manifest.get("settings"), dict)
        and isinstance(manifest.get("warnings"), dict)
        and _are_files(manifest.get("files"))
        and {"vocabulary.txt", "labels.txt"} <= set(manifest["files"])
    )
    if not good:
        raise StoreError(f"{place}: an entry is missing or of the wrong type")
    return manifest, checksum


def parse_shard_record(place: str, content: bytes, shard: ShardInfo) -> dict[str, dict[str, Any]]:
    """Parse a ``shard.json`` and return size and sha256 of its files; StoreError if it is of another shard."""
    record = parse_record(place, content)
    entries: Any = record.get("files")
    counts = {name: record.get(name) for name in ("n_documents", "nnz_words", "nnz_labels")}
    if not _are_files(entries) or any(counts[name] != getattr(shard, name) for name in counts):
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
        and isinstance(entry["digest"], str)
        and isinstance(entry["id"], str)
        and entry["id"][:1] == "s"
        and entry["id"][1:].isdecimal()
        and entry["id"].isascii()
    )


def _are_files(files: Any) -> bool:
    """Whether these are sizes and digests of files that all lie below the directory they are named in."""
    return isinstance(files, dict) and all(
        isinstance(entry, dict)
        and _is_count(entry.get("size"))
        and isinstance(entry.get("sha256"), str)
        and not key.startswith("/")
        and ".." not in key.split("/")
        for key, entry in files.items()
    )
