"""The variants of heads: the only list of the choices of `auto`, with the parts that each variant needs.

The name of a variant is that of its head with its numbers, such as ``ridge-0.03``. In saved models, inputs of
blends have these names; heads have those of `Variant.head`, without numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

#: name of the head of a model that holds the index of documents, of which all votes are taken
INDEX = "neighbors"
#: name of the head whose scores multiply the sum of the others
GATE = "gate"
#: name of the head of classifiers of frequent labels; a sum without it is tried, too: alone it is often the best
#: head, and an ascent that begins with it ends elsewhere
FREQUENT = "frequent"
#: name of the head by the nearest rows of the sketch
SKETCH_NEIGHBORS = "sketch-neighbors"
#: name of the variant by the largest cosine among the nearest documents, which a reranker uses if it has no other
#: variant of the index
BEST_COSINE = "best-cosine"


@dataclass(frozen=True)
class Votes:
    """Votes of the nearest documents: the fields of `NeighborsHead` that a variant sets.

    Attributes
    ----------
    n_neighbors : int, default 75
    power : float, default 3.0
    factor, best : float, default 1.0 and 0.0
    """

    n_neighbors: int = 75
    power: float = 3.0
    factor: float = 1.0
    best: float = 0.0


@dataclass(frozen=True)
class Variant:
    """A variant of a head.

    Attributes
    ----------
    kind : str
        The name without its numbers.
    parts : tuple of str
        The parts it is made of: attributes of `distmom.models.multilabel.assembly.Parts`, the ``rows`` of the
        sketch, or the cross ``moments`` of latent states and labels. It is tried where all of them are fitted.
    numbers : tuple of float, default ()
        Penalty of ridge, cost of a margin classifier, or number of neighbours and power of their votes.
    signed : bool, default False
        Whether its scores are margins, which may be negative.
    updated : bool, default True
        Whether updates change it.
    place : int, default 0
        Place of its kind among the values of the parameter ``head``, which it stands for; 0 if it stands for none.
    """

    kind: str
    parts: tuple[str, ...]
    numbers: tuple[float, ...] = ()
    signed: bool = False
    updated: bool = True
    place: int = 0

    @property
    def name(self) -> str:
        """The kind with its numbers."""
        return "-".join([self.kind, *(f"{number:g}" for number in self.numbers)])

    @property
    def family(self) -> str:
        """The variants of which at most one is in a sum: the first word of the name."""
        return family_of(self.kind)

    @property
    def votes(self) -> Votes | None:
        """How the nearest documents vote; None for heads without an index of documents."""
        if self.kind == BEST_COSINE:
            return Votes(factor=0.0, best=1.0)
        return Votes(int(self.numbers[0]), self.numbers[1]) if self.kind == INDEX else None

    @property
    def head(self) -> str:
        """Name of the head of a model whose arrays it uses."""
        return INDEX if self.votes is not None else self.kind

    @property
    def cost(self) -> float | None:
        """Cost of its margin classifiers; None for other heads."""
        return self.numbers[0] if "margins" in self.parts else None


def family_of(name: str) -> str:
    """Return the family of the variant of that name."""
    return name.partition("-")[0]


#: all variants, in the order in which they are tried; of equally good ones, the first is chosen
VARIANTS = (
    Variant("ridge", ("ridge",), (0.01,)),
    Variant("ridge", ("ridge",), (0.03,), place=3),
    Variant("ridge", ("ridge",), (0.1,)),
    Variant(SKETCH_NEIGHBORS, ("ridge", "rows", "index")),
    Variant("centroid", ("features",)),
    Variant("linear", ("linear",), place=4),
    Variant("svm", ("margins",), (0.1,), signed=True),
    Variant("svm", ("margins",), (0.3,), signed=True, place=6),
    Variant("svm", ("margins",), (1.0,), signed=True),
    Variant(GATE, ("gate",), updated=False),
    Variant(FREQUENT, ("frequent",), updated=False),
    Variant(INDEX, ("index",), (75, 4.0)),
    Variant(INDEX, ("index",), (75, 3.0), place=5),
    Variant(INDEX, ("index",), (40, 3.0)),
    Variant(BEST_COSINE, ("index",)),
    Variant("posterior", ("states",), updated=False, place=2),
    Variant("moment", ("states", "moments"), updated=False, place=1),
)
_BY_NAME = {each.name: each for each in VARIANTS}
#: variants of the values of the parameter ``head``, in the order of these values
_ALONE = {each.kind: each for each in sorted(VARIANTS, key=lambda each: each.place) if each.place}
#: values of the parameter ``head``
HEADS = ("auto", *_ALONE)
#: heads of the latent states
STATE_HEADS = tuple(each.kind for each in VARIANTS if "states" in each.parts)
#: families with signed scores, and with an index of documents
SIGNED = frozenset(each.family for each in VARIANTS if each.signed)
INDEXED = frozenset(each.family for each in VARIANTS if each.votes is not None)


def alone(head: str) -> Variant:
    """Return the variant for a value of the parameter ``head`` other than auto."""
    return _ALONE[head]


def named(name: str) -> Variant:
    """Return the variant of a name; the numbers in the name of a saved model need not be among those tried now.

    Raises
    ------
    ValueError
        If there is no such kind, or its numbers are not valid.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    kind, *numbers = name.split("-")
    like = next((each for each in VARIANTS if each.kind == kind and len(each.numbers) == len(numbers)), None)
    if like is None:
        if kind == INDEX:
            raise ValueError(f"expected a number of neighbours and a power, got {name!r}")
        raise ValueError(f"expected the name of a variant of a head, got {name!r}")
    values = tuple(float(number) for number in numbers)
    if like.votes is not None and not (
        values[0] >= 1 and values[0].is_integer() and math.isfinite(values[1])
    ):
        raise ValueError(f"expected a number of neighbours and a power, got {name!r}")
    return replace(like, numbers=values)


def votes_of(name: str) -> Votes | None:
    """Return the votes of a variant with an index; None for names of other heads, and of the index itself.

    Raises
    ------
    ValueError
        If the name has no number of neighbours or no power.
    """
    return named(name).votes if family_of(name) in INDEXED and name != INDEX else None


def costs_of(variants: Iterable[Variant]) -> tuple[float, ...]:
    """Return the costs of the margin classifiers among some variants, ascending."""
    return tuple(sorted({each.cost for each in variants if each.cost is not None}))


def needs(variants: Iterable[Variant], *parts: str) -> bool:
    """Return whether some variant is made of one of the parts."""
    return any(part in variant.parts for variant in variants for part in parts)


#: costs C of margin classifiers, ascending
COSTS = costs_of(VARIANTS)
