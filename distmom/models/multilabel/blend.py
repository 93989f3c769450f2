"""Choice of a blend of heads on held-out documents of the training corpus.

Every head scores the held-out documents; its scores are kept for the labels that any head ranks high, or for all
labels if there are few. With few labels the heads are stacked: a logistic regression of all their scores (see
`distmom.models.multilabel.stack`). With many, weights of a sum are found by coordinate ascent on a fixed grid; the
scores of each head are first divided by their mean best score, so that one grid serves heads of any scale, and a
logistic regression of the sum makes it a probability. The expected metrics are those of halves of the held-out
documents under a blend that was chosen on the other half; so are the probabilities on which a threshold is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import Block, Corpus, MemoryCorpus
from distmom.engine import Engine, Pass, PassResult, Rows, Selection, Sums, SumSpec
from distmom.engine.passes import transform_fields
from distmom.engine.state import release_maps
from distmom.models.multilabel.covariates import Covariates, frequency_log_odds
from distmom.models.multilabel.heads import GateHead, NeighborsHead, Query, Scorer, StateHead, rows_at_a_time
from distmom.models.multilabel.kernels import top_labels
from distmom.models.multilabel.objective import DEPTHS, MEAN, Objective, ideal_gains
from distmom.models.multilabel.probabilities import Reliability, best_threshold
from distmom.models.multilabel.stack import Pairs, Stack, fit_stack, probability, select_inputs
from distmom.models.multilabel.varying import vary

#: up to this number of labels all of them are candidates
ALL_LABELS = 1000
#: labels that each head adds to the candidates of a document
PER_HEAD = 30
#: least number of documents that are scored together by all heads
MIN_ROWS = 16
#: weights tried for each head, relative to its mean best score
GRID = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
#: least gain in the objective for which a head is kept
MIN_GAIN = 2e-4
#: share of the objective of the best head that a head must reach alone to be tried in a sum
MIN_SHARE = 0.1
#: groups whose variants share their arrays, so that a stack may have all of them
STACKED_TOGETHER = ("neighbors",)
#: powers tried for the factors of a gate
POWERS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0)
#: name of the head whose scores multiply the sum of the others
GATE = "gate"
#: name of the sum of all heads as the input of a logistic regression
TOTAL = "total"


def n_candidates(n_labels: int, n_heads: int) -> int:
    """Return the number of candidate labels of a document, at most."""
    return n_labels if n_labels <= ALL_LABELS else min(PER_HEAD, n_labels) * n_heads


@dataclass(frozen=True)
class CandidatesPass(Pass):
    """Score held-out documents with every head and keep the scores on candidate labels.

    Attributes
    ----------
    scorer : Scorer
        The heads; their weights are ignored.
    n_labels, n_dense, n_heads : int
        Number of labels, of heads that score all labels, and of all heads, at most; the memory of a block and the
        size of the rows depend on them. The heads themselves are memory-mapped.
    inverse : ndarray of shape (L,), optional
        Inverse propensities of the labels, where the objective weights by them.

    Notes
    -----
    Rows: ``labels`` (n, c) int32 candidates, -1 for none; ``scores`` (n, heads, c) float32; ``best``
    (n, heads) the largest score of every head; ``truth`` (n, c) uint8; ``n_true`` (n,) int32; ``covariates``
    (n, 2) float32 (see `Covariates`); with inverse propensities also ``ideal`` (n, 3) float64 (see `ideal_gains`).
    """

    scorer: Scorer | None = None
    n_labels: int = 0
    n_dense: int = 0
    n_heads: int = 0
    inverse: Any = None

    # Few documents of a shard are held out, and searching for many of them at once is cheaper.
    block_rows = 1 << 15

    @property
    def name(self) -> str:
        return "selection"

    def specs(self) -> dict[str, SumSpec]:
        return {"n_documents": SumSpec(())}

    def working_bytes(self, n_rows: int) -> int:
        # Scores of every dense head, and the true labels.
        window = min(n_rows, rows_at_a_time(self.n_labels, MIN_ROWS))
        return window * self.n_labels * (4 * self.n_dense + 1)

    @property
    def row_bytes(self) -> int:
        width = n_candidates(self.n_labels, self.n_heads)
        of_document = width * (4 + 4 * self.n_heads + 1) + 4 * self.n_heads + 12
        of_document += 0 if self.inverse is None else 8 * len(DEPTHS)
        return int(of_document if self.selection is None else self.selection.fraction * of_document)

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        assert self.scorer is not None
        query = self.scorer.query(block)
        for _, head in self.scorer.heads:
            if isinstance(head, NeighborsHead) and block.n_documents:
                # A list is read once for all documents that contain its word.
                query.nearest(head, head.n_neighbors)
        parts = []
        for window in self.scorer.blocks(block.n_documents, MIN_ROWS):
            # All heads are large, and their mapped pages count as memory once they are read.
            release_maps()
            parts.append(self._candidates(query.part(window)))
        sums["n_documents"] += block.n_documents
        if not parts:
            parts = [self._candidates(query)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _candidates(self, query: Query) -> dict[str, np.ndarray]:
        scorer, block = self.scorer, query.block
        assert scorer is not None
        n, n_labels = block.n_documents, scorer.n_labels
        every = n_labels <= ALL_LABELS
        depth = min(PER_HEAD, n_labels)
        width = n_candidates(n_labels, sum(not isinstance(head, GateHead) for _, head in scorer.heads))
        dense: dict[int, np.ndarray] = {}
        tops, best = [], []
        for h, (_, head) in enumerate(scorer.heads):
            if isinstance(head, GateHead):
                # It multiplies scores, and adds no candidates.
                best.append(np.ones(n, np.float32))
                continue
            if isinstance(head, StateHead) and not every:
                # The best labels are found without scoring all of them.
                labels, values = head.top(query, 1.0, depth)
                best.append(values[:, 0])
            else:
                dense[h] = np.zeros((n, n_labels), np.float32)
                head.add_scores(query, 1.0, dense[h])
                best.append(dense[h].max(axis=1))
                labels = np.zeros((n, 0), np.int32) if every else top_labels(dense[h], depth)[0]
            tops.append(labels)
        if every:
            labels = np.broadcast_to(np.arange(n_labels, dtype=np.int32), (n, n_labels)).copy()
        else:
            labels = np.sort(np.hstack(tops), axis=1) if n else np.zeros((0, width), np.int32)
            labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1
        known = np.maximum(labels, 0)
        scores = np.stack(
            [
                np.take_along_axis(dense[h], known, axis=1) if h in dense else head.scores_at(query, known)
                for h, (_, head) in enumerate(scorer.heads)
            ],
            axis=1,
        )
        truth = np.zeros((n, n_labels), np.uint8)
        owner = np.repeat(np.arange(n), np.diff(block.labels.indptr))
        truth[owner, block.labels.indices] = 1
        found = np.take_along_axis(truth, known, axis=1) * (labels >= 0)
        ideal = {} if self.inverse is None else {"ideal": ideal_gains(block.labels, self.inverse)}
        return {
            "labels": labels,
            "scores": scores,
            "best": np.stack(best, axis=1),
            "truth": found.astype(np.uint8),
            "n_true": np.diff(block.labels.indptr).astype(np.int32),
            "covariates": query.covariates(scorer.index).astype(np.float32),
            **ideal,
        }


@dataclass(frozen=True)
class Choice:
    """The blend chosen on held-out documents, and the metrics of each head on them.

    Attributes
    ----------
    weights : dict of str to float
        Weight of each chosen head, which multiplies its scores; of a gate, the power of its factors. With a stack
        of several heads, what each is worth: the increase of the negative log-likelihood per document without it.
    objective : float
        Value of the objective for the blend.
    scores : dict of str to dict
        P@1, P@3, P@5, nDCG@5 (and AUC where all labels are candidates) of every head alone and of the blend.
    n_documents : int
        Number of held-out documents.
    stack : Stack
        Log-odds of a label: of the scores of the chosen heads, or, with the one input `TOTAL`, of their weighted
        sum.
    precision_error : float
        Standard error of P@1 of the blend.
    threshold : float
        Probability from which labels are predicted, with the best micro F1.
    reliability : Reliability
        Sums of the candidates in bins of probability.
    metric : str, default "mean"
        What the blend was chosen for.
    error : float, default 0.0
        Standard error of the objective, unless that is a mean of metrics.
    exponent : float or None, default None
        Power of the inverse propensity that multiplies the probability of a label, where the metric weights by it.
    """

    weights: dict[str, float]
    objective: float
    scores: dict[str, dict[str, float]]
    n_documents: int
    stack: Stack
    precision_error: float
    threshold: float
    reliability: Reliability
    metric: str = MEAN
    error: float = 0.0
    exponent: float | None = None

    @property
    def is_stacked(self) -> bool:
        """Whether the heads are stacked, not added."""
        return self.stack.inputs[0].name != TOTAL

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; ``expected`` and ``exponent`` only where a metric was stated."""
        stated = self.metric != MEAN
        expected = {"metric": self.metric, "value": self.objective, "error": self.error}
        return {
            "weights": self.weights,
            "objective": self.objective,
            "held_out": self.scores,
            "n_held_out": self.n_documents,
            "precision_error": self.precision_error,
            "threshold": self.threshold,
            "reliability": self.reliability.to_json(),
            **({"expected": expected} if stated else {}),
            **({} if self.exponent is None else {"exponent": self.exponent}),
        }


