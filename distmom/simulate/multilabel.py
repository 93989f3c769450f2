"""The multi-label mixture with one hidden state per document: samples, exact populations, closed forms.

Source: Dasgupta, "Multi-label learning with provable guarantee" (arXiv 1609.03426), section 2.1: for each
document a state ``h ~ pi`` is drawn, then a word from ``mu_h`` for each word position and a label from
``gamma_h`` for each label position. With ``O = [mu_1 .. mu_k]`` and ``Q = [gamma_1 .. gamma_k]``, the moments
over distinct positions are equations (5) to (7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from distmom.errors import UsageError
from distmom.linalg import compose
from distmom.moments.counter import uniforms

Array = NDArray[np.float64]

# Separate streams of the counter-based generator, so that labels do not depend on document lengths.
_STATES, _LENGTHS, _WORDS, _LABELS = range(4)

_MOST_ROWS = 4_000_000
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Documents:
    """A block of documents.

    Attributes
    ----------
    words : scipy.sparse.csr_array of shape (n, d), float64
        Word counts, sorted and without duplicates.
    labels : scipy.sparse.csr_array of shape (n, L), float64
        Label counts.
    weights : ndarray of shape (n,), float64
        Probability of each row in an exact population; ones in a sample.
    states : ndarray of shape (n,), int64, or None
        The hidden state of each sampled document; None in an exact population.
    """

    words: sparse.csr_array
    labels: sparse.csr_array
    weights: Array
    states: NDArray[np.int64] | None


class MultiLabelPopulation:
    """The population of documents and label sets for given parameters.

    Parameters
    ----------
    pi : array_like of shape (k,)
        Probabilities of the states.
    O : array_like of shape (d, k)
        Word distributions as columns.
    Q : array_like of shape (L, k)
        Label distributions as columns.

    Attributes
    ----------
    pi, O, Q : ndarray of float64
        The parameters, exactly normalised.

    Raises
    ------
    UsageError
        If shapes do not match, or a distribution has a negative entry or does not sum to 1.
    """

    def __init__(self, pi: ArrayLike, O: ArrayLike, Q: ArrayLike) -> None:  # noqa: E741
        self.pi: np.ndarray = _distributions("pi", np.asarray(pi, dtype=np.float64)[:, None])[:, 0]
        self.O = _distributions("O", np.asarray(O, dtype=np.float64))
        self.Q = _distributions("Q", np.asarray(Q, dtype=np.float64))
        if not self.pi.size == self.O.shape[1] == self.Q.shape[1]:
            raise UsageError(
                f"pi has {self.pi.size} states, but O has shape {self.O.shape} and Q has shape {self.Q.shape}"
            )

    @property
    def n_states(self) -> int:
        """Number of hidden states k."""
        return int(self.pi.size)

    @property
    def n_words(self) -> int:
        """Size of the vocabulary d."""
        return int(self.O.shape[0])

    @property
    def n_labels(self) -> int:
        """Number of labels L."""
        return int(self.Q.shape[0])

    def first_moment(self) -> Array:
        """Return ``E[x] = O pi``, the distribution of a word, of shape (d,)."""
        mean: Array = self.O @ self.pi
        return mean

    def second_moment(self) -> Array:
        """Return ``sum_k pi_k mu_k mu_k'`` (5), the distribution of a pair of words, of shape (d, d)."""
        pairs: Array = (self.O * self.pi) @ self.O.T
        return pairs

    def third_moment(self) -> Array:
        """Return ``sum_k pi_k mu_k (x) mu_k (x) mu_k`` (6), of shape (d, d, d)."""
        return compose(self.pi, self.O)

    def label_moment(self) -> Array:
        """Return ``sum_k pi_k gamma_k (x) mu_k (x) mu_k`` (7), of shape (L, d, d)."""
        cross: Array = np.einsum("k,lk,ik,jk->lij", self.pi, self.Q, self.O, self.O)
        return cross

    def state_posterior(self, words: Any) -> Array:
        """Return the probability of each state given the words of documents (14).

        Parameters
        ----------
        words : sparse matrix or array of shape (n, d)
            Word counts; repeated words count repeatedly.

        Returns
        -------
        ndarray of shape (n, k), float64
            Rows sum to 1.

        Raises
        ------
        UsageError
            If a document has probability zero under every state.
        """
        counts = sparse.csr_array(words)
        impossible = (self.O == 0.0).astype(np.float64)
        log_words = np.log(np.where(self.O > 0.0, self.O, 1.0))
        log_states = np.log(np.where(self.pi > 0.0, self.pi, 1.0))
        scores = counts @ log_words + log_states
        scores[(counts @ impossible > 0.0) | (self.pi == 0.0)] = -np.inf
        best = scores.max(axis=1, keepdims=True)
        if not np.isfinite(best).all():
            row = int(np.flatnonzero(~np.isfinite(best[:, 0]))[0])
            raise UsageError(f"document {row} has probability zero under every state")
        posterior = np.exp(scores - best)
        posterior /= posterior.sum(axis=1, keepdims=True)
        return np.asarray(posterior, dtype=np.float64)

    def sample(
        self,
        start: int,
        stop: int,
        *,
        words_per_document: int | tuple[int, int] = 50,
        labels_per_document: int | tuple[int, int] = 2,
        binary: bool = False,
        random_state: int = 0,
    ) -> Documents:
        """Draw documents number ``start`` to ``stop - 1`` of an infinite sequence.

        A document depends only on the seed and its number, so that a corpus has the same rows for any
        division into shards.

        Parameters
        ----------
        start, stop : int
            Range of document numbers.
        words_per_document : int or (int, int), default=50
        labels_per_document : int or (int, int), default=2
            Number of positions, or its minimum and maximum, between which it is drawn uniformly and
            independently of the state.
        binary : bool, default=False
            Whether to replace counts by ones, as in the paper's data sets. Moments over distinct positions
            are then biased, because a repeated word counts once.
        random_state : int, default=0
            Non-negative seed of the sequence.

        Returns
        -------
        Documents

        Raises
        ------
        UsageError
            If a range is negative or its end precedes its start.
        """
        if not 0 <= start <= stop:
            raise UsageError(f"documents {start} to {stop} are not a range")
        fewest_words, most_words = _length_range("words_per_document", words_per_document)
        fewest_labels, most_labels = _length_range("labels_per_document", labels_per_document)
        rows = np.arange(start, stop, dtype=np.int64)
        chance = uniforms(rows, 1, seed=random_state, stream=_STATES)[:, 0]
        states = _inverse(self.pi, chance)
        sizes = uniforms(rows, 2, seed=random_state, stream=_LENGTHS)
        n_words = fewest_words + np.floor(sizes[:, 0] * (most_words - fewest_words + 1)).astype(np.int64)
        n_labels = fewest_labels + np.floor(sizes[:, 1] * (most_labels - fewest_labels + 1)).astype(np.int64)
        words = uniforms(rows, most_words, seed=random_state, stream=_WORDS)
        labels = uniforms(rows, most_labels, seed=random_state, stream=_LABELS)
        return Documents(
            words=_counts(_draw_columns(self.O, states, words), n_words, self.n_words, binary=binary),
            labels=_counts(_draw_columns(self.Q, states, labels), n_labels, self.n_labels, binary=binary),
            weights=np.ones(rows.size),
            states=states,
        )

    def enumerate(self, words_per_document: int, labels_per_document: int) -> Documents:
        """Enumerate all documents of a given length with all combinations of labels, and their probabilities.

        Weighted sums over these rows are exact expectations: moments over distinct positions equal
        `second_moment`, `third_moment` and `label_moment` up to rounding.

        Parameters
        ----------
        words_per_document : int
            Number of word positions n; at least 3 for third moments.
        labels_per_document : int
            Number of label positions m, at least 0.

        Returns
        -------
        Documents
            ``d ** n * L ** m`` rows, one for each ordered choice, with labels varying fastest. Weights sum to 1.

        Raises
        ------
        UsageError
            If a length is negative, or there are more than 4 million rows.
        """
        if words_per_document < 0 or labels_per_document < 0:
            raise UsageError(
                f"lengths must not be negative, got {words_per_document} and {labels_per_document}"
            )
        n_rows = self.n_words**words_per_document * self.n_labels**labels_per_document
        if n_rows > _MOST_ROWS:
            raise UsageError(
                f"{self.n_words}^{words_per_document} documents times {self.n_labels}^{labels_per_document} "
                f"label combinations are {n_rows} rows, more than {_MOST_ROWS}"
            )
        documents = _tuples(self.n_words, words_per_document)
        labellings = _tuples(self.n_labels, labels_per_document)
        # P(words | h) and P(labels | h) of every tuple; their product is summed over the state.
        by_state = self.O[documents].prod(axis=1)
        labels_by_state = self.Q[labellings].prod(axis=1)
        weights = ((by_state * self.pi) @ labels_by_state.T).ravel()
        words = np.repeat(documents, len(labellings), axis=0)
        labels = np.tile(labellings, (len(documents), 1))
        full_words = np.full(len(words), words_per_document, dtype=np.int64)
        full_labels = np.full(len(labels), labels_per_document, dtype=np.int64)
        return Documents(
            words=_counts(words, full_words, self.n_words, binary=False),
            labels=_counts(labels, full_labels, self.n_labels, binary=False),
            weights=weights,
            states=None,
        )


