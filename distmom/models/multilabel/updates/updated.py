"""The state of a multi-label model after an update: heads made from new sums, and all others with new labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distmom.engine import Engine
from distmom.models.multilabel.assembly import heads_of, with_companions
from distmom.models.multilabel.heads.heads import FrequentHead, GateHead, Head, StateHead
from distmom.models.multilabel.stored import MultiLabelState
from distmom.models.multilabel.updates.additions import Start, parts_of
from distmom.models.multilabel.updates.kept_sums import Content, opened
from distmom.models.multilabel.variants import INDEX


def updated_state(
    engine: Engine, state: MultiLabelState, start: Start, content: Content, n_labels: int
) -> MultiLabelState:
    """Return the state of a model with other documents.

    Parameters
    ----------
    engine : Engine
    state : MultiLabelState
        State of the model before the update.
    start : Start
        All that updates do not change.
    content : Content
        Sums and documents of the model.
    n_labels : int
        Number of labels, at least as before; new ones follow.
    """
    made = heads_of(engine, parts_of(engine, start, content), start.recipe, start.limits)
    heads = tuple(
        (name, made.get(name) or _kept(head).with_more_labels(n_labels)) for name, head in state.heads
    )
    sums = content.sums
    if INDEX in made:
        sums = replace(sums, documents=None)
    states, topics = state.states, state.topics
    if states is not None:
        moments = states.label_moments
        states = replace(
            states, label_components=_padded(states.label_components, n_labels),
            label_moments=None if moments is None else _padded(moments, n_labels),
        )  # fmt: skip
    if topics is not None:
        topics = replace(topics, label_components=_padded(topics.label_components, n_labels))
    reranker = None if state.reranker is None else with_companions(state.reranker, dict(heads))
    return replace(
        state, heads=heads, reranker=reranker, label_frequency=content.label_counts, states=states,
        topics=topics, sums=opened(sums),
    )  # fmt: skip


def _kept(head: Head) -> StateHead | GateHead | FrequentHead:
    """Return a head that updates do not change."""
    assert isinstance(head, StateHead | GateHead | FrequentHead)
    return head


def _padded(own: np.ndarray, n_labels: int) -> np.ndarray:
    """Return rows of labels with zeros for new labels."""
    return np.concatenate([own, np.zeros((n_labels - len(own), own.shape[1]), own.dtype)])
