"""Stacking where labels are too many to stack all pairs: a regression for each class of labels.

The probability of a label, given its scores, depends on its frequency, and not linearly: classifiers are best
for frequent labels, and neighbours for rare ones. So the labels are cut into classes of similar frequency that
hold about as many true pairs each, and the regression of `distmom.models.multilabel.blend.stack` is fitted to
each class, to pairs of held-out documents with labels that some head ranks among its best, and with some random
labels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.models.multilabel.blend.covariates import Covariates
from distmom.models.multilabel.blend.curves import add_class_input
from distmom.models.multilabel.blend.stack import Pairs, Stack, StackInput, fit_stack

#: largest number of classes, and smallest number of true pairs of a class
MAX_CLASSES, MIN_TRUE = 8, 100


@dataclass(frozen=True)
class ClassStack:
    """A regression for each class of labels.

    Attributes
    ----------
    cuts : tuple of float
        Log-odds of frequency that separate the classes, ascending; a label at a cut belongs to the class above.
    boundary : float
        The cut below which labels have no classifier of their own.
    stacks : tuple of Stack
        One more than cuts, of the same inputs, without effects.
    """

    cuts: tuple[float, ...]
    boundary: float
    stacks: tuple[Stack, ...]

    @property
    def inputs(self) -> tuple[StackInput, ...]:
        """Inputs of the least frequent class; those of the others have the same names."""
        return self.stacks[0].inputs

    #: the coefficients of a label depend on its frequency
    has_covariates = True

    def log_odds(self, scores: np.ndarray, covariates: Covariates | None = None) -> np.ndarray:
        """Return the log-odds of pairs.

        Parameters
        ----------
        scores : ndarray of shape (n_inputs, n, c), float32
        covariates : Covariates
            Required; only the frequencies of labels are used, (c,) or (n, c), from `limited`.

        Returns
        -------
        ndarray of shape (n, c), float32
        """
        assert covariates is not None
        classes = np.atleast_2d(classes_of(covariates.labels, self.cuts))
        intercepts = np.array([stack.intercept for stack in self.stacks], np.float32)
        out = np.empty(scores.shape[1:], np.float32)
        out[:] = intercepts[classes]
        for i, own in enumerate(scores):
            given = [stack.inputs[i] for stack in self.stacks]
            floors, linear, curve = (
                np.array([getattr(each, name) for each in given]) for name in ("floor", "linear", "curve")
            )
            add_class_input(
                np.ascontiguousarray(own), classes, given[0].signed, np.log(floors), linear, curve, out
            )
        return out

    def limited(self, log_odds: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Clip log-odds of frequency: labels with a classifier to at least the boundary, others below it.

        A label that became frequent by an update has no classifier, and one that is hardly frequent enough for one
        when all documents are counted may be less frequent than any was when the classes were fitted.
        """
        out = np.asarray(np.minimum(log_odds, np.nextafter(self.boundary, -np.inf)))
        out[labels] = np.maximum(log_odds[labels], self.boundary)
        return out

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "cuts": list(self.cuts),
            "boundary": self.boundary,
            "classes": [stack.to_json() for stack in self.stacks],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ClassStack:
        """Rebuild the regressions from what `to_json` returned; a ValueError if they do not suit one another."""
        stacks = tuple(Stack.from_json(each) for each in record["classes"])
        cuts = tuple(map(float, record["cuts"]))
        kinds = {tuple((each.name, each.signed) for each in stack.inputs) for stack in stacks}
        ascending = all(a < b for a, b in itertools.pairwise(cuts))
        if len(stacks) != len(cuts) + 1 or len(kinds) != 1 or any(stack.effects for stack in stacks):
            raise ValueError("expected a regression of the same inputs, without effects, for each class")
        if not (ascending and all(map(math.isfinite, cuts)) and record["boundary"] in cuts):
            raise ValueError("expected finite ascending cuts, one of which is the boundary")
        return cls(cuts, record["boundary"], stacks)


def stack_from_json(record: Mapping[str, Any]) -> Stack | ClassStack:
    """Rebuild either kind of stack from its JSON values; a ValueError if they are invalid."""
    return ClassStack.from_json(record) if "classes" in record else Stack.from_json(record)


def classes_of(log_odds: np.ndarray, cuts: tuple[float, ...]) -> np.ndarray:
    """Return the classes of labels of given frequency, uint8, of the same shape."""
    return np.asarray(np.searchsorted(np.array(cuts), log_odds, side="right"), np.uint8)


def class_cuts(pairs: Pairs, boundary: float) -> tuple[float, ...]:
    """Return the boundary, and cuts between classes of labels that hold about as many true pairs each."""
    assert pairs.covariates is not None
    found = np.sort(pairs.covariates.labels[(pairs.truth > 0) & pairs.known])
    n_classes = min(MAX_CLASSES, len(found) // MIN_TRUE)
    if n_classes < 2:
        return (boundary,)
    cuts = np.unique(np.quantile(found, np.arange(1, n_classes) / n_classes, method="higher"))
    below, at_boundary = np.searchsorted(found, cuts), np.searchsorted(found, boundary)
    # No class may have few pairs: neither the first, nor those on both sides of the boundary.
    enough = (below >= MIN_TRUE) & (abs(below - at_boundary) >= MIN_TRUE)
    return tuple(sorted([boundary, *cuts[enough].tolist()]))


def fit_classes(pairs: Pairs, cuts: tuple[float, ...], boundary: float) -> tuple[ClassStack, np.ndarray]:
    """Fit the regressions of all classes.

    Parameters
    ----------
    pairs : Pairs
        With covariates, whose frequencies of labels are those of the candidates, (n, c).
    cuts : tuple of float
        From `class_cuts`.
    boundary : float
        Log-odds of frequency from which labels have a classifier.

    Returns
    -------
    ClassStack
    ndarray of shape (n_inputs,)
        Increase of the negative log-likelihood, to second order, if an input is left out.
    """
    assert pairs.covariates is not None
    classes = classes_of(pairs.covariates.labels, cuts)
    fits = []
    for i in range(len(cuts) + 1):
        own = replace(pairs, known=pairs.known & (classes == i), covariates=None)
        # A class without a pair gets the regression of all pairs.
        fits.append(fit_stack(own if own.known.any() else replace(pairs, covariates=None)))
    return ClassStack(cuts, boundary, tuple(fit.stack for fit in fits)), np.sum(
        [fit.losses for fit in fits], axis=0
    )
