"""The indexed documents of a model: found by their rows and labels, joined, removed, and transposed.

They are kept as the head ``neighbors`` keeps them: for every word the documents that contain it, with their tf-idf
values, and the labels of every document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from distmom.corpus.block import csr_from_parts
from distmom.engine import Csr, Engine, Term
from distmom.engine.stored.arrays import release_maps
from distmom.hashing import scramble_array
from distmom.models.multilabel.heads.columns import PIECE_ENTRIES
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead

#: largest number of slabs of words whose lists are transposed separately
MAX_SLABS = 24
#: bit that distinguishes a label from a word of the same number
_LABEL = np.uint64(1 << 63)


def document_keys(documents: NeighborsHead) -> np.ndarray:
    """Return a hash of the tf-idf row and the labels of every document, (n_documents,) uint64.

    It is a sum over the words and the labels, so neither their order nor the order of documents matters. Two
    different documents have the same hash with probability 2^-64.
    """
    lists, labels = documents.lists.opened(), documents.labels.opened()
    keys = np.zeros(len(documents.alive), np.uint64)
    for entries, words in _pieces(lists):
        bits = np.ascontiguousarray(lists.data[entries], np.float32).view(np.uint32)
        np.add.at(
            keys, np.asarray(lists.indices[entries]),
            scramble_array(words.astype(np.uint64) << np.uint64(32) | bits.astype(np.uint64)),
        )  # fmt: skip
    for entries, owners in _pieces(labels):
        np.add.at(keys, owners, scramble_array(np.asarray(labels.indices[entries], np.uint64) | _LABEL))
    release_maps()
    return keys


def find_keys(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the position of each wanted key among the keys, -1 for a missing key.

    A key that is wanted several times gets another position each time, the last one first, and -1 when there are
    no more.
    """
    order = len(keys) - 1 - np.argsort(keys[::-1], kind="stable")
    wanted_order = np.argsort(wanted, kind="stable")
    known, sought = keys[order], wanted[wanted_order]
    rank = np.arange(len(sought)) - np.searchsorted(sought, sought, side="left")
    at = np.searchsorted(known, sought, side="left") + rank
    found = at < len(known)
    found[found] = known[at[found]] == sought[found]
    positions = np.full(len(wanted), -1, np.int64)
    positions[wanted_order[found]] = order[at[found]]
    return positions


def join_documents(
    engine: Engine, parts: Sequence[tuple[NeighborsHead, np.ndarray]], n_labels: int
) -> NeighborsHead:
    """Join the documents of several indexes.

    Parameters
    ----------
    engine : Engine
    parts : sequence of (NeighborsHead, ndarray of bool)
        Indexes, and which of their documents are taken.
    n_labels : int

    Returns
    -------
    NeighborsHead
        All documents vote. The lists are stored arrays.
    """
    n_documents = sum(int(taken.sum()) for _, taken in parts)
    lists, labels, before = list[Csr](), list[csr_array](), 0
    for part, taken in parts:
        numbers = np.where(taken, before + np.cumsum(taken) - 1, -1)
        lists.append(_renumbered(engine, part.lists, numbers, n_documents))
        rows = part.labels.to_scipy()
        # An older index has fewer labels.
        rows = csr_from_parts(rows.data, rows.indices, rows.indptr, (rows.shape[0], n_labels))
        labels.append(rows[np.flatnonzero(taken)])
        before += int(taken.sum())
    joined = lists[0] if len(lists) == 1 else engine.maps.combine([Term(each) for each in lists])
    owners = Csr.of(csr_array(vstack(labels, format="csr")), np.uint8)
    return NeighborsHead(joined, owners, np.ones(n_documents, np.uint8), skipped=parts[0][0].skipped)


