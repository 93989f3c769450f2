"""Compiled loops over documents and topics: shares of topics, counts by topic, halves of documents.

A document with counts c is modelled as draws from ``phi theta``, with topics phi (d, k) and shares theta. Its
shares are found by iterating, with ``s = phi theta`` on the words of the document,

    MAP          theta <- (alpha + theta * phi'(c / s)) / total          (Dirichlet prior of parameters alpha + 1)
    variational  gamma <- alpha + e * phi'(c / s),  theta ~ e = exp(psi(gamma))        (Blei, Ng, Jordan 2003)

and contribute the counts ``phi_wi theta_i c_w / s_w`` to every topic. With collapsed variational Bayes, the
topic of a position depends on the other positions of the document,

    CVB0         g_wi ~ phi_wi (n_i - g_wi + alpha_i),  n_i = sum_w c_w g_wi                (Asuncion et al. 2009)

so that the words of short documents do not confirm themselves, and the counts are ``c_w g_wi``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.hashing import GOLDEN, scramble

#: largest number of iterations for the shares of a document, and the change of shares at which they end
MAX_ITER, TOLERANCE = 20, 0.02
#: the same limits where shares are the final result
FULL_ITER, FULL_TOLERANCE = 100, 1e-4
#: count of a topic in a document below which the topic is left out of further iterations
NO_COUNTS = 1e-3
#: count of a word in a document above which halves are drawn from a normal distribution, not position by position
MANY_POSITIONS = 1 << 16
#: numbers that are added in parallel: of a vector, and of a sum over topics
LANES, CHAINS = 16, 8
#: probability of a word that no topic has; a count divided by it is still a finite float32
LEAST = 1e-30


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
def _total(values: Any) -> Any:
    """Return the sum of values whose number is a multiple of `CHAINS`; each addition waits for the eighth last."""
    s0, s1, s2, s3 = values[0], values[1], values[2], values[3]
    s4, s5, s6, s7 = values[4], values[5], values[6], values[7]
    for j in range(CHAINS, values.shape[0], CHAINS):
        s0 += values[j]
        s1 += values[j + 1]
        s2 += values[j + 2]
        s3 += values[j + 3]
        s4 += values[j + 4]
        s5 += values[j + 5]
        s6 += values[j + 6]
        s7 += values[j + 7]
    return ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))


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
) -> float:
    """Set the smoothed probabilities of a document's words and return its length."""
    kind = topics.dtype.type
    keep = kind(1.0 - smoothing)
    length = 0.0
    for p in range(stop - start):
        v = np.uint64(indices[start + p])
        length += data[start + p]
        floor = kind(smoothing * unigram[v])
        for c in range(topics.shape[1]):
            by_word[p, c] = keep * topics[v, c] + floor
    return length


