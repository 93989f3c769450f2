"""Planted corpora of any size: documents drawn from a known model, written shard by shard.

The law of ``size`` outcomes with offset q gives rank r the probability
``log((r + 1 + q) / (r + q)) / log(1 + size / q)``, a Zipf-Mandelbrot law of exponent one whose distribution
function is inverted in closed form. Every state has a head of its own: of the words in order of frequency it
owns every k-th; a word is drawn from the head of its state or from the tail that all states share. Labels are
drawn likewise. A random order maps ranks to column numbers.

Multi-label corpora follow the multi-label paper, section 2.1: one state a document, all words and labels
drawn from it. The number of distinct words (labels) of a document is log-normal; words are drawn until there
are as many, and repeats raise counts. Topic corpora follow the tensor paper, section 3.2: a mixture of topics a
document, drawn from a symmetric Dirichlet distribution, and a log-normal number of positions.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.corpus import Corpus, CorpusWriter
from distmom.corpus.block import csr_from_parts
from distmom.corpus.commit import put_directory
from distmom.corpus.shard import ShardResult, write_shard
from distmom.errors import StoreError, UsageError

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

#: most draws for a word that the document does not have yet, for every one that it is to have
MAX_DRAWS = 64
_LONGEST = 20_000


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


def synthesise(
    model: Planted,
    path: Any,
    *,
    first: int = 0,
    shard_documents: int = 20_000,
    overwrite: bool = False,
    map: Map = map,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Corpus:
    """Draw a corpus and write it with its truth beside it, in ``<path>.truth``.

    A document depends on the model and its number alone, so the bits do not depend on the way the work is
    shared out, and documents from ``first = n_documents`` on are test documents of the same model.

    Parameters
    ----------
    model : Planted
    path : path-like
        Where the corpus is to be.
    first : int
        Number of the first document.
    shard_documents : int
        Documents in a shard.
    overwrite : bool
        Replace what is there.
    map : callable
        Calls a function on many items and yields the results in order, such as ``Executor.map``.
    progress : callable, optional
        Receives a name, documents done and documents in all.

    Returns
    -------
    Corpus

    Raises
    ------
    UsageError
        If something is at ``path`` that may not be replaced.
    """
    if first < 0 or shard_documents < 1:
        raise UsageError(f"first={first} and shard_documents={shard_documents} are not a range of documents")
    truth = Path(f"{Path(path).absolute()}.truth")
    if truth.exists() and not overwrite:
        raise UsageError(f"{truth}: exists already; choose another place or overwrite it")
    description = {"kind": "distmom-truth", "first": first, "model": asdict(model)}
    states = np.zeros(model.n_documents if model.n_labels else 0, np.uint16)
    with CorpusWriter(path, overwrite=overwrite, fingerprint=json.dumps(description)) as writer:
        work = partial(_write_part, writer.directory, model, first, shard_documents)
        for result, of_shard in map(work, range(-(-model.n_documents // shard_documents))):
            writer.add(result)
            start = result.index * shard_documents
            states[start : start + len(of_shard)] = of_shard
            if progress is not None:
                done = min(start + shard_documents, model.n_documents)
                progress("documents", done, model.n_documents)
        corpus = writer.finalise(settings={"format": "planted", **description})
    temporary = Path(f"{truth}.{uuid.uuid4().hex}")
    _write_truth(temporary, description, model, states)
    put_directory(temporary, truth)
    return corpus


def _write_truth(directory: Path, description: dict[str, Any], model: Planted, states: np.ndarray) -> None:
    directory.mkdir()
    arrays = {
        "weights": model.weights(),
        "word_order": model.word_order(),
        "label_order": model.label_order(),
        "states": states,
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)
    (directory / "truth.json").write_text(json.dumps(description, indent=1) + "\n")


def _write_part(
    directory: str, model: Planted, first: int, shard_documents: int, index: int
) -> tuple[ShardResult, np.ndarray]:
    """Draw and write one shard."""
    start = index * shard_documents
    n = min(shard_documents, model.n_documents - start)
    words, labels, states = draw_documents(model, first + start, n)
    return write_shard(directory, index, words, labels), states


def draw_documents(model: Planted, first: int, n_documents: int) -> tuple[Any, Any, np.ndarray]:
    """Draw documents ``first, first + 1, ...``.

    Returns
    -------
    words : csr_array of shape (n_documents, n_words), int32
    labels : csr_array of shape (n_documents, n_labels), uint8
    states : ndarray of shape (n_documents,), uint16
        Empty for a topic corpus.
    """
    keys = np.random.SeedSequence([model.seed, 4]).generate_state(2, np.uint64)
    sizes = (model.median_words, _spread(model.median_words, model.mean_words))
    heads = (float(model.head.size), model.head_offset, model.own_words)
    order = model.word_order()
    if not model.n_labels:
        indptr, indices, counts = _draw_topics(
            keys[0], first, n_documents, model.n_states, model.alpha0 / model.n_states,
            *sizes, *heads, model.word_offset, order,
        )  # fmt: skip
        words = csr_from_parts(counts, indices, indptr, (n_documents, model.n_words))
        nothing = csr_from_parts(
            np.zeros(0, np.uint8),
            np.zeros(0, np.int32),
            np.zeros(n_documents + 1, np.int64),
            (n_documents, 0),
        )
        return words, nothing, np.zeros(0, np.uint16)
    bounds = np.cumsum(model.weights())
    states = _draw_states(keys[0], first, n_documents, bounds / bounds[-1])
    indptr, indices, counts = _draw_sets(keys[0], first, states, model.n_states, *sizes, *heads,
                                         model.word_offset, order, MAX_DRAWS)  # fmt: skip
    words = csr_from_parts(counts, indices, indptr, (n_documents, model.n_words))
    indptr, indices, _ = _draw_sets(
        keys[1], first, states, model.n_states, model.median_labels,
        _spread(model.median_labels, model.mean_labels), float(model.head_labels.size), model.label_offset,
        model.own_labels, model.label_offset, model.label_order(), MAX_DRAWS,
    )  # fmt: skip
    ones = np.ones(len(indices), np.uint8)
    return words, csr_from_parts(ones, indices, indptr, (n_documents, model.n_labels)), states


def _spread(median: float, mean: float) -> float:
    """Return the standard deviation of the logarithm of a log-normal number."""
    return math.sqrt(2.0 * math.log(max(mean / median, 1.005)))


@compiled
def _hash(x: Any) -> Any:
    """Scramble 64 bits (the output function of splitmix64, as in `distmom.moments.counter`)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def _start(key: Any, document: Any) -> Any:
    """Return the state of the generator of one document."""
    return _hash(key ^ _hash(np.uint64(document) + np.uint64(0x9E3779B97F4A7C15)))


