"""Evaluation of a multi-label model on a labelled corpus, in one pass that accumulates ranking sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.engine import Observer, Pass, Rows, Selection, Sums, SumSpec, open_engine, open_executor
from distmom.errors import UsageError
from distmom.evaluate.metrics import RankingSums
from distmom.models.multilabel.blend import stored_scorer
from distmom.models.multilabel.estimator import MultiLabelMoM
from distmom.models.multilabel.heads import Scorer
from distmom.models.multilabel.kernels import top_labels
from distmom.predict.aligned import align, check_labels, check_words
from distmom.predict.pieces import in_pieces, stored_corpus
from distmom.ranking import inverse_propensity
from distmom.spectral.capabilities import Capability, require


@dataclass(frozen=True)
class EvaluatePass(Pass):
    """Accumulate the ranking sums of a scorer.

    Attributes
    ----------
    scorer : Scorer
    n_truth : int
        Number of labels of the corpus: labels of the model, followed by labels unknown to it.
    inverse : ndarray of shape (n_truth,)
        Inverse propensities.
    depths : tuple of int, default=(1, 3, 5)
        Values of k.
    auc_sample : Selection or None, default=None
        Documents on which AUC is measured; None for all.
    """

    scorer: Scorer | None = None
    n_truth: int = 0
    inverse: Any = None
    depths: tuple[int, ...] = (1, 3, 5)
    auc_sample: Selection | None = None

    @property
    def name(self) -> str:
        return "evaluate"

    def zero_sums(self) -> RankingSums:
        """Return the ranking sums of no documents."""
        return RankingSums.zero(self.depths, inverse_propensity=self.inverse)

    def specs(self) -> dict[str, SumSpec]:
        return {name: SumSpec(v.shape, v.dtype.str) for name, v in self.zero_sums().sums.items()}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        scorer = self.scorer
        assert scorer is not None
        top = min(max(self.depths), scorer.n_labels)
        total = self.zero_sums()
        truth = csr_array(block.labels)
        truth.resize((block.n_documents, self.n_truth))
        sample = np.ones(block.n_documents, bool)
        if self.auc_sample is not None:
            sample = self.auc_sample.mask(block.first, block.n_documents)
        if scorer.ranks_alone:
            total = self._with_lists(total, *scorer.top(block, top), truth)
            block, truth, sample = block.take(sample), truth[sample], sample[sample]
        for window in scorer.blocks(block.n_documents):
            scores = scorer.scores(scorer.query(block.take(window)))
            if not scorer.ranks_alone:
                total = self._with_lists(total, *top_labels(scores, top), truth[window])
            total = total.add_scores(scores[sample[window]], truth[window][sample[window]])
        for name, value in total.sums.items():
            sums[name] += value
        return None

    def _with_lists(
        self, total: RankingSums, labels: np.ndarray, values: np.ndarray, truth: csr_array
    ) -> RankingSums:
        """Add ranked lists, padded to the largest depth."""
        missing = max(self.depths) - labels.shape[1]
        if missing > 0:
            labels = np.pad(labels, ((0, 0), (0, missing)), constant_values=-1)
            values = np.pad(values, ((0, 0), (0, missing)), constant_values=-np.inf)
        return total.add_lists(labels, truth, scores=values)


def evaluate_corpus(
    model: MultiLabelMoM,
    corpus: Corpus | MemoryCorpus,
    *,
    head: str | None = None,
    auc_documents: int | None = None,
    propensity_a: float = 0.55,
    propensity_b: float = 1.5,
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
) -> dict[str, float]:
    """Evaluate a model on a labelled corpus.

    Parameters
    ----------
    model : MultiLabelMoM
    corpus : Corpus or MemoryCorpus
        Aligned to the model by the names of words and labels; labels unknown to the model count as misses.
    head : str, optional
        Name of one head of the model to evaluate alone; by default, all heads together.
    auc_documents : int, optional
        Approximate number of documents on which AUC is measured, chosen by a seeded hash; all by default.
    propensity_a : float, default=0.55
    propensity_b : float, default=1.5
        A and B of the propensity model, see `inverse_propensity`.
    client : distributed.Client or Executor, optional
        Where the pass runs; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use.
    observer : callable, optional
        Receives progress events.

    Returns
    -------
    dict of str to float
        See `RankingSums.finish`; in addition ``n_unknown_words`` (occurrences) and ``n_unknown_labels``
        (distinct labels).

    Raises
    ------
    UsageError
        If the model ranks no labels, the corpus has no labels, or the model knows none of its words or
        labels or does not have that head.

    Notes
    -----
    A warning is logged if at least a tenth of the word or label occurrences are unknown.
    """
    require(model, Capability.LABELS)
    scorer = model.scorer_ if head is None else model.scorer_.only(head)
    if not sum(shard.nnz_labels for shard in corpus.shards):
        raise UsageError("the corpus has no labels: there is nothing to evaluate against")
    n_unknown_words = check_words(corpus, model.vocabulary_)
    check_labels(corpus, model.label_names_)
    aligned = in_pieces(align(corpus, model.vocabulary_, model.label_names_))
    sample = None
    if auc_documents is not None and auc_documents < corpus.n_documents:
        sample = Selection(auc_documents / corpus.n_documents, heldout=True, seed=model.random_state)
    inverse = inverse_propensity(
        model.label_frequency_,
        max(3, model.n_documents_),
        A=propensity_a,
        B=propensity_b,
        n_labels=aligned.n_labels,
    )
    with (
        open_executor(client) as executor,
        open_engine(aligned, None, executor, memory_limit, observer) as engine,
    ):
        stored_corpus(engine)
        pass_ = EvaluatePass(
            aligned.n_words,
            scorer=stored_scorer(engine, scorer),
            n_truth=aligned.n_labels,
            inverse=inverse,
            auc_sample=sample,
        )
        sums = engine.run(pass_).sums
    total = pass_.zero_sums()
    total = RankingSums(
        total.depths, total.inverse_propensity, total.convention, total.skip_unlabelled,
        {name: np.asarray(value) for name, value in sums.items()},
    )  # fmt: skip
    result = total.finish()
    result["n_unknown_words"] = n_unknown_words
    result["n_unknown_labels"] = max(0, aligned.n_labels - len(model.label_names_))
    return result
