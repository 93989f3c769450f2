"""Compiled loops over documents and topics: shares of topics in documents, and counts of words by topic.

A document with counts c is modelled as draws from ``phi theta``, with topics phi (d, k) and shares theta. Its
shares are found by iterating, with ``s = phi theta`` on the words of the document,

    MAP          theta <- (alpha + theta * phi'(c / s)) / total          (Dirichlet prior of parameters alpha + 1)
    variational  gamma <- alpha + e * phi'(c / s),  theta ~ e = exp(psi(gamma))        (Blei, Ng, Jordan 2003)

and contribute the counts ``phi_wi theta_i c_w / s_w`` to every topic. With collapsed variational Bayes, the
topic of a position depends on the other positions of the document,

    CVB0         g_wi ~ phi_wi (n_i - g_wi + alpha_i),  n_i = sum_w c_w g_wi                (Asuncion et al. 2009)

so that the words of short documents do not confirm themselves, and the counts are ``c_w g_wi``.

Kernels over all documents take arrays that belong together as one named tuple. Kernels of a single document take
them one by one: a tuple of arrays is passed so slowly that the shares of short documents would take 15 % longer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from distmom.compiled import compiled
from distmom.lanes import LANES, accumulate, dot, load, magnitude, padded, positive, spread, store, sum_of

#: largest number of iterations for the shares of a document, and the change of shares at which they end
MAX_ITER, TOLERANCE = 20, 0.02
#: the same limits where shares are the final result
FULL_ITER, FULL_TOLERANCE = 100, 1e-4
#: count of a topic in a document below which the topic is left out of further iterations
NO_COUNTS = 1e-3
#: probability of a word that no topic has; a count divided by it is still a finite float32
LEAST = 1e-30
#: words of a document whose sums over topics are computed at once
WORDS = 4


class GivenTopics(NamedTuple):
    """Topics with which shares are inferred.

    Attributes
    ----------
    topics : ndarray of shape (d, k)
        Columns are word probabilities. Products are computed in its type.
    unigram : ndarray of shape (d,)
        Word probabilities of the corpus, mixed into every topic with weight ``smoothing``.
    smoothing : float
    alpha : ndarray of shape (k,)
        Dirichlet parameters of the shares; probabilities of the topics where a document has a single one.
    """

    topics: Any
    unigram: Any
    smoothing: float
    alpha: Any


class Iteration(NamedTuple):
    """How the iteration for the shares of a document ends.

    Attributes
    ----------
    n_iter : int
        Largest number of iterations.
    tolerance : float
        Iteration ends when shares change by less, summed over topics; with collapsed variational Bayes, when the
        topics of positions change by less on average.
    """

    n_iter: int
    tolerance: float


class Counts(NamedTuple):
    """Where words of documents are counted by topic.

    Attributes
    ----------
    own : ndarray of shape (n,)
        Weights of the documents.
    totals : ndarray of shape (k,)
        ``sum phi_wi theta_i c_w / s_w``; added to in place.
    out : ndarray of shape (d, k)
        ``sum theta_i c_w / s_w``, to be multiplied by the smoothed phi; added to in place. With a matrix without
        rows, words are not counted.
    """

    own: Any
    totals: Any
    out: Any


@compiled
def _digamma(x: Any) -> Any:
    """Return psi(x) for x > 0: recurrence up to 6, then the asymptotic series."""
    value = 0.0
    while x < 6.0:
        value -= 1.0 / x
        x += 1.0
    y = 1.0 / (x * x)
    series = y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y * (1.0 / 240.0 - y / 132.0))))
    return value + np.log(x) - 0.5 / x - series


@compiled
def _widest(indptr: Any) -> Any:
    """Return the largest number of distinct words of a document."""
    widest = 0
    for i in range(indptr.shape[0] - 1):
        widest = max(widest, indptr[i + 1] - indptr[i])
    return widest


@compiled
def row_totals(indptr: Any, values: Any) -> Any:
    """Return the sums of the values of sparse rows, (n,) float64; exact for whole numbers."""
    totals = np.zeros(indptr.shape[0] - 1)
    for i in range(totals.shape[0]):
        for p in range(indptr[i], indptr[i + 1]):
            totals[i] += values[p]
    return totals


@compiled
def _gather(
    start: Any,
    stop: Any,
    indices: Any,
    data: Any,
    topics: Any,
    unigram: Any,
    smoothing: Any,
    by_word: Any,
    counts: Any,
) -> float:
    """Set the counts and the smoothed probabilities of a document's words, and return its length.

    The words are followed by `WORDS` - 1 words without counts and probabilities.
    """
    kind, k, size = topics.dtype.type, topics.shape[1], stop - start
    keep, whole = kind(1.0 - smoothing), k - k % LANES
    keeps, length = spread(keep), 0.0
    for p in range(size):
        v = np.uint64(indices[start + p])
        source, target = topics[v], by_word[p]
        length += data[start + p]
        counts[p] = data[start + p]
        floor = kind(smoothing * unigram[v])
        floors = spread(floor)
        for c in range(0, whole, LANES):
            store(target, c, keeps * load(source, c) + floors)
        for c in range(whole, k):
            target[c] = keep * source[c] + floor
    counts[size : size + WORDS - 1] = 0.0
    by_word[size : size + WORDS - 1] = 0.0
    return length


@compiled
def _expected(words: Any, size: Any, counts: Any, base: Any, e: Any, width: Any, found: Any) -> None:
    """Set ``found`` to ``phi'(c / (base + phi e))``, for `WORDS` words at a time."""
    zero = spread(base.dtype.type(0.0))
    for c in range(0, width, LANES):
        store(found, c, zero)
    for p in range(0, size, WORDS):
        row0, row1, row2, row3 = words[p], words[p + 1], words[p + 2], words[p + 3]
        s0, s1, s2, s3 = zero, zero, zero, zero
        for c in range(0, width, LANES):
            weights = load(e, c)
            s0 = s0 + weights * load(row0, c)
            s1 = s1 + weights * load(row1, c)
            s2 = s2 + weights * load(row2, c)
            s3 = s3 + weights * load(row3, c)
        ratio0 = spread(counts[p] / (base[p] + sum_of(s0)))
        ratio1 = spread(counts[p + 1] / (base[p + 1] + sum_of(s1)))
        ratio2 = spread(counts[p + 2] / (base[p + 2] + sum_of(s2)))
        ratio3 = spread(counts[p + 3] / (base[p + 3] + sum_of(s3)))
        for c in range(0, width, LANES):
            first = ratio0 * load(row0, c) + ratio1 * load(row1, c)
            second = ratio2 * load(row2, c) + ratio3 * load(row3, c)
            accumulate(found, c, first + second)