@compiled
def _next(generator: Any) -> Any:
    """Advance a generator of one element and return a number strictly between 0 and 1."""
    generator[0] += np.uint64(0x9E3779B97F4A7C15)
    return (np.float64(_hash(generator[0]) >> np.uint64(11)) + 0.5) * 2.0**-53


@compiled
def _normal(generator: Any) -> Any:
    """Return a standard normal number (Box and Muller)."""
    return math.sqrt(-2.0 * math.log(_next(generator))) * math.cos(2.0 * math.pi * _next(generator))


@compiled
def _gamma(generator: Any, shape: Any) -> Any:
    """Return a gamma number (Marsaglia and Tsang, 2000, with the boost for shapes below one)."""
    boost = 1.0
    if shape < 1.0:
        boost = _next(generator) ** (1.0 / shape)
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = _normal(generator)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(_next(generator)) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v * boost


@compiled
def _rank(u: Any, size: Any, offset: Any) -> Any:
    """Invert the distribution function of a law."""
    return min(np.int64(offset * math.expm1(u * math.log1p(size / offset))), np.int64(size) - 1)


@compiled
def _word(generator: Any, state: Any, n_states: Any, own: Any, head: Any, head_offset: Any,
          size: Any, offset: Any) -> Any:  # fmt: skip
    """Draw the rank of a word of a state."""
    if _next(generator) < own:
        return _rank(_next(generator), head, head_offset) * n_states + state
    return _rank(_next(generator), size, offset)


@compiled
def _length(generator: Any, median: Any, spread: Any, most: Any) -> Any:
    """Draw a number of words."""
    wanted = np.int64(round(median * math.exp(spread * _normal(generator))))
    return max(np.int64(1), min(wanted, most))


@compiled
def _draw_states(key: Any, first: Any, n: Any, bounds: Any) -> Any:
    """Draw the states of documents from the distribution function of the weights."""
    states = np.empty(n, np.uint16)
    generator = np.empty(1, np.uint64)
    for i in range(n):
        generator[0] = _start(key ^ np.uint64(0xA5A5A5A5), first + i)
        states[i] = min(np.searchsorted(bounds, _next(generator), side="right"), len(bounds) - 1)
    return states