def planted(
    n_words: int, n_labels: int, n_states: int, *, overlap: float = 0.3, random_state: int = 0
) -> MultiLabelPopulation:
    """Draw parameters that can be recovered from moderate samples.

    Words and labels are assigned to states in turn, and each state has random probabilities over its own ones; a
    share ``overlap`` of its mass is spread randomly over all. State probabilities differ by at most a factor
    of about three, so that no state is rare.

    Parameters
    ----------
    n_words, n_labels : int
        At least ``n_states`` each.
    n_states : int
    overlap : float, default=0.3
        In [0, 1); states are hard to distinguish near 1.
    random_state : int, default=0

    Returns
    -------
    MultiLabelPopulation

    Raises
    ------
    UsageError
        If there are fewer words or labels than states, or ``overlap`` is out of range.
    """
    if n_states < 1 or n_words < n_states or n_labels < n_states:
        raise UsageError(
            f"{n_states} states need at least as many words and labels, got {n_words} and {n_labels}"
        )
    if not 0.0 <= overlap < 1.0:
        raise UsageError(f"overlap must lie in [0, 1), got {overlap}")
    rng = np.random.default_rng(random_state)
    pi = rng.uniform(1.0, 3.0, n_states)
    columns = []
    for size in (n_words, n_labels):
        own = np.arange(size)[:, None] % n_states == np.arange(n_states)
        sharp = rng.gamma(1.0, size=(size, n_states)) * own + 1e-3 * own
        spread = rng.gamma(0.5, size=(size, n_states)) + 1e-3
        columns.append((1.0 - overlap) * sharp / sharp.sum(axis=0) + overlap * spread / spread.sum(axis=0))
    return MultiLabelPopulation(pi / pi.sum(), *columns)


