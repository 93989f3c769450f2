"""Tokenization of text, and choice of a vocabulary."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from distmom.errors import UsageError

logger = logging.getLogger(__name__)

_ENGLISH = """a about above after again against all also am an and any are as at be because been before being below
between both but by can cannot could did do does doing down during each either else ever every few for from
further had has have having he her here hers herself him himself his how however i if in into is it its
itself just may me might more most must my myself neither no nor not of off on once only onto or other
others ought our ours ourselves out over own per rather same shall she should since so some such than that
the their theirs them themselves then there these they this those through thus to too under until up upon
us very was we were what when where whether which while who whom whose why will with within without would
yet you your yours yourself yourselves"""
#: a letter of any script; also signs that count as numbers but not as digits
_LETTER = r"[^\W\d_]"
#: code points among which are all combining marks but variants of Chinese characters
_MARKS_WITHIN = (0x300, 0x20000)
#: characters without width that shape words of Persian and of Indian languages
_JOINERS = "\u200c\u200d"
#: characters that no line of a vocabulary can have, see `distmom.corpus.names.is_plain`
_UNPLAIN = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: words of scripts without spaces: Thai, Lao, Burmese, Khmer, Japanese and Chinese
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]+"
)
#: average length from which such words are taken for phrases: words of these languages are shorter
_PHRASE_LENGTH = 8
#: number of words that are examined
_N_LOOKED_AT = 10_000
#: English words that say little about the subject of a text
ENGLISH_STOP_WORDS = tuple(_ENGLISH.split())
#: what n-grams are made of: words, the characters of the text, or the characters of each word alone
ANALYZERS = ("word", "char", "char_wb")


@dataclass(frozen=True)
class Tokenizer:
    """Rules that split text into words and select a learned vocabulary.

    Text is converted to Unicode normal form C and then to lower case, and split into words by a pattern. Stop
    words, which are converted likewise, are removed before n-grams are formed.

    With ``analyzer="char"``, features are n-grams of characters: n adjacent characters of the text, in which every
    run of white space and control characters counts as one space. With ``"char_wb"`` they do not cross white
    space: each run of other characters is padded with a space on either side, and is one n-gram if it is shorter
    than n. Both are those of scikit-learn, except for control characters, and do not use the pattern, the minimum
    length and stop words.

    Attributes
    ----------
    min_df : int, default=2
        Minimum number of documents containing a word of a learned vocabulary.
    max_df : float or int, default=1.0
        Maximum number of documents containing it, as a share of all documents (float) or a count (int).
    stop_words : tuple of str, default=()
        Words that are left out.
    ngram_max : int, default=1
        Maximum n of the n-grams: sequences of n adjacent words joined by spaces, or of n adjacent characters.
    lowercase : bool, default=True
        Whether text is converted to lower case.
    min_word_length : int, default=2
        Minimum number of characters in a word.
    token_pattern : str, optional
        Regular expression that matches a word. By default, words are runs of letters of any script, with the marks
        that many scripts combine with letters.
    ngram_min : int, default=1
        Minimum n of the n-grams. By default single words, or single characters, are features too.
    analyzer : {"word", "char", "char_wb"}, default="word"
        What n-grams are made of.

    Raises
    ------
    UsageError
        If a value is of another type or out of its range, the pattern is invalid, has groups or matches the empty
        string, or stop words are given with n-grams of characters.
    """

    min_df: int = 2
    max_df: float | int = 1.0
    stop_words: tuple[str, ...] = ()
    ngram_max: int = 1
    lowercase: bool = True
    min_word_length: int = 2
    token_pattern: str | None = None
    ngram_min: int = 1
    analyzer: str = "word"

    def __post_init__(self) -> None:
        for name in ("min_df", "ngram_min", "ngram_max", "min_word_length"):
            # Numbers of NumPy cannot be stored with the corpus.
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
        share = isinstance(self.max_df, float | np.floating)
        object.__setattr__(self, "max_df", float(self.max_df) if share else _whole("max_df", self.max_df))
        if share and not 0 < self.max_df <= 1:
            raise UsageError(f"max_df: expected a share from 0 to 1 or a whole number, got {self.max_df}")
        if self.max_df <= 0:
            raise UsageError(f"max_df: expected at least 1, got {self.max_df}")
        if not isinstance(self.lowercase, bool | np.bool):
            raise UsageError(f"lowercase: expected True or False, got {self.lowercase!r:.60}")
        object.__setattr__(self, "lowercase", bool(self.lowercase))
        if self.ngram_min > self.ngram_max:
            raise UsageError(f"ngram_min: expected at most ngram_max={self.ngram_max}, got {self.ngram_min}")
        if self.analyzer not in ANALYZERS:
            raise UsageError(f"analyzer: expected one of {', '.join(ANALYZERS)}, got {self.analyzer!r}")
        if self.analyzer != "word" and self.stop_words:
            raise UsageError(
                f"stop_words: cannot be combined with analyzer={self.analyzer!r}, whose n-grams are not words"
            )
        if self.token_pattern is None:
            return
        try:
            pattern = re.compile(self.token_pattern)
        except re.error as error:
            raise UsageError(f"token_pattern: expected a regular expression, got {error}") from error
        if pattern.groups or pattern.match(""):
            raise UsageError(
                f"token_pattern: expected a pattern without groups that does not match the empty string, "
                f"got {self.token_pattern!r}"
            )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Tokenizer:
        """Restore a tokenizer from the settings of a corpus or model."""
        known = {field.name for field in fields(cls)}
        if not set(settings) <= known:
            raise UsageError(f"tokenizer settings: expected some of {sorted(known)}, got {sorted(settings)}")
        return cls(**{**settings, "stop_words": tuple(settings.get("stop_words", ()))})

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {**asdict(self), "stop_words": list(self.stop_words)}

    def changed(self) -> list[str]:
        """Return the names of the settings that are not the defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    def words(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Yield the words or n-grams of each text, as often as they occur."""
        if self.analyzer != "word":
            grams = _text_grams if self.analyzer == "char" else _bounded_grams
            for text in texts:
                yield grams(_UNPLAIN.sub(" ", self._normalised(text)), self.ngram_min, self.ngram_max)
            return
        shortest, stop = self.min_word_length, frozenset(map(self._normalised, self.stop_words))
        # The minimum length can be part of the pattern of letters without marks, which is faster.
        ascii_words = re.compile(rf"{_LETTER}{{{shortest},}}") if self.token_pattern is None else None
        pattern = re.compile(_words_with_marks() if self.token_pattern is None else self.token_pattern)
        for text in texts:
            if ascii_words is not None and text.isascii():
                found = ascii_words.findall(self._normalised(text))
            else:
                found = [word for word in pattern.findall(self._normalised(text)) if len(word) >= shortest]
            if stop:
                found = [word for word in found if word not in stop]
            if self.ngram_max > 1:
                found = _word_grams(found, self.ngram_min, self.ngram_max)
            yield found

    def never_found(self, vocabulary: Sequence[str]) -> list[str]:
        """Return the words of a vocabulary that no text has, such as words with capitals; none for characters."""
        if self.analyzer != "word":
            return []
        found = zip(vocabulary, self._single().words(vocabulary), strict=True)
        shortest, longest = self.ngram_min, self.ngram_max
        return [
            word for word, parts in found if not shortest <= len(parts) <= longest or " ".join(parts) != word
        ]

    def split_stop_words(self) -> list[str]:
        """Return the stop words that the tokenizer splits, such as "don't", so that parts of them remain."""
        stop = frozenset(map(self._normalised, self.stop_words))
        found = zip(self.stop_words, self._single().words(self.stop_words), strict=True)
        return [word for word, parts in found if not stop.issuperset(parts)]

    def _single(self) -> Tokenizer:
        """Return the tokenizer of single words without stop words."""
        return replace(self, stop_words=(), ngram_min=1, ngram_max=1)

    def _normalised(self, text: str) -> str:
        composed = text if text.isascii() else unicodedata.normalize("NFC", text)
        return composed.lower() if self.lowercase else composed


def _whole(name: str, value: Any) -> int:
    """Return a whole number as an int, also one such as 2.0; UsageError for other values."""
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not real or value != value // 1:
        raise UsageError(f"{name}: expected a whole number, got {value!r:.60}")
    return int(value)


@cache
def _words_with_marks() -> str:
    """Return a pattern of letters, the marks combined with them, and the joiners between them."""
    runs: list[list[int]] = []
    for point in range(*_MARKS_WITHIN):
        if unicodedata.category(chr(point)).startswith("M"):
            if runs and runs[-1][1] == point - 1:
                runs[-1][1] = point
            else:
                runs.append([point, point])
    marks = "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)
    return rf"{_LETTER}+(?:(?:[{marks}]|[{_JOINERS}](?={_LETTER}))+{_LETTER}*)*"


def _word_grams(words: list[str], shortest: int, longest: int) -> list[str]:
    grams = list(words) if shortest == 1 else []
    for n in range(max(2, shortest), longest + 1):
        grams += map(" ".join, zip(*(words[start:] for start in range(n)), strict=False))
    return grams


def _text_grams(text: str, shortest: int, longest: int) -> list[str]:
    line = " ".join(text.split())
    return [line[i : i + n] for n in range(shortest, longest + 1) for i in range(len(line) - n + 1)]


def _bounded_grams(text: str, shortest: int, longest: int) -> list[str]:
    grams = []
    for word in text.split():
        padded = f" {word} "
        for n in range(shortest, longest + 1):
            grams += [padded[i : i + n] for i in range(max(1, len(padded) - n + 1))]
            if n >= len(padded):
                # A short word counts once.
                break
    return grams


def choose_words(
    document_frequency: Mapping[str, int], n_documents: int, min_df: int, max_df: float | int
) -> list[str]:
    """Return the words within the bounds in descending order of document frequency, ties by code point."""
    # The product of a share and the number of documents may be rounded to less than the count of that share.
    divisor = max(1, n_documents) if isinstance(max_df, float) else 1
    kept = [
        (-count, word)
        for word, count in document_frequency.items()
        if min_df <= count and count / divisor <= max_df
    ]
    return [word for _, word in sorted(kept)]


def unspaced_phrase(words: Iterable[str]) -> str | None:
    """Return one of the words if most of them are phrases in a script without spaces; else None.

    Parameters
    ----------
    words : iterable of str
        The words in the order in which they occur; only the first ones are examined.
    """
    found = list(islice(words, _N_LOOKED_AT))
    unspaced = [word for word in found if _UNSPACED.fullmatch(word)]
    if 2 * len(unspaced) <= len(found) or sum(map(len, unspaced)) < _PHRASE_LENGTH * len(unspaced):
        return None
    return next(word for word in unspaced if len(word) >= _PHRASE_LENGTH)


def warn_of_lost_words(tokenizer: Tokenizer, vocabulary: Sequence[str]) -> None:
    """Log a warning if no text can have some words of a vocabulary, or if parts of some stop words remain."""
    if lost := tokenizer.never_found(vocabulary):
        logger.warning(
            "vocabulary: no text can have %s of its %s words, such as %r: texts are converted to Unicode normal "
            "form C%s, and split into words of at least %d characters and n-grams of %d to %d words",
            f"{len(lost):,}", f"{len(vocabulary):,}", lost[0][:60],
            " and lower case" if tokenizer.lowercase else "",
            tokenizer.min_word_length, tokenizer.ngram_min, tokenizer.ngram_max,
        )  # fmt: skip
    if split := tokenizer.split_stop_words():
        logger.warning(
            "stop words: parts of %s of %s, such as %r, remain in texts, because they are not single words",
            f"{len(split):,}", f"{len(tokenizer.stop_words):,}", split[0][:60],
        )  # fmt: skip
