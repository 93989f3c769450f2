"""What all estimators share: the fit of a corpus out of core."""

from __future__ import annotations

import os
import time
from typing import Any, Self

from sklearn.base import BaseEstimator

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, Observer, open_engine, open_executor


class CorpusEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of estimators that make passes over a corpus; they define `check` and `_fit`.

    Attributes
    ----------
    timings_ : list of dict
        One entry a pass (see `distmom.engine.Timing`).
    spent_ : dict of str to float
        Seconds of all tasks by kind of work.
    fit_seconds_ : float
    """

    def fit_corpus(
        self,
        corpus: Corpus | MemoryCorpus,
        *,
        client: Any = None,
        run: str | os.PathLike[str] | None = None,
        memory_limit: int | None = None,
        observer: Observer | None = None,
    ) -> Self:
        """Fit a corpus out of core.

        Parameters
        ----------
        corpus : Corpus or MemoryCorpus
        client : distributed.Client or Executor, optional
            Where passes run; this process when absent. It is left open.
        run : path-like, optional
            Directory of states and committed passes; a fit on the same directory goes on after the last
            committed pass. A temporary one when absent.
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
            If parameters and corpus do not go together.
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

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Refuse parameters that are wrong or do not go with a corpus; UsageError."""
        raise TypeError(f"{type(self).__name__} does not say what it refuses")

    def _fit(self, engine: Engine) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it is fitted")
