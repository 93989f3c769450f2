"""Efforts: how much of a fit is spent on heads and on the choice of a blend.

The passes and heads of each effort were chosen by the time of each pass and the held-out gain of each head, on the
training rows of labelled corpora together (see docs/benchmarks.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from distmom.models.multilabel.classifiers.descent import TOLERANCE
from distmom.models.multilabel.variants import COSTS


@dataclass(frozen=True)
class Effort:
    """The amount of work of a fit.

    Attributes
    ----------
    costs : tuple of float
        Costs C of the margin classifiers from which `auto` chooses, ascending.
    n_residual_passes : int
        Default number of residual passes of the linear head with ``head="auto"``; other fits of that head have
        one more.
    tolerance : float
        Tolerance at which the descent of a margin classifier ends.
    has_states : bool
        Whether latent states are fitted even if no head requires them.
    has_topics : bool
        Whether there are topics by default.
    has_sketch_neighbors : bool
        Whether `auto` tries neighbours in the sketch of small corpora.
    refits_margins : bool
        Whether margin classifiers that `auto` chose are fitted again to all documents, as they always are if
        the model keeps its sums.
    held_out_documents, held_out_share : int and float
        Largest number of documents of a fold that is held out, and their largest share of the corpus.
    cross_fitted_documents : int
        Number of held-out documents that a blend is chosen on, at least, if the corpus has as many: smaller folds
        are followed by others. 0 for a single fold.
    """

    costs: tuple[float, ...] = COSTS
    n_residual_passes: int = 1
    tolerance: float = TOLERANCE
    has_states: bool = True
    has_topics: bool = True
    has_sketch_neighbors: bool = False
    refits_margins: bool = True
    held_out_documents: int = 10_000
    held_out_share: float = 0.2
    cross_fitted_documents: int = 900


NORMAL = Effort()
EFFORTS = {
    "low": Effort(
        costs=(0.3,),
        has_states=False,
        has_topics=False,
        refits_margins=False,
        held_out_documents=3_000,
        held_out_share=0.1,
        cross_fitted_documents=0,
    ),
    "normal": NORMAL,
    "high": Effort(
        n_residual_passes=2, tolerance=0.1, has_sketch_neighbors=True, cross_fitted_documents=4_000
    ),
}
