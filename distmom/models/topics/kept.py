"""Kept moments of topics: made from documents, saved, and fitted without the documents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Corpus, MemoryCorpus
from distmom.corpus.files.storage import is_url
from distmom.engine import (
    Engine,
    Observer,
    PassResult,
    RunDirectory,
    StoredArray,
    StoredColumns,
    Sums,
    open_engine,
    open_executor,
)
from distmom.engine.passes import fingerprint
from distmom.errors import StoreError, UsageError
from distmom.models.topics.committed import CommittedMoments, moment_words
from distmom.models.topics.source_sums import SourceSums
from distmom.models.topics.sources import (
    MAPPED_BYTES,
    Source,
    pack_sources,
    part_selections,
    sources_layout,
    unpack_sources,
)
from distmom.moments.documents.word_moments import word_moments
from distmom.spectral.capabilities import Capability
from distmom.spectral.parameters import parameter
from distmom.spectral.program.execute import execute
from distmom.spectral.program.execution import Execution
from distmom.spectral.program.ledger import Ledger
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.saved.artifact import (
    check_target,
    load_arrays,
    load_names,
    load_record_of,
    save_model,
    whole_description,
)
from distmom.spectral.saved.layout import Array, Layout
from distmom.spectral.steps.basis import Basis
from distmom.spectral.steps.components import Words, fit_basis, moment_passes
from distmom.spectral.steps.concentration import Concentration, find_alpha0
from distmom.spectral.steps.core import CoreSettings
from distmom.spectral.steps.recovery import column_edges, to_columns

_LAYOUT: Layout = {
    "basis": Array(("w", "r")),
    "numbers": Array(("d",), ("<i4",), least=-1, below="w"),
    "scale": Array(("w", 1), optional=True),
}


@dataclass(frozen=True)
class KeptState:
    """The state of kept moments.

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
    """

    basis: np.ndarray
    numbers: np.ndarray
    scale: np.ndarray | None
    noise: float
    n_basis_documents: int
    sources: tuple[Source, ...]


class TopicMoments(SourceSums):
    """Sums of the moments of a corpus, from which topic models are fitted without going back to it.

    Attributes
    ----------
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

    State = KeptState
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
        return self.moment_settings(self.n_components, "full")

    def program(self, run: Run) -> KeptState:
        """Add up the moments by the passes of a run and return the state."""
        words, numbers = moment_words(run, self.n_components, self.min_df, self.max_df, self.scale_words)
        basis = fit_basis(run, self.settings, words)
        source = self._collect(run, words, basis)
        state: KeptState = run.rows(_kept, words, numbers, basis, source, out=unknown())
        return state

    def _keep(self, state: KeptState) -> None:
        self.basis_: np.ndarray = state.basis
        self.numbers_: np.ndarray = state.numbers
        self.scale_: np.ndarray | None = state.scale
        self.noise_: float = state.noise
        self.n_basis_documents_: int = state.n_basis_documents
        self.sources_: tuple[Source, ...] = state.sources

    def _describe(self, corpus: Any) -> None:
        self.vocabulary_, self.settings_ = list(corpus.vocabulary), dict(corpus.settings)
        self.n_features_in_ = corpus.n_words
        self._name_columns()

    def summary(self) -> dict[str, Any]:
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
        if n_components > self.n_components:
            raise UsageError(
                f"n_components: expected at most {self.n_components}, for which the moments were made, got "
                f"{n_components}"
            )

    @property
    def noise_level(self) -> float:
        """Level below which an eigenvalue is noise, as a share of the largest.

        It was measured with the documents of the basis, and decreases with the square root of their number.
        """
        return float(self.noise_ * np.sqrt(self.n_basis_documents_ / max(1, self.n_documents_)))

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
        check_is_fitted(self, "sources_")
        if list(corpus.vocabulary) != self.vocabulary_:
            raise UsageError(
                f"the corpus has another vocabulary of {corpus.n_words} words; sums can be added over the same "
                f"{self.n_features_in_} words only"
            )
        with (
            open_executor(client) as executor,
            open_engine(corpus, run, executor, memory_limit, observer) as engine,
        ):
            other = copy(self)
            other.sources_ = (execute(self._program_of, engine),)
            other.timings_ = [vars(t) for t in engine.timings]
            other.spent_ = engine.spent
        return other

    def _program_of(self, run: Run) -> Source:
        return self._collect(run, *self.stored(run))

    def _collect(self, run: Run, words: Words, basis: Basis) -> Source:
        found = []
        for part in part_selections(self.n_parts, self._seed):
            pass_ = moment_passes(self.settings, words, basis, part)[0]
            found.append(run.scan(replace(pass_, mean=True, half=True)))
        source: Source = run.rows(_source, found, out=unknown())
        return source

    def stored(self, run: Run) -> tuple[Words, Basis]:
        """Store the words and the basis for the passes of a run."""
        n_words, rank = self.basis_.shape
        every = n_words == self.n_features_in_
        vocabulary = None if every else run.put(self.numbers_)
        words = Words(n_words, vocabulary, None if self.scale_ is None else run.put(self.scale_))
        unstored = StoredColumns((StoredArray("", ""),))
        passes = moment_passes(self.settings, words, Basis(unstored, rank, 0.0), None)
        edges = column_edges(rank, max(run.plan(pass_).n_mapped for pass_ in passes))
        slabs = tuple(run.put(np.ascontiguousarray(self.basis_[:, part])) for part in edges)
        return words, Basis(StoredColumns(slabs), rank, self.noise_level)

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
            If the moments carry fewer topics for every alpha0.
        """
        check_is_fitted(self, "sources_")
        k = self.n_components if n_components is None else n_components
        self.check_components(k)
        return find_alpha0(word_moments(self.total(), self.settings.kind, self.basis_), k)

    @contextmanager
    def open(self) -> Iterator[tuple[Execution, CommittedMoments]]:
        """Open a run without documents, in which the moments of all documents are committed."""
        totals: Any = self.totals()
        with open_engine(totals) as engine:
            run = Execution(engine, Ledger(totals, engine.plan))
            words, basis = self.stored(run)
            committed = CommittedMoments(self.settings, words, basis, (commit_sums(engine, self.total()),))
            yield run, committed

    # On disk

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the sums as a directory of arrays and JSON.

        Raises
        ------
        UsageError
            If the path is a URL, or exists and is not a model, or is a model and ``overwrite`` is False.
        """
        if is_url(path):
            raise UsageError(f"{path}: expected a local path, as moments are kept on a file system")
        check_is_fitted(self, "sources_")
        check_target(path, overwrite)
        arrays = {"basis": self.basis_, "numbers": self.numbers_}
        if self.scale_ is not None:
            arrays["scale"] = self.scale_
        sources = pack_sources(self.sources_, arrays)
        record = {
            "model": type(self).__name__,
            **self._stored_parameters(),
            "settings": self.settings_,
            "noise": self.noise_,
            "n_basis_documents": self.n_basis_documents_,
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
            moments._restore_seed(record)
            moments.vocabulary_, _ = load_names(path, record)
            moments.n_features_in_ = len(moments.vocabulary_)
            n_words, rank = record["arrays"]["basis"]["shape"]
            sources, n_arrays = record["sources"], len(record["arrays"])
            of_sources = sources_layout(sources, moments.settings.kind, n_words, rank, n_arrays)
            layout = {**_LAYOUT, **of_sources}
            arrays = load_arrays(path, record, layout, {"d": moments.n_features_in_})
            _check_numbers(path, arrays["numbers"], n_words)
            moments.settings_, moments.noise_ = record["settings"], record["noise"]
            moments._name_columns()
            moments.n_basis_documents_ = record["n_basis_documents"]
            moments.timings_, moments.spent_ = record["timings"], record["spent"]
            moments.basis_, moments.numbers_ = arrays["basis"], arrays["numbers"]
            moments.scale_ = arrays.get("scale")
            moments.sources_ = unpack_sources(record["sources"], arrays)
        return moments


def _kept(engine: Engine, words: Words, numbers: np.ndarray, basis: Basis, source: Source) -> KeptState:
    scale = None if words.scale is None else np.array(words.scale.load())
    matrix = np.array(to_columns(basis.matrix))
    return KeptState(matrix, numbers, scale, basis.noise, engine.corpus.n_documents, (source,))


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


def _check_numbers(path: str | os.PathLike[str], numbers: np.ndarray, n_words: int) -> None:
    """Raise a StoreError unless the words of the moments are numbered 0, 1, 2, ... in their order."""
    if not np.array_equal(numbers[numbers >= 0], np.arange(n_words)):
        raise StoreError(
            f"{path}: array numbers: expected each of 0 to {n_words - 1} once, in ascending order"
        )