def candidates_pass(
    corpus: Corpus | MemoryCorpus, selection: Selection, n_dense: int, n_heads: int
) -> CandidatesPass:
    """Return the pass that scores held-out documents, without its scorer."""
    return CandidatesPass(
        corpus.n_words, selection, n_labels=corpus.n_labels, n_dense=n_dense, n_heads=n_heads
    )


def read_scores(engine: Engine, scored: PassResult) -> dict[str, np.ndarray]:
    """Return the rows that `CandidatesPass` stored, with no more columns than a document has candidates."""
    shards = range(len(engine.corpus.shards))
    rows = {name: np.concatenate([handle.read(i) for i in shards]) for name, handle in scored.rows.items()}
    known = rows["labels"] >= 0
    width = int(known.sum(axis=1).max(initial=0))
    if width < known.shape[1]:
        order = np.argsort(~known, axis=1, kind="stable")[:, :width]
        rows |= {name: np.take_along_axis(rows[name], order, axis=1) for name in ("labels", "truth")}
        rows["scores"] = np.take_along_axis(rows["scores"], order[:, None], axis=2)
    return rows


def stored_scorer(engine: Engine, scorer: Scorer) -> Scorer:
    """Return the scorer with its large arrays stored, so that workers can memory-map them."""
    stored: Scorer = transform_fields(
        scorer,
        lambda leaf: engine.put(leaf) if isinstance(leaf, np.ndarray) and leaf.nbytes > 1 << 16 else leaf,
    )
    return stored


