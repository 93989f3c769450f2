"""What a fit will do, told before anything runs: passes, tasks, memory and disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Pass, PassPlan, StoredArray, StoredColumns, plan_pass
from distmom.models.multilabel.blend import candidates_pass
from distmom.models.multilabel.estimator import MultiLabelMoM
from distmom.models.multilabel.program import extends_states, held_out, n_dense_heads, tries_ridge
from distmom.models.multilabel.regression import n_linear_entries, n_products
from distmom.models.topics.initial import word_numbers
from distmom.models.topics.kept import TopicMoments
from distmom.models.topics.program import TopicModel
from distmom.models.topics.refine import ALPHA_SUMS
from distmom.moments.labels import LabelMomentsPass
from distmom.moments.regression import CrossMomentPass, FeatureSketchPass, RidgePass
from distmom.moments.residuals import ResidualPass
from distmom.moments.shares import CompletionPass, MixturePass, RefinePass
from distmom.moments.words import WordMomentsPass, WordSketchPass, WordSlicesPass
from distmom.spectral.basis import N_PROBES
from distmom.spectral.components import CoreSettings, basis_slabs, moment_passes
from distmom.spectral.rank import rank_settings


@dataclass(frozen=True)
class PlannedPass:
    """One kind of pass of a fit.

    Attributes
    ----------
    name : str
    n_scans : int
        How often the corpus is read for it.
    n_tasks : int
        Tasks over all scans.
    n_slabs : int
        Slabs of the vocabulary.
    task_bytes : int
        Projected peak of a worker process.
    sums_bytes : int
        Size of the total.
    rows_bytes : int
        Size of what is stored for the documents.
    """

    name: str
    n_scans: int
    n_tasks: int
    n_slabs: int
    task_bytes: int
    sums_bytes: int
    rows_bytes: int


Scans = list[tuple[int, Pass]]
Plan = Callable[[Pass], PassPlan]


def plan_fit(
    model: MultiLabelMoM | TopicModel | TopicMoments,
    corpus: Corpus | MemoryCorpus,
    memory_limit: int | None = None,
) -> list[PlannedPass]:
    """Plan the passes of a fit.

    Raises
    ------
    UsageError
        If the parameters do not fit the corpus, or a task cannot fit into the memory limit.
    """
    model.check(corpus)
    plan = partial(plan_pass, corpus, memory_limit=memory_limit)
    if isinstance(model, TopicMoments):
        scans = _kept_passes(model, corpus, plan)
    elif isinstance(model, TopicModel):
        scans = _topic_passes(model, corpus, plan)
    else:
        scans = _multilabel_passes(model, corpus, plan)
    planned = []
    for n_scans, pass_ in scans:
        if not n_scans:
            continue
        cut = plan(pass_)
        planned.append(
            PlannedPass(
                pass_.name, n_scans, n_scans * cut.n_tasks, max(len(cut.slabs), len(cut.columns)),
                cut.task_bytes,
                sum(spec.projected_bytes for spec in pass_.specs().values()),
                corpus.n_documents * pass_.row_bytes,
            )
        )  # fmt: skip
    return planned


def _core_passes(
    settings: CoreSettings, d: int, plan: Plan, vocabulary: np.ndarray | None = None
) -> tuple[Scans, WordMomentsPass, WordSlicesPass | None]:
    """Return the passes that lead to a basis, and those of the moments in it."""
    r = min(settings.n_states + settings.n_oversamples, d)
    probes = N_PROBES if settings.kind.distinct else 0
    kind, single = settings.kind, settings.single_precision
    power = WordSketchPass(
        d, vocabulary=vocabulary, kind=kind, n_columns=r, n_probes=probes, basis=0, single=single
    )
    whole = WordMomentsPass(d, vocabulary=vocabulary, kind=kind, rank=r, single=single)
    n_slabs = basis_slabs(power, moment_passes(settings, whole, plan), plan)
    basis = StoredColumns((StoredArray("", ""),) * n_slabs)
    power, whole = replace(power, basis=basis), replace(whole, basis=basis)
    scans: Scans = [(1, replace(power, basis=None)), (settings.n_power_iter, power)]
    return scans, *moment_passes(settings, whole, plan)


def _multilabel_passes(model: MultiLabelMoM, corpus: Corpus | MemoryCorpus, plan: Plan) -> Scans:
    d, n_labels = corpus.n_words, corpus.n_labels
    auto = model.head == "auto"
    times = 2 if auto else 1
    # Held-out documents are added to moments in a basis that stays.
    state_times = 2 if auto and extends_states(corpus, model.random_state) else 1
    k = model.n_states_for(corpus.n_documents)
    settings = model.state_settings(k)
    half = min(model.n_components - model.n_components // 2 + 10, d)
    products = n_products(corpus)
    scans, moments, slices = _core_passes(settings, d, plan)
    passes: Scans = []
    if auto or model.head in ("ridge", "linear", "neighbors"):
        passes.append((times, CrossMomentPass(d, n_labels=n_labels, n_products=products)))
    if model.head == "ridge" or (auto and tries_ridge(corpus, model.n_components)):
        passes.append((2 * times, FeatureSketchPass(d, n_columns=half)))
        passes.append((times, RidgePass(d, n_labels=n_labels, rank=model.n_components)))
    if auto or model.head == "linear":
        residual = ResidualPass(d, n_labels=n_labels, n_entries=n_linear_entries(corpus))
        passes.append((times * model.residual_passes(), residual))
    label_moments = LabelMomentsPass(
        d,
        n_labels=n_labels,
        n_states=k,
        kind=settings.kind,
        single=settings.single_precision,
        directions=0 if settings.cross_moment else None,
    )
    passes += [*scans, (state_times, moments)]
    passes += [(state_times, slices)] if slices is not None else []
    passes.append((state_times, label_moments))
    if auto:
        chosen = held_out(corpus, model.random_state)
        passes.append((1, candidates_pass(corpus, chosen, n_dense_heads(corpus, model.n_components))))
    return passes


def _kept_passes(model: TopicMoments, corpus: Corpus | MemoryCorpus, plan: Plan) -> Scans:
    numbers = word_numbers(corpus, model.n_components, model.min_df, model.max_df)
    scans, moments, _ = _core_passes(model.settings, int(numbers.max()) + 1, plan, numbers)
    return [*scans, (model.n_parts, replace(moments, mean=True, half=True))]


def _topic_passes(model: TopicModel, corpus: Corpus | MemoryCorpus, plan: Plan) -> Scans:
    # With "auto" there may be this many topics.
    d, k = corpus.n_words, model.most_components(corpus)
    settings, auto = model.core_settings(k), model.n_components == "auto"
    numbers = word_numbers(corpus, 2 if auto else settings.n_states, model.min_df, model.max_df)
    n_moment = int(numbers.max()) + 1
    scans, moments, _ = _core_passes(settings, n_moment, plan, numbers)
    if auto:
        halved, second, _ = _core_passes(rank_settings(settings, n_moment), n_moment, plan, numbers)
        scans += [*halved, (2, second)]
    how = model.way_of_refine(corpus)
    refine = RefinePass(d, n_topics=k, how=how, n_folds=model.n_folds(corpus))
    step: Pass = MixturePass(d, n_topics=k) if how == "mixture" else refine
    n_trial, n_completions = model.n_trial_passes(corpus)
    return [
        *scans,
        # Documents that were held out are added in the end.
        (1 + int(model.holds_out(corpus)), replace(moments, mean=True)),
        (n_trial + model.n_refine_passes(corpus), step),
        (n_completions, CompletionPass(d, n_topics=k, alpha_sums=ALPHA_SUMS)),
    ]


def plan_to_json(planned: list[PlannedPass]) -> dict[str, Any]:
    """Return the plan as JSON values with totals."""
    sliced = any(p.name == WordSlicesPass(0).name for p in planned)
    return {
        "passes": [vars(p) for p in planned],
        "third_moment": "slices" if sliced else "full",
        "n_scans": sum(p.n_scans for p in planned),
        "n_tasks": sum(p.n_tasks for p in planned),
        "worker_bytes": max((p.task_bytes for p in planned), default=0),
        "disk_bytes": sum((p.sums_bytes + p.rows_bytes) * p.n_scans for p in planned),
    }
