"""The base class of all estimators: planning and executing a program, keeping, saving and loading its state."""

from __future__ import annotations

import os
import time
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Block, MemoryCorpus
from distmom.engine import Observer, RunDirectory, open_engine, open_executor, plan_pass
from distmom.errors import UsageError
from distmom.spectral.capabilities import Capability
from distmom.spectral.inputs.checks import WORDS, with_layer
from distmom.spectral.inputs.documents import block_in_memory, corpus_in_memory
from distmom.spectral.inputs.tables import NAMED_COLUMNS
from distmom.spectral.parameters import fixed, parameter
from distmom.spectral.program.execute import execute
from distmom.spectral.program.ledger import Ledger
from distmom.spectral.program.plan import Plan
from distmom.spectral.program.run import PLACES, Run
from distmom.spectral.program.timing import estimate
from distmom.spectral.refit import all_or_nothing
from distmom.spectral.saved.artifact import (
    check_target,
    load_arrays,
    load_names,
    load_record_of,
    local_model,
    save_model,
    whole_description,
)
from distmom.spectral.saved.fields import declared_fields, layout_of, pack, unpack
from distmom.spectral.seeds import Seeded
from distmom.spectral.steps.em import warn_of_rise

#: attributes that every model stores in addition to its state
_RECORDED = ("settings", "n_documents", "timings", "spent", "fit_seconds")


