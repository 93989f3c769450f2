"""The parameters of topic models, and the settings of a fit that follow from them for a corpus."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.errors import UsageError
from distmom.linalg import METHODS
from distmom.linalg.tensors.decompose import methods_taking
from distmom.models.topics.factors import METHOD
from distmom.models.topics.fitted import FittedTopics
from distmom.models.topics.initial import InitSettings
from distmom.models.topics.refine import ETA
from distmom.models.topics.steps import SHORT_DOCUMENT, mean_length
from distmom.spectral.capabilities import Capability
from distmom.spectral.estimator import place_parameter
from distmom.spectral.parameters import fixed, parameter
from distmom.spectral.steps.core import CoreSettings
from distmom.spectral.steps.rank import MOST_COMPONENTS

#: sums of Dirichlet parameters that ``alpha0="auto"`` tries
ALPHA0S = (1.0, 5.0)
#: passes of refinement before the sum of the Dirichlet parameters is estimated on held-out documents
N_ALPHA = 2
#: average number of positions per document from which ``refine="auto"`` is "em": MAP shares
#: overfit shorter documents, and take less time
LONG_DOCUMENT = 100
#: passes of refinement with ``n_refine="auto"``, and with "cvb" of short documents
N_REFINE, N_SHORT = 4, 2
#: number of documents per topic among which initial vectors of the power method are chosen
KEPT_PER_TOPIC = 10
#: folds of the documents in refinement, used where there are fewer than `ENOUGH_POSITIONS` positions per
#: parameter (the probability of a word in a topic) and at most `MOST_FREE` parameters; with two folds each
#: would depend on the other alone
N_FOLDS, ENOUGH_POSITIONS, MOST_FREE = 4, 4.0, 1 << 24
#: least count that is added to the counts of words: float32 has no normal numbers below 1e-38
LEAST_ETA = 1e-12
#: smallest number of documents per topic and fold for folds to be used
FOLD_DOCUMENTS = 2


class TopicSettings(FittedTopics):
    """Base class of the topic models, with their parameters; see `SpectralLDA` for these."""

    capabilities = frozenset({Capability.DOCUMENTS, Capability.MOMENTS, Capability.SHARES, Capability.TOPICS})

    n_components: int | str = parameter(
        "Number of topics. auto estimates it, up to 100, as the number of directions of one half of the documents "
        "that are replicated in the other half (see distmom.spectral.steps.rank).",
        default=100, least=1, auto=True, kw_only=False,
    )  # fmt: skip
    alpha0: float | str = parameter(
        "Sum of the Dirichlet parameters that moments are corrected for. auto tries 1 and 5, and uses the "
        "value whose topics, refined by one pass, best predict held-out words.",
        default="auto", kind=float, least=0, auto=True,
    )  # fmt: skip
    init: str = parameter(
        "Initialise topics by decomposing the third moment (tensor) or from anchor words of the second "
        "moment (anchors). auto tries both, and chooses as alpha0=auto does.",
        default="auto", choices=("auto", "tensor", "anchors"),
    )  # fmt: skip
    n_refine: int | str = parameter(
        "Number of passes of refinement. 0 returns the topics estimated from moments, in which words left out of "
        "the moments have probability zero. auto is 2 with refine=cvb where documents have fewer than 30 words on "
        "average, else 4.",
        default="auto", kind=int, least=0, auto=True,
    )  # fmt: skip
    refine: str = parameter(
        "Refine by EM with maximum-a-posteriori shares (em), by variational Bayes (vb), or by collapsed "
        "variational Bayes, CVB0 (cvb). auto is cvb where documents have fewer than 100 words on average, else "
        "em.", default="auto", choices=("auto", "em", "vb", "cvb"),
    )  # fmt: skip
    background: bool = parameter(
        "Initialise one of the topics with the word distribution of the corpus, so that it absorbs words that "
        "all documents share; for long documents, or texts with stop words.", default=False,
    )  # fmt: skip
    eta: float = parameter(
        "Count added to every word of every topic in refinement.", default=ETA, least=LEAST_ETA
    )
    decomposition: str = parameter(
        "Method that decomposes the third moment.", default="joint", choices=tuple(METHODS)
    )
    starts: str = parameter(
        "Initial vectors of decomposition=power and power-stop: all random, or up to half of them whitened "
        "documents (documents), as these may have a single topic.",
        default="random", choices=("random", "documents"),
    )  # fmt: skip
    max_words: int | None = parameter(
        "Number of words that a topic estimated from the third moment keeps: its largest entries, before it is "
        "normalised.", default=None, kind=int, least=1, none=True, unset="all of positive probability",
    )  # fmt: skip
    decompose_on: str = place_parameter()
    #: orders of the moments that find topics; `SpectralLDA` and `IndependentTopics` have a choice
    orders: str = fixed("3")
    #: loss by which words are mixtures of anchor words; only `AnchorTopics` has a choice
    loss: str = fixed("least_squares")

    def check(self, corpus: Corpus | MemoryCorpus) -> None:
        """Check that the parameters are valid and suit a corpus of counts; else a UsageError or InputError."""
        super().check(corpus)
        least = 1 + int(self.background)
        if not isinstance(self.n_components, str) and self.n_components < least:
            raise UsageError(f"n_components: expected at least {least}, got {self.n_components}")
        taking = methods_taking("starts")
        if self.starts != "random" and (self.decomposition not in taking or self.init == "anchors"):
            raise UsageError(
                f"starts={self.starts!r} is for decomposition={' or '.join(taking)} of the tensor, got "
                f"decomposition={self.decomposition!r} and init={self.init!r}"
            )
        if self.background and not self.n_refine:
            raise UsageError(
                "background: expected n_refine of at least 1, as refinement estimates its share, got 0"
            )
        if self.orders != "3":
            self._check_fourth()

    def _check_fourth(self) -> None:
        """Check that the parameters suit the fourth moment; else a UsageError."""
        if self.decomposition != METHOD:
            raise UsageError(
                f"decomposition={self.decomposition!r} is for the third moment alone: orders={self.orders!r} "
                f"requires decomposition={METHOD!r}"
            )
        # The moments are whitened for a single alpha0 before the pass over quadruples of words.
        if self.init not in ("tensor", "factors") or isinstance(self.alpha0, str):
            raise UsageError(
                f"orders={self.orders!r} requires init='tensor' and a number for alpha0, got "
                f"init={self.init!r} and alpha0={self.alpha0!r}"
            )

    def _alpha0s(self) -> tuple[float, ...]:
        return ALPHA0S if isinstance(self.alpha0, str) else (float(self.alpha0),)

    def trials(self) -> list[float | None]:
        """Return the initialisations to try: an alpha0 for tensors, infinite for factors, or None for anchors."""
        if self.init == "factors":
            return [math.inf]
        tensors: list[float | None] = [] if self.init == "anchors" else list(self._alpha0s())
        return tensors if self.init == "tensor" else [*tensors, None]

    def init_settings(self) -> InitSettings:
        """Return the settings with which initial topics are estimated from moments."""
        return InitSettings(tuple(self.trials()), self.background, self.orders, self.loss, self.max_words)

    def refine_method(self, corpus: Corpus | MemoryCorpus) -> str:
        """Return the method of refinement; "auto" depends on the mean length of the documents."""
        if self.refine != "auto":
            return self.refine
        return "em" if mean_length(corpus) >= LONG_DOCUMENT else "cvb"

    def n_refine_passes(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the number of passes of refinement; "auto" depends on the method and the length of documents."""
        if self.n_refine != "auto":
            return int(self.n_refine)
        is_short = self.refine_method(corpus) == "cvb" and mean_length(corpus) < SHORT_DOCUMENT
        return N_SHORT if is_short else N_REFINE

    def n_folds(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the number of folds of the documents in refinement: each is read with topics of the others."""
        k = self.most_components(corpus)
        n_free = k * corpus.n_words
        is_small = float(corpus.word_frequency.sum()) < ENOUGH_POSITIONS * n_free
        fits = self.refine_method(corpus) != "mixture" and n_free <= MOST_FREE
        # With fewer documents a topic might be absent from a fold.
        return N_FOLDS if is_small and fits and corpus.n_documents >= FOLD_DOCUMENTS * N_FOLDS * k else 1

    def finds_alpha(self, corpus: Corpus | MemoryCorpus) -> bool:
        """Return whether refinement estimates the parameters with which documents are read."""
        method = self.refine_method(corpus)
        return method == "mixture" or (method == "vb" and self.n_refine != 0)

    def holds_out(self, corpus: Corpus | MemoryCorpus) -> bool:
        """Return whether documents are held out, to choose initial topics or Dirichlet parameters."""
        return len(self.trials()) > 1 or not self.finds_alpha(corpus)

    def tries_further(self, corpus: Corpus | MemoryCorpus) -> bool:
        """Return whether further passes and a background topic are tried, and judged by held-out documents."""
        return False

    def n_alpha_passes(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the number of passes of refinement before parameters for reading documents are estimated."""
        return 0 if self.finds_alpha(corpus) else min(N_ALPHA, self.n_refine_passes(corpus))

    def most_components(self, corpus: Corpus | MemoryCorpus) -> int:
        """Return the number of topics, or with "auto" the largest number."""
        if isinstance(self.n_components, str):
            return min(MOST_COMPONENTS, corpus.n_words) + int(self.background)
        return self.n_components

    def kept_documents(self, corpus: Corpus | MemoryCorpus) -> tuple[int, ...]:
        """Return the positions of the documents that are initial vectors of the power method, ascending."""
        if self.starts == "random":
            return ()
        n = min(corpus.n_documents, KEPT_PER_TOPIC * self.most_components(corpus))
        drawn = np.random.default_rng(self._seed).choice(corpus.n_documents, n, replace=False, shuffle=False)
        return tuple(int(position) for position in np.sort(drawn))

    def core_settings(self, n_components: int) -> CoreSettings:
        """Return the settings for ``n_components`` topics, including the background topic."""
        k = n_components - int(self.background)
        fourth = self.orders != "3"
        # Where the fourth moment is used, its pass adds up the third one too.
        settings = self.moment_settings(k, "none" if self.init == "anchors" or fourth else "full")
        if fourth:
            settings = replace(settings, kind=replace(settings.kind, orders=4))
        return replace(settings, decomposition=self.decomposition, decompose_on=self.decompose_on)
