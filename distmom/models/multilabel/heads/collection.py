"""The heads of a model by name, and the features that they need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from distmom.corpus import Block
from distmom.models.multilabel.heads.heads import MIN_ROWS, rows_at_a_time
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead
from distmom.models.multilabel.heads.query import Query
from distmom.models.multilabel.variants import INDEX, family_of, votes_of


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Heads that score documents, and the features that they need.

    Attributes
    ----------
    n_labels : int
    idf : ndarray of shape (d,) or (0,)
    heads : tuple of (str, Head)
        Names and heads.
    basis : ndarray of shape (d, r), optional
        R of the sketch.
    """

    n_labels: int
    idf: Any
    heads: tuple[tuple[str, Any], ...]
    basis: Any = None

    def query(self, block: Block) -> Query:
        """Prepare a block for scoring."""
        return Query(block, self.idf, self.basis)

    @property
    def index(self) -> NeighborsHead | None:
        """The first head with an index of training documents, if there is one."""
        return next((head for _, head in self.heads if isinstance(head, NeighborsHead)), None)

    def variant(self, name: str) -> Any:
        """Return the head whose scores are those of a name.

        Parameters
        ----------
        name : str
            Of a head, or of a variant: that of a variant with an index stands for its votes, and any other one for
            the head of its family.

        Raises
        ------
        KeyError
            If there is no such head.
        ValueError
            If the name has no number of neighbours or no power.
        """
        heads = dict(self.heads)
        if name in heads:
            return heads[name]
        votes = votes_of(name)
        return heads[family_of(name)] if votes is None else replace(heads[INDEX], **vars(votes))

    @property
    def n_matrices(self) -> int:
        """Number of dense matrices of scores that are held at a time."""
        return 1

    def blocks(self, n_documents: int, min_rows: int = MIN_ROWS) -> Iterator[slice]:
        """Cut documents into blocks whose dense scores stay small."""
        step = rows_at_a_time(self.n_matrices * self.n_labels, min_rows)
        for start in range(0, n_documents, step):
            yield slice(start, min(start + step, n_documents))
