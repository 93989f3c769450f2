"""Adding documents to a fitted multi-label model, removing them, and combining models.

The sums kept with ``keep_sums=True`` suffice to make the heads again, so an update only reads the new documents.
The idf weights, the basis of the sketch, the stages of the linear head, the blend with its
calibration, its gate and its reranker, the latent states and the topics stay those of the first fit.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Block, MemoryCorpus
from distmom.corpus.layers import check_corpus
from distmom.corpus.sources.texts import as_label_lists, label_columns_of
from distmom.engine import (
    Engine,
    Observer,
    RunDirectory,
    fingerprint,
    open_engine,
    open_executor,
)
from distmom.errors import UsageError
from distmom.models.multilabel.blend.reranking import Reranker
from distmom.models.multilabel.effort import EFFORTS
from distmom.models.multilabel.heads.scorer import Scorer
from distmom.models.multilabel.needs import needs
from distmom.models.multilabel.program import weights_of
from distmom.models.multilabel.recipe import Recipe
from distmom.models.multilabel.targets import checked_targets, first_names
from distmom.models.multilabel.updates.additions import Start, collect
from distmom.models.multilabel.updates.kept_sums import (
    Content,
    MissingDocumentError,
    content_of,
    join,
    net_corpora,
)
from distmom.models.multilabel.updates.sums import KeptSums
from distmom.models.multilabel.updates.updated import updated_state
from distmom.models.multilabel.variants import INDEX
from distmom.spectral.inputs.aligned import align
from distmom.spectral.inputs.tables import column_names
from distmom.spectral.program.execute import execute

logger = logging.getLogger(__name__)


class NoSumsError(UsageError, AttributeError):
    """The model was fitted without its sums; ``hasattr(model, "partial_fit")`` is then False."""


class Updatable:
    """Methods of a multi-label model that add and remove documents."""

    scorer_: Scorer
    reranker_: Reranker | None
    sums_: KeptSums | None
    selection_: dict[str, Any] | None
    stack_: dict[str, Any] | None
    vocabulary_: list[str]
    label_names_: list[str]
    label_frequency_: np.ndarray
    idf_: np.ndarray
    basis_: np.ndarray | None
    n_documents_: int
    timings_: list[dict[str, Any]]
    spent_: dict[str, float]
    fit_seconds_: float

    if TYPE_CHECKING:

        @property
        def _seed(self) -> int: ...

        @property
        def _has_one_label(self) -> bool: ...

        def as_fitted(self) -> Any: ...

        def _fit(self, X: Any, y: Any, classes: Sequence[Any] | None = None) -> Self: ...

        def fit_corpus(self, corpus: Any, **options: Any) -> Self: ...

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...

        def set_params(self, **parameters: Any) -> Self: ...

        def _block(self, X: Any, min_samples: int = 0) -> Block: ...

        def _check_form(self, form: str) -> None: ...

        def _check_labels(self, names: list[str]) -> None: ...

        def _keep(self, state: Any) -> None: ...

        def _state(self) -> Any: ...

    @needs(lambda model, _: model.require_sums())
    def partial_fit(self, X: Any, y: Any = None, classes: Sequence[Any] | None = None) -> Self:
        """Add documents in memory to the model.

        The first call on a model that is not fitted fits it with ``keep_sums=True``. Further calls add the
        new documents to the sums of the heads. The idf weights, the basis of the sketch, the stages of the
        linear head, the blend with its calibration, the latent states and the topics stay those of the first fit.
        Words that the model does not know are left out.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            As for `predict`.
        y : list of lists of str, list of str, or array, sparse matrix or table of shape (n_documents, n_labels)
            As for `fit`. Names that the model does not know become new labels. A matrix without names has as
            many columns as the model has labels. Required.
        classes : sequence of str or int, optional
            Labels that these or later documents may have, as for scikit-learn's classifiers; not with a matrix.
            Those that the model does not know become new labels. Labels that the first call is not given follow
            later in `classes_`, so that scikit-learn's metrics of scores and probabilities do not suit a model of
            one label per document. None by default.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the model was fitted without its sums, ``y`` is missing or does not fit the labels of the model, or
            there are ``classes`` and ``y`` is a matrix.
            The model is then unchanged.
        InputError
            If a value is invalid.

        Examples
        --------
        >>> from distmom.models import MultiLabelMoM
        >>> texts = ["salmon and herring", "herring nets", "oak and pine", "oak leaves"] * 15
        >>> subjects = [["fish"], ["fish"], ["trees"], ["trees"]] * 15
        >>> model = MultiLabelMoM(2, head="linear", keep_sums=True).fit(texts, subjects)
        >>> model.partial_fit(["pine nets"] * 30, [["camping"]] * 30).predict(["nets of pine"])
        [['camping']]
        """
        if not hasattr(self, "scorer_"):
            return self._first(lambda model: model._fit(X, y, classes))
        corpus = self._corpus_to_add(X, y, classes)
        # Equal documents in memory may be added twice, and then count as different documents.
        name, known = corpus.digest, {name for name, _ in self.require_sums().corpora}
        while name in known:
            name += "+"
        return self._update(corpus, name, remove=False)

    def partial_fit_corpus(
        self,
        corpus: Any,
        *,
        client: Any = None,
        run: str | os.PathLike[str] | RunDirectory | None = None,
        memory_limit: int | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """Add the documents of a corpus to the model, out of core; see `partial_fit`.

        Parameters
        ----------
        corpus : Corpus or MemoryCorpus
            Its words and labels are matched by name.
        client, run, memory_limit, observer
            As in `fit_corpus`.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the model was fitted without its sums, or the same corpus was added before. The model is then
            unchanged.
        """
        check_corpus(corpus)
        options = {"client": client, "run": run, "memory_limit": memory_limit, "observer": observer}
        if not hasattr(self, "scorer_"):
            return self._first(lambda model: model.fit_corpus(corpus, **options))
        return self._update(corpus, corpus.digest, remove=False, **options)

    def remove(self, X: Any, y: Any) -> Self:
        """Remove documents in memory from the model.

        Their sums are subtracted, and they no longer vote. A model with a head that keeps the documents finds them
        by their words and labels. Documents that were added later are removed up to rounding. Documents of the
        first fit leave a trace: everything that updates do not change depends on them, and their negligible
        weights were dropped.

        Parameters
        ----------
        X, y
            As for `partial_fit`.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the model was fitted without its sums, or a document is not in it. The model is then unchanged.
        InputError
            If a value is invalid.
        """
        check_is_fitted(self, "scorer_")
        corpus = self._corpus_to_add(X, y)
        return self._update(corpus, corpus.digest, remove=True)

    def remove_corpus(
        self,
        corpus: Any,
        *,
        client: Any = None,
        run: str | os.PathLike[str] | RunDirectory | None = None,
        memory_limit: int | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """Remove the documents of a corpus from the model, out of core; see `remove`.

        Parameters
        ----------
        corpus : Corpus or MemoryCorpus
            Its words and labels are matched by name.
        client, run, memory_limit, observer
            As in `fit_corpus`.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the model was fitted without its sums, or a document is not in it. The model is then unchanged.
        """
        check_is_fitted(self, "scorer_")
        check_corpus(corpus)
        options = {"client": client, "run": run, "memory_limit": memory_limit, "observer": observer}
        return self._update(corpus, corpus.digest, remove=True, **options)

    @classmethod
    def combine(cls, added: Sequence[Self], taken: Sequence[Self] = ()) -> Self:
        """Return the model of the documents of several models that are updates of the same fit.

        Parameters
        ----------
        added : sequence of MultiLabelMoM
            At least one.
        taken : sequence of MultiLabelMoM, default ()
            Models of documents to be removed. Two updates of one fit share its documents, so the fit itself is
            subtracted once: ``combine([monday, tuesday], [first])``.

        Returns
        -------
        MultiLabelMoM

        Raises
        ------
        UsageError
            If an argument is not a list of models, a model was fitted without its sums, the models do not begin
            with the same fit, documents would be counted twice, or documents are removed that are not there.
        """
        for name, given in (("added", added), ("taken", taken)):
            is_list = isinstance(given, list | tuple)
            wrong = [each for each in given if not isinstance(each, cls)] if is_list else [given]
            if wrong:
                got = f"{'one of ' if is_list else ''}{type(wrong[0]).__name__}"
                raise UsageError(f"{name}: expected a list of models of class {cls.__name__}, got {got}")
        models = [*added, *taken]
        if not added:
            raise UsageError("added: expected at least one model")
        if len({model.start_digest for model in models}) > 1:
            raise UsageError(
                "models that are updates of different fits cannot be combined: their idf weights, basis or stages "
                "differ"
            )
        started, first = time.monotonic(), added[0]
        numbers: dict[str, int] = {}
        for name in (name for model in models for name in model.label_names_):
            numbers.setdefault(name, len(numbers))
        contents = [model._content().with_labels(model._numbers(numbers), len(numbers)) for model in models]
        nothing = MemoryCorpus(csr_array((0, len(first.vocabulary_)), dtype=np.int32))
        total = copy(first)
        with open_engine(nothing) as engine:
            content = join(engine, contents[: len(added)], contents[len(added) :], list(numbers))
            total._set(engine, content, list(numbers))
        total.timings_, total.spent_, total.fit_seconds_ = [], {}, time.monotonic() - started
        return total

    @property
    def start_digest(self) -> str:
        """Digest of all that updates do not change; models with equal digests can be combined."""
        start = self._start()
        stages = [
            [
                *map(np.asarray, (own.weights.indptr, own.weights.indices, own.weights.data)),
                own.scale,
                own.step,
            ]
            for own in start.stages
        ]
        states, reranker = np.asarray(getattr(self, "weights_", np.zeros(0))), self.reranker_
        fixed = (
            start.recipe,
            start.seed,
            start.idf,
            start.basis,
            stages,
            states,
            self.stack_,
            None if reranker is None else (reranker.inputs, reranker.depth, reranker.trees),
            self.vocabulary_,
        )
        return fingerprint(fixed)

    def require_sums(self) -> KeptSums:
        """Return the sums that the heads were made from; a `NoSumsError` if the model was fitted without them."""
        check_is_fitted(self, "scorer_")
        if self.sums_ is None:
            raise NoSumsError(
                "this model was fitted without its sums, so documents cannot be added or removed: fit it with "
                "keep_sums=True (--keep-sums)"
            )
        return self.sums_

    def _first(self, fit: Any) -> Self:
        """Fit the model for the first time, with its sums."""
        fitted = fit(clone(self).set_params(keep_sums=True))
        vars(self).update(
            {name: value for name, value in vars(fitted).items() if name not in self.get_params()}
        )
        return self

    def _corpus_to_add(self, X: Any, y: Any, classes: Sequence[Any] | None = None) -> MemoryCorpus:
        """Return documents in memory as a corpus over the words of the model."""
        if y is None:
            raise UsageError("requires y to be passed, but the target y is None: labels are needed")
        block, (y, form) = self._block(X, 1), checked_targets(y)
        self._check_form(form)
        names, new = column_names(y, "y"), first_names(y, form, classes)
        if (lists := as_label_lists(y)) is not None:
            y, names, _ = label_columns_of(lists, list(dict.fromkeys([*self.label_names_, *(new or ())])))
        elif names is None:
            names = self.label_names_
            if y.shape[1] != len(names):
                raise UsageError(f"y: expected {len(names)} labels as in the fit, got {y.shape[1]}")
        return MemoryCorpus(block.words, y, self.vocabulary_, names)

    def _update(self, corpus: Any, name: str, *, remove: bool, **options: Any) -> Self:
        started, start = time.monotonic(), self._start()
        if not any(variant.updated for variant in start.recipe.variants):
            logger.warning(
                "updates do not change the ranking of this model, whose heads are latent states only"
            )
        # Refused before anything is read. Where the model has documents, those to be removed are searched for.
        least = None if start.has_documents else -1
        net_corpora([(1, self.require_sums().corpora), (-1 if remove else 1, [[name, 1]])], least)
        aligned = align(corpus, self.vocabulary_, self.label_names_)
        names, n_known = list(aligned.label_names), len(self.label_names_)
        self._check_labels(names)
        if remove and len(names) > n_known:
            raise UsageError(f"the model has no documents with the label {names[n_known]!r}")
        if len(names) > n_known and self._has_one_label:
            logger.warning(
                "new labels follow those of the first fit in classes_: metrics of scikit-learn that read scores "
                "or probabilities expect ascending labels; give all labels at the first call of partial_fit"
            )
        client, run = options.get("client"), options.get("run")
        with (
            open_executor(client) as executor,
            open_engine(
                aligned, run, executor, options.get("memory_limit"), options.get("observer")
            ) as engine,
        ):
            own = execute(partial(collect, start=start, digest=name), engine)
            known = self._content().with_labels(np.arange(n_known), len(names))
            try:
                added, taken = ([known], [own]) if remove else ([known, own], [])
                content = join(engine, added, taken, names)
            except MissingDocumentError as error:
                raise UsageError(f"{_document(corpus, error)}; nothing was removed") from error
            self._set(engine, content, names)
            self.timings_, self.spent_ = [vars(t) for t in engine.timings], engine.spent
            self.fit_seconds_ = time.monotonic() - started
        return self

    def _start(self) -> Start:
        """Return all that updates do not change; a UsageError if the model was fitted without its sums."""
        sums, inputs, fitted = self.require_sums(), self.scorer_.blend.inputs, self.as_fitted()
        weights = {} if inputs else dict((self.selection_ or {}).get("weights") or weights_of(fitted.head))
        recipe = Recipe(inputs, weights)
        stages = () if sums.linear is None else tuple(stage for _, stage in sums.linear.stages)
        has_documents = sums.documents is not None or INDEX in dict(self.scorer_.heads)
        share = 1.0 if sums.linear is None else sums.linear.share
        return Start(
            recipe,
            self.idf_,
            self.basis_,
            stages,
            share,
            has_documents,
            self._seed,
            fitted.weight_limits(),
            EFFORTS[fitted.effort].tolerance,
        )

    def _content(self) -> Content:
        """Return the sums and the documents of the model."""
        assert self.sums_ is not None
        return content_of(dict(self.scorer_.heads), self.sums_, self.n_documents_, self.label_frequency_)

    def _numbers(self, numbers: Mapping[str, int]) -> np.ndarray:
        """Return the number of every label of the model."""
        return np.array([numbers[name] for name in self.label_names_], np.int64)

    def _set(self, engine: Engine, content: Content, label_names: list[str]) -> None:
        """Set the attributes of the model from its new content."""
        state = updated_state(engine, self._state(), self._start(), content, len(label_names))
        self.label_names_, self.n_documents_ = label_names, content.n_documents
        self._keep(state)


def _document(corpus: Any, error: MissingDocumentError) -> str:
    """Return the message of an error, with the id of its document if documents have ids."""
    if not getattr(corpus, "has_ids", False):
        return str(error)
    index = next(
        i for i, shard in enumerate(corpus.shards) if error.position < shard.first + shard.n_documents
    )
    name = corpus.read_ids(index)[error.position - corpus.shards[index].first]
    return f"document {name!r} is not in the model with these words and labels"
