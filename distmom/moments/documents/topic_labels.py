"""The pass that counts labels by topic, with the shares of topics in documents inferred from given topics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distmom.corpus import Block
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.documents.document_shares import SHORT, document_shares
from distmom.moments.documents.shares import TopicsPass
from distmom.moments.sketching import scatter_rows
from distmom.moments.weighting import row_weights


@dataclass(frozen=True)
class TopicLabelsPass(TopicsPass):
    """Add up the shares of topics over the documents of every label.

    Attributes
    ----------
    n_labels : int
    how : {"em", "vb", "cvb"}
        MAP shares, variational Bayes, or collapsed variational Bayes.

    Notes
    -----
    Sum: ``labels`` (n_labels, k) tall. Rows that it reads, if they are stored: ``shares`` (n, k), initial shares.
    """

    n_labels: int = 0
    how: str = "em"

    @property
    def name(self) -> str:
        return "topic-labels"

    def specs(self) -> dict[str, SumSpec]:
        return {"labels": SumSpec((self.n_labels, self.n_topics), "float32", tall="targets")}

    def add(self, sums: Sums, block: Block, rows: Rows) -> None:
        shares, _ = document_shares(
            block.words, self.given(), how=self.how, start=rows.get("shares"), iteration=SHORT
        )
        weighted = shares * row_weights(block)[:, None].astype(np.float64)
        counts = sums["labels"]
        scatter_rows(block.labels.indptr, block.labels.indices, weighted, counts.single)
        counts.settle()
