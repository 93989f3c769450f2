"""Lines of ``number:value`` pairs in regular form, read in one compiled pass over the bytes.

A line is read here only if the plain parser (`distmom.corpus.sources.readers.sparse`) would accept it without
repairs or errors and produce the same bits. All other lines are left to that parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.compiled import compiled
from distmom.corpus.block import MAX_VALUE
from distmom.corpus.sources.readers.part import Rows, interleave, offsets

#: content of a line: labels and pairs; labels and pairs, blank lines excluded; the number of pairs and the pairs;
#: pairs alone
LABELLED, LABELLED_NOT_BLANK, COUNTED, PAIRS = range(4)

_LINE_FEED, _SPACE, _PLUS, _COMMA, _MINUS, _DOT, _ZERO, _COLON = b"\n +,-.0:"
_LARGE_E, _SMALL_E = b"Ee"
#: maximum digits of an index, as in the plain parser
_INDEX_DIGITS = 10
#: maximum digits of a mantissa: all numbers of 18 digits fit into an int64
_SIGNIFICANT_DIGITS = 18
#: maximum digits of an exponent, as in the plain parser
_EXPONENT_DIGITS = 4
# These powers and whole numbers up to 2**53 are exact in float64, so that one multiplication or division rounds
# only once and gives the float64 nearest to the decimal number.
_POWERS = 10.0 ** np.arange(23)
_LARGEST_EXACT = 2**53
#: splits a float64 into two halves with exact products
_HALVES = 2.0**27 + 1
#: generous bound on the relative error of the correction of a quotient
_DOUBT = 2.0**-45


@dataclass(frozen=True)
class Lines:
    """Lines converted to rows.

    Attributes
    ----------
    numbers : ndarray of shape (n_rows,)
        Line number of each row.
    words : Rows
    label_lengths : ndarray of shape (n_rows,)
        Number of labels on each line.
    labels : ndarray
        The labels as numbered in the file, line after line.
    """

    numbers: np.ndarray
    words: Rows
    label_lengths: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Scan:
    """The lines of a chunk: regular ones as rows, the others as bytes.

    Attributes
    ----------
    usual : Lines
    numbers : list of int
        Line numbers of the other lines.
    lines : list of bytes
        The other lines, without line feeds.
    """

    usual: Lines
    numbers: list[int]
    lines: list[bytes]

    def completed(
        self,
        numbers: Sequence[int],
        words: Rows,
        label_lengths: Sequence[int] | np.ndarray,
        labels: np.ndarray,
    ) -> Lines:
        """Insert rows parsed from the other lines at their original positions.

        Parameters
        ----------
        numbers : sequence of int
            Line numbers of the inserted rows; lines without a row are absent.
        words : Rows
        label_lengths, labels
            As in `Lines`.
        """
        usual = self.usual
        if not len(numbers):
            return usual
        if not len(usual.numbers):
            return Lines(np.asarray(numbers), words, np.asarray(label_lengths), labels)
        both = np.concatenate([usual.numbers, numbers])
        order = np.argsort(both, kind="stable")
        ptr, ids, values = interleave(
            order,
            (usual.words.ptr, usual.words.ids, usual.words.values),
            (words.ptr, words.ids, words.values),
        )
        label_ptr, ids_of_labels = interleave(
            order, (offsets(usual.label_lengths), usual.labels), (offsets(label_lengths), labels)
        )
        rows = Rows(ptr, ids, values, words.unsorted, words.repeated)
        return Lines(both[order], rows, np.diff(label_ptr), ids_of_labels)


def scan(text: bytes, first_line: int, form: int, n_words: int | None, base: int = 0) -> Scan:
    """Read the lines in regular form.

    Parameters
    ----------
    text : bytes
        Lines, each ending with a line feed.
    first_line : int
        Number of the first line.
    form : int
        Content of a line: `LABELLED`, `LABELLED_NOT_BLANK`, `COUNTED` or `PAIRS`.
    n_words : int or None
        Number of words; None for the maximum possible.
    base : int
        Number of the first word in the text; 0 by default.
    """
    content = np.frombuffer(text, np.uint8)
    n_lines, n_pairs, n_commas = _sizes(content)
    ends = np.empty(n_lines, np.int64)
    is_usual = np.empty(n_lines, np.bool_)
    lengths, label_lengths = np.empty((2, n_lines), np.int64)
    ids = np.empty(n_pairs, np.int32)
    values = np.empty(n_pairs, np.float64)
    labels = np.empty(n_commas + n_lines, np.int64)
    limit = base + (MAX_VALUE if n_words is None else n_words)
    n_pairs, n_labels = _scan_lines(
        content, form, base, limit, ends, is_usual, lengths, ids, values, label_lengths, labels
    )
    others = np.flatnonzero(~is_usual)
    starts = np.concatenate([[0], ends[:-1] + 1]) if n_lines else ends
    nothing = np.zeros(0, np.int64)
    usual = Lines(
        first_line + np.flatnonzero(is_usual),
        Rows(offsets(lengths[is_usual]), ids[:n_pairs], values[:n_pairs], nothing, nothing),
        label_lengths[is_usual],
        labels[:n_labels],
    )
    return Scan(
        usual,
        (first_line + others).tolist(),
        [text[starts[i] : ends[i]] for i in others.tolist()],
    )


@compiled
def _sizes(text: np.ndarray) -> tuple[int, int, int]:
    """Count line feeds, colons and commas."""
    n_lines, n_colons, n_commas = 0, 0, 0
    for byte in text:
        n_lines += byte == _LINE_FEED
        n_colons += byte == _COLON
        n_commas += byte == _COMMA
    return n_lines, n_colons, n_commas


@compiled
def _index(text: np.ndarray, at: int) -> tuple[int, int]:
    """Return the whole number at a position, -1 if there is none or it is too long, and its end."""
    number, end = 0, at
    # XOR with "0" maps exactly the ten digits to 0..9.
    digit = text[end] ^ _ZERO
    while digit <= 9:
        number = 10 * number + digit
        end += 1
        digit = text[end] ^ _ZERO
    return (number if 0 < end - at <= _INDEX_DIGITS else -1), end


@compiled
def _value(text: np.ndarray, at: int) -> tuple[float, int]:
    """Return the decimal number at a position, -1 if it is not in regular form, and its end."""
    mantissa, end, exponent = 0, at, 0
    while text[end] == _ZERO:
        end += 1
    start = end
    digit = text[end] ^ _ZERO
    while digit <= 9:
        mantissa = 10 * mantissa + digit
        end += 1
        digit = text[end] ^ _ZERO
    n_significant = end - start
    has_digits = end > at
    if text[end] == _DOT:
        end += 1
        point = end
        if mantissa == 0:
            while text[end] == _ZERO:
                end += 1
        start = end
        digit = text[end] ^ _ZERO
        while digit <= 9:
            mantissa = 10 * mantissa + digit
            end += 1
            digit = text[end] ^ _ZERO
        n_significant += end - start
        exponent = point - end
        has_digits = has_digits or end > point
    if not has_digits or n_significant > _SIGNIFICANT_DIGITS:
        return -1.0, end
    if text[end] == _SMALL_E or text[end] == _LARGE_E:
        end += 1
        is_negative = text[end] == _MINUS
        if is_negative or text[end] == _PLUS:
            end += 1
        start = end
        power, end = _index(text, end)
        if power < 0 or end - start > _EXPONENT_DIGITS:
            return -1.0, end
        exponent += -power if is_negative else power
    if mantissa <= _LARGEST_EXACT:
        if exponent == 0:
            return float(mantissa), end
        if 0 < exponent < len(_POWERS):
            return float(mantissa) * _POWERS[exponent], end
        if 0 < -exponent < len(_POWERS):
            return float(mantissa) / _POWERS[-exponent], end
    elif 0 < -exponent < len(_POWERS):
        return _quotient(mantissa, _POWERS[-exponent]), end
    return -1.0, end


@compiled
def _quotient(dividend: int, divisor: float) -> float:
    """Return the float64 nearest to a quotient; -1 if two are almost equally near.

    The dividend need not be exact in float64.
    """
    rounded = float(dividend)
    quotient = rounded / divisor
    # The exact rounding error of quotient * divisor, by splitting both into halves (Dekker 1971).
    product = quotient * divisor
    part = _HALVES * quotient
    high = part - (part - quotient)
    part = _HALVES * divisor
    high_divisor = part - (part - divisor)
    low, low_divisor = quotient - high, divisor - high_divisor
    short = ((high * high_divisor - product) + high * low_divisor + low * high_divisor) + low * low_divisor
    rest = (rounded - product) - short + float(dividend - np.int64(rounded))
    # The correction has an error of a few units in the last place; ambiguous cases go to the plain parser.
    correction = rest / divisor
    lower, upper = quotient + correction * (1 - _DOUBT), quotient + correction * (1 + _DOUBT)
    return lower if lower == upper else -1.0


@compiled
def _scan_lines(
    text: np.ndarray,
    form: int,
    base: int,
    limit: int,
    ends: np.ndarray,
    is_usual: np.ndarray,
    lengths: np.ndarray,
    ids: np.ndarray,
    values: np.ndarray,
    label_lengths: np.ndarray,
    labels: np.ndarray,
) -> tuple[int, int]:
    """Fill in the end of each line, whether it is regular, and the entries of regular lines.

    Every loop stops at a line feed at the latest, and each line has one.

    Returns
    -------
    n_pairs, n_labels : int
        Total number of pairs and of labels on regular lines.
    """
    at, n_pairs, n_labels = 0, 0, 0
    for line in range(len(ends)):
        start, pair, label = at, n_pairs, n_labels
        good = form != LABELLED_NOT_BLANK or text[at] != _LINE_FEED
        if form != PAIRS and _ZERO <= text[at] <= _ZERO + 9:
            labels[label], at = _index(text, at)
            good = labels[label] >= 0
            label += 1
            while good and text[at] == _COMMA:
                labels[label], at = _index(text, at + 1)
                good = labels[label] >= 0
                label += 1
        previous = -1
        # In the form PAIRS, the first pair is not preceded by a space.
        has_more = text[at] != _LINE_FEED if form == PAIRS else text[at] == _SPACE
        skip = 0 if form == PAIRS else 1
        while good and has_more:
            number, at = _index(text, at + skip)
            skip = 1
            if number <= previous or not base <= number < limit or text[at] != _COLON:
                good = False
                break
            previous = number
            value, at = _value(text, at + 1)
            if not 0 < value <= MAX_VALUE:
                good = False
                break
            ids[pair], values[pair] = number - base, value
            pair += 1
            has_more = text[at] == _SPACE
        good = good and text[at] == _LINE_FEED
        if good and form == COUNTED:
            good = label == n_labels + 1 and labels[n_labels] == pair - n_pairs
            # The plain parser compares text, so leading zeros are not allowed here.
            good = good and (text[start] != _ZERO or not _ZERO <= text[start + 1] <= _ZERO + 9)
            label = n_labels
        while text[at] != _LINE_FEED:
            at += 1
        ends[line], is_usual[line] = at, good
        at += 1
        if good:
            lengths[line], label_lengths[line] = pair - n_pairs, label - n_labels
            n_pairs, n_labels = pair, label
    return n_pairs, n_labels
