"""Initial topics, from a decomposed tensor or from anchor words, on words of medium frequency.

One set of sums (`distmom.models.topics.committed`) serves every initialisation: the Dirichlet correction for
alpha0 is applied to the small moments, and anchor words need only the second moment.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.engine import Engine, StoredColumns
from distmom.engine.sums.tall import Tall
from distmom.errors import NumericalError
from distmom.models.topics.anchors import anchor_topics
from distmom.models.topics.committed import CommittedMoments
from distmom.models.topics.factors import find_by_fourth
from distmom.models.topics.recovery import free_rows, scaled_rows, store_topics, with_column
from distmom.moments.documents.dirichlet import (
    proportions,
    proportions_of_kurtosis,
    proportions_of_mean,
    topic_factor,
)
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import unknown_columns
from distmom.spectral.steps.components import find_each
from distmom.spectral.steps.core import Core, added_sums

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Initial:
    """Initial topics.

    Attributes
    ----------
    name : str
        "tensor-" followed by alpha0, "anchors" or "factors".
    topics : StoredColumns
        (d, k), columns sum to one; zero for words that are not in the moments.
    proportions : ndarray of shape (k,)
        Shares of the topics in the corpus, estimated from the moments; sum to one.
    alpha0 : float or None
    diagnostics : dict
        JSON values.
    """

    name: str
    topics: StoredColumns
    proportions: np.ndarray
    alpha0: float | None
    diagnostics: dict[str, Any]

    @classmethod
    def upto(cls, n_words: int, k: int) -> Initial:
        """Return initial topics with given shapes but without content, for a ledger."""
        return cls("", unknown_columns(n_words, k), unknown(k), unknown(), unknown())


@dataclass(frozen=True)
class InitSettings:
    """How initial topics are estimated from moments.

    Attributes
    ----------
    trials : tuple of float or None
        Values of alpha0 for the third moment, infinite for independent factors; None for anchor words.
    background : bool
        Whether the unigram distribution is added as a further topic.
    orders : str
        Orders of the moments that find topics, a name in `distmom.spectral.steps.factors.ORDERS`.
    loss : str
        Loss by which words are mixtures of anchor words, a name in `distmom.models.topics.anchors.LOSSES`.
    max_words : int or None
        Number of words that a topic of the third moment keeps; None: all of positive probability.
    is_requested : bool, default True
        Whether the user has chosen the number of topics, and is warned if the moments carry fewer.
    """

    trials: tuple[float | None, ...]
    background: bool
    orders: str
    loss: str
    max_words: int | None
    is_requested: bool = True

    @property
    def alpha0s(self) -> list[float]:
        """The trials that decompose a tensor."""
        return [alpha0 for alpha0 in self.trials if alpha0 is not None]


def initials(
    run: Run, moments: CommittedMoments, numbers: np.ndarray, settings: InitSettings
) -> list[Initial]:
    """Return initial topics from committed moments, one set per trial.

    The third moment is decomposed for each alpha0 (tensor paper, theorem 3.5). With infinite alpha0 the moments
    are central, and the components are independent factors, whose amounts in a document replace shares (ECA
    paper, algorithm 1): each column is a topic times the standard deviation of its amount, and its eigenvalue
    the skewness of the amount. Fourth moments find factors that are not skewed (algorithm 2); with
    finite alpha0 they are corrected as the third is (remark 7).

    Parameters
    ----------
    run : Run
    moments : CommittedMoments
    numbers : ndarray of shape (n_words,), int32
        Numbers of the words in the moments.
    settings : InitSettings

    Returns
    -------
    list of Initial
        Trials that the moments do not support are left out.

    Raises
    ------
    NumericalError
        If no trial succeeds.
    """
    of_cores = tuple(replace(moments.settings, alpha0=alpha0) for alpha0 in settings.alpha0s)
    cores: Sequence[Core | NumericalError]
    if settings.orders != "3":
        cores = [find_by_fourth(run, replace(moments, settings=each), settings.orders) for each in of_cores]
    else:
        cores = find_each(run, of_cores, moments.basis, moments.directories) if of_cores else []
    k = moments.settings.n_states + int(settings.background)
    out = [Initial.upto(len(numbers), k)] * len(settings.trials)
    return run.rows(_initials, moments, numbers, settings, cores, out=out)


def _initials(
    engine: Engine,
    moments: CommittedMoments,
    numbers: np.ndarray,
    settings: InitSettings,
    cores: Sequence[Core | NumericalError],
) -> list[Initial]:
    topic_sets: list[Initial] = []
    errors = [core for core in cores if isinstance(core, NumericalError)]
    for alpha0, core in zip(settings.alpha0s, cores, strict=True):
        if not isinstance(core, NumericalError):
            topic_sets.append(_tensor_init(engine, moments, numbers, alpha0, core, settings.max_words))
    if None in settings.trials:
        try:
            topic_sets.append(_anchor_init(engine, moments, numbers, engine.corpus.vocabulary, settings.loss))
        except NumericalError as error:
            errors.append(error)
    if not topic_sets:
        raise errors[0]
    for init in topic_sets:
        if settings.is_requested and len(init.proportions) < moments.settings.n_states:
            logger.warning(
                "%s: the moments carry %d of the %d topics requested", init.name, len(init.proportions),
                moments.settings.n_states,
            )  # fmt: skip
    return (
        [_with_background(engine, moments, init) for init in topic_sets]
        if settings.background
        else topic_sets
    )


def _with_background(engine: Engine, moments: CommittedMoments, init: Initial) -> Initial:
    """Return initial topics with the unigram distribution as a further topic, of share 1/2."""
    k, dtype = len(init.proportions), moments.settings.dtype
    unigram = engine.put(word_shares(engine.corpus)[:, None])
    stored, _ = engine.maps.map_rows(
        with_column, [init.topics, unigram], engine.corpus.n_words, {"topics": (k + 1, dtype)}
    )
    topics = StoredColumns((stored["topics"],))
    return replace(init, topics=topics, proportions=np.append(0.5 * init.proportions, 0.5))


def word_shares(corpus: Corpus | MemoryCorpus) -> np.ndarray:
    """Return the smoothed share of every word in the corpus, (d,) float32, all positive."""
    frequency = np.asarray(corpus.word_frequency, np.float64) + 0.1
    return np.asarray(frequency / frequency.sum(), np.float32)


def _tensor_init(
    engine: Engine,
    moments: CommittedMoments,
    numbers: np.ndarray,
    alpha0: float,
    core: Core,
    max_words: int | None,
) -> Initial:
    independent = math.isinf(alpha0)
    if independent:
        # Amounts are not negative: a factor with a negative mean is that of a topic with the other sign.
        signs = np.where(core.mean < 0.0, -1.0, 1.0)
        core = replace(core, V=core.V * signs, eigenvalues=core.eigenvalues * signs, mean=core.mean * signs)
    sizes = np.ones_like(core.eigenvalues) if independent else topic_factor(alpha0) * core.eigenvalues
    unwhiten = core.B @ (core.V * sizes)

    sums = added_sums(moments.directories, without="m3")
    basis, scale, k = moments.basis.matrix, moments.words.scale, unwhiten.shape[1]
    inputs: tuple[Tall, ...]
    rows_of: Callable[..., np.ndarray]
    arguments: tuple[Any, ...]
    if "half" in sums:
        inputs = (basis, *(engine.put(np.asarray(sums[name])) for name in ("half", "pair_mass", "mean")))
        factor = core.W @ (core.V * sizes)
        rows_of, arguments = free_rows, (np.asarray(sums["mass"]), np.asarray(sums["m1"]), alpha0, factor)
    else:
        inputs = (basis,) if scale is None else (basis, scale)
        rows_of, arguments = scaled_rows, (unwhiten,)
    topics, masses = store_topics(engine, moments, numbers, inputs, rows_of, arguments, k, max_words)
    diagnostics = {
        **core.diagnostics,
        **core.lengths,
        "spectrum": [float(x) for x in core.spectrum],
        "negative_mass": [float(x) for x in masses.negative_share],
    }
    if independent:
        # The mean amount of a factor times the mass of its column.
        shares = np.maximum(core.mean, 0.0) * masses.positive
        diagnostics["skewness"] = [float(x) for x in core.eigenvalues]
    else:
        of_mean = proportions_of_mean(core.mean, core.eigenvalues, alpha0)
        others = proportions(core.eigenvalues, alpha0)
        diagnostics["sum_proportions"] = float(others.sum())
        of_orders = [others]
        diagnostics["eigenvalues"] = [float(x) for x in core.eigenvalues]
        if "kurtosis" in core.diagnostics:
            of_orders.append(proportions_of_kurtosis(np.array(core.diagnostics["kurtosis"]), alpha0))
        diagnostics["proportions_disagreement"] = float(np.abs(of_orders - of_mean).max())
        # All agree where documents follow the model; where they do not, the mean is the most accurate.
        shares = np.maximum(of_mean, 0.0)
    total = float(shares.sum())
    shares = shares / total if total > 0 else np.full(len(shares), 1.0 / len(shares))
    name = "factors" if independent else f"tensor-{alpha0:g}"
    return Initial(name, topics, shares, None if independent else alpha0, diagnostics)


def _anchor_init(
    engine: Engine, moments: CommittedMoments, numbers: np.ndarray, vocabulary: list[str], loss: str
) -> Initial:
    """Return the topics that anchor words span."""
    found = anchor_topics(engine, moments, numbers, loss)
    shares = found.joint.sum(axis=0)
    topics, _ = store_topics(
        engine, moments, numbers, (engine.put(found.joint),), np.asarray, (), moments.settings.n_states
    )
    facts = {**found.facts, "anchors": [vocabulary[i] for i in found.anchors]}
    return Initial("anchors", topics, shares / shares.sum(), None, facts)
