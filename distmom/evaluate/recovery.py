"""How well fitted states recover those that a planted corpus was drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from distmom.errors import UsageError
from distmom.simulate import Truth


def score_recovery(model: Any, truth: Truth) -> dict[str, float]:
    """Match fitted states to planted ones and measure what separates them.

    Parameters
    ----------
    model : MultiLabelMoM or TopicModel
        Fitted, with latent states or topics.
    truth : Truth
        Of the corpus that it was fitted to, or of test documents of the same model.

    Returns
    -------
    dict of str to float
        ``n_recovered``: planted states whose own words have more probability in the fitted state matched to
        them than in any other; ``words_l1``, ``labels_l1``: mean L1 distance of the matched distributions
        (0 to 2), of labels where there are any; ``weights_l1``: L1 distance of the probabilities of the states.

    Raises
    ------
    UsageError
        If the model has no states, or other words than the truth.
    """
    if not hasattr(model, "components_"):
        raise UsageError("the model has no latent states to compare with the truth")
    if model.n_features_in_ != truth.model.n_words:
        raise UsageError(f"the truth has {truth.model.n_words} words, the model {model.n_features_in_}")
    heads, law = truth.head_words(), truth.model.head.probabilities()
    overlap = np.stack([model.components_[:, columns] @ law for columns in heads])
    planted, fitted = linear_sum_assignment(-overlap)
    words = [
        np.abs(model.components_[j] - truth.words(i)).sum() for i, j in zip(planted, fitted, strict=True)
    ]
    labels = {}
    if hasattr(model, "label_components_"):
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
