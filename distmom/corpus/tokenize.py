"""Tokenization of text, and choice of a vocabulary."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from distmom.errors import UsageError

_ENGLISH = """a about above after again against all also am an and any are as at be because been before being below
between both but by can cannot could did do does doing down during each either else ever every few for from
further had has have having he her here hers herself him himself his how however i if in into is it its
itself just may me might more most must my myself neither no nor not of off on once only onto or other
others ought our ours ourselves out over own per rather same shall she should since so some such than that
the their theirs them themselves then there these they this those through thus to too under until up upon
us very was we were what when where whether which while who whom whose why will with within without would
yet you your yours yourself yourselves"""
#: English words that say little about the subject of a text
ENGLISH_STOP_WORDS = tuple(_ENGLISH.split())


@dataclass(frozen=True)
class Tokenizer:
    """Rules that split text into words and select a learned vocabulary.

    Text is converted to Unicode normal form C and then to lower case, and split into words by a pattern. Stop
    words are removed before n-grams are formed.

    Attributes
    ----------
    min_df : int, default=2
        Minimum number of documents containing a word of a learned vocabulary.
    max_df : float or int, default=1.0
        Maximum number of documents containing it, as a share of all documents (float) or a count (int).
    stop_words : tuple of str, default=()
        Words that are left out.
    ngram_max : int, default=1
        Maximum n of the n-grams, sequences of n adjacent words joined by spaces, that also count as words.
    lowercase : bool, default=True
        Whether text is converted to lower case.
    min_word_length : int, default=2
        Minimum number of characters in a word.
    token_pattern : str
        Regular expression that matches a word. The default matches runs of letters of any script.

    Raises
    ------
    UsageError
        If a value is out of its range, or the pattern is invalid, has groups or matches the empty string.
    """

    min_df: int = 2
    max_df: float | int = 1.0
    stop_words: tuple[str, ...] = ()
    ngram_max: int = 1
    lowercase: bool = True
    min_word_length: int = 2
    token_pattern: str = r"[^\W\d_]+"

    def __post_init__(self) -> None:
        if self.min_df < 1:
            raise UsageError(f"min_df: expected at least 1, got {self.min_df}")
        if isinstance(self.max_df, float) and not 0 < self.max_df <= 1:
            raise UsageError(f"max_df: expected a share from 0 to 1 or a whole number, got {self.max_df}")
        if self.max_df <= 0:
            raise UsageError(f"max_df: expected at least 1, got {self.max_df}")
        for name in ("ngram_max", "min_word_length"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
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

    def words(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Yield the words of each text, in order and as often as they occur."""
        if self.token_pattern == r"[^\W\d_]+":
            # With the default pattern the minimum length can be part of the pattern, which is faster.
            find, shortest = re.compile(rf"[^\W\d_]{{{self.min_word_length},}}").findall, 1
        else:
            find, shortest = re.compile(self.token_pattern).findall, self.min_word_length
        stop = frozenset(self.stop_words)
        for text in texts:
            composed = text if text.isascii() else unicodedata.normalize("NFC", text)
            found = find(composed.lower() if self.lowercase else composed)
            if shortest > 1:
                found = [word for word in found if len(word) >= shortest]
            if stop:
                found = [word for word in found if word not in stop]
            if self.ngram_max > 1:
                found = _with_ngrams(found, self.ngram_max)
            yield found


def _with_ngrams(words: list[str], longest: int) -> list[str]:
    grams = list(words)
    for n in range(2, longest + 1):
        grams += map(" ".join, zip(*(words[start:] for start in range(n)), strict=False))
    return grams


def choose_words(
    document_frequency: Mapping[str, int], n_documents: int, min_df: int, max_df: float | int
) -> list[str]:
    """Return the words within the bounds by decreasing document frequency, ties by code point."""
    most = max_df * n_documents if isinstance(max_df, float) else max_df
    kept = [(-count, word) for word, count in document_frequency.items() if min_df <= count <= most]
    return [word for _, word in sorted(kept)]
