"""Writing a corpus of words and labels: open, write each shard, finalise (see `distmom.corpus.stored.staging`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from distmom.corpus.block import label_matrix, word_matrix
from distmom.corpus.files.commit import (
    sync_path,
    sync_tree,
)
from distmom.corpus.files.encoding import encode_group
from distmom.corpus.names import check_names, number_lines
from distmom.corpus.open import open_words
from distmom.corpus.stored.manifest import CORPUS, STATISTICS, WORDS_VERSION
from distmom.corpus.stored.shard import ShardResult, count_totals, describe, write_files, write_shard
from distmom.corpus.stored.staging import StagedCorpus
from distmom.corpus.stored.words import Corpus
from distmom.errors import InputError, StoreError, UsageError


class CorpusWriter(StagedCorpus):
    """Write a corpus of words and labels shard by shard; a context manager (see `StagedCorpus`).

    Parameters
    ----------
    path, overwrite, fingerprint
        See `StagedCorpus`.

    Examples
    --------
    >>> with CorpusWriter("corpus") as writer:  # doctest: +SKIP
    ...     writer.write_shard(0, X, Y)
    ...     corpus = writer.finalise(vocabulary, label_names)
    """

    def __init__(self, path: Any, *, overwrite: bool = False, fingerprint: str = "") -> None:
        super().__init__(path, overwrite=overwrite, fingerprint=fingerprint)
        self._results: dict[int, ShardResult] = {}

    def write_shard(
        self, index: int, words: Any, labels: Any = None, ids: Sequence[str] | None = None
    ) -> ShardResult:
        """Write one shard; it may be written repeatedly with the same documents.

        Parameters
        ----------
        index : int
            Position of the shard, from 0.
        words : array_like or sparse of shape (n_documents, n_words)
        labels : array_like or sparse of shape (n_documents, n_labels), optional
        ids : sequence of str, optional
            Ids of the documents; none by default.
        """
        X = word_matrix(words)
        self.begin()
        result = write_shard(self.directory, index, X, label_matrix(labels, X.shape[0]), ids)
        self.add(result)
        return result

    def add(self, result: ShardResult) -> None:
        """Register a shard that `write_shard` has written in another process."""
        self._results[result.index] = result

    def finalise(
        self,
        vocabulary: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        warnings: Mapping[str, int] | None = None,
    ) -> Corpus:
        """Commit the corpus.

        Parameters
        ----------
        vocabulary, label_names : sequence of str, optional
            Names of the columns; by default their numbers.
        settings : mapping, optional
            Settings to store in the manifest, as JSON values; none by default.
        warnings : mapping of str to int, optional
            Number of repairs to the source, by kind; none by default.

        Returns
        -------
        Corpus

        Raises
        ------
        InputError
            If a name contains a control character or occurs twice, there are too many or too few names, or only
            some shards have ids.
        StoreError
            If a shard is missing, or shards differ in their number of columns or type of values.
        """
        self.check_begun()
        results = self._ordered(vocabulary, label_names)
        n_words, n_labels = results[0].shape if results else (len(vocabulary or ()), len(label_names or ()))
        values = results[0].values if results else "counts"
        totals: Counter[str] = Counter()
        sizes = dict(zip(STATISTICS, (n_words, n_words, n_labels), strict=True))
        statistics = {name: np.zeros(size, np.int64) for name, size in sizes.items()}
        if values == "weights":
            statistics["word_frequency"] = np.zeros(n_words, np.float64)
        for result in results:
            totals.update(result.totals)
            for array, (indices, sums) in zip(statistics.values(), result.statistics, strict=True):
                array[indices] += sums
        files = {f"statistics/{key}": content for key, content in encode_group(statistics).items()}
        files["vocabulary.txt"] = _name_lines("vocabulary", vocabulary, n_words)
        files["labels.txt"] = _name_lines("label names", label_names, n_labels)
        root = Path(self.directory)
        write_files(root, files)
        # Each shard was synced when it was committed.
        for key in ("vocabulary.txt", "labels.txt", "shards"):
            sync_path(root / key)
        sync_tree(root / "statistics")
        manifest: dict[str, Any] = {
            "totals": {**count_totals(), **totals, "n_words": n_words, "n_labels": n_labels},
            "values": values,
            "shards": [result.entry for result in results],
            "files": describe(files),
            "settings": dict(settings or {}),
            "warnings": {key: int(count) for key, count in sorted((warnings or {}).items()) if count},
            "written_with": {"zarr": zarr.__version__},
        }
        if any(result.has_ids for result in results):
            # The entry is absent without ids, as in corpora that were written before there were any.
            manifest["has_ids"] = True
        self.commit(CORPUS.dump(manifest, WORDS_VERSION), is_synced=True)
        return open_words(self.path)

    def _ordered(
        self, vocabulary: Sequence[str] | None, label_names: Sequence[str] | None
    ) -> list[ShardResult]:
        results = [self._results[index] for index in sorted(self._results)]
        for position, result in enumerate(results):
            if result.index != position:
                raise StoreError(f"{self.partial}: shard {position} of {len(results)} has not been written")
            if (result.shape, result.values) != (results[0].shape, results[0].values):
                raise StoreError(
                    f"{self.partial}: shard {position}: expected {results[0].shape} words and labels as "
                    f"{results[0].values}, got {result.shape} as {result.values}"
                )
            if result.has_ids != results[0].has_ids:
                raise InputError.at(str(self.path), None, "ids", "ids of all documents, or of none", "some")
        return results


def from_arrays(
    path: Any,
    X: Any,
    Y: Any = None,
    vocabulary: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
    shard_documents: int = 20_000,
    *,
    overwrite: bool = False,
) -> Corpus:
    """Write matrices as a corpus.

    Parameters
    ----------
    path : path-like
        Local directory of the corpus.
    X : array_like or sparse of shape (n_documents, n_words)
        Finite, non-negative counts or weights.
    Y : array_like or sparse of shape (n_documents, n_labels), optional
        Every nonzero entry is a label; no labels by default.
    vocabulary, label_names : sequence of str, optional
        Names of the columns; by default their numbers.
    shard_documents : int, default=20_000
        Number of documents in a shard.
    overwrite : bool, default=False
        Replace an existing corpus.

    Returns
    -------
    Corpus

    Raises
    ------
    InputError
        If a value is negative, not finite or too large, if X and Y differ in their number of rows, or if names
        are invalid.
    UsageError
        If ``shard_documents`` is below 1, or ``path`` exists and may not be replaced.
    """
    if shard_documents < 1:
        raise UsageError(f"shard_documents: expected at least 1, got {shard_documents}")
    words = word_matrix(X)
    labels = label_matrix(Y, words.shape[0])
    with CorpusWriter(path, overwrite=overwrite) as writer:
        check_names("vocabulary", vocabulary, words.shape[1])
        check_names("label names", label_names, labels.shape[1])
        for index, first in enumerate(range(0, words.shape[0], shard_documents)):
            rows = slice(first, first + shard_documents)
            writer.add(write_shard(writer.directory, index, words[rows], labels[rows]))
        names = (
            check_names("vocabulary", vocabulary, words.shape[1]),
            check_names("label names", label_names, labels.shape[1]),
        )
        return writer.finalise(*names, settings={"format": "arrays"})


def _name_lines(what: str, names: Sequence[str] | None, expected: int) -> bytes:
    if names is None:
        return number_lines(expected)
    return "\n".join([*check_names(what, names, expected), ""]).encode()