@compiled
def _iterate(
    counts: Any,
    length: Any,
    by_word: Any,
    by_topic: Any,
    alpha: Any,
    prior: Any,
    variational: Any,
    n_iter: Any,
    tolerance: Any,
    narrow: Any,
    left: Any,
    found: Any,
    base: Any,
    s: Any,
    theta: Any,
    e: Any,
) -> None:
    """Find the shares of one document, ``theta``, and the weights of topics, ``e``.

    ``narrow``, ``left``, ``found``, ``base`` and ``s`` are work space.
    """
    k, size = theta.shape[0], counts.shape[0]
    kind = by_word.dtype.type
    for c in range(k):
        e[c] = theta[c]
        if variational:
            e[c] = np.exp(_digamma(alpha[c] + length * theta[c]) - _digamma(prior + length))
    if length == 0.0:
        for c in range(k):
            theta[c] = alpha[c] / prior
        return
    # The remaining topics, and their columns of ``by_word``.
    n_left, columns, total = k, by_word, prior + length
    for c in range(k):
        left[c] = c
    base[:size] = kind(LEAST)
    for _ in range(n_iter):
        s[:size] = base[:size]
        # Four terms at a time, added in their order, so that sums are read and written less often.
        n_fours = n_left - n_left % 4
        for j in range(0, n_fours, 4):
            c0, c1, c2, c3 = left[j], left[j + 1], left[j + 2], left[j + 3]
            e0, e1, e2, e3 = e[c0], e[c1], e[c2], e[c3]
            row0, row1, row2, row3 = by_topic[c0], by_topic[c1], by_topic[c2], by_topic[c3]
            for p in range(size):
                s[p] = (((s[p] + e0 * row0[p]) + e1 * row1[p]) + e2 * row2[p]) + e3 * row3[p]
        for j in range(n_fours, n_left):
            weight = e[left[j]]
            row = by_topic[left[j]]
            for p in range(size):
                s[p] += weight * row[p]
        found[:n_left] = 0.0
        n_fours = size - size % 4
        for p in range(0, n_fours, 4):
            r0, r1 = kind(counts[p]) / s[p], kind(counts[p + 1]) / s[p + 1]
            r2, r3 = kind(counts[p + 2]) / s[p + 2], kind(counts[p + 3]) / s[p + 3]
            at0, at1, at2, at3 = columns[p], columns[p + 1], columns[p + 2], columns[p + 3]
            for j in range(n_left):
                found[j] = (((found[j] + r0 * at0[j]) + r1 * at1[j]) + r2 * at2[j]) + r3 * at3[j]
        for p in range(n_fours, size):
            ratio = kind(counts[p]) / s[p]
            for j in range(n_left):
                found[j] += ratio * columns[p, j]
        n_kept, own = 0, 0.0
        for j in range(n_left):
            brought = e[left[j]] * found[j]
            n_kept += brought >= NO_COUNTS
            found[j] = alpha[left[j]] + brought
            own += found[j]
        if n_left == k:
            total = own
        change = 0.0
        for j in range(n_left):
            c = left[j]
            value = found[j] / total
            change += abs(value - theta[c])
            theta[c] = value
            e[c] = np.exp(_digamma(found[j]) - _digamma(total)) if variational else value
        if change < tolerance:
            if n_left == k:
                break
            # One more iteration over all topics checks whether the counts of the others have grown.
            n_left, columns = k, by_word
            for c in range(k):
                left[c] = c
            base[:size] = kind(LEAST)
        elif 2 * n_kept <= n_left:
            # The shares of topics with almost no counts in the document are kept fixed.
            at = 0
            for j in range(n_left):
                c = left[j]
                if found[j] - alpha[c] >= NO_COUNTS:
                    left[at] = c
                    at += 1
                else:
                    for p in range(size):
                        base[p] += e[c] * by_topic[c, p]
            n_left, columns = at, narrow
            for p in range(size):
                for j in range(n_left):
                    narrow[p, j] = by_word[p, left[j]]


@compiled
def find_shares(
    indptr: Any,
    indices: Any,
    data: Any,
    topics: Any,
    unigram: Any,
    smoothing: Any,
    alpha: Any,
    variational: Any,
    n_iter: Any,
    tolerance: Any,
    own: Any,
    shares: Any,
    totals: Any,
    out: Any,
) -> float:
    """Find the shares of documents, and add up their counts by topic.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows of counts, (n, d).
    topics : ndarray of shape (d, k)
        Word probabilities; products are computed in its type.
    unigram : ndarray of shape (d,)
        Word probabilities of the corpus, mixed into every topic with weight ``smoothing``.
    smoothing : float
    alpha : ndarray of shape (k,)
    variational : bool
    n_iter : int
        Largest number of iterations.
    tolerance : float
        Iteration ends when the shares of a document change by less, summed over topics.
    own : ndarray of shape (n,)
        Weight of each document in the counts.
    shares : ndarray of shape (n, k)
        Initial shares; changed in place. Rows sum to one.
    totals : ndarray of shape (k,)
        ``sum phi_wi theta_i c_w / s_w``; changed in place.
    out : ndarray of shape (d, k)
        ``sum theta_i c_w / s_w``, to be multiplied by the smoothed phi; changed in place. With a matrix without
        rows counts are not added up.

    Returns
    -------
    float
        The log-likelihood ``sum c log s``.
    """
    k, n, widest = topics.shape[1], indptr.shape[0] - 1, _widest(indptr)
    kind = topics.dtype.type
    by_word = np.empty((widest, k), topics.dtype)
    by_topic = np.empty((k, widest), topics.dtype)
    narrow = np.empty((widest, k), topics.dtype)
    left = np.empty(k, np.int64)
    s = np.empty(widest, topics.dtype)
    base = np.empty(widest, topics.dtype)
    found = np.empty(k, topics.dtype)
    e = np.empty(k, topics.dtype)
    prior = 0.0
    for c in range(k):
        prior += alpha[c]
    likelihood = 0.0
    for i in range(n):
        start, stop = indptr[i], indptr[i + 1]
        size = stop - start
        length = _gather(start, stop, indices, data, topics, unigram, smoothing, by_word)
        for p in range(size):
            for c in range(k):
                by_topic[c, p] = by_word[p, c]
        _iterate(
            data[start:stop],
            length,
            by_word,
            by_topic,
            alpha,
            prior,
            variational,
            n_iter,
            tolerance,
            narrow,
            left,
            found,
            base,
            s,
            shares[i],
            e,
        )
        if not out.shape[0] or own[i] == 0.0:
            continue
        s[:size] = kind(LEAST)
        n_fours = k - k % 4
        for c in range(0, n_fours, 4):
            e0, e1, e2, e3 = e[c], e[c + 1], e[c + 2], e[c + 3]
            row0, row1, row2, row3 = by_topic[c], by_topic[c + 1], by_topic[c + 2], by_topic[c + 3]
            for p in range(size):
                s[p] = (((s[p] + e0 * row0[p]) + e1 * row1[p]) + e2 * row2[p]) + e3 * row3[p]
        for c in range(n_fours, k):
            weight = e[c]
            for p in range(size):
                s[p] += weight * by_topic[c, p]
        found[:] = 0.0
        for p in range(size):
            likelihood += own[i] * data[start + p] * np.log(s[p])
            ratio = kind(own[i] * data[start + p]) / s[p]
            target = out[np.uint64(indices[start + p])]
            for c in range(k):
                target[c] += ratio * e[c]
                found[c] += ratio * by_word[p, c]
        for c in range(k):
            totals[c] += e[c] * found[c]
    return likelihood


