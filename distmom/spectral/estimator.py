"""What all estimators share: the fit of a corpus out of core, rows in memory, checks of parameters."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator

from distmom.corpus import Block, MemoryCorpus
from distmom.engine import Engine, Observer, RunDirectory, open_engine, open_executor
from distmom.errors import UsageError
from distmom.spectral.inputs import checked_rows

#: where the tensor is decomposed when there is a cluster
DECOMPOSE_ON = ("scheduler", "client")


class CorpusEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of estimators that make passes over a corpus; they define `check` and `_fit`.

    Attributes
    ----------
    timings_ : list of dict
        One entry a pass (see `distmom.engine.Timing`).
    spent_ : dict of str to float
        Seconds of all tasks by kind of work.
    fit_seconds_ : float
    n_features_in_ : int
    """

    n_features_in_: int

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    def fit_corpus(
        self,
        corpus: Any,
        *,
        client: Any = None,
        run: str | os.PathLike[str] | RunDirectory | None = None,
        memory_limit: int | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """Fit a corpus out of core.

        Parameters
        ----------
        corpus : Corpus, MemoryCorpus or ViewCorpus
            Of the kind that the model is of.
        client : distributed.Client or Executor, optional
            Where passes run; this process when absent. It is left open.
        run : path-like or RunDirectory, optional
            Directory of states and committed passes, which one process at a time may use; a fit on the same
            directory resumes after the last committed pass. A temporary one when absent. The lock of a
            `RunDirectory` is left to the caller, who holds it.
        memory_limit : int, optional
            Bytes that one worker may use.
        observer : callable, optional
            Receives the engine's events.

        Returns
        -------
        self

        Raises
        ------
        UsageError
            If parameters and corpus do not go together, or another process uses the run directory.
        NumericalError
            If the moments do not carry the number of components asked for.
        """
        started = time.monotonic()
        self.check(corpus)
        with (
            open_executor(client) as executor,
            open_engine(corpus, run, executor, memory_limit, observer) as engine,
        ):
            self._fit(engine)
            self.timings_ = [vars(t) for t in engine.timings]
            self.spent_ = engine.spent
            self.fit_seconds_ = time.monotonic() - started
        return self

    def check(self, corpus: Any) -> None:
        """Refuse parameters that are wrong or do not go with a corpus; UsageError."""
        raise TypeError(f"{type(self).__name__} does not say what it refuses")

    def _fit(self, engine: Engine) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it is fitted")

    def _block(self, X: Any, min_samples: int = 0) -> Block:
        """Return documents in memory as a block; UsageError if they have other words than those fitted."""
        name = type(self).__name__
        X = checked_rows(X, min_samples, name)
        if X.shape[1] != self.n_features_in_:
            raise UsageError(
                f"X has {X.shape[1]} features, but {name} is expecting {self.n_features_in_} features as input"
            )
        if X.shape[0] == 0:
            return Block(csr_array((0, X.shape[1]), dtype=np.int32), csr_array((0, 0), dtype=np.uint8), 0)
        return MemoryCorpus(X, shard_documents=X.shape[0]).read_shard(0)


def check_choices(model: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Refuse parameters that are not among their choices; UsageError."""
    for name, allowed in choices.items():
        if getattr(model, name) not in allowed:
            raise UsageError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(model, name)!r}")


def check_seed(model: Any) -> None:
    """Refuse a seed that is not a whole number of 64 bits from 0 on; UsageError."""
    seed = model.random_state
    if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise UsageError(f"random_state: expected a whole number from 0 to 2**64 - 1, got {seed!r}")


def check_bounds(model: Any, bounds: Mapping[str, int], *, autos: Collection[str] = ()) -> None:
    """Refuse parameters below their least value, unless they are None, or "auto" where they may be; UsageError."""
    for name, least in bounds.items():
        value = getattr(model, name)
        if name in autos and value == "auto":
            continue
        if isinstance(value, str):
            raise UsageError(f"{name}: expected a number, got {value!r}")
        if value is not None and value < least:
            raise UsageError(f"{name}: expected at least {least}, got {value}")
