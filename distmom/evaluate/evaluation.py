"""Evaluation of a multi-label model on a labelled corpus, in one pass that accumulates ranking sums."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.corpus.layers import check_corpus
from distmom.engine import Observer, Pass, Rows, Selection, Sums, SumSpec, open_engine, open_executor
from distmom.errors import UsageError
from distmom.evaluate.assigned import DEPTH, AssignedSums, checked_table
from distmom.evaluate.metrics import RankingSums
from distmom.models.multilabel.estimator import MultiLabelMoM
from distmom.models.multilabel.heads.candidates import stored_heads
from distmom.models.multilabel.heads.scorer import Scorer
from distmom.models.multilabel.kernels import top_labels
from distmom.predict.aligned import check_labels, check_words
from distmom.predict.pieces import in_pieces
from distmom.ranking import inverse_propensity
from distmom.spectral.capabilities import Capability, require
from distmom.spectral.inputs.aligned import align


@dataclass(frozen=True)
class EvaluatePass(Pass):
    """Accumulate the ranking sums of a scorer, and the sums of assigned labels if it has probabilities.

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
    threshold : float, default=0.5
        Probability from which labels are assigned.
    """

    scorer: Scorer | None = None
    n_truth: int = 0
    inverse: Any = None
    depths: tuple[int, ...] = (1, 3, 5)
    auc_sample: Selection | None = None
    threshold: float = 0.5

    @property
    def name(self) -> str:
        return "evaluate"

    def zero_sums(self) -> RankingSums:
        """Return the ranking sums of no documents."""
        return RankingSums.zero(self.depths, inverse_propensity=self.inverse)

    def zero_assigned(self) -> AssignedSums | None:
        """Return the sums of assigned labels of no documents; None without probabilities."""
        assert self.scorer is not None
        return AssignedSums.zero(self.n_truth, self.threshold) if self.scorer.has_probabilities else None

    def specs(self) -> dict[str, SumSpec]:
        assigned = self.zero_assigned()
        zeros = self.zero_sums().sums | ({} if assigned is None else assigned.sums)
        return {name: SumSpec(v.shape, v.dtype.str) for name, v in zeros.items()}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        scorer = self.scorer
        assert scorer is not None
        total, assigned = self.zero_sums(), self.zero_assigned()
        top = min(max(self.depths) if assigned is None else DEPTH, scorer.n_labels)
        has_words = np.diff(block.words.indptr) > 0

        def add_lists(labels: np.ndarray, values: np.ndarray, rows: slice) -> None:
            nonlocal total, assigned
            total = self._with_lists(total, labels, values, truth[rows])
            if assigned is not None:
                assigned = assigned.add(labels, scorer.probabilities(values), truth[rows], has_words[rows])

        truth = csr_array(block.labels)
        truth.resize((block.n_documents, self.n_truth))
        sample = np.ones(block.n_documents, bool)
        if self.auc_sample is not None:
            sample = self.auc_sample.mask(block.first, block.n_documents)
        if scorer.ranks_alone:
            add_lists(*scorer.top(block, top), slice(None))
            block, truth, sample = block.take(sample), truth[sample], sample[sample]
        for window in scorer.blocks(block.n_documents):
            scores = scorer.scores(scorer.query(block.take(window)))
            if not scorer.ranks_alone:
                add_lists(*top_labels(scores, top), window)
            total = total.add_scores(scores[sample[window]], truth[window][sample[window]])
        for name, value in (total.sums | ({} if assigned is None else assigned.sums)).items():
            sums[name] += value
        return None

    def _with_lists(
        self, total: RankingSums, labels: np.ndarray, values: np.ndarray, truth: csr_array
    ) -> RankingSums:
        """Add ranked lists, cut or padded to the largest depth."""
        labels, values = labels[:, : max(self.depths)], values[:, : max(self.depths)]
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
    per_label: str | os.PathLike[str] | None = None,
    client: Any = None,
    memory_limit: int | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
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
    per_label : path-like, optional
        A file to write, with one line per label, see `AssignedSums.write_per_label`; none by default.
    client : distributed.Client or Executor, optional
        Where the pass runs; this process by default.
    memory_limit : int, optional
        Bytes that one worker may use; no limit by default.
    observer : callable, optional
        Receives progress events; none by default.

    Returns
    -------
    dict of str to float
        See `RankingSums.finish`; in addition ``n_unknown_words`` (occurrences) and ``n_unknown_labels``
        (distinct labels). If the model has probabilities (see `MultiLabelMoM.predict_proba`), also the metrics of
        `AssignedSums.finish`: of the 100 labels that rank highest for a document, those of probability at least
        `MultiLabelMoM.threshold_` are assigned, and none to a document without a word that the model knows.

    Raises
    ------
    UsageError
        If the model ranks no labels, the corpus has no labels, or the model knows none of its words or
        labels or does not have that head; or if ``per_label`` is given and exists, its directory does not exist,
        one head is evaluated alone, or the model has no probabilities.

    Notes
    -----
    A warning is logged if at least a tenth of the word or label occurrences are unknown.
    """
    require(model, Capability.LABELS)
    check_corpus(corpus)
    if per_label is not None:
        if head is not None:
            raise UsageError(
                f"per_label: cannot be combined with head={head!r}, which has no probabilities alone"
            )
        model.require_probabilities("per_label")
        checked_table(per_label)
    scorer = model.scorer_ if head is None else model.scorer_.only(head)
    if not sum(shard.nnz_labels for shard in corpus.shards):
        raise UsageError("the corpus has no labels: there is nothing to evaluate against")
    n_unknown_words = check_words(corpus, model.vocabulary_)
    check_labels(corpus, model.label_names_)
    aligned = in_pieces(align(corpus, model.vocabulary_, model.label_names_))
    sample = None
    if auc_documents is not None and auc_documents < corpus.n_documents:
        sample = Selection(auc_documents / corpus.n_documents, heldout=True, seed=model._seed)
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
        pass_ = EvaluatePass(
            aligned.n_words,
            scorer=stored_heads(engine, scorer),
            n_truth=aligned.n_labels,
            inverse=inverse,
            auc_sample=sample,
            threshold=model.threshold_,
        )
        sums = engine.run(pass_).sums
    total = pass_.zero_sums()
    total = RankingSums(
        total.depths, total.inverse_propensity, total.convention, total.skip_unlabelled,
        {name: np.asarray(sums[name]) for name in total.sums},
    )  # fmt: skip
    result: dict[str, Any] = total.finish()
    assigned = pass_.zero_assigned()
    if assigned is not None:
        assigned = replace(assigned, sums={name: np.asarray(sums[name]) for name in assigned.sums})
        result |= assigned.finish()
        if per_label is not None:
            assigned.write_per_label(
                per_label, aligned.label_names[: aligned.n_labels], np.asarray(model.label_frequency_)
            )
    result["n_unknown_words"] = n_unknown_words
    result["n_unknown_labels"] = max(0, aligned.n_labels - len(model.label_names_))
    return result