def _distributions(name: str, columns: Array) -> Array:
    """Check that columns are distributions, and normalise them exactly."""
    if columns.ndim != 2 or columns.shape[0] < 1 or columns.shape[1] < 1:
        raise UsageError(f"{name} must be a matrix of distributions, got shape {columns.shape}")
    sums = columns.sum(axis=0)
    if not (columns >= 0.0).all() or not (np.abs(sums - 1.0) <= _TOLERANCE).all():
        raise UsageError(
            f"columns of {name} must be distributions, got entries from {columns.min():.3g} and sums from "
            f"{sums.min():.6g} to {sums.max():.6g}"
        )
    normalised: Array = columns / sums
    return normalised


def _length_range(name: str, value: int | tuple[int, int]) -> tuple[int, int]:
    """Return the minimum and maximum number of positions."""
    low, high = (value, value) if isinstance(value, int) else value
    if not 0 <= low <= high:
        raise UsageError(f"{name} must be a number or a range from 0 upwards, got {value!r}")
    return low, high


def _inverse(distribution: Array, chance: Array) -> NDArray[np.int64]:
    """Convert uniform numbers to outcomes by inverting the cumulative distribution function."""
    outcomes = np.searchsorted(np.cumsum(distribution), chance, side="right")
    # The sum may be less than 1 because of rounding; larger numbers give the last possible outcome.
    possible: NDArray[np.int64] = np.minimum(outcomes, np.flatnonzero(distribution)[-1]).astype(np.int64)
    return possible


def _draw_columns(columns: Array, states: NDArray[np.int64], chance: Array) -> NDArray[np.int64]:
    """Draw the outcomes of each row from the distribution of its state."""
    outcomes = np.zeros(chance.shape, dtype=np.int64)
    for state in np.unique(states):
        rows = states == state
        outcomes[rows] = _inverse(columns[:, state], chance[rows])
    return outcomes


def _counts(
    outcomes: NDArray[np.int64], lengths: NDArray[np.int64], width: int, *, binary: bool
) -> sparse.csr_array:
    """Count the first ``lengths`` outcomes of each row."""
    n, most = outcomes.shape
    used = np.arange(most) < lengths[:, None]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    matrix = sparse.csr_array((np.ones(int(indptr[-1])), outcomes[used], indptr), shape=(n, width))
    matrix.sum_duplicates()
    if binary:
        matrix.data[:] = 1.0
    return matrix


def _tuples(base: int, length: int) -> NDArray[np.int64]:
    """Return all ordered tuples, of shape (base ** length, length), the last position varying fastest."""
    n = base**length
    places = base ** np.arange(length - 1, -1, -1, dtype=np.int64)
    tuples: NDArray[np.int64] = np.arange(n, dtype=np.int64)[:, None] // places % base
    return tuples
