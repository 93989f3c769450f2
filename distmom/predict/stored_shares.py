"""Reading of the topic shares written by `transform_corpus`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distmom.corpus.files.records import read_file
from distmom.corpus.files.uploads import local_directory
from distmom.errors import StoreError, UsageError
from distmom.predict.output import output_kind, read_output

#: files of which the summary consists
_SUMMARY = ("shares.json", "topics.json", "labels.tsv")


@dataclass(frozen=True)
class LabelShares:
    """Mean topic shares of the documents with a label.

    Attributes
    ----------
    name : str
    n_documents : int
    shares : ndarray of shape (k,)
    """

    name: str
    n_documents: int
    shares: np.ndarray


@dataclass(frozen=True)
class StoredShares:
    """Summary of the topic shares of a corpus, without the shares of individual documents.

    Attributes
    ----------
    n_documents : int
    mean_shares : ndarray of shape (k,)
    correlation : ndarray of shape (k, k)
        Correlations between the shares of topics over documents.
    representatives : list of list of (int, float)
        Documents and shares for every topic, by decreasing share; documents are numbered from 0 in the order of
        the corpus.
    labels : list of LabelShares
        Empty if the corpus has no labels, or too many.
    """

    n_documents: int
    mean_shares: np.ndarray
    correlation: np.ndarray
    representatives: list[list[tuple[int, float]]]
    labels: list[LabelShares]


def read_shares(path: str | os.PathLike[str]) -> StoredShares:
    """Read the summary of a directory of topic shares.

    Parameters
    ----------
    path : path-like
        A directory written by `transform_corpus`, or its URL.

    Returns
    -------
    StoredShares

    Raises
    ------
    UsageError
        If the path is not such a directory.
    StoreError
        If a file in it is damaged.
    """
    with local_directory(path, "shares", only=_SUMMARY) as place:
        return _read_summary(place)


def _read_summary(place: Path) -> StoredShares:
    if output_kind(place) != "shares":
        raise UsageError(
            f"{place}: expected a directory written by 'distmom transform', got one without shares.json"
        )
    record = read_output(place, "shares")
    file, files, k = place / "topics.json", record["files"], record.get("n_topics")
    try:
        summary = json.loads(read_file(place, "topics.json", files["topics.json"]))
        stored = StoredShares(
            record["n_documents"],
            np.asarray(summary["mean_shares"], np.float64),
            np.asarray(summary["correlation"], np.float64),
            [[(int(e["document"]), float(e["share"])) for e in best] for best in summary["representatives"]],
            [],
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{file}: is not a complete summary of topic shares: {error!r}") from error
    shapes = (stored.mean_shares.shape, stored.correlation.shape, (len(stored.representatives),))
    if shapes != ((k,), (k, k), (k,)):
        raise StoreError(f"{file}: expected means, correlations and documents of {k} topics, got {shapes}")
    if "labels.tsv" in files:
        content = read_file(place, "labels.tsv", files["labels.tsv"])
        stored.labels.extend(_read_labels(place / "labels.tsv", content, len(stored.mean_shares)))
    return stored


def _read_labels(path: Path, content: bytes, k: int) -> list[LabelShares]:
    labels = []
    # Names may contain characters at which str.splitlines would split.
    lines = content.decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            name, count, *shares = line.rsplit("\t", k + 1)
            labels.append(LabelShares(name, int(count), np.array(shares, np.float64).reshape(k)))
        except ValueError as error:
            raise StoreError(
                f"{path}:{number}: expected a name, a number of documents and {k} shares: {error}"
            ) from error
    if lines[-1]:
        raise StoreError(f"{path}: expected complete lines, got a truncated last line")
    return labels
