"""Writing one shard, in any process, and its contribution to the statistics of the corpus."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.files.commit import put_if_absent, sync_path, sync_tree
from distmom.corpus.files.encoding import encode_matrices
from distmom.corpus.files.records import MAX_RECORD_BYTES, dump_json, parse_json
from distmom.corpus.files.storage import LocalStorage
from distmom.corpus.names import is_id
from distmom.corpus.stored.manifest import ShardInfo
from distmom.corpus.stored.words import IDS, read_block, read_ids
from distmom.errors import InputError, StoreError

#: with more columns per entry than this, entries are sorted rather than counted in an array of all columns
_WIDE = 16


@dataclass(frozen=True)
class ShardResult:
    """Result of writing one shard: its entry in the manifest and its contribution to the statistics.

    Attributes
    ----------
    index : int
        Position of the shard.
    shape : (int, int)
        Number of words and of labels.
    values : {"counts", "weights"}
    entry : dict
        Id, counts and digest of ``shard.json``.
    totals : dict of str to int
        Sums over the documents of the shard.
    statistics : tuple of (indices, values) pairs
        Document frequency and value sum of each word that occurs, and frequency of each label that occurs.
    has_ids : bool, default=False
        Whether the documents have ids.
    """

    index: int
    shape: tuple[int, int]
    values: str
    entry: dict[str, Any]
    totals: dict[str, int]
    statistics: tuple[tuple[np.ndarray, np.ndarray], ...]
    has_ids: bool = False


def write_shard(
    directory: str, index: int, words: csr_array, labels: csr_array, ids: Sequence[str] | None = None
) -> ShardResult:
    """Write one shard of a corpus that is being written; may run in any process.

    An existing shard is kept if it holds the same documents.

    Parameters
    ----------
    directory : str
        The corpus that is being written (`CorpusWriter.directory`).
    index : int
        Position of the shard.
    words, labels : csr_array
        As in a `Block`.
    ids : sequence of str, optional
        Ids of the documents; none by default.

    Raises
    ------
    InputError
        If the number of ids is wrong, or one is not text on one line.
    StoreError
        If the shard already exists with different documents.
    """
    if ids is not None:
        check_ids(index, ids, words.shape[0])
    name = f"s{index:05d}"
    values = "counts" if words.dtype.kind == "i" else "weights"
    record: dict[str, Any] = {
        "n_documents": int(words.shape[0]),
        "nnz_words": int(words.nnz),
        "nnz_labels": int(labels.nnz),
        "content": _content_digest(words, labels, ids),
    }
    widths = (words.shape[1], labels.shape[1])
    find_equal = partial(_digest_of_equal, Path(directory), name, record, widths, values)
    digest = find_equal()
    if digest is None:
        files = encode_matrices({"words": words, "labels": labels})
        if ids:
            files[IDS] = "\n".join([*ids, ""]).encode()
        record["files"] = describe(files)
        content = dump_json(record)
        put_shard(directory, name, {**files, "shard.json": content}, lambda: find_equal() is not None)
        digest = hashlib.sha256(content).hexdigest()
    entry = {"id": name, "digest": digest}
    entry |= {key: record[key] for key in ("n_documents", "nnz_words", "nnz_labels")}
    columns, counts, sums = column_sums(words)
    if values == "counts":
        # Sums of one shard's counts are exact in float64.
        sums = sums.astype(np.int64)
    return ShardResult(
        index=index,
        shape=(int(words.shape[1]), int(labels.shape[1])),
        values=values,
        entry=entry,
        totals=count_totals(words, labels),
        statistics=(
            (columns, counts),
            (columns, sums),
            np.unique(labels.indices, return_counts=True),
        ),
        has_ids=ids is not None,
    )


def put_shard(directory: str, name: str, files: Mapping[str, bytes], is_whole: Callable[[], bool]) -> None:
    """Write the files of a shard and put it in its place, unless an undamaged one is there.

    Parameters
    ----------
    directory : str
        The corpus that is being written.
    name : str
        Name of the shard.
    files : mapping of str to bytes
        All files of the shard.
    is_whole : callable
        Returns whether the shard that is there is undamaged, as one that another attempt at this task has written;
        a damaged one is replaced.
    """
    temporary = Path(directory) / "wip" / f"{name}.{uuid.uuid4().hex}"
    target = Path(directory) / "shards" / name
    try:
        # The directory above is missing where a task of an earlier writer was left on a cluster.
        temporary.mkdir()
        write_files(temporary, files)
        sync_tree(temporary)
        put_if_absent(temporary, target, lambda _: is_whole())
        sync_path(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_ids(index: int, ids: Sequence[str], n_documents: int) -> None:
    """Check the ids of a shard; InputError if their number is wrong, or one is not text on one line."""
    if len(ids) != n_documents:
        raise InputError.at("ids", None, f"number of ids in shard {index}", str(n_documents), str(len(ids)))
    if (bad := next((text for text in ids if not is_id(text)), None)) is not None:
        raise InputError.at("ids", None, "id", "text on one line without control characters", repr(bad))


def column_sums(matrix: csr_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nonempty columns, their numbers of entries and their sums."""
    if matrix.shape[1] > _WIDE * matrix.nnz:
        columns, places = np.unique(matrix.indices, return_inverse=True)
        n_entries = np.bincount(places, minlength=len(columns))
        return columns, n_entries.astype(np.int32), np.bincount(places, matrix.data, minlength=len(columns))
    n_entries = np.bincount(matrix.indices)
    columns = np.flatnonzero(n_entries)
    sums = np.bincount(matrix.indices, matrix.data)[columns]
    return columns.astype(np.int32), n_entries[columns].astype(np.int32), sums