@dataclass_transform(kw_only_default=True, field_specifiers=(parameter, fixed))
class SpectralEstimator(Seeded):
    """Base class of estimators that make passes over a corpus.

    A subclass declares its parameters (`distmom.spectral.parameters`) and its ``State``, a frozen dataclass
    (`distmom.spectral.saved.fields`), and defines `check` and `program`. Type checkers see the constructor as that
    of a dataclass (PEP 681), so whatever a subclass annotates in its body is a parameter; further attributes of
    fitted models are annotated in a base class that is not an estimator.

    Attributes
    ----------
    timings_ : list of dict
        One entry per pass (see `distmom.engine.results.Timing`).
    spent_ : dict of str to float
        Seconds of all tasks together, by kind of work.
    fit_seconds_ : float
        Wall time of the fit, in seconds.
    seed_ : int
        Seed of the fit: ``random_state``, or the number drawn in its place.
    vocabulary_, label_names_ : list of str
        Names of the features, and of the labels; ``label_names_`` is empty for a corpus without labels.
    n_documents_ : int
        Number of documents of the corpus.
    n_features_in_ : int
        Number of features: d.
    feature_names_in_ : ndarray of shape (n_features_in_,), object
        Names of the columns, if the model was fitted to a table whose columns all have names.
    settings_ : dict
        Settings of the corpus, such as those of its tokenizer; JSON values.
    diagnostics_ : dict
        Measurements of the fit; JSON values.
    selection_ : dict or None
        What was chosen on held-out data, for models that choose; JSON values.
    """

    State: ClassVar[type[Any]]
    #: the part of a corpus that the model reads: words, or the kinds of layers along rows
    reads: ClassVar[tuple[str, ...]] = WORDS
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    #: diagnostics that `summary` includes
    shown: ClassVar[tuple[str, ...]] = ()
    #: attribute by which components of two fits are matched, None where their sign or scale is arbitrary (see
    #: `distmom.spectral.program.jackknife.standard_errors`)
    matched_by: ClassVar[str | None] = None

    timings_: list[dict[str, Any]]
    spent_: dict[str, float]
    fit_seconds_: float
    vocabulary_: list[str]
    label_names_: list[str]
    settings_: dict[str, Any]
    n_documents_: int
    n_features_in_: int
    feature_names_in_: np.ndarray
    diagnostics_: dict[str, Any]
    selection_: dict[str, Any] | None = None

    if TYPE_CHECKING:
        # Further attributes are set from the state of a model, by name.
        def __getattr__(self, name: str) -> Any: ...

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.reads == WORDS or "csr" in self.reads
        tags.input_tags.positive_only = self.reads == WORDS
        return tags

    # Fit

    @all_or_nothing
    def fit_corpus(
        self,
        corpus: Any,
        *,
        client: Any = None,
        run: str | os.PathLike[str] | RunDirectory | None = None,
        memory_limit: int | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """Fit the model to a corpus out of core.

        Parameters
        ----------
        corpus : AnyCorpus
            A corpus with the layers that the model reads.
        client : distributed.Client or Executor, optional
            Runs the passes and is left open. By default the passes run in this process.
        run : path-like or RunDirectory, optional
            Directory of stored arrays and committed passes, used by one process at a time; a fit in the same
            directory resumes after the last finished groups. A temporary directory by default. The caller holds
            the lock of a `RunDirectory`.
        memory_limit : int, optional
            Bytes that one worker may use; no limit by default.
        observer : callable, optional
            Called with every event of the engine; none by default.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If the parameters are invalid or do not suit the corpus, another process uses the run directory, or
            there is one and ``random_state`` is not a whole number, so that the fit could not be resumed.
        NumericalError
            If the moments carry fewer components than requested.
        """
        started = time.monotonic()
        corpus = self._read_layer(corpus)
        if run is not None and self._is_drawn:
            raise UsageError(
                "random_state: expected a whole number with a run directory, so that the fit can be resumed, got "
                f"{self.random_state!r}"
            )
        self._draw_seed()
        self.check(corpus)
        with (
            open_executor(client) as executor,
            open_engine(corpus, run, executor, memory_limit, observer) as engine,
        ):
            state = execute(self.program, engine)
            self._describe(corpus)
            self._keep(state)
            if "n_em_iter" in self.parameters():
                warn_of_rise(self.diagnostics_.get("log_likelihoods", ()))
            self.timings_ = [vars(t) for t in engine.timings]
            self.spent_ = engine.spent
            self.fit_seconds_ = time.monotonic() - started
        return self

    def check(self, corpus: Any) -> None:
        """Check that the parameters are valid and suit a corpus.

        Parameters
        ----------
        corpus : AnyCorpus

        Raises
        ------
        UsageError
            If a parameter is invalid or does not suit the corpus.
        """
        self.check_parameters()

    def program(self, run: Run) -> Any:
        """Fit the model by the passes of a run and return its state."""
        raise TypeError(f"{type(self).__name__} does not define its passes")

    def plan(self, corpus: Any, memory_limit: int | None = None, *, n_workers: int | None = None) -> Plan:
        """Return the passes that `fit_corpus` makes, with their tasks, memory and disk, before anything runs.

        Parameters
        ----------
        corpus : AnyCorpus
        memory_limit : int, optional
            Bytes that one worker may use; no limit by default.
        n_workers : int, optional
            Number of threads of all workers. If given, the plan includes times, for which two shards are read
            and every pass is tried on some documents. By default, the plan has no times.

        Raises
        ------
        UsageError
            If the parameters are invalid or do not suit the corpus, or a task cannot fit the memory limit.
        """
        corpus, planned = self._read_layer(corpus), copy(self)
        planned._draw_seed()
        planned.check(corpus)
        ledger = Ledger(corpus, lambda pass_: plan_pass(corpus, pass_, memory_limit))
        planned.program(ledger)
        seconds = None
        if n_workers is not None:
            n_workers = max(1, n_workers)
            seconds = tuple(estimate(ledger, n_workers))
        return Plan(tuple(ledger.entries), seconds, n_workers, "third_moment" in self.get_params())

    def _read_layer(self, corpus: Any) -> Any:
        return with_layer(corpus, self.reads, getattr(self, "layer", None), type(self).__name__)

    def can(self, capability: Capability) -> bool:
        """Return whether this fitted model can do something (see `distmom.spectral.capabilities`)."""
        return capability in self.capabilities

    def summary(self) -> dict[str, Any]:
        """Return the main numbers of a fitted model by name, as JSON values, to be shown after a fit."""
        check_is_fitted(self)
        return {name: self.diagnostics_[name] for name in self.shown if name in self.diagnostics_}

    # State

    def _describe(self, corpus: Any) -> None:
        """Set the attributes that describe the corpus."""
        self.vocabulary_ = list(corpus.vocabulary)
        self.label_names_ = list(getattr(corpus, "label_names", ()))
        self.n_features_in_ = corpus.n_words
        self.settings_ = dict(corpus.settings)
        self.n_documents_ = corpus.n_documents
        self._name_columns()

    def _name_columns(self) -> None:
        """Set ``feature_names_in_`` if the model was fitted to a table, as scikit-learn does."""
        if np.all(self.settings_.get(NAMED_COLUMNS, False)):
            self.feature_names_in_ = np.array(self.vocabulary_[: self.n_features_in_], dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _keep(self, state: Any) -> None:
        """Set the fitted attributes from a state, except groups and variants, which subclasses handle."""
        for name, declared, _ in declared_fields(state):
            if declared.is_attribute:
                item = declared.to_attribute(getattr(state, name))
                setattr(self, declared.attribute_name(name), item)

    def _state(self) -> Any:
        """Return the state made of the fitted attributes."""
        return self.State(
            **{
                name: declared.from_attribute(getattr(self, declared.attribute_name(name)))
                for name, declared, _ in declared_fields(self.State)
            }
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_seconds_")

    # On disk

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as a directory of arrays and JSON.

        Parameters
        ----------
        path : path-like
            A local path, or a URL (``s3://BUCKET/PREFIX``).
        overwrite : bool, default False
            Replace an existing model.

        Raises
        ------
        UsageError
            If the path exists and is not a model, or is a model and ``overwrite`` is False.
        """
        check_is_fitted(self)
        check_target(path, overwrite)
        arrays: dict[str, np.ndarray] = {}
        record = {
            "model": type(self).__name__,
            **self._stored_parameters(),
            "state": pack(self._state(), arrays),
            **{name: getattr(self, f"{name}_") for name in _RECORDED},
        }
        save_model(path, record, arrays, self.vocabulary_, self.label_names_, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model.

        Parameters
        ----------
        path : path-like
            A local path, or a URL, whose files are downloaded to ``TMPDIR``.

        Raises
        ------
        UsageError
            If there is no model of this class at the path.
        StoreError
            If the model is damaged.
        """
        with local_model(path) as place:
            record = load_record_of(place, cls.__name__)
            with whole_description(place):
                model = cls(**record["parameters"])
                model.vocabulary_, model.label_names_ = load_names(place, record)
                arrays = load_arrays(place, record, layout_of(cls.State, record["state"]), model._sizes())
                for name in _RECORDED:
                    setattr(model, f"{name}_", record[name])
                model._restore_fit(record)
                model._keep(unpack(cls.State, record["state"], arrays))
                model._name_columns()
        return model

    def _sizes(self) -> dict[str, int]:
        """Return the sizes that are known before any array is read."""
        self.n_features_in_ = len(self.vocabulary_)
        return {"d": self.n_features_in_}

    # Rows in memory

    def _corpus(self, X: Any, y: Any = None) -> MemoryCorpus:
        """Return documents given to ``fit`` as a corpus: texts, or rows of counts or weights."""
        return corpus_in_memory(X, y, type(self).__name__)

    def _block(self, X: Any, min_samples: int = 0) -> Block:
        """Return documents in memory as a block; a UsageError if their words are not those of the fit."""
        return block_in_memory(self, X, min_samples)

    @property
    def _n_features_out(self) -> int:
        """Number of columns of the output, for `get_feature_names_out`."""
        return len(self.components_)


def precision_parameter() -> str:
    """Declare ``precision``."""
    return parameter(
        "Precision in which blocks are multiplied; sums are in double precision in any case.",
        default="single", choices=("single", "double"),
    )  # fmt: skip


def layer_parameter() -> str | None:
    """Declare ``layer``."""
    return parameter(
        "Layer of the corpus that is read.", default=None, kind=str, none=True,
        unset="the only one of a suitable kind",
    )  # fmt: skip


def place_parameter() -> str:
    """Declare ``decompose_on``."""
    return parameter(
        "Where moments are decomposed when the fit runs on a cluster.", default="scheduler", choices=PLACES
    )
