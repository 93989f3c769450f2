"""The model that a planted corpus is drawn from: its laws, and presets of the size of known data sets.

The law of ``size`` outcomes with offset q gives rank r the probability
``log((r + 1 + q) / (r + q)) / log(1 + size / q)``, a Zipf-Mandelbrot law of exponent one whose distribution
function is inverted in closed form. Every state has a head of its own: of the words in order of frequency it
owns every k-th; a word is drawn from the head of its state or from the tail that all states share. Labels are
drawn likewise. A random order maps ranks to column numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from distmom.errors import UsageError


@dataclass(frozen=True)
class Zipf:
    """A law over ranks.

    Attributes
    ----------
    size : int
        Number of outcomes.
    offset : float
        The q of the law; the smaller, the more the first ranks stand out.
    """

    size: int
    offset: float

    def probabilities(self) -> np.ndarray:
        """Return the probability of every rank, of shape (size,)."""
        edges = np.log1p(np.arange(self.size + 1) / self.offset)
        return np.asarray(np.diff(edges) / edges[-1])


@dataclass(frozen=True)
class Planted:
    """The model that a planted corpus is drawn from.

    Attributes
    ----------
    n_documents, n_words, n_labels, n_states : int
        Sizes; without labels the documents are mixtures of topics.
    median_words, mean_words, median_labels, mean_labels : float
        Of the log-normal numbers of words and labels of a document.
    own_words, own_labels : float
        Shares of the words and labels that come from the head of the state.
    head_words : int
        Words of a head at most.
    word_offset, head_offset, label_offset : float
        Offsets of the laws of shared words, head words and labels.
    alpha0 : float
        Sum of the Dirichlet parameters of a topic corpus.
    seed : int
        Seed of everything.
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
        for name, least in (
            ("n_documents", 1),
            ("n_words", 2),
            ("n_labels", 0),
            ("n_states", 1),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise UsageError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.n_states > self.n_words or (self.n_labels and self.n_states > self.n_labels):
            raise UsageError(
                f"n_states={self.n_states}: every state needs words and labels of its own, there are "
                f"{self.n_words} words and {self.n_labels} labels"
            )

    @property
    def shared(self) -> Zipf:
        """Law of the words that all states share."""
        return Zipf(self.n_words, self.word_offset)

    @property
    def head(self) -> Zipf:
        """Law of the words of a state's own."""
        return Zipf(min(self.n_words // self.n_states, self.head_words), self.head_offset)

    @property
    def shared_labels(self) -> Zipf:
        """Law of the labels that all states share."""
        return Zipf(self.n_labels, self.label_offset)

    @property
    def head_labels(self) -> Zipf:
        """Law of the labels of a state's own."""
        return Zipf(self.n_labels // self.n_states, self.label_offset)

    def weights(self) -> np.ndarray:
        """Return the probabilities of the states, within a factor of three of each other."""
        weights = np.random.default_rng((self.seed, 1)).uniform(1.0, 3.0, self.n_states)
        return np.asarray(weights / weights.sum())

    def word_order(self) -> np.ndarray:
        """Return the column of the word of every rank, int32."""
        return np.random.default_rng((self.seed, 2)).permutation(self.n_words).astype(np.int32)

    def label_order(self) -> np.ndarray:
        """Return the column of the label of every rank, int32."""
        return np.random.default_rng((self.seed, 3)).permutation(self.n_labels).astype(np.int32)


#: sizes of the paper's data sets (multi-label paper, section 5), and a topic corpus of Wikipedia's size
PRESETS = {
    "wikilshtc": Planted(1_778_351, 1_617_899, 325_056, 100, 30, 42, 2, 3.19),
    "amazoncat": Planted(1_186_239, 203_882, 13_330, 100, 45, 71.09, 4, 5.04),
    "wiki31k": Planted(14_146, 101_938, 30_938, 100, 513, 669, 18, 18.64),
    "bibtex": Planted(4_880, 1_836, 159, 20, 68, 68.67, 2, 2.4),
    "lda": Planted(3_000_000, 100_000, 0, 100, 150, 225, alpha0=2.0),
}


def preset(name: str, **changes: int | None) -> Planted:
    """Return a preset with some sizes changed; None leaves a size as it is."""
    return replace(PRESETS[name], **{key: value for key, value in changes.items() if value is not None})
