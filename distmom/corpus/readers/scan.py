"""Lines of ``number:value`` pairs in their usual form, read in one compiled pass over the bytes.

A line is read here only if the plain parser (`distmom.corpus.readers.sparse`) would take its pairs as they
stand, without a repair or an error, and would find the same bits. Every other line is left to that parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distmom.compiled import compiled
from distmom.corpus.block import MAX_VALUE
from distmom.corpus.readers.part import Rows, interleave, offsets

#: what stands on a line: labels and pairs; the same, but lines that are not blank; the number of pairs and the
#: pairs; pairs alone
LABELLED, LABELLED_NOT_BLANK, COUNTED, PAIRS = range(4)

_LINE_FEED, _SPACE, _PLUS, _COMMA, _MINUS, _DOT, _ZERO, _COLON = b"\n +,-.0:"
_LARGE_E, _SMALL_E = b"Ee"
#: of an index, as in the plain parser
_INDEX_DIGITS = 10
#: digits that an int64 holds, whatever they are
_SIGNIFICANT_DIGITS = 18
#: digits of an exponent, as in the plain parser
_EXPONENT_DIGITS = 4
# These powers are exact in float64, as are whole numbers up to 2**53, so that one multiplication or division
# of the two is rounded once: it gives the float64 nearest to the decimal number.
_POWERS = 10.0 ** np.arange(23)
_LARGEST_EXACT = 2**53
#: cuts a float64 in two halves, the products of which are exact
_HALVES = 2.0**27 + 1
#: relative, many times what the correction of a quotient may be off by
_DOUBT = 2.0**-45


@dataclass(frozen=True)
class Lines:
    """Lines as rows.

    Attributes
    ----------
    numbers : ndarray of shape (n_rows,)
        Line number of each row.
    words : Rows
    label_lengths : ndarray of shape (n_rows,)
        Number of labels on each line.
    labels : ndarray
        The labels, line after line, as they stand.
    """

    numbers: np.ndarray
    words: Rows
    label_lengths: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Scan:
    """The lines of a chunk: those in the usual form as rows, the others as they stand.

    Attributes
    ----------
    usual : Lines
    numbers : list of int
        Line numbers of the others.
    lines : list of bytes
        The others, without line feeds.
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
        """Put rows made of the other lines where these stood.

        Parameters
        ----------
        numbers : sequence of int
            Line numbers of the rows; a line that is missing has no row.
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
    """Read the lines that are in the usual form.

    Parameters
    ----------
    text : bytes
        Lines, each with a line feed.
    first_line : int
        Number of the first line.
    form : int
        What stands on a line: `LABELLED`, `LABELLED_NOT_BLANK`, `COUNTED` or `PAIRS`.
    n_words : int or None
        Number of words; as many as there can be if None.
    base : int
        Number of the first word in the text.
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
    """Return the whole number that starts at a place, -1 if there is none or too long a one, and its end."""
    number, end = 0, at
    # Of all bytes, this turns only the ten digits into 0 to 9.
    digit = text[end] ^ _ZERO
    while digit <= 9:
        number = 10 * number + digit
        end += 1
        digit = text[end] ^ _ZERO
    return (number if 0 < end - at <= _INDEX_DIGITS else -1), end


@compiled
def _value(text: np.ndarray, at: int) -> tuple[float, int]:
    """Return the decimal number that starts at a place, -1 if there is none that is read here, and its end."""
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
    """Return the float64 nearest to a quotient whose dividend is no float64; -1 if two are about as near."""
    rounded = float(dividend)
    quotient = rounded / divisor
    # What the product of quotient and divisor is short of, exactly (Dekker 1971): both are cut in halves.
    product = quotient * divisor
    part = _HALVES * quotient
    high = part - (part - quotient)
    part = _HALVES * divisor
    high_divisor = part - (part - divisor)
    low, low_divisor = quotient - high, divisor - high_divisor
    short = ((high * high_divisor - product) + high * low_divisor + low * high_divisor) + low * low_divisor
    rest = (rounded - product) - short + float(dividend - np.int64(rounded))
    # The correction is off by a few units in the last place; where that matters, rounding is left to others.
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
    """Fill in where each line ends, whether it is usual, and the entries of those that are.

    Every loop below stops at a line feed at the latest, and each line has one.

    Returns
    -------
    n_pairs, n_labels : int
        Entries of all usual lines.
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
        # Where pairs stand alone, none comes before the first one's space.
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
            # The plain parser compares text, so that only 0 itself may begin with a zero.
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
