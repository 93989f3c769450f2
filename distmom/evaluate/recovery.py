"""Comparison of fitted states with the planted states of a simulated corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.errors import UsageError
from distmom.simulate import Truth
from distmom.spectral.capabilities import Capability, require


def score_recovery(model: Any, truth: Truth) -> dict[str, float]:
    """Match fitted states to planted states and measure the differences.

    Parameters
    ----------
    model : MultiLabelMoM or TopicModel
        A fitted model with latent states or topics.
    truth : Truth
        Truth of the training corpus, or of test documents from the same planted model.

    Returns
    -------
    dict of str to float
        ``n_planted``: number of planted states; ``n_recovered``: number of planted states whose characteristic
        words have a higher probability in the matched fitted state than in any other; ``words_l1`` and, if there
        are labels, ``labels_l1``: mean L1 distance (0 to 2) between matched distributions; ``weights_l1``: L1
        distance between the state probabilities.

    Raises
    ------
    UsageError
        If the model has no states, or a different number of words than the truth.
    """
    require(model, Capability.TOPICS)
    if model.n_features_in_ != truth.model.n_words:
        raise UsageError(
            f"the truth has {truth.model.n_words} words, but the model has {model.n_features_in_}"
        )
    heads, law = truth.head_words(), truth.model.head.probabilities()
    overlap = np.stack([model.components_[:, columns] @ law for columns in heads])
    planted, fitted = linear_sum_assignment(-overlap)
    words = [
        np.abs(model.components_[j] - truth.words(i)).sum() for i, j in zip(planted, fitted, strict=True)
    ]
    labels = {}
    if model.can(Capability.LABELS):
        distances = [
            np.abs(model.label_components_[j] - truth.labels(i)).sum()
            for i, j in zip(planted, fitted, strict=True)
        ]
        labels = {"labels_l1": float(np.mean(distances))}
    best = overlap[planted].argmax(axis=1) == fitted
    weights = np.zeros(truth.model.n_states)
    weights[planted] = model.weights_[fitted]
    return {
        "n_planted": float(truth.model.n_states),
        "n_recovered": float(best.sum()),
        "words_l1": float(np.mean(words)),
        **labels,
        "weights_l1": float(np.abs(weights - truth.weights).sum()),
    }
