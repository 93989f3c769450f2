"""Document frequencies of words and of pairs of words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distmom.compiled import compiled
from distmom.corpus import Block
from distmom.engine.passes import Pass, Rows
from distmom.engine.sums.additive import Sums, SumSpec


@compiled
def _add_pairs(indptr: Any, indices: Any, out: Any) -> None:
    """Count the pairs of words of every document, including pairs of a word with itself, in the upper triangle."""
    for i in range(indptr.shape[0] - 1):
        for p in range(indptr[i], indptr[i + 1]):
            row = out[indices[p]]
            for q in range(p, indptr[i + 1]):
                row[indices[q]] += 1.0


@dataclass(frozen=True)
class CooccurrencePass(Pass):
    """Count documents by pairs of words; the field ``numbers`` selects the words.

    Notes
    -----
    Sums: ``pairs`` (n_words, n_words), upper triangle with the documents of each word on the diagonal;
    ``documents`` ().
    """

    @property
    def name(self) -> str:
        return "coherence"

    def specs(self) -> dict[str, SumSpec]:
        return {"pairs": SumSpec((self.n_features, self.n_features)), "documents": SumSpec(())}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        _add_pairs(block.words.indptr, block.words.indices, sums["pairs"])
        sums["documents"] += block.n_documents
        return None