def choose_blend(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    metric: str = MEAN,
    inverse: np.ndarray | None = None,
    frequency: tuple[np.ndarray, int] | None = None,
) -> Choice:
    """Choose a blend of heads: a stack where all labels are candidates, else a weighted sum.

    The best head alone is taken where it is better than the blend on documents that neither was fitted to; for one
    metric, which varies more than a mean of several, where it is better by more than a standard error.

    Parameters
    ----------
    names : list of str
        Names of the heads in the order of ``rows["scores"]``.
    rows : dict of str to ndarray
        From `read_scores`.
    groups : dict of str to str
        Name of the variants that each head belongs to.
    metric : str, default "mean"
        What the blend is chosen for, one of `OBJECTIVES`.
    inverse : ndarray of shape (L,), optional
        Inverse propensities of the labels; required by PSP@k.
    frequency : (ndarray of shape (L,), int), optional
        Numbers of documents of the labels, and of all documents, including those held out. Without it, the
        coefficients of a stack do not vary.
    """
    objective = Objective(rows["labels"], rows["truth"], rows["n_true"], metric, inverse, rows.get("ideal"))
    if objective.has_auc:
        return _choose_stack(names, rows, groups, objective, frequency)
    return _choose_sum(names, rows, groups, objective)


def _covariates(rows: dict[str, np.ndarray], frequency: tuple[np.ndarray, int] | None) -> Covariates | None:
    """Return the covariates of held-out documents, and of the labels in the documents that heads are fitted to."""
    if frequency is None:
        return None
    counts, n_documents = frequency
    fitted = np.asarray(counts) - rows["truth"].sum(axis=0, dtype=np.int64)
    return Covariates(rows["covariates"], frequency_log_odds(fitted, n_documents - len(rows["truth"])))


