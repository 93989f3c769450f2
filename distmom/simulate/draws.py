"""Documents drawn from a planted model; each depends only on the model and its number.

Multi-label documents follow the multi-label paper, section 2.1: each document has one state, from which all
its words and labels are drawn. The number of distinct words (labels) is log-normal; words are drawn until
this number is reached, and repeated words increase counts. Topic documents follow the tensor paper, section
3.2: each document has a mixture of topics, drawn from a symmetric Dirichlet distribution, and a log-normal
number of tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.corpus.block import csr_from_parts
from distmom.hashing import GOLDEN, scramble
from distmom.simulate.planted_model import Planted

#: maximum number of draws per distinct word of a document
MAX_DRAWS = 64
_LONGEST = 20_000


def draw_documents(model: Planted, first: int, n_documents: int) -> tuple[Any, Any, np.ndarray]:
    """Draw the documents with the numbers ``first, first + 1, ...``.

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
    """Return the standard deviation of the logarithm of a log-normal variable."""
    return math.sqrt(2.0 * math.log(max(mean / median, 1.005)))


@compiled
def _start(key: Any, document: Any) -> Any:
    """Return the initial state of the generator of a document."""
    return scramble(key ^ scramble(np.uint64(document) + GOLDEN))


@compiled
def _next(generator: Any) -> Any:
    """Advance a generator, an array with one element, and return a number strictly between 0 and 1."""
    generator[0] += GOLDEN
    return (np.float64(scramble(generator[0]) >> np.uint64(11)) + 0.5) * 2.0**-53


@compiled
def _normal(generator: Any) -> Any:
    """Draw from the standard normal distribution (Box and Muller)."""
    return math.sqrt(-2.0 * math.log(_next(generator))) * math.cos(2.0 * math.pi * _next(generator))


@compiled
def _gamma(generator: Any, shape: Any) -> Any:
    """Draw from a gamma distribution (Marsaglia and Tsang, 2000, with the boost for shapes below one)."""
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
    """Invert the cumulative distribution function of a `Zipf` law."""
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
    """Draw documents with one state each and a given number of distinct words, as CSR."""
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
    """Draw documents with a mixture of topics each and a given number of tokens, as CSR."""
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
    """Sort the words of a row, and move their counts from ``seen`` to ``counts``."""
    indices[start:stop].sort()
    for p in range(start, stop):
        counts[p] = seen[indices[p]]
        seen[indices[p]] = 0
