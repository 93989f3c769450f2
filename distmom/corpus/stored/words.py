"""Reading a corpus of words and labels: its statistics and shards, with every byte checked before use.

The layout of the files is described in `distmom.corpus.stored.manifest`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from distmom.clock import spend
from distmom.corpus.block import Block
from distmom.corpus.files.decoding import decode_group, decode_matrix
from distmom.corpus.files.records import MAX_RECORD_BYTES
from distmom.corpus.files.storage import Storage, check_digest
from distmom.corpus.layers import Layer, word_layers
from distmom.corpus.stored.base import StoredCorpus, lines_of
from distmom.corpus.stored.manifest import STATISTICS, VALUE_TYPES, ShardInfo, parse_shard_record
from distmom.errors import StoreError

#: file of a shard with the ids of its documents, one per line
IDS = "ids.txt"


class Corpus(StoredCorpus):
    """A corpus of words and labels, on disk or in an object store; opened with `open_corpus`.

    Attributes
    ----------
    path : str
        Absolute path, or URL, of the corpus.
    digest : str
        Checksum of the manifest, which covers every byte of the corpus.
    shards : tuple of ShardInfo
        All shards, in order.
    n_documents, n_words, n_labels : int
        Number of documents, of distinct words (columns) and of distinct labels.
    values : {"counts", "weights"}
        Content of the words matrix: int32 counts or float32 weights.
    totals : dict of str to int
        Totals over all documents. ``sum_n``, ``sum_n2``, ``sum_n3`` and ``sum_n2m`` are the sums of n, n^2, n^3
        and n^2 m for documents with n distinct words and m labels. The others are the numbers of documents,
        words, labels, stored elements, empty documents and unlabelled documents.
    settings : dict
        Settings of the ingest: format, tokenizer, ...
    warnings : dict of str to int
        Number of repairs to the source, by kind.
    """

    def __repr__(self) -> str:
        if "_manifest" not in vars(self):
            # Logging the corpus on a worker must not read the manifest.
            return f"Corpus({self.path!r})"
        return (
            f"Corpus({self.path!r}, n_documents={self.n_documents}, n_words={self.n_words}, "
            f"n_labels={self.n_labels}, shards={len(self.shards)})"
        )

    @cached_property
    def shards(self) -> tuple[ShardInfo, ...]:
        """All shards, in order."""
        shards, first = [], 0
        for entry in self._manifest["shards"]:
            shards.append(ShardInfo(first=first, **entry))
            first += entry["n_documents"]
        return tuple(shards)

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return int(self._manifest["totals"]["n_documents"])

    @property
    def n_words(self) -> int:
        """Number of columns of the words matrix."""
        return int(self._manifest["totals"]["n_words"])

    @property
    def n_labels(self) -> int:
        """Number of columns of the labels matrix."""
        return int(self._manifest["totals"]["n_labels"])

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers ``words`` and ``labels``, both along units."""
        return word_layers(self)

    @property
    def values(self) -> str:
        """Content of the words matrix, ``counts`` or ``weights``."""
        return str(self._manifest["values"])

    @cached_property
    def vocabulary(self) -> list[str]:
        """Words in column order."""
        return self._lines("vocabulary.txt", self.n_words)

    @cached_property
    def label_names(self) -> list[str]:
        """Labels in column order."""
        return self._lines("labels.txt", self.n_labels)

    @property
    def document_frequency(self) -> np.ndarray:
        """Number of documents that contain each word, of shape (n_words,), int64."""
        return self._statistics["document_frequency"]

    @property
    def word_frequency(self) -> np.ndarray:
        """Sum of each word's values over all documents, of shape (n_words,), int64 or float64."""
        return self._statistics["word_frequency"]

    @property
    def label_frequency(self) -> np.ndarray:
        """Number of documents that carry each label, of shape (n_labels,), int64."""
        return self._statistics["label_frequency"]

    def read_shard(self, index: int) -> Block:
        """Read one shard and check it.

        Parameters
        ----------
        index : int
            Position in ``shards``.

        Returns
        -------
        Block

        Raises
        ------
        StoreError
            If a file of the shard is missing, differs from the one written, or is not a valid part of the corpus.
        """
        return read_block(self._storage, self.shards[index], (self.n_words, self.n_labels), self.values)

    def shard_files(self, index: int) -> tuple[bytes, dict[str, dict[str, Any]]]:
        """Return ``shard.json`` of a shard and the size and sha256 of its other files; StoreError if damaged."""
        return _read_record(self._storage, self.shards[index])

    @property
    def has_ids(self) -> bool:
        """Whether documents have ids (see `read_ids`)."""
        return bool(self._manifest.get("has_ids", False))

    def read_ids(self, index: int) -> list[str] | None:
        """Return the ids of the documents of one shard; None if there are none. StoreError if they are damaged."""
        if not self.has_ids:
            return None
        shard = self.shards[index]
        ids = read_ids(self._storage, shard)
        if ids is None:
            raise StoreError(f"{self.path}/shards/{shard.id}/{IDS}: expected ids, got no such file")
        return ids

    def verify(self) -> list[str]:
        """Read the whole corpus and return the problems found, one sentence per damaged file or shard."""
        problems = []
        checks: list[Any] = [
            lambda: self._lines("vocabulary.txt", self.n_words),
            lambda: self._lines("labels.txt", self.n_labels),
            lambda: self._read_statistics(),
        ]
        checks += [lambda index=i: self._checked_sums(index) for i in range(len(self.shards))]
        counted: dict[str, Any] = dict.fromkeys(STATISTICS, 0)
        for check in checks:
            try:
                sums = check()
            except StoreError as error:
                problems.append(str(error))
                continue
            if isinstance(sums, tuple):
                for name, value in zip(STATISTICS, sums, strict=True):
                    counted[name] = counted[name] + value
        if not problems and self.shards:
            problems += [
                f"{self.path}/statistics/{name}: does not agree with the shards"
                for name in STATISTICS
                if not np.allclose(self._statistics[name], counted[name], rtol=1e-6)
            ]
        return problems

    def _checked_sums(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        block = self.read_shard(index)
        self.read_ids(index)
        return (
            np.bincount(block.words.indices, minlength=self.n_words),
            np.bincount(block.words.indices, block.words.data, minlength=self.n_words),
            np.bincount(block.labels.indices, minlength=self.n_labels),
        )

    @cached_property
    def _statistics(self) -> dict[str, np.ndarray]:
        return self._read_statistics()

    def _read_statistics(self) -> dict[str, np.ndarray]:
        place = f"{self.path}/statistics"
        prefix = "statistics/"
        entries = {key: entry for key, entry in self._files.items() if key.startswith(prefix)}
        files = {key.removeprefix(prefix): value for key, value in self._storage.read_all(entries).items()}
        kinds, sizes = ("int64", "int64|float64", "int64"), (self.n_words, self.n_words, self.n_labels)
        names = dict(zip(STATISTICS, zip(kinds, sizes, strict=True), strict=True))
        arrays = decode_group(place, files, names)
        for array in arrays.values():
            array.flags.writeable = False
        return arrays


def read_block(storage: Storage, shard: ShardInfo, widths: tuple[int, int], values: str) -> Block:
    """Read and check one shard; see `Corpus.read_shard`.

    Parameters
    ----------
    storage : Storage
    shard : ShardInfo
    widths : (int, int)
        Number of words and of labels.
    values : {"counts", "weights"}
    """
    prefix = f"shards/{shard.id}"
    place = f"{storage.root}/{prefix}"
    with spend("read"):
        _, entries = _read_record(storage, shard)
        entries.pop(IDS, None)
        content = storage.read_all({f"{prefix}/{key}": entry for key, entry in entries.items()})
    with spend("decompress"):
        files = {key: content[f"{prefix}/{key}"] for key in entries}
        n = shard.n_documents
        words = decode_matrix(place, files, "words", (n, widths[0]), VALUE_TYPES[values], shard.nnz_words)
        labels = decode_matrix(place, files, "labels", (n, widths[1]), "uint8", shard.nnz_labels)
    return Block(words, labels, shard.first)


def read_ids(storage: Storage, shard: ShardInfo) -> list[str] | None:
    """Read and check the ids of the documents of one shard; None if it has documents without ids."""
    _, entries = _read_record(storage, shard)
    if IDS not in entries:
        return None if shard.n_documents else []
    key = f"shards/{shard.id}/{IDS}"
    content = storage.read_checked(key, entries[IDS]["size"], entries[IDS]["sha256"])
    return lines_of(f"{storage.root}/{key}", content, shard.n_documents)


def _read_record(storage: Storage, shard: ShardInfo) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """Read and check ``shard.json``, and return it with the entries of the shard's files."""
    key = f"shards/{shard.id}/shard.json"
    place = f"{storage.root}/{key}"
    record = storage.read_bytes(key, MAX_RECORD_BYTES)
    check_digest(place, record, shard.digest)
    return record, parse_shard_record(place, record, shard)
