"""Models of planted corpora: their distributions, and presets with the sizes of known data sets.

A `Zipf` law with ``size`` outcomes and offset q assigns rank r the probability
``log((r + 1 + q) / (r + q)) / log(1 + size / q)``. This is a Zipf-Mandelbrot law of exponent one with a
distribution function that can be inverted in closed form. Each of the k states owns every k-th word in order
of frequency; the most frequent of them are its head. A word is drawn either from the head of the state or
from a law shared by all states. Labels are drawn in the same way. A random permutation maps ranks to column
numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from distmom.errors import UsageError

#: documents are numbered by int64, columns by int32, and states by uint16
MOST_DOCUMENTS, _MOST_COLUMNS, _MOST_STATES = 2**63 - 1, 2**31 - 1, 2**16


@dataclass(frozen=True)
class Zipf:
    """A Zipf-Mandelbrot distribution over ranks.

    Attributes
    ----------
    size : int
        Number of outcomes.
    offset : float
        Offset q of the law; a smaller offset gives more probability to the first ranks.
    """

    size: int
    offset: float

    def probabilities(self) -> np.ndarray:
        """Return the probability of every rank, of shape (size,)."""
        edges = np.log1p(np.arange(self.size + 1) / self.offset)
        return np.asarray(np.diff(edges) / edges[-1])


@dataclass(frozen=True)
class Planted:
    """The model of a planted corpus.

    Attributes
    ----------
    n_documents, n_words, n_labels, n_states : int
        Sizes; if there are no labels, documents are mixtures of topics.
    median_words, mean_words : float
        Median and mean of the log-normal number of words in a document.
    median_labels, mean_labels : float, default=0.0
        The same for labels.
    own_words : float, default=0.4
    own_labels : float, default=0.9
        Shares of the words and labels that are drawn from the head of the state.
    head_words : int, default=2000
        Maximum number of words in a head.
    word_offset : float, default=5.0
    head_offset : float, default=10.0
    label_offset : float, default=3.0
        Offsets of the laws of shared words, head words and labels.
    alpha0 : float, default=0.0
        Sum of the Dirichlet parameters of a topic corpus.
    seed : int, default=0
        Seed of all random draws.

    Raises
    ------
    UsageError
        If a size, an offset, a share, a median, a mean or, for topics, ``alpha0`` is out of range, or there are
        fewer words or labels than states.
    """

    n_documents: int
    n_words: int
    n_labels: int
    n_states: int
    median_words: float
    mean_words: float
    median_labels: float = 0.0
    mean_labels: float = 0.0
    own_words: float = 0.4
    own_labels: float = 0.9
    head_words: int = 2000
    word_offset: float = 5.0
    head_offset: float = 10.0
    label_offset: float = 3.0
    alpha0: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("n_documents", 1, MOST_DOCUMENTS),
            ("n_words", 2, _MOST_COLUMNS),
            ("n_labels", 0, _MOST_COLUMNS),
            ("n_states", 1, _MOST_STATES),
            ("head_words", 1, math.inf),
            ("seed", 0, math.inf),
        ):
            value = getattr(self, name)
            if value < least:
                raise UsageError(f"{name}: expected at least {least}, got {value}")
            if value > most:
                raise UsageError(f"{name}: expected at most {most:,}, got {value:,}")
        positive = ["word_offset", "head_offset", "label_offset", "median_words", "mean_words"]
        positive += ["median_labels", "mean_labels"] if self.n_labels else ["alpha0"]
        for name in positive:
            if not 0.0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name}: expected a positive number, got {getattr(self, name)}")
        for name in ("own_words", "own_labels"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name}: expected a number from 0 to 1, got {getattr(self, name)}")
        if self.n_labels and self.n_states > min(self.n_words, self.n_labels):
            raise UsageError(
                f"n_states={self.n_states}: every state needs words and labels of its own, but there are "
                f"{self.n_words} words and {self.n_labels} labels"
            )
        if self.n_states > self.n_words:
            raise UsageError(
                f"n_states={self.n_states}: every state needs words of its own, but there are {self.n_words} words"
            )

    @property
    def shared(self) -> Zipf:
        """Law of the words shared by all states."""
        return Zipf(self.n_words, self.word_offset)

    @property
    def head(self) -> Zipf:
        """Law of the words in the head of a state."""
        return Zipf(min(self.n_words // self.n_states, self.head_words), self.head_offset)

    @property
    def shared_labels(self) -> Zipf:
        """Law of the labels shared by all states."""
        return Zipf(self.n_labels, self.label_offset)

    @property
    def head_labels(self) -> Zipf:
        """Law of the labels in the head of a state."""
        return Zipf(self.n_labels // self.n_states, self.label_offset)

    def weights(self) -> np.ndarray:
        """Return the probabilities of the states, which differ by at most a factor of three."""
        weights = np.random.default_rng((self.seed, 1)).uniform(1.0, 3.0, self.n_states)
        return np.asarray(weights / weights.sum())

    def word_order(self) -> np.ndarray:
        """Return the column of the word with each rank, of shape (n_words,), int32."""
        return np.random.default_rng((self.seed, 2)).permutation(self.n_words).astype(np.int32)

    def label_order(self) -> np.ndarray:
        """Return the column of the label with each rank, of shape (n_labels,), int32."""
        return np.random.default_rng((self.seed, 3)).permutation(self.n_labels).astype(np.int32)


#: models with the sizes of the data sets in section 5 of the multi-label paper and of two larger ones, and a topic
#: corpus as large as Wikipedia
PRESETS = {
    "wikilshtc": Planted(1_778_351, 1_617_899, 325_056, 100, 30, 42, 2, 3.19),
    "amazoncat": Planted(1_186_239, 203_882, 13_330, 100, 45, 71.09, 4, 5.04),
    "nytimes": Planted(14_669, 24_670, 4_185, 100, 354, 373.91, 5, 5.4),
    "wiki31k": Planted(14_146, 101_938, 30_938, 100, 513, 669, 18, 18.64),
    "bibtex": Planted(4_880, 1_836, 159, 20, 68, 68.67, 2, 2.4),
    # 500 words bound the longest documents, which takes 2.9 of the 21 words on average. The labels of Delicious
    # have a median above their mean, unlike any log-normal number.
    "delicious": Planted(12_920, 500, 983, 20, 6, 21.0, 19, 19.02),
    # Means of the Extreme Classification Repository, which gives no medians.
    "amazon670k": Planted(490_449, 135_909, 670_091, 100, 60, 75.68, 4, 5.45),
    "delicious200k": Planted(196_606, 782_585, 205_443, 100, 180, 301.17, 45, 75.54),
    "lda": Planted(3_000_000, 100_000, 0, 100, 150, 225, alpha0=2.0),
}


def preset(name: str, **changes: int | None) -> Planted:
    """Return a preset with some attributes changed; None keeps an attribute."""
    return replace(PRESETS[name], **{key: value for key, value in changes.items() if value is not None})