@compiled
def _iterate(
    size: Any,
    length: Any,
    counts: Any,
    by_word: Any,
    alpha: Any,
    prior: Any,
    variational: Any,
    n_iter: Any,
    tolerance: Any,
    narrow: Any,
    left: Any,
    base: Any,
    vectors: Any,
    theta: Any,
    e: Any,
) -> None:
    """Find the shares of one document, ``theta``, and the weights of topics, ``e``, which is padded with zeros.

    ``narrow``, ``left``, ``base`` and the rows of ``vectors`` are work space.
    """
    k, kind = theta.shape[0], by_word.dtype.type
    for c in range(k):
        e[c] = theta[c]
        if variational:
            e[c] = np.exp(_digamma(alpha[c] + length * theta[c]) - _digamma(prior + length))
    if length == 0.0:
        for c in range(k):
            theta[c] = alpha[c] / prior
        return
    # The topics that take part, with their columns of ``by_word``, prior parameters, shares and weights.
    found, priors, shares, weights = vectors[0], vectors[1], vectors[2], vectors[3]
    n_left, width, words, total = 0, 0, by_word, prior + length
    for _ in range(n_iter):
        if n_left == 0:
            n_left, width, words = k, padded(k), by_word
            base[: size + WORDS - 1] = kind(LEAST)
            priors[k:], shares[k:], weights[k:] = kind(0.0), kind(0.0), kind(0.0)
            for c in range(k):
                left[c], priors[c], shares[c], weights[c] = c, alpha[c], theta[c], e[c]
        _expected(words, size, counts, base, weights, width, found)
        own = spread(kind(0.0))
        for c in range(0, width, LANES):
            gamma = load(priors, c) + load(weights, c) * load(found, c)
            store(found, c, gamma)
            own = own + gamma
        if n_left == k:
            total = sum_of(own)
        moved, divisor = spread(kind(0.0)), spread(kind(total))
        for c in range(0, width, LANES):
            share = load(found, c) / divisor
            moved = moved + magnitude(share - load(shares, c))
            store(shares, c, share)
            store(weights, c, share)
        if variational:
            for j in range(n_left):
                weights[j] = np.exp(_digamma(found[j]) - _digamma(total))
        n_kept = 0
        for j in range(n_left):
            n_kept += found[j] - priors[j] >= NO_COUNTS
        ended = sum_of(moved) < tolerance
        if not ended and 2 * n_kept > n_left:
            continue
        for j in range(n_left):
            theta[left[j]], e[left[j]] = shares[j], weights[j]
        if ended and n_left == k:
            return
        if ended:
            # One more iteration over all topics checks whether the counts of the others have grown.
            n_left = 0
            continue
        # The shares of topics with almost no counts in the document are kept fixed.
        at = 0
        for j in range(n_left):
            c = left[j]
            if found[j] - priors[j] >= NO_COUNTS:
                left[at], priors[at], shares[at] = c, priors[j], shares[j]
                weights[j] = 0.0
                at += 1
        for p in range(size):
            base[p] += dot(words[p], weights, width)
        n_left, width, words = at, padded(at), narrow
        priors[n_left:width], shares[n_left:width], weights[n_left:width] = kind(0.0), kind(0.0), kind(0.0)
        for j in range(n_left):
            weights[j] = e[left[j]]
        narrow[size : size + WORDS - 1, :width] = 0.0
        for p in range(size):
            source, target = by_word[p], narrow[p]
            for j in range(n_left):
                target[j] = source[left[j]]
            target[n_left:width] = 0.0
    for j in range(n_left):
        theta[left[j]], e[left[j]] = shares[j], weights[j]