def apply_choice(
    choice: Choice,
    names: list[str],
    rows: dict[str, np.ndarray],
    frequency: tuple[np.ndarray, int] | None = None,
) -> np.ndarray:
    """Return what a choice ranks candidates (n, c) of other documents by, given their scores by the same heads.

    Parameters
    ----------
    choice : Choice
        For probabilities; the power of the inverse propensity is not applied.
    names, rows, frequency
        As for `choose_blend`; the frequency is required where coefficients vary.
    """
    if not choice.is_stacked:
        return _total(names, rows["scores"], choice.weights)
    inputs = [names.index(each.name) for each in choice.stack.inputs]
    scores = np.ascontiguousarray(rows["scores"][:, inputs].swapaxes(0, 1))
    return choice.stack.log_odds(scores, _covariates(rows, frequency))


def _halves(n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the two ways to fit to one half of the documents and measure on the other."""
    even, odd = np.arange(0, n, 2), np.arange(1, n, 2)
    return [(even, odd), (odd, even)] if n > 1 else [(even, even)]


def _choose_stack(
    names: list[str],
    rows: dict[str, np.ndarray],
    groups: dict[str, str],
    objective: Objective,
    frequency: tuple[np.ndarray, int] | None,
) -> Choice:
    """Stack the heads that score all labels; of the variants that would be stored twice, the best is used.

    The coefficients vary with documents and labels if that makes documents that they were not fitted to more
    probable.
    """
    scores = rows["scores"].swapaxes(0, 1)
    rankings = _rankings(names, scores, objective)
    report = {name: objective.named(own) for name, own in rankings.items()}
    alone = {name: objective.value(own) for name, own in rankings.items()}
    # One variant, also of equally good ones: the others would share its place among the heads of the model.
    best_of = {
        group: max((name for name in names if groups[name] == group), key=lambda name: alone[name])
        for group in dict.fromkeys(groups[name] for name in names)
    }
    used = [name for name in names if groups[name] in STACKED_TOGETHER or best_of[groups[name]] == name]
    chosen = [names.index(name) for name in used]
    pairs = Pairs(
        tuple(used),
        tuple(groups[name] == "svm" for name in used),
        np.ascontiguousarray(scores[chosen]),
        rows["truth"],
        rows["labels"] >= 0,
        _covariates(rows, frequency),
    )
    kept, fit = select_inputs(pairs)
    inputs = pairs.only(kept)
    totals, log_odds = _crossed(inputs, objective, fit.stack)
    if frequency is not None:
        varying = _crossed(inputs, objective, fit.stack, varies=True)
        if _loss(varying[1], inputs.truth) < _loss(log_odds, inputs.truth):
            totals, log_odds = varying
            fit = replace(fit, stack=vary(inputs, fit.stack))
    best = max(used, key=lambda name: alone[name])
    if objective.clearly_prefers(rankings[best], totals):
        own = pairs.only([used.index(best)])
        fit, totals = fit_stack(own), rankings[best]
        _, log_odds = _crossed(own, objective, fit.stack)
    report["auto"] = objective.named(totals)
    n = len(objective.n_true)
    weights = {each.name: float(loss / n) for each, loss in zip(fit.stack.inputs, fit.losses, strict=True)}
    return _choice(weights, objective.value(totals), report, fit.stack, objective, totals, log_odds)


def _choice(
    weights: dict[str, float],
    value: float,
    report: dict[str, dict[str, float]],
    stack: Stack,
    objective: Objective,
    totals: np.ndarray,
    log_odds: np.ndarray,
) -> Choice:
    """Return a choice, given what ranks the candidates and their log-odds, (n, c) each."""
    exponent = objective.best_exponent(log_odds) if objective.weighs_propensity else None
    return Choice(
        weights, value, report, len(objective.n_true), stack, _error(objective, totals),
        *_calibrated(objective, log_odds), objective.metric, objective.error(totals), exponent,
    )  # fmt: skip


def _rankings(names: list[str], scores: np.ndarray, objective: Objective) -> dict[str, np.ndarray]:
    """Return what every head ranks the candidates by if it is alone, (n, c) each: its scores, except for PSP@k."""
    if not objective.weighs_propensity:
        return dict(zip(names, scores, strict=True))
    return {
        name: _crossed(
            Pairs((name,), (name.startswith("svm"),), own[None], objective.truth, objective.labels >= 0),
            objective,
        )[0]
        for name, own in zip(names, scores, strict=True)
    }


def _loss(log_odds: np.ndarray, truth: np.ndarray) -> float:
    """Return the negative log-likelihood of pairs."""
    z = log_odds.astype(np.float64)
    return float((np.logaddexp(0.0, z) - truth * z).sum())


def _crossed(
    pairs: Pairs, objective: Objective, start: Stack | None = None, varies: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ranks each half of the documents under a stack fitted to the other half, and its log-odds.

    ``start`` is the stack of all documents, from which the fits take fewer steps. With ``varies``, coefficients
    vary with documents and labels.
    """
    log_odds = np.zeros(objective.truth.shape, np.float32)
    totals = np.zeros_like(log_odds) if objective.weighs_propensity else log_odds
    for half, other in _halves(len(log_odds)):
        own, new = pairs.of(half), pairs.of(other)
        stack = fit_stack(own, start).stack
        if varies:
            stack = vary(own, stack)
        log_odds[other] = stack.log_odds(new.scores, new.covariates)
        if objective.weighs_propensity:
            exponent = objective.of(half).best_exponent(stack.log_odds(own.scores, own.covariates))
            totals[other] = objective.of(other).ranking(log_odds[other], exponent)
    return totals, log_odds


def _calibrated(objective: Objective, log_odds: np.ndarray) -> tuple[float, Reliability]:
    """Return the best threshold of probability, and the sums of candidates in bins of probability."""
    known = objective.labels >= 0
    p, truth = probability(log_odds)[known], objective.truth[known]
    return best_threshold(p, truth, int(objective.n_true.sum())), Reliability.of(p, truth)


def _error(objective: Objective, totals: np.ndarray) -> float:
    """Return the standard error of P@1."""
    hits = objective.first_hits(totals)
    return float(hits.std(ddof=1) / np.sqrt(len(hits))) if len(hits) > 1 else 0.0


def _choose_sum(
    names: list[str], rows: dict[str, np.ndarray], groups: dict[str, str], objective: Objective
) -> Choice:
    """Choose the weights of a sum, and the regression that makes it a probability."""
    rankings = _rankings(names, rows["scores"].swapaxes(0, 1), objective)
    report = {name: objective.named(own) for name, own in rankings.items()}
    alone = {name: objective.value(own) for name, own in rankings.items()}
    totals, log_odds = _crossed_sum(names, rows, groups, objective)
    weights, value = _summed(names, rows, groups, objective.of_probability)
    single = max((name for name in names if name != GATE), key=lambda name: alone[name])
    if objective.clearly_prefers(rankings[single], totals):
        at = names.index(single)
        own = rows | {"scores": rows["scores"][:, [at]], "best": rows["best"][:, [at]]}
        _, log_odds = _crossed_sum([single], own, groups, objective)
        weights, value = ascend([single], own, groups, objective.of_probability)
        totals = rankings[single]
    if objective.metric != MEAN:
        value = objective.value(totals)
    report["auto"] = objective.named(totals)
    stack = _of_total(objective, _total(names, rows["scores"], weights))
    return _choice(weights, value, report, stack, objective, totals, log_odds)


def _crossed_sum(
    names: list[str], rows: dict[str, np.ndarray], groups: dict[str, str], objective: Objective
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ranks each half of the documents under a sum chosen on the other half, and its log-odds."""
    totals = np.zeros(objective.truth.shape, np.float32)
    log_odds = np.zeros_like(totals)
    for half, other in _halves(len(totals)):
        part, known = {key: values[half] for key, values in rows.items()}, objective.of(half)
        weights, _ = _summed(names, part, groups, known.of_probability)
        totals[other] = _total(names, rows["scores"][other], weights)
        own = _total(names, part["scores"], weights)
        calibration = _of_total(known, own)
        log_odds[other] = calibration.log_odds(totals[None, other])
        if objective.weighs_propensity:
            exponent = known.best_exponent(calibration.log_odds(own[None]))
            totals[other] = objective.of(other).ranking(log_odds[other], exponent)
    return totals, log_odds


def _of_total(objective: Objective, totals: np.ndarray) -> Stack:
    """Return the regression that makes weighted sums (n, c) of scores log-odds."""
    pairs = Pairs((TOTAL,), (False,), totals[None], objective.truth, objective.labels >= 0)
    return fit_stack(pairs).stack


def _summed(
    names: list[str], rows: dict[str, np.ndarray], groups: dict[str, str], objective: Objective
) -> tuple[dict[str, float], float]:
    """Return the weights of a sum and the power of its gate, and the value of the objective."""
    added = [i for i, name in enumerate(names) if name != GATE]
    own = {**rows, "scores": rows["scores"][:, added], "best": rows["best"][:, added]}
    weights, best = ascend([names[i] for i in added], own, groups, objective)
    if GATE in names:
        gated = [{**weights, GATE: power} for power in POWERS]
        values = [objective.value(_total(names, rows["scores"], each)) for each in gated]
        i = int(np.argmax(values))
        if values[i] > best + MIN_GAIN:
            return gated[i], values[i]
    return weights, best


def _total(names: list[str], scores: np.ndarray, weights: dict[str, float]) -> np.ndarray:
    """Return the weighted sum (n, c) of the scores (n, heads, c) of heads, positive sums times a gate."""
    total = np.zeros((scores.shape[0], scores.shape[2]), np.float32)
    for name, weight in weights.items():
        if name != GATE:
            total += np.float32(weight) * scores[:, names.index(name)]
    if GATE in weights:
        factors = np.maximum(scores[:, names.index(GATE)], 0.0) ** np.float32(weights[GATE])
        total = np.where(total > 0.0, total * factors, total)
    return total


def ascend(
    names: list[str], rows: dict[str, np.ndarray], groups: dict[str, str], objective: Objective
) -> tuple[dict[str, float], float]:
    """Find the weights of a sum by coordinate ascent; also return the value of the objective.

    The ascent begins with the best single head; of the variants of a head (same group) at most one is used. Heads
    whose objective alone is below `MIN_SHARE` of the best, or that contribute less than `MIN_GAIN` to the final
    blend, are left out.

    Parameters
    ----------
    names : list of str
        Names of the heads in the order of ``rows["scores"]``.
    rows : dict of str to ndarray
        From `read_scores`.
    groups : dict of str to str
        Name of the variants that each head belongs to.
    objective : Objective
        Of the same documents.
    """
    value = objective.value
    n = len(objective.n_true)
    scale = np.maximum(rows["best"].astype(np.float64).mean(axis=0), 1e-30) if n else np.ones(len(names))
    scores = np.ascontiguousarray((rows["scores"] / scale[:, None]).swapaxes(0, 1), dtype=np.float32)

    def without(totals: np.ndarray, weights: np.ndarray, heads: Sequence[int]) -> np.ndarray:
        for h in heads:
            if weights[h]:
                totals = totals - np.float32(weights[h]) * scores[h]
        return totals

    alone = [value(scores[h]) for h in range(len(names))]
    first = int(np.argmax(alone))
    tried = [h for h in np.argsort(-np.asarray(alone), kind="stable") if alone[h] >= MIN_SHARE * alone[first]]
    weights = np.zeros(len(names))
    weights[first] = 1.0
    totals, best = scores[first].copy(), alone[first]
    improved = True
    while improved:
        improved = False
        for h in tried:
            group = [j for j, name in enumerate(names) if groups[name] == groups[names[h]]]
            others = without(totals, weights, group)
            # Without any head, labels would be ranked by their numbers.
            for grid in GRID if np.delete(weights, group).any() else GRID[1:]:
                trial = others + np.float32(grid) * scores[h]
                if (got := value(trial)) > best + MIN_GAIN:
                    weights[group] = 0.0
                    weights[h] = grid
                    totals, best, improved = trial, got, True
    # A head chosen in the first steps may contribute little beside those chosen later.
    while np.count_nonzero(weights) > 1:
        rest = {h: value(without(totals, weights, [h])) for h in np.flatnonzero(weights).tolist()}
        h = max(rest, key=lambda h: rest[h])
        if rest[h] < best - MIN_GAIN:
            break
        totals, best = without(totals, weights, [h]), rest[h]
        weights[h] = 0.0
    chosen = {name: float(w / s) for name, w, s in zip(names, weights, scale, strict=True) if w > 0}
    return chosen, best
