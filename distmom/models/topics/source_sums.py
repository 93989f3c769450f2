"""Kept moments as values: sums over documents, which are added, subtracted and cut into parts.

Sums in one basis, over the same words, are plain additive arrays. The sums of further documents, of another
site, or of documents to be forgotten are therefore computed without the rest, and adding them up in any way
gives the result of one pass over all documents. Sums are kept for several parts of the documents, drawn by a
hash of the positions of documents; the parts give the standard errors of topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.engine import Sums
from distmom.engine.passes import fingerprint
from distmom.errors import UsageError
from distmom.models.topics.base import TopicEstimator
from distmom.models.topics.sources import Source, Totals, signed_total
from distmom.spectral.steps.core import CoreSettings

#: least share of the mass that must remain when a part is left out
_LEAST_LEFT = 0.1
#: share of the mass by which rounding may make a remaining mass negative
_ROUNDING = 1e-9


class SourceAttributes:
    """The attributes of kept moments (see `SourceSums`)."""

    sources_: tuple[Source, ...]
    basis_: np.ndarray
    numbers_: np.ndarray


class SourceSums(SourceAttributes, TopicEstimator):
    """Base class of kept moments, with their arithmetic.

    Attributes
    ----------
    sources_ : tuple of Source
        Sums of the documents of each corpus.
    """

    if TYPE_CHECKING:

        @property
        def settings(self) -> CoreSettings: ...

    @property
    def n_documents_(self) -> int:  # type: ignore[override]
        """Number of documents of the sums."""
        return sum(source.sign * source.n_documents for source in self.sources_)

    @property
    def basis_digest(self) -> str:
        """Digest of the words and the basis; sums with equal digests can be added."""
        check_is_fitted(self, "sources_")
        return fingerprint((self.vocabulary_, self.settings.kind, self.numbers_, self.basis_))

    def __add__(self, other: Self) -> Self:
        """Return the sums over the documents of both; a UsageError if a corpus is in both or the bases differ."""
        self._check_basis(other)
        ours = {source.name: source for source in self.sources_}
        for source in other.sources_:
            here = ours.pop(source.name, None)
            if here is None:
                ours[source.name] = source
            elif here.sign == source.sign:
                what = "in both sums" if here.sign > 0 else "subtracted twice"
                raise UsageError(f"the documents of the corpus with digest {source.name[:12]} are {what}")
        return self._with(tuple(ours.values()))

    def __sub__(self, other: Self) -> Self:
        """Return the sums without the documents of the other; a UsageError if these are not in the sums."""
        found = self + other._with(tuple(replace(s, sign=-s.sign) for s in other.sources_))
        if found.n_documents_ < 0:
            raise UsageError(f"{-found.n_documents_} more documents are subtracted than the sums contain")
        found._check_frequencies()
        return found

    def _check_frequencies(self) -> None:
        """Raise a UsageError for impossible frequencies: documents were subtracted that were not in the sums."""
        n, (of_documents, of_words) = self.n_documents_, self._frequencies()
        wrong = (of_documents < 0) | (of_documents > n)
        if all(source.word_frequency.dtype.kind == "i" for source in self.sources_):
            wrong |= (of_words < of_documents) | ((of_documents == 0) & (of_words > 0))
        if wrong.any():
            word = int(np.argmax(wrong))
            raise UsageError(
                f"documents are subtracted that are not in the sums: {self.vocabulary_[word]!r} would remain in "
                f"{of_documents[word]} of {n} documents, {of_words[word]:g} times"
            )
        masses = [(s.sign, np.asarray(part["mass"])) for s in self.sources_ for part in s.parts]
        left = np.sum([sign * mass for sign, mass in masses], axis=0)
        added = np.sum([mass for sign, mass in masses if sign > 0], axis=0)
        if np.any(left < -_ROUNDING * added):
            raise UsageError(
                "documents are subtracted that are not in the sums: the remaining weights of positions, pairs and "
                f"triples would be {left.tolist()}"
            )

    def _with(self, sources: tuple[Source, ...]) -> Self:
        other = copy(self)
        other.sources_ = sources
        return other

    def _check_basis(self, other: Self) -> None:
        if self.basis_digest != other.basis_digest:
            raise UsageError(
                "sums in different bases cannot be added: make the sums of the second corpus in the basis of the "
                "first"
            )

    def total(self) -> Sums:
        """Return the sums over all documents; a UsageError if there are no documents."""
        if not self.sources_:
            raise UsageError("the sums contain no documents")
        return signed_total(self.sources_)

    def halves(self) -> tuple[Sums, Sums]:
        """Return the sums over two halves of the documents; a UsageError if they are in a single part."""
        found = []
        for first in (0, 1):
            of_half = tuple(replace(source, parts=source.parts[first::2]) for source in self.sources_)
            if not any(source.parts for source in of_half):
                raise UsageError(
                    "n_parts: expected moments in at least 2 parts, to estimate their noise, got 1"
                )
            found.append(signed_total(of_half))
        return found[0], found[1]

    def without_parts(self) -> Iterator[Sums]:
        """Yield the sums over all documents except one part of every added corpus, for each part.

        Parts without moments, or without which too little would remain, are skipped. The part of a subtracted
        document is not known, so all subtracted documents are left out every time: errors are then overestimated.
        """
        total = self.total()
        added = [source for source in self.sources_ if source.sign > 0]
        for i in range(max((len(source.parts) for source in added), default=0)):
            part = signed_total(replace(source, parts=source.parts[i : i + 1]) for source in added)
            mass = float(part["mass"][2])
            if 0.0 < mass < (1.0 - _LEAST_LEFT) * float(total["mass"][2]):
                for name, value in total.items():
                    # The remainder overwrites the part, so that memory holds two totals, not three.
                    np.subtract(value, part[name], out=part[name])
                yield part
            del part

    def totals(self) -> Totals:
        """Return the vocabulary and the frequencies of the documents."""
        check_is_fitted(self, "sources_")
        digest = fingerprint([(s.name, s.sign) for s in self.sources_])
        document_frequency, word_frequency = self._frequencies()
        return Totals(
            self.vocabulary_, self.settings_, self.n_documents_, document_frequency, word_frequency, digest
        )

    def _frequencies(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the document frequency and the total count of every word."""
        zero = np.zeros(self.n_features_in_, np.int64)
        of_documents = (s.sign * s.document_frequency for s in self.sources_)
        of_words = (s.sign * s.word_frequency for s in self.sources_)
        return np.asarray(sum(of_documents, zero)), np.asarray(sum(of_words, zero))