@compiled
def _draw_sets(key: Any, first: Any, states: Any, n_states: Any, median: Any, spread: Any, head: Any,
               head_offset: Any, own: Any, offset: Any, order: Any, max_draws: Any) -> Any:  # fmt: skip
    """Draw documents of one state with a given number of distinct words, as CSR."""
    n, size = len(states), len(order)
    most = np.int64(max(1, min(size // 2, _LONGEST)))
    lengths = np.empty(n, np.int64)
    generator = np.empty(1, np.uint64)
    for i in range(n):
        generator[0] = _start(key, first + i)
        lengths[i] = _length(generator, median, spread, most)
    indptr = np.zeros(n + 1, np.int64)
    indices = np.empty(lengths.sum(), np.int32)
    counts = np.empty(len(indices), np.int32)
    seen = np.zeros(size, np.int32)
    p = 0
    for i in range(n):
        generator[0] = _start(key, first + i)
        _length(generator, median, spread, most)
        start, left = p, lengths[i] * max_draws
        while p - start < lengths[i] and left > 0:
            v = order[_word(generator, np.int64(states[i]), n_states, own, head, head_offset, size, offset)]
            if seen[v] == 0:
                indices[p] = v
                p += 1
            seen[v] += 1
            left -= 1
        _finish_row(indices, counts, seen, start, p)
        indptr[i + 1] = p
    return indptr, indices[:p].copy(), counts[:p].copy()


@compiled
def _draw_topics(key: Any, first: Any, n: Any, n_states: Any, alpha: Any, median: Any, spread: Any, head: Any,
                 head_offset: Any, own: Any, offset: Any, order: Any) -> Any:  # fmt: skip
    """Draw documents of a mixture of topics with a given number of positions, as CSR."""
    size = len(order)
    lengths = np.empty(n, np.int64)
    generator = np.empty(1, np.uint64)
    for i in range(n):
        generator[0] = _start(key, first + i)
        lengths[i] = _length(generator, median, spread, _LONGEST)
    indptr = np.zeros(n + 1, np.int64)
    indices = np.empty(lengths.sum(), np.int32)
    counts = np.empty(len(indices), np.int32)
    seen = np.zeros(size, np.int32)
    bounds = np.empty(n_states)
    p = 0
    for i in range(n):
        generator[0] = _start(key, first + i)
        _length(generator, median, spread, _LONGEST)
        total = 0.0
        for h in range(n_states):
            total += _gamma(generator, alpha)
            bounds[h] = total
        start = p
        for _ in range(lengths[i]):
            state = min(np.searchsorted(bounds, _next(generator) * total, side="right"), n_states - 1)
            v = order[_word(generator, state, n_states, own, head, head_offset, size, offset)]
            if seen[v] == 0:
                indices[p] = v
                p += 1
            seen[v] += 1
        _finish_row(indices, counts, seen, start, p)
        indptr[i + 1] = p
    return indptr, indices[:p].copy(), counts[:p].copy()


@compiled
def _finish_row(indices: Any, counts: Any, seen: Any, start: Any, stop: Any) -> None:
    """Sort the words of a row, and move their counts out of ``seen``."""
    indices[start:stop].sort()
    for p in range(start, stop):
        counts[p] = seen[indices[p]]
        seen[indices[p]] = 0


@dataclass(frozen=True)
class Truth:
    """The truth of a planted corpus, as read from its directory.

    Attributes
    ----------
    model : Planted
    first : int
        Number of the first document.
    weights : ndarray of shape (n_states,)
    word_order, label_order : ndarray of int32
        Column of the word (label) of every rank.
    states : ndarray of shape (n_documents,), uint16
        State of every document; empty for a topic corpus.
    """

    model: Planted
    first: int
    weights: np.ndarray
    word_order: np.ndarray
    label_order: np.ndarray
    states: np.ndarray

    def words(self, state: int) -> np.ndarray:
        """Return the word distribution of a state, of shape (n_words,)."""
        m = self.model
        return _mixture(self.word_order, state, m.n_states, m.shared, m.head, m.own_words)

    def labels(self, state: int) -> np.ndarray:
        """Return the label distribution of a state, of shape (n_labels,)."""
        m = self.model
        return _mixture(self.label_order, state, m.n_states, m.shared_labels, m.head_labels, m.own_labels)

    def head_words(self) -> np.ndarray:
        """Return the columns of the words of every state's own, of shape (n_states, n_head)."""
        ranks = (
            np.arange(self.model.n_states)[:, None] + np.arange(self.model.head.size) * self.model.n_states
        )
        return np.asarray(self.word_order[ranks])


def _mixture(
    order: np.ndarray, state: int, n_states: int, shared: Zipf, head: Zipf, own: float
) -> np.ndarray:
    by_rank = (1.0 - own) * shared.probabilities()
    by_rank[state : state + head.size * n_states : n_states] += own * head.probabilities()
    distribution = np.empty_like(by_rank)
    distribution[order] = by_rank
    return distribution


def load_truth(path: Any) -> Truth:
    """Read the truth that `synthesise` has written.

    Raises
    ------
    UsageError
        If there is none.
    StoreError
        If it cannot be read.
    """
    directory = Path(path)
    if not (directory / "truth.json").is_file():
        raise UsageError(f"{directory}: is not the truth of a planted corpus")
    try:
        record = json.loads((directory / "truth.json").read_text())
        names = ("weights", "word_order", "label_order", "states")
        arrays = {name: np.load(directory / f"{name}.npy", allow_pickle=False) for name in names}
        return Truth(Planted(**record["model"]), record["first"], **arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{directory}: cannot be read: {error}") from error


def preset(name: str, **changes: int | None) -> Planted:
    """Return a preset with some sizes changed; None leaves a size as it is."""
    return replace(PRESETS[name], **{key: value for key, value in changes.items() if value is not None})
