"""Kept moments of topics: made from documents, saved, and fitted without the documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Corpus, MemoryCorpus
from distmom.corpus.files.storage import is_url
from distmom.engine import Observer, RunDirectory, open_engine, open_executor
from distmom.engine.passes import fingerprint
from distmom.errors import StoreError, UsageError
from distmom.models.topics.base import TopicEstimator
from distmom.models.topics.committed import CommittedMoments
from distmom.models.topics.sources import (
    MAPPED_BYTES,
    Source,
    Totals,
    pack_sources,
    sources_layout,
    unpack_sources,
)
from distmom.models.topics.sums import MomentSums, add_up, add_up_source, commit_sums
from distmom.moments.documents.word_moments import word_moments
from distmom.spectral.capabilities import Capability
from distmom.spectral.parameters import parameter
from distmom.spectral.program.execute import execute
from distmom.spectral.program.execution import Execution
from distmom.spectral.program.ledger import Ledger
from distmom.spectral.program.run import Run
from distmom.spectral.saved.artifact import (
    check_target,
    load_arrays,
    load_names,
    load_record_of,
    save_model,
    whole_description,
)
from distmom.spectral.saved.layout import Array, Layout
from distmom.spectral.steps.concentration import Concentration, find_alpha0
from distmom.spectral.steps.core import CoreSettings

_LAYOUT: Layout = {
    "basis": Array(("w", "r")),
    "numbers": Array(("d",), ("<i4",), least=-1, below="w"),
    "scale": Array(("w", 1), optional=True),
}


class TopicMoments(TopicEstimator):
    """Sums of the moments of a corpus, from which topic models are fitted without going back to it.

    Attributes
    ----------
    sums_ : MomentSums
        The sums, with their basis (see `distmom.models.topics.sums`).
    sources_ : tuple of Source
        Sums of the documents of each corpus.
    basis_ : ndarray of shape (n_moment_words, r)
        Q, times the scale of the words.
    n_documents_ : int
        Number of documents of the sums.
    vocabulary_ : list of str
    n_features_in_ : int
        Number of words.

    Notes
    -----
    ``a + b`` are the sums over the documents of both, ``a - b`` the sums over the documents of a without those
    of b. Both must be in the same basis: the second is made by the method `of` of the first.

    Examples
    --------
    >>> import numpy as np
    >>> from distmom.corpus import MemoryCorpus
    >>> from distmom.models import SpectralLDA
    >>> rng = np.random.default_rng(0)
    >>> topics = rng.dirichlet(np.full(30, 0.1), 3)
    >>> X = np.stack([rng.multinomial(60, rng.dirichlet([0.2] * 3) @ topics) for _ in range(900)])
    >>> old = TopicMoments(3, max_df=1.0).fit(X[:600])
    >>> both = old + old.of(MemoryCorpus(X[600:]))
    >>> model = SpectralLDA(3, alpha0=0.6, init="tensor", n_refine=0).fit_moments(both)
    >>> both.n_documents_, model.components_.shape, model.components_error_.shape
    (900, (3, 30), (3, 30))
    """

    State = MomentSums
    capabilities = frozenset({Capability.DOCUMENTS})

    n_components: int = parameter(
        "Largest number of topics of later fits.", default=100, least=1, kw_only=False
    )
    n_parts: int = parameter(
        "Number of parts of the documents whose sums are kept separately, for standard errors; each part "
        "takes one pass over its documents.", default=8, least=1,
    )  # fmt: skip

    @property
    def settings(self) -> CoreSettings:
        """Settings with which the sums are made."""
        made = self.as_fitted()
        return made.moment_settings(made.n_components, "full")

    @property
    def sources_(self) -> tuple[Source, ...]:
        """Sums of the documents of each corpus."""
        return self.sums_.sources

    @property
    def basis_(self) -> np.ndarray:
        """Q, times the scale of the words, (n_moment_words, r)."""
        return self.sums_.basis

    @property
    def basis_digest(self) -> str:
        """Digest of the words and the basis; sums with equal digests can be added."""
        check_is_fitted(self, "sums_")
        return fingerprint((self.vocabulary_, self.settings.kind, self.sums_.numbers, self.sums_.basis))

    def program(self, run: Run) -> MomentSums:
        """Add up the moments by the passes of a run and return them."""
        return add_up(run, self, self.n_components, self.n_parts)

    def _keep(self, state: MomentSums) -> None:
        self.sums_: MomentSums = state
        self.n_documents_ = state.n_documents

    def __add__(self, other: Self) -> Self:
        """Return the sums over the documents of both; a UsageError if a corpus is in both or the bases differ."""
        if not isinstance(other, TopicMoments):
            return NotImplemented
        self._check_basis(other)
        return self._with(self.sums_.plus(other.sums_))

    def __sub__(self, other: Self) -> Self:
        """Return the sums without the documents of the other; a UsageError if these are not in the sums."""
        if not isinstance(other, TopicMoments):
            return NotImplemented
        self._check_basis(other)
        return self._with(self.sums_.minus(other.sums_, self.vocabulary_))

    def _check_basis(self, other: Self) -> None:
        if self.basis_digest != other.basis_digest:
            raise UsageError(
                "sums in different bases cannot be added: make the sums of the second corpus in the basis of the "
                "first"
            )

    def _with(self, sums: MomentSums) -> Self:
        other = copy(self)
        other._keep(sums)
        return other

    def totals(self) -> Totals:
        """Return the vocabulary and the frequencies of the documents."""
        check_is_fitted(self, "sums_")
        return self.sums_.totals(self.vocabulary_, self.settings_)

    def summary(self) -> dict[str, Any]:
        check_is_fitted(self, "sums_")
        n_words, rank = self.basis_.shape
        return {
            "n_documents": self.n_documents_,
            "n_corpora": len(self.sources_),
            "n_words": self.n_features_in_,
            "n_moment_words": n_words,
            "rank": rank,
        }

    def check_components(self, n_components: int) -> None:
        """Raise a UsageError if more topics are requested than the moments were made for."""
        most = self.as_fitted().n_components
        if n_components > most:
            raise UsageError(
                f"n_components: expected at most {most}, for which the moments were made, got {n_components}"
            )

    def of(
        self,
        corpus: Corpus | MemoryCorpus,
        *,
        client: Any = None,
        run: str | os.PathLike[str] | RunDirectory | None = None,
        memory_limit: int | None = None,
        observer: Observer | None = None,
    ) -> TopicMoments:
        """Add up the moments of another corpus in the same basis, in one pass over each of its parts.

        Parameters
        ----------
        corpus : Corpus or MemoryCorpus
            A corpus with the same vocabulary.
        client, run, memory_limit, observer
            As in `fit_corpus`.

        Raises
        ------
        UsageError
            If the vocabulary differs.
        """
        check_is_fitted(self, "sums_")
        if list(corpus.vocabulary) != self.vocabulary_:
            raise UsageError(
                f"the corpus has another vocabulary of {corpus.n_words} words; sums can be added over the same "
                f"{self.n_features_in_} words only"
            )
        with (
            open_executor(client) as executor,
            open_engine(corpus, run, executor, memory_limit, observer) as engine,
        ):
            source = execute(self._program_of, engine)
            other = self._with(replace(self.sums_, sources=(source,)))
            other.timings_ = [vars(t) for t in engine.timings]
            other.spent_ = engine.spent
        return other

    def _program_of(self, run: Run) -> Source:
        return add_up_source(run, self.settings, *self.sums_.stored(run, self.settings), self.n_parts)

    def find_alpha0(self, n_components: int | None = None) -> Concentration:
        """Return the sum of the Dirichlet parameters for which the third moment decomposes best.

        Parameters
        ----------
        n_components : int, optional
            Number of topics, at least 2; by default, that of the moments.

        Raises
        ------
        UsageError
            If there are fewer than two topics, or more than those for which the moments were made.
        NumericalError
            If the moments carry fewer topics than ``n_components``, whatever alpha0 is.
        """
        check_is_fitted(self, "sums_")
        k = self.as_fitted().n_components if n_components is None else n_components
        self.check_components(k)
        return find_alpha0(word_moments(self.sums_.total(), self.settings.kind, self.sums_.basis), k)

    @contextmanager
    def open(self) -> Iterator[tuple[Execution, CommittedMoments]]:
        """Open a run without documents, in which the moments of all documents are committed."""
        totals: Any = self.totals()
        with open_engine(totals) as engine:
            run = Execution(engine, Ledger(totals, engine.plan))
            words, basis = self.sums_.stored(run, self.settings)
            directory = commit_sums(engine, self.sums_.total())
            yield run, CommittedMoments(self.settings, words, basis, (directory,))

    # On disk. The fields of `MomentSums` are not declared: arrays are named by the positions of sources and parts,
    # the parameters determine which sums a part has, and the record of kept moments has no field of a state.

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the sums as a directory of arrays and JSON.

        Raises
        ------
        UsageError
            If the path is a URL, or exists and is not a model, or is a model and ``overwrite`` is False.
        """
        if is_url(path):
            raise UsageError(f"{path}: expected a local path, as moments are kept on a file system")
        check_is_fitted(self, "sums_")
        check_target(path, overwrite)
        sums = self.sums_
        arrays = {"basis": sums.basis, "numbers": sums.numbers}
        if sums.scale is not None:
            arrays["scale"] = sums.scale
        sources = pack_sources(sums.sources, arrays)
        record = {
            "model": type(self).__name__,
            **self._stored_parameters(),
            "settings": self.settings_,
            "noise": sums.noise,
            "n_basis_documents": sums.n_basis_documents,
            "n_documents": self.n_documents_,
            "sources": sources,
            "timings": self.timings_,
            "spent": self.spent_,
        }
        save_model(path, record, arrays, self.vocabulary_, [], overwrite=overwrite, large_bytes=MAPPED_BYTES)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TopicMoments:
        """Read kept moments, large ones memory-mapped; a UsageError if there are none, a StoreError if damaged."""
        record = load_record_of(path, cls.__name__)
        with whole_description(path):
            moments = cls(**record["parameters"])
            moments._restore_fit(record)
            moments.vocabulary_, moments.label_names_ = load_names(path, record)
            n_words, rank = record["arrays"]["basis"]["shape"]
            sources, n_arrays = record["sources"], len(record["arrays"])
            of_sources = sources_layout(sources, moments.settings.kind, n_words, rank, n_arrays)
            layout = {**_LAYOUT, **of_sources}
            arrays = load_arrays(path, record, layout, moments._sizes())
            _check_numbers(path, arrays["numbers"], n_words)
            moments.settings_ = record["settings"]
            moments._name_columns()
            moments.timings_, moments.spent_ = record["timings"], record["spent"]
            moments._keep(
                MomentSums(
                    arrays["basis"],
                    arrays["numbers"],
                    arrays.get("scale"),
                    record["noise"],
                    record["n_basis_documents"],
                    unpack_sources(sources, arrays),
                )
            )
        return moments


def _check_numbers(path: str | os.PathLike[str], numbers: np.ndarray, n_words: int) -> None:
    """Raise a StoreError unless the words of the moments are numbered 0, 1, 2, ... in their order."""
    if not np.array_equal(numbers[numbers >= 0], np.arange(n_words)):
        raise StoreError(
            f"{path}: array numbers: expected each of 0 to {n_words - 1} once, in ascending order"
        )