def count_totals(words: csr_array | None = None, labels: csr_array | None = None) -> dict[str, int]:
    """Compute the totals kept in the manifest, as exact integers; all zero without arguments."""
    if words is None or labels is None:
        words, labels = csr_array((0, 0)), csr_array((0, 0))
    n = np.diff(words.indptr).astype(np.int64)
    m = np.diff(labels.indptr).astype(np.int64)
    distinct, documents = np.unique(n, return_counts=True)
    powers = [
        # The sum of n**3 over a shard of long documents may exceed int64.
        sum(int(size) ** power * int(count) for size, count in zip(distinct, documents, strict=True))
        for power in (1, 2, 3)
    ]
    return {
        "n_documents": len(n),
        "nnz_words": int(words.nnz),
        "nnz_labels": int(labels.nnz),
        "n_empty_documents": int(np.sum(n == 0)),
        "n_unlabelled": int(np.sum(m == 0)),
        "sum_n": powers[0],
        "sum_n2": powers[1],
        "sum_n3": powers[2],
        "sum_n2m": int(np.sum(n * n * m)),
    }


def describe(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Return size and sha256 of each file."""
    return {
        key: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for key, content in sorted(files.items())
    }


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a directory; they are durable once the directory is committed.

    Raises
    ------
    FileNotFoundError
        If the directory is not there, as it was removed meanwhile; it is not created again.
    """
    for key, content in files.items():
        # From the outermost one; the last is the directory itself.
        for folder in reversed(PurePath(key).parents[:-1]):
            (root / folder).mkdir(exist_ok=True)
        (root / key).write_bytes(content)


def _content_digest(words: csr_array, labels: csr_array, ids: Sequence[str] | None) -> str:
    digest = hashlib.sha256()
    for matrix in (words, labels):
        digest.update(f"{tuple(map(int, matrix.shape))}{matrix.dtype.str}".encode())
        digest.update(np.ascontiguousarray(matrix.data).data)
        digest.update(np.ascontiguousarray(matrix.indices, np.int32).data)
        digest.update(np.ascontiguousarray(matrix.indptr, np.int64).data)
    if ids is not None:
        digest.update("\n".join(ids).encode())
    return digest.hexdigest()


def _digest_of_equal(
    root: Path, name: str, record: Mapping[str, Any], widths: tuple[int, int], values: str
) -> str | None:
    """Return the digest of an existing shard with this content; None if there is no shard or it is damaged."""
    target = root / "shards" / name
    if not target.exists():
        return None
    storage = LocalStorage(str(root))
    try:
        content = storage.read_bytes(f"shards/{name}/shard.json", MAX_RECORD_BYTES)
        found = parse_json(f"{target}/shard.json", content)
        same = found.get("content") == record["content"]
        if same:
            digest = hashlib.sha256(content).hexdigest()
            counts = {key: record[key] for key in ("n_documents", "nnz_words", "nnz_labels")}
            shard = ShardInfo(name, 0, digest=digest, **counts)
            read_block(storage, shard, widths, values)
            read_ids(storage, shard)
            return digest
    except StoreError:
        # A damaged shard, as a power failure may leave on a disk that does not honour fsync, is written again.
        return None
    raise StoreError(
        f"{target}: expected content {record['content'][:12]}, got {str(found.get('content'))[:12]}: "
        "a different shard already exists"
    )
