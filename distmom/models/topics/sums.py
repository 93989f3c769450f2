"""Kept moments as a value: sums over documents, which are added, subtracted and cut into parts.

Sums in one basis, over the same words, are plain additive arrays. The sums of further documents, of another
site, or of documents to be forgotten are therefore computed without the rest, and adding them up in any way
gives the result of one pass over all documents. Sums are kept for several parts of the documents, drawn by a
hash of the positions of documents; the parts give the standard errors of topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.engine import Engine, PassResult, StoredArray, StoredColumns, Sums
from distmom.engine.passes import fingerprint
from distmom.errors import UsageError
from distmom.models.topics.base import TopicEstimator
from distmom.models.topics.committed import moment_words
from distmom.models.topics.sources import Source, Totals, part_selections, signed_total
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.components import Words, fit_basis, moment_passes
from distmom.spectral.steps.core import CoreSettings
from distmom.spectral.steps.recovery import column_edges, to_columns

#: least share of the mass that must remain when a part is left out
_LEAST_LEFT = 0.1
#: share of the mass by which rounding may make a remaining mass negative
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MomentSums:
    """Sums of the moments of documents in one basis.

    Attributes
    ----------
    basis : ndarray of shape (n_moment_words, r)
        Q, times the scale of the words.
    numbers : ndarray of shape (n_words,), int32
        Numbers of the words among those of the moments, -1 for other words.
    scale : ndarray of shape (n_moment_words, 1) or None
        Scale of the words; None for 1.
    noise : float
        Level of noise with the documents from which the basis was found.
    n_basis_documents : int
        Number of these documents.
    sources : tuple of Source
        Sums of the documents of each corpus.
    """

    basis: np.ndarray
    numbers: np.ndarray
    scale: np.ndarray | None
    noise: float
    n_basis_documents: int
    sources: tuple[Source, ...]

    @property
    def n_documents(self) -> int:
        """Number of documents of the sums."""
        return sum(source.sign * source.n_documents for source in self.sources)

    @property
    def noise_level(self) -> float:
        """Level below which an eigenvalue is noise, as a share of the largest.

        It was measured with the documents of the basis, and decreases with the square root of their number.
        """
        return float(self.noise * np.sqrt(self.n_basis_documents / max(1, self.n_documents)))

    def plus(self, other: MomentSums) -> MomentSums:
        """Return the sums over the documents of both, in the same basis; a UsageError if a corpus is in both."""
        ours = {source.name: source for source in self.sources}
        for source in other.sources:
            here = ours.pop(source.name, None)
            if here is None:
                ours[source.name] = source
            elif here.sign == source.sign:
                what = "in both sums" if here.sign > 0 else "subtracted twice"
                raise UsageError(f"the documents of the corpus with digest {source.name[:12]} are {what}")
        return replace(self, sources=tuple(ours.values()))

    def minus(self, other: MomentSums, vocabulary: Sequence[str]) -> MomentSums:
        """Return the sums without the documents of the other, in the same basis.

        Parameters
        ----------
        other : MomentSums
        vocabulary : sequence of str
            Names of the words, for messages.

        Raises
        ------
        UsageError
            If the documents of the other are not in the sums.
        """
        taken = tuple(replace(source, sign=-source.sign) for source in other.sources)
        found = self.plus(replace(other, sources=taken))
        if found.n_documents < 0:
            raise UsageError(f"{-found.n_documents} more documents are subtracted than the sums contain")
        found._check_frequencies(vocabulary)
        return found

    def _check_frequencies(self, vocabulary: Sequence[str]) -> None:
        """Raise a UsageError for impossible frequencies: documents were subtracted that were not in the sums."""
        n, (of_documents, of_words) = self.n_documents, self._frequencies()
        wrong = (of_documents < 0) | (of_documents > n)
        if all(source.word_frequency.dtype.kind == "i" for source in self.sources):
            wrong |= (of_words < of_documents) | ((of_documents == 0) & (of_words > 0))
        if wrong.any():
            word = int(np.argmax(wrong))
            raise UsageError(
                f"documents are subtracted that are not in the sums: {vocabulary[word]!r} would remain in "
                f"{of_documents[word]} of {n} documents, {of_words[word]:g} times"
            )
        masses = [(s.sign, np.asarray(part["mass"])) for s in self.sources for part in s.parts]
        left = np.sum([sign * mass for sign, mass in masses], axis=0)
        added = np.sum([mass for sign, mass in masses if sign > 0], axis=0)
        if np.any(left < -_ROUNDING * added):
            raise UsageError(
                "documents are subtracted that are not in the sums: the remaining weights of positions, pairs and "
                f"triples would be {left.tolist()}"
            )

    def total(self) -> Sums:
        """Return the sums over all documents; a UsageError if there are no documents."""
        if not self.sources:
            raise UsageError("the sums contain no documents")
        return signed_total(self.sources)

    def halves(self) -> tuple[Sums, Sums]:
        """Return the sums over two halves of the documents; a UsageError if they are in a single part."""
        found = []
        for first in (0, 1):
            of_half = tuple(replace(source, parts=source.parts[first::2]) for source in self.sources)
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
        added = [source for source in self.sources if source.sign > 0]
        for i in range(max((len(source.parts) for source in added), default=0)):
            part = signed_total(replace(source, parts=source.parts[i : i + 1]) for source in added)
            mass = float(part["mass"][2])
            if 0.0 < mass < (1.0 - _LEAST_LEFT) * float(total["mass"][2]):
                for name, value in total.items():
                    # The remainder overwrites the part, so that memory holds two totals, not three.
                    np.subtract(value, part[name], out=part[name])
                yield part
            del part

    def totals(self, vocabulary: list[str], settings: dict[str, Any]) -> Totals:
        """Return the frequencies of the documents, with the vocabulary and the settings of their corpus."""
        digest = fingerprint([(s.name, s.sign) for s in self.sources])
        document_frequency, word_frequency = self._frequencies()
        return Totals(vocabulary, settings, self.n_documents, document_frequency, word_frequency, digest)

    def _frequencies(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the document frequency and the total count of every word."""
        zero = np.zeros(len(self.numbers), np.int64)
        of_documents = (s.sign * s.document_frequency for s in self.sources)
        of_words = (s.sign * s.word_frequency for s in self.sources)
        return np.asarray(sum(of_documents, zero)), np.asarray(sum(of_words, zero))

    def stored(self, run: Run, settings: CoreSettings) -> tuple[Words, Basis]:
        """Store the words and the basis for the passes of a run."""
        n_words, rank = self.basis.shape
        every = n_words == len(self.numbers)
        vocabulary = None if every else run.put(self.numbers)
        words = Words(n_words, vocabulary, None if self.scale is None else run.put(self.scale))
        unstored = StoredColumns((StoredArray("", ""),))
        passes = moment_passes(settings, words, Basis(unstored, rank, 0.0), None)
        edges = column_edges(rank, max(run.plan(pass_).n_mapped for pass_ in passes))
        slabs = tuple(run.put(np.ascontiguousarray(self.basis[:, part])) for part in edges)
        return words, Basis(StoredColumns(slabs), rank, self.noise_level)


