"""The kept sums of the documents of a corpus, by parts, in memory or memory-mapped.

The sums of many corpora together are many times as large as their total. Saved sums stay in their files, and are
added to the total one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distmom.engine import Selection, Sums
from distmom.engine.stored.arrays import release
from distmom.moments.documents.words import WordMomentsPass
from distmom.moments.weighting import MomentKind
from distmom.spectral.saved.layout import Array, Layout

#: sums beyond this size are saved as separate files that are memory-mapped; smaller sums would give too many files
MAPPED_BYTES = 1 << 18


@dataclass(frozen=True)
class Source:
    """The documents of one corpus, represented by their sums.

    Attributes
    ----------
    name : str
        Digest of the corpus.
    sign : int
        1, or -1 for documents that were subtracted.
    n_documents : int
    document_frequency, word_frequency : ndarray of shape (n_words,)
    parts : tuple of Sums
        Sums of `distmom.moments.documents.words.WordMomentsPass` for each part of the documents.
    """

    name: str
    sign: int
    n_documents: int
    document_frequency: np.ndarray
    word_frequency: np.ndarray
    parts: tuple[Sums, ...]


@dataclass(frozen=True)
class Totals:
    """Vocabulary and frequencies of documents that are not available; replaces a corpus where no pass is made."""

    vocabulary: list[str]
    settings: dict[str, Any]
    n_documents: int
    document_frequency: np.ndarray
    word_frequency: np.ndarray
    digest: str
    shards: tuple[Any, ...] = ()
    values: str = "counts"

    @property
    def n_words(self) -> int:
        """Number of words."""
        return len(self.vocabulary)


def part_selections(n_parts: int, seed: int) -> list[Selection | None]:
    """Return selections that cut the documents into ``n_parts`` disjoint parts."""
    if n_parts == 1:
        return [None]
    edges = [i / n_parts for i in range(n_parts + 1)]
    # The difference of two edges is exact if the larger is at most twice the smaller, or the smaller is zero.
    return [Selection(high - low, heldout=True, seed=seed, offset=low) for low, high in pairwise(edges)]


def signed_total(sources: Iterable[Source]) -> Sums:
    """Add all parts of some sources with their signs, in the given order.

    Only the total is held in memory: parts are added in place, and their mapped pages are released.

    Parameters
    ----------
    sources : iterable of Source
        Sources with at least one part in total.
    """
    signed = [(source.sign, part) for source in sources for part in source.parts]
    sign, first = signed[0]
    total = Sums({name: sign * np.asarray(value) for name, value in first.items()})
    _release(first)
    for sign, part in signed[1:]:
        add = np.add if sign > 0 else np.subtract
        for name, value in part.items():
            add(total[name], value, out=total[name])
        _release(part)
    return total


def _release(part: Sums) -> None:
    for value in part.values():
        release(value)


def pack_sources(sources: Sequence[Source], arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Add the arrays of sources to ``arrays``, and return their other fields as JSON values."""
    for i, source in enumerate(sources):
        arrays[f"sources/{i}/document_frequency"] = source.document_frequency
        arrays[f"sources/{i}/word_frequency"] = source.word_frequency
        for j, part in enumerate(source.parts):
            arrays |= {f"sources/{i}/{j}/{name}": np.asarray(value) for name, value in part.items()}
    return [
        {"name": s.name, "sign": s.sign, "n_documents": s.n_documents, "n_parts": len(s.parts)}
        for s in sources
    ]


def sources_layout(
    entries: Sequence[Mapping[str, Any]], kind: MomentKind, n_moment_words: int, rank: int, n_arrays: int
) -> Layout:
    """Return the layout of the arrays of `pack_sources`, given the shape of their basis.

    Raises
    ------
    ValueError
        If there are more parts than ``n_arrays``, the number of arrays of the model, or an entry is of a wrong
        type.
    """
    for entry in entries:
        if entry["sign"] not in (1, -1) or type(entry["n_documents"]) is not int or entry["n_documents"] < 0:
            raise ValueError(f"expected a sign of 1 or -1 and a number of documents, got {dict(entry)}")
    if (n_parts := sum(int(entry["n_parts"]) for entry in entries)) > n_arrays:
        raise ValueError(f"expected at most {n_arrays} parts of moments, the number of arrays, got {n_parts}")
    specs = WordMomentsPass(n_moment_words, kind=kind, rank=rank, mean=True, half=True).specs()
    sums = {name: Array(spec.shape, (np.dtype(spec.dtype).str,)) for name, spec in specs.items()}
    layout: dict[str, Array] = {}
    for i, entry in enumerate(entries):
        layout[f"sources/{i}/document_frequency"] = Array(("d",), ("<i8",), least=0.0)
        layout[f"sources/{i}/word_frequency"] = Array(("d",), ("<i8", "<f8"), least=0.0)
        for j in range(entry["n_parts"]):
            layout |= {f"sources/{i}/{j}/{name}": array for name, array in sums.items()}
    return layout


def unpack_sources(
    entries: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]
) -> tuple[Source, ...]:
    """Rebuild sources from what `pack_sources` gave; a KeyError if an array is missing."""
    places: dict[str, Sums] = {}
    for path, value in arrays.items():
        place, _, name = path.rpartition("/")
        places.setdefault(place, Sums())[name] = value
    return tuple(
        Source(
            entry["name"],
            entry["sign"],
            entry["n_documents"],
            places[f"sources/{i}"]["document_frequency"],
            places[f"sources/{i}"]["word_frequency"],
            tuple(places[f"sources/{i}/{j}"] for j in range(entry["n_parts"])),
        )
        for i, entry in enumerate(entries)
    )
