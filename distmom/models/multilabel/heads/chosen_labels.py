"""Scorers of chosen labels: every head keeps only their columns, so the work falls with their number.

What does not depend on labels remains: the features of a document, the search for its neighbours, the posterior of
its latent states. Scores of sparse weights and of votes have the same bits as those of all labels. Products of
dense matrices, in the heads on the sketch and on the states, may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distmom.corpus.names import NumberedNames
from distmom.errors import UsageError
from distmom.models.multilabel.heads.scorer import Scorer


def label_numbers(names: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """Return the numbers of labels given by name, int32, in the order given.

    Parameters
    ----------
    names : sequence of str
        At least one; without repetition. Any Unicode normal form finds a label.
    known : sequence of str
        Names of all labels.

    Raises
    ------
    UsageError
        If there is no name, a name is unknown or occurs twice, or ``names`` is not a sequence of names.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"labels: expected a list of names of labels, got {names!r}")
    if not len(names):
        raise UsageError("labels: expected at least one name of a label, got none")
    numbers = NumberedNames(known)
    # In the order given.
    found: dict[int, None] = {}
    for name in names:
        if (number := numbers.find(name)) is None:
            raise UsageError(f"labels: the model has no label {name!r}")
        if number in found:
            raise UsageError(f"labels: {name!r} is given twice")
        found[number] = None
    return np.array(list(found), np.int32)


def of_labels(scorer: Scorer, labels: np.ndarray) -> Scorer:
    """Return the scorer of some labels, numbered by their place among ``labels``.

    The labels are ranked by the blend: ranking the best labels again depends on all labels.

    Parameters
    ----------
    scorer : Scorer
    labels : ndarray of shape (m,), int32
        Without repetition.
    """
    factor = scorer.label_factor
    return replace(
        scorer,
        n_labels=len(labels),
        heads=tuple((name, head.of_labels(labels)) for name, head in scorer.heads),
        blend=scorer.blend.of_labels(labels),
        label_factor=None if factor is None else np.asarray(factor)[labels],
    )