def _renumbered(engine: Engine, matrix: Csr, numbers: np.ndarray, n_columns: int) -> Csr:
    """Return a matrix with its columns renumbered, without columns of number -1; its arrays are stored."""
    own = matrix.opened()
    indptr = np.zeros(len(own.indptr), np.int64)
    n_entries, total = int(own.indptr[-1]), 0
    with (
        engine.directory.writer("int32", n_entries) as indices,
        engine.directory.writer("float32", n_entries) as data,
    ):
        for start in range(0, n_entries, PIECE_ENTRIES):
            entries = slice(start, min(start + PIECE_ENTRIES, n_entries))
            columns = numbers[own.indices[entries]]
            kept = columns >= 0
            before = total + np.concatenate([[0], np.cumsum(kept)])
            low, high = np.searchsorted(own.indptr, (entries.start, entries.stop))
            indptr[low:high] = before[own.indptr[low:high] - start]
            indices.append(columns[kept].astype(np.int32))
            data.append(np.asarray(own.data[entries])[kept])
            total = int(before[-1])
    indptr[np.searchsorted(own.indptr, n_entries) :] = total
    release_maps()
    return Csr(engine.put(indptr), indices.stored, data.stored, n_columns)


def transposed(engine: Engine, matrix: Csr) -> Csr:
    """Return the transpose of a matrix, computed slab by slab of its rows on all workers."""
    own = matrix.opened()
    stored = stored_matrix(engine.put, own, own.n_columns)
    n_slabs = max(1, min(MAX_SLABS, len(own.indptr) - 1))
    shape = (own.n_columns, len(own.indptr) - 1)
    (runs,) = engine.maps.map_runs(_transposed_slab, n_slabs, shape, 1, n_slabs, stored)
    return engine.maps.combine([Term(runs)])


def _transposed_slab(index: int, n_slabs: int, matrix: Csr) -> list[csr_array]:
    own = matrix.opened()
    n_rows, n_entries = len(own.indptr) - 1, int(own.indptr[-1])
    # Slabs of about the same number of entries.
    start, stop = (
        0
        if i == 0
        else n_rows
        if i == n_slabs
        else int(np.searchsorted(own.indptr, n_entries * i // n_slabs))
        for i in (index, index + 1)
    )
    stop = max(start, stop)
    indptr = np.array(own.indptr[start : stop + 1])
    entries = slice(int(indptr[0]), int(indptr[-1]))
    part = csr_from_parts(
        np.asarray(own.data[entries], np.float32), np.array(own.indices[entries]), indptr - indptr[0],
        (stop - start, own.n_columns),
    ).tocsc()  # fmt: skip
    shape = (own.n_columns, n_rows)
    return [csr_from_parts(part.data, part.indices.astype(np.int32) + np.int32(start), part.indptr, shape)]


def stored_matrix(put: Callable[[np.ndarray], Any], matrix: Csr, n_columns: int) -> Csr:
    """Store the arrays of a matrix, which may get more columns."""
    return Csr(put(matrix.indptr), put(matrix.indices), put(matrix.data), n_columns)


def with_columns(matrix: Csr, columns: np.ndarray, n_columns: int) -> Csr:
    """Return a matrix with its columns renumbered among more columns; rows may be unsorted."""
    if np.array_equal(columns, np.arange(len(columns))):
        return replace(matrix, n_columns=n_columns)
    own = matrix.opened()
    return Csr(own.indptr, columns[own.indices].astype(np.int32), own.data, n_columns)


def _pieces(matrix: Csr) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of the entries of a matrix, and the rows of these entries."""
    indptr = np.asarray(matrix.indptr)
    for start in range(0, int(indptr[-1]), PIECE_ENTRIES):
        entries = slice(start, min(start + PIECE_ENTRIES, int(indptr[-1])))
        low = int(np.searchsorted(indptr, entries.start, side="right")) - 1
        high = int(np.searchsorted(indptr, entries.stop))
        lengths = np.diff(np.clip(indptr[low : high + 1], entries.start, entries.stop))
        yield entries, np.repeat(np.arange(low, high), lengths)