@compiled
def find_shares(
    documents: Any, given: Any, variational: Any, iteration: Any, shares: Any, counts: Any
) -> float:
    """Find the shares of documents, and add up their counts by topic.

    Parameters
    ----------
    documents : CsrArrays
        Counts of words, (n, d).
    given : GivenTopics
    variational : bool
    iteration : Iteration
    shares : ndarray of shape (n, k)
        Initial shares; changed in place. Rows sum to one.
    counts : Counts

    Returns
    -------
    float
        The log-likelihood ``sum c log s``.
    """
    indptr, indices, data = documents.indptr, documents.indices, documents.data
    topics, alpha = given.topics, given.alpha
    own, totals, out = counts.own, counts.totals, counts.out
    k, n, widest = topics.shape[1], indptr.shape[0] - 1, _widest(indptr) + WORDS - 1
    kind, width, whole = topics.dtype.type, padded(k), k - k % LANES
    by_word = np.zeros((widest, width), topics.dtype)
    times = np.zeros(widest, topics.dtype)
    narrow = np.zeros((widest, width), topics.dtype)
    left = np.empty(k, np.int64)
    base = np.zeros(widest, topics.dtype)
    vectors = np.zeros((4, width), topics.dtype)
    found = np.zeros(width, topics.dtype)
    e = np.zeros(width, topics.dtype)
    prior = 0.0
    for c in range(k):
        prior += alpha[c]
    likelihood = 0.0
    for i in range(n):
        start, stop = indptr[i], indptr[i + 1]
        length = _gather(start, stop, indices, data, topics, given.unigram, given.smoothing, by_word, times)
        _iterate(
            stop - start, length, times, by_word, alpha, prior, variational, iteration.n_iter, iteration.tolerance,
            narrow, left, base, vectors, shares[i], e,
        )  # fmt: skip
        if not out.shape[0] or own[i] == 0.0:
            continue
        found[:] = 0.0
        for p in range(stop - start):
            word, target = by_word[p], out[np.uint64(indices[start + p])]
            s = kind(LEAST) + dot(word, e, width)
            likelihood += own[i] * data[start + p] * np.log(s)
            ratio = kind(own[i] * data[start + p]) / s
            ratios = spread(ratio)
            for c in range(0, width, LANES):
                accumulate(found, c, ratios * load(word, c))
            for c in range(0, whole, LANES):
                accumulate(target, c, ratios * load(e, c))
            for c in range(whole, k):
                target[c] += ratio * e[c]
        for c in range(k):
            totals[c] += e[c] * found[c]
    return likelihood


