"""Recipes: which variants of heads a model has, and how their scores are combined."""

from __future__ import annotations

from dataclasses import dataclass

from distmom.models.multilabel.blend.choice import Choice
from distmom.models.multilabel.variants import Variant, named, needs


@dataclass(frozen=True)
class Recipe:
    """Which heads a model has.

    Attributes
    ----------
    inputs : tuple of str
        Names of the variants of heads whose scores are used one by one: by a stack, or by a reranker and the sum
        that it ranks again. Empty for a weighted sum alone.
    weights : dict of str to float
        Factors of the heads of a sum, and the power of a gate; empty where there are inputs.
    """

    inputs: tuple[str, ...]
    weights: dict[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants of heads."""
        return self.inputs or tuple(self.weights)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of heads."""
        return tuple(named(name) for name in self.names)

    def needs(self, *parts: str) -> bool:
        """Whether a variant is made of one of the parts."""
        return needs(self.variants, *parts)


def recipe_of(weights: dict[str, float] | None, choice: Choice | None) -> Recipe:
    """Return the heads of a choice, or those of given weights."""
    if choice is None:
        return Recipe((), dict(weights or {}))
    return Recipe(choice.inputs, {} if choice.inputs else dict(choice.weights))