@compiled
def find_collapsed(
    indptr: Any,
    indices: Any,
    data: Any,
    topics: Any,
    unigram: Any,
    smoothing: Any,
    alpha: Any,
    n_iter: Any,
    tolerance: Any,
    own: Any,
    shares: Any,
    totals: Any,
    out: Any,
) -> float:
    """Find the shares of documents by collapsed variational Bayes, and add up their counts by topic.

    Parameters
    ----------
    indptr, indices, data, topics, unigram, smoothing, alpha, n_iter, own, shares, totals, out
        As in `find_shares`.
    tolerance : float
        Iteration ends when the topics of positions change by less on average, summed over topics.

    Returns
    -------
    float
        The log-likelihood ``sum c log s`` of the shares found.
    """
    k, n, widest = topics.shape[1], indptr.shape[0] - 1, _widest(indptr)
    kind = topics.dtype.type
    # Padded with zeros to whole rounds of `_total`.
    width = -(-k // CHAINS) * CHAINS
    by_word = np.zeros((widest, width), topics.dtype)
    taken = np.zeros((widest, width), topics.dtype)
    after = np.zeros(width, topics.dtype)
    counts = np.zeros(width, topics.dtype)
    moved = np.zeros(width, topics.dtype)
    given = np.zeros(width, topics.dtype)
    found = np.zeros(width, topics.dtype)
    prior = 0.0
    for c in range(k):
        prior += alpha[c]
        given[c] = alpha[c]
    likelihood = 0.0
    for i in range(n):
        start, stop = indptr[i], indptr[i + 1]
        theta = shares[i]
        length = _gather(start, stop, indices, data, topics, unigram, smoothing, by_word)
        if length == 0.0:
            for c in range(k):
                theta[c] = alpha[c] / prior
            continue
        counts[:] = 0.0
        found[:k] = theta
        for p in range(stop - start):
            count, word, row = kind(data[start + p]), by_word[p], taken[p]
            for c in range(width):
                after[c] = word[c] * found[c]
            scale = kind(1.0) / (kind(LEAST) + _total(after))
            for c in range(width):
                row[c] = scale * after[c]
                counts[c] += count * row[c]
        for _ in range(n_iter):
            moved[:] = 0.0
            for p in range(stop - start):
                count, word, row = kind(data[start + p]), by_word[p], taken[p]
                for c in range(width):
                    after[c] = word[c] * max(counts[c] - row[c] + given[c], kind(0.0))
                scale = kind(1.0) / (kind(LEAST) + _total(after))
                for c in range(width):
                    value = scale * after[c]
                    step = count * (value - row[c])
                    counts[c] += step
                    moved[c] += abs(step)
                    row[c] = value
            if _total(moved) < tolerance * length:
                break
        for c in range(k):
            theta[c] = (counts[c] + alpha[c]) / (length + prior)
        if not out.shape[0] or own[i] == 0.0:
            continue
        found[:k] = theta
        for p in range(stop - start):
            weight, word, row = own[i] * data[start + p], by_word[p], taken[p]
            target = out[np.uint64(indices[start + p])]
            for c in range(width):
                after[c] = word[c] * found[c]
            for c in range(k):
                target[c] += kind(weight) * row[c] / max(word[c], kind(LEAST))
                totals[c] += weight * row[c]
            likelihood += weight * np.log(kind(LEAST) + _total(after))
    return likelihood


@compiled
def log_likelihood(
    indptr: Any, indices: Any, data: Any, topics: Any, unigram: Any, smoothing: Any, shares: Any
) -> float:
    """Return the log-likelihood ``sum c log s`` of documents with given shares.

    Parameters
    ----------
    indptr, indices, data, topics, unigram, smoothing
        As in `find_shares`.
    shares : ndarray of shape (n, k)
    """
    k = topics.shape[1]
    keep, least = topics.dtype.type(1.0 - smoothing), topics.dtype.type(LEAST)
    # Padded with zeros to whole vectors, so that additions run in parallel.
    n_groups = -(-k // LANES)
    phi = np.zeros(n_groups * LANES, topics.dtype)
    lanes = np.empty(LANES, topics.dtype)
    likelihood = 0.0
    for i in range(indptr.shape[0] - 1):
        theta = shares[i]
        for p in range(indptr[i], indptr[i + 1]):
            if data[p] == 0.0:
                continue
            v = np.uint64(indices[p])
            floor = topics.dtype.type(smoothing * unigram[v])
            source = topics[v]
            for c in range(k):
                phi[c] = theta[c] * (keep * source[c] + floor)
            lanes[:] = phi[:LANES]
            for group in range(1, n_groups):
                for j in range(LANES):
                    lanes[j] += phi[group * LANES + j]
            s = least
            for j in range(LANES):
                s += lanes[j]
            likelihood += data[p] * np.log(s)
    return likelihood


@compiled
def half_counts(indptr: Any, indices: Any, data: Any, key: Any, first: Any) -> None:
    """Assign every position of every document to the first half with probability 1/2.

    The bits are a hash of the document's words and counts and of the word, so that the halves of a document do not
    depend on its position. For counts above `MANY_POSITIONS` the first half is drawn from the normal
    distribution of the same mean and variance.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows of counts, (n, d).
    key : uint64
    first : ndarray of shape (nnz,), float64
        Counts of the first half; set in place.
    """
    for i in range(indptr.shape[0] - 1):
        document = np.uint64(key)
        for p in range(indptr[i], indptr[i + 1]):
            word = scramble(np.uint64(indices[p]) + GOLDEN)
            document = scramble((document ^ word + np.uint64(data[p])) + GOLDEN)
        for p in range(indptr[i], indptr[i + 1]):
            bits = scramble((document ^ np.uint64(indices[p])) + GOLDEN)
            left: Any = np.int64(data[p])
            n: Any = np.int64(0)
            if left > MANY_POSITIONS:
                document = scramble(document + np.uint64(left) + GOLDEN)
                more = scramble((document ^ np.uint64(indices[p])) + GOLDEN)
                # Uniform in (0, 1]: the logarithm of zero is not finite.
                radius = np.sqrt(-2.0 * np.log(((bits >> np.uint64(11)) + np.uint64(1)) * 2.0**-53))
                normal = radius * np.cos(2.0 * np.pi * ((more >> np.uint64(11)) * 2.0**-53))
                first[p] = min(max(np.rint(0.5 * (left + np.sqrt(np.float64(left)) * normal)), 0.0), left)
                continue
            # All words of bits but the first are used in full.
            n_bits: Any = (left - 1) % 64 + 1
            while left > 0:
                n += _count_bits(bits << np.uint64(64 - n_bits))
                left -= n_bits
                n_bits = 64
                if left > 0:
                    document = scramble(document + np.uint64(left) + GOLDEN)
                    bits = scramble((document ^ np.uint64(indices[p])) + GOLDEN)
            first[p] = n


@compiled
def _count_bits(x: Any) -> Any:
    """Return the number of set bits of 64, by sums of fields of increasing length."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))