def add_up(run: Run, estimator: TopicEstimator, n_components: int, n_parts: int) -> MomentSums:
    """Add up the moments of the corpus of a run, for a number of topics, by the parameters of an estimator.

    Parameters
    ----------
    run : Run
    estimator : TopicEstimator
    n_components : int
    n_parts : int
        Number of parts of the documents; each takes one pass.
    """
    settings = estimator.moment_settings(n_components, "full")
    words, numbers = moment_words(
        run, n_components, estimator.min_df, estimator.max_df, estimator.scale_words
    )
    basis = fit_basis(run, settings, words)
    source = add_up_source(run, settings, words, basis, n_parts)
    sums: MomentSums = run.rows(_sums, words, numbers, basis, source, out=unknown())
    return sums


def add_up_source(run: Run, settings: CoreSettings, words: Words, basis: Basis, n_parts: int) -> Source:
    """Add up the moments of the corpus of a run in a given basis, in one pass over each part."""
    found = []
    for part in part_selections(n_parts, settings.seed):
        pass_ = moment_passes(settings, words, basis, part)[0]
        found.append(run.scan(replace(pass_, mean=True, half=True)))
    source: Source = run.rows(_source, found, out=unknown())
    return source


def _sums(engine: Engine, words: Words, numbers: np.ndarray, basis: Basis, source: Source) -> MomentSums:
    scale = None if words.scale is None else np.array(words.scale.load())
    matrix = np.array(to_columns(basis.matrix))
    return MomentSums(matrix, numbers, scale, basis.noise, engine.corpus.n_documents, (source,))


def _source(engine: Engine, found: Sequence[PassResult]) -> Source:
    corpus = engine.corpus
    parts = tuple(Sums({name: np.array(value) for name, value in result.sums.items()}) for result in found)
    return Source(
        corpus.digest, 1, corpus.n_documents, np.array(corpus.document_frequency),
        np.array(corpus.word_frequency), parts,
    )  # fmt: skip


def commit_sums(engine: Engine, sums: Sums) -> str:
    """Commit sums as if a moments pass had made them, and return their directory."""
    key = fingerprint({name: np.asarray(value) for name, value in sums.items()})
    engine.directory.commit_pass("moments", key, sums, {})
    return str(engine.directory.pass_path("moments", key))
