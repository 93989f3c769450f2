"""Validation and comparison of column names."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

from distmom.errors import InputError


def check_names(what: str, names: Sequence[str] | None, expected: int) -> list[str]:
    """Return the names of columns, by default their numbers.

    Raises
    ------
    InputError
        If there are not ``expected`` names, or a name is not text, is empty, contains a line break or other
        control character, or occurs twice.
    """
    if names is None:
        return [str(column) for column in range(expected)]
    if len(names) != expected:
        raise InputError.at(what, None, "number of entries", str(expected), str(len(names)))
    if _are_good(names):
        return list(names)
    seen: dict[str, int] = {}
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name or not is_plain(name):
            expected_name = "a name that is not empty" if name == "" else "text without control characters"
            raise InputError.at(what, None, f"entry {position}", expected_name, repr(name)[:80])
        if name in seen:
            raise InputError.at(
                what,
                None,
                f"entry {position}",
                "a unique name",
                f"{name!r}, which is also entry {seen[name]}",
            )
        seen[name] = position
    return list(names)


def are_numbers(names: Sequence[str]) -> bool:
    """Whether the names of columns are their numbers, as by default."""
    return all(name == str(column) for column, name in enumerate(names))


def number_lines(n: int) -> bytes:
    """Return the numbers from 0 to ``n - 1`` in decimal digits, one per line."""
    texts = []
    first, power = 0, 10
    while first < n:
        numbers = np.arange(first, min(n, power))
        lines = np.full((len(numbers), len(str(first)) + 1), ord("\n"), np.uint8)
        for column in range(lines.shape[1] - 2, -1, -1):
            numbers, digits = np.divmod(numbers, 10)
            lines[:, column] = ord("0") + digits
        texts.append(lines.tobytes())
        first, power = power, 10 * power
    return b"".join(texts)


def composed(name: str) -> str:
    """Return a name in Unicode normal form C, in which names that look the same are equal."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


class NumberedNames(dict[str, int]):
    """The number of each name; a name that differs only in its Unicode normal form has the same number.

    Parameters
    ----------
    names : sequence of str
        If several have one normal form, each has its own number, and other forms have that of the first.
    """

    def __init__(self, names: Sequence[str]) -> None:
        for number, name in enumerate(names):
            self.setdefault(composed(name), number)
        self.update({name: number for number, name in enumerate(names)})

    def find(self, name: str) -> int | None:
        """Return the number of a name in any form; None if there is none."""
        return self.get(name, self.get(composed(name)))


def _are_good(names: Sequence[str]) -> bool:
    """Check all names at once, which is many times faster for a large vocabulary than a loop over names."""
    try:
        return "".join(names).isprintable() and all(names) and len(set(names)) == len(names)
    except TypeError:
        return False


def is_id(text: str) -> bool:
    """Whether a text can be the id of a document: not empty, and on one line; it may contain tabs."""
    return bool(text) and is_plain(text.replace("\t", " "))


def is_plain(name: str) -> bool:
    """Whether a name fits on one line: it has no control character, line separator or lone surrogate."""
    return name.isprintable() or not any(
        character < " "
        or "\x7f" <= character <= "\x9f"
        or character in "\u2028\u2029"
        or "\ud800" <= character <= "\udfff"
        for character in name
    )
