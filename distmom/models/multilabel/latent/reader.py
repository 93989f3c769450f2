"""The latent states and the topics of a fitted multi-label model, as users read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Block
from distmom.engine.stored.arrays import SLAB_ROWS
from distmom.errors import UsageError
from distmom.models.multilabel.latent.corpus_topics import CorpusTopics
from distmom.models.multilabel.latent.word_states import smoothed_logs
from distmom.models.topics.fitted import lift_part
from distmom.moments.documents.labels import posteriors
from distmom.spectral.inputs.checks import check_size


class LatentReader:
    """Methods of a fitted multi-label model that return its latent states and topics."""

    components_: np.ndarray
    weights_: np.ndarray
    label_components_: np.ndarray
    document_frequency_: np.ndarray
    corpus_topics_: CorpusTopics | None
    diagnostics_: dict[str, Any]
    vocabulary_: list[str]
    label_names_: list[str]

    if TYPE_CHECKING:

        def as_fitted(self) -> Any: ...

        def _block(self, X: Any, min_samples: int = 0) -> Block: ...

    def state_posteriors(self, X: Any) -> np.ndarray:
        """Return the posterior probabilities of the latent states, (n_documents, n_states); rows sum to one.

        Multi-label paper, equation 14.
        """
        check_is_fitted(self, "components_")
        return posteriors(self._block(X), self._log_topics(), np.log(self.weights_))[0]

    def _log_topics(self) -> np.ndarray:
        """Return the logarithms of the smoothed word probabilities, (d, k)."""
        frequency = self.document_frequency_.astype(np.float64)
        total = float(np.sum(frequency + 0.5))
        topics, smoothing = self.components_.T, self.as_fitted().smoothing
        logs = np.empty(topics.shape, topics.dtype)
        for start in range(0, len(topics), SLAB_ROWS):
            rows = slice(start, start + SLAB_ROWS)
            logs[rows] = smoothed_logs(topics[rows], frequency[rows], total, smoothing)
        return logs

    def topics(self, n_top: int = 10, by: str = "relevance", *, states: bool = False) -> list[dict[str, Any]]:
        """Return words and labels of every topic, or of every latent state, by descending weight.

        Parameters
        ----------
        n_top : int, default 10
            Number of words, and of labels at most. Labels of a topic are those that are more frequent in it than
            in the corpus.
        by : {"relevance", "probability", "lift"}, default "relevance"
            How words and labels of topics are ranked (see `SpectralLDA.topics`). Those of latent states are ranked
            by probability.
        states : bool, default False
            Return latent states. A model without topics always returns them.

        Returns
        -------
        list of dict
            Keys ``state``, the number of the topic or state, ``weight``, ``words`` and ``labels``, the last two
            lists of (name, probability).

        Raises
        ------
        UsageError
            If ``n_top`` is not a whole number from 0, ``by`` is unknown, or the model has no latent states where
            they are requested.
        """
        check_is_fitted(self, "scorer_")
        check_size("n_top", n_top)
        lift_part(by)
        if self.corpus_topics_ is not None and not states:
            return self.corpus_topics_.listed(self.vocabulary_, self.label_names_, n_top, by)
        if not hasattr(self, "components_"):
            raise UsageError(f"the model has no latent states: {self.diagnostics_.get('states_error')}")

        def top(row: np.ndarray, names: Sequence[str]) -> list[tuple[str, float]]:
            order = np.lexsort((np.arange(len(row)), -row))[:n_top]
            return [(names[i], float(row[i])) for i in order if row[i] > 0]

        return [
            {
                "state": int(h),
                "weight": float(self.weights_[h]),
                "words": top(self.components_[h], self.vocabulary_),
                "labels": top(self.label_components_[h], self.label_names_),
            }
            for h in np.argsort(-self.weights_, kind="stable")
        ]