@compiled
def find_collapsed(documents: Any, given: Any, iteration: Any, shares: Any, counts: Any) -> float:
    """Find the shares of documents by collapsed variational Bayes, and add up their counts by topic.

    Parameters
    ----------
    documents, given, iteration, shares, counts
        As in `find_shares`.

    Returns
    -------
    float
        The log-likelihood ``sum c log s`` of the shares found.
    """
    indptr, indices, data = documents.indptr, documents.indices, documents.data
    topics, alpha = given.topics, given.alpha
    own, totals, out = counts.own, counts.totals, counts.out
    k, n, widest = topics.shape[1], indptr.shape[0] - 1, _widest(indptr) + WORDS - 1
    kind, width, whole = topics.dtype.type, padded(k), k - k % LANES
    by_word = np.zeros((widest, width), topics.dtype)
    taken = np.zeros((widest, width), topics.dtype)
    times = np.zeros(widest, topics.dtype)
    # ``n_i + alpha_i`` of the document, and the work space of two words.
    masses = np.zeros(width, topics.dtype)
    after0, after1 = np.zeros(width, topics.dtype), np.zeros(width, topics.dtype)
    found = np.zeros(width, topics.dtype)
    least, one, zero = kind(LEAST), kind(1.0), spread(kind(0.0))
    prior = 0.0
    for c in range(k):
        prior += alpha[c]
    likelihood = 0.0
    for i in range(n):
        start, stop = indptr[i], indptr[i + 1]
        theta, size = shares[i], stop - start
        length = _gather(start, stop, indices, data, topics, given.unigram, given.smoothing, by_word, times)
        if length == 0.0:
            for c in range(k):
                theta[c] = alpha[c] / prior
            continue
        for c in range(k):
            masses[c], found[c] = alpha[c], theta[c]
        for p in range(size):
            word, row = by_word[p], taken[p]
            scale, count = spread(one / (least + dot(word, found, width))), spread(times[p])
            for c in range(0, width, LANES):
                value = scale * (load(word, c) * load(found, c))
                store(row, c, value)
                accumulate(masses, c, count * value)
        taken[size : size + WORDS - 1] = 0.0
        for _ in range(iteration.n_iter):
            moved = zero
            # Two words at a time, each of which sees the topics of the other from before.
            for p in range(0, size, 2):
                word0, word1, row0, row1 = by_word[p], by_word[p + 1], taken[p], taken[p + 1]
                s0, s1 = zero, zero
                for c in range(0, width, LANES):
                    mass = load(masses, c)
                    value0 = load(word0, c) * positive(mass - load(row0, c))
                    value1 = load(word1, c) * positive(mass - load(row1, c))
                    store(after0, c, value0)
                    store(after1, c, value1)
                    s0 = s0 + value0
                    s1 = s1 + value1
                scale0, count0 = spread(one / (least + sum_of(s0))), spread(times[p])
                scale1, count1 = spread(one / (least + sum_of(s1))), spread(times[p + 1])
                for c in range(0, width, LANES):
                    value0 = scale0 * load(after0, c)
                    value1 = scale1 * load(after1, c)
                    step0 = count0 * (value0 - load(row0, c))
                    step1 = count1 * (value1 - load(row1, c))
                    accumulate(masses, c, step0 + step1)
                    moved = moved + (magnitude(step0) + magnitude(step1))
                    store(row0, c, value0)
                    store(row1, c, value1)
            if sum_of(moved) < iteration.tolerance * length:
                break
        for c in range(k):
            theta[c] = masses[c] / (length + prior)
        if not out.shape[0] or own[i] == 0.0:
            continue
        for c in range(k):
            found[c] = theta[c]
        after0[:] = 0.0
        leasts = spread(least)
        for p in range(size):
            word, row, target = by_word[p], taken[p], out[np.uint64(indices[start + p])]
            weight = own[i] * data[start + p]
            likelihood += weight * np.log(least + dot(word, found, width))
            weights = spread(kind(weight))
            for c in range(0, width, LANES):
                accumulate(after0, c, weights * load(row, c))
            for c in range(0, whole, LANES):
                accumulate(target, c, weights * load(row, c) / (load(word, c) + leasts))
            for c in range(whole, k):
                target[c] += kind(weight) * row[c] / (word[c] + least)
        for c in range(k):
            totals[c] += after0[c]
    return likelihood


@compiled
def log_likelihood(documents: Any, given: Any, shares: Any) -> float:
    """Return the log-likelihood ``sum c log s`` of documents with given shares.

    Parameters
    ----------
    documents : CsrArrays
    given : GivenTopics
    shares : ndarray of shape (n, k)
    """
    indptr, data, topics = documents.indptr, documents.data, given.topics
    k, least = topics.shape[1], topics.dtype.type(LEAST)
    widest = _widest(indptr) + WORDS - 1
    by_word, counts = np.zeros((widest, padded(k)), topics.dtype), np.zeros(widest, topics.dtype)
    theta = np.zeros(padded(k), topics.dtype)
    likelihood = 0.0
    for i in range(indptr.shape[0] - 1):
        start, stop = indptr[i], indptr[i + 1]
        _gather(start, stop, documents.indices, data, topics, given.unigram, given.smoothing, by_word, counts)
        for c in range(k):
            theta[c] = shares[i, c]
        for p in range(stop - start):
            if counts[p] != 0.0:
                likelihood += data[start + p] * np.log(least + dot(by_word[p], theta, padded(k)))
    return likelihood
