"""Files with the names of words, labels or columns, one per line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from distmom.corpus.names import composed
from distmom.corpus.sources.readers.source import LineReader, Tally, decoded, split_lines
from distmom.errors import InputError


def read_names(path: str, *, with_spaces: bool = False) -> list[str]:
    """Read a file with one name per line.

    Parameters
    ----------
    path : str
        The file, which may be compressed.
    with_spaces : bool, default=False
        Whether spaces are part of names, as in n-grams of characters; else runs of white space become one space.

    Raises
    ------
    InputError
        If a line is blank or repeats a name; the message gives the line number.
    """
    lines = _lines_of_names(path, with_spaces)
    return _checked_names(path, lines if with_spaces else list(map(_single_spaced, lines)), [])


def read_labels(path: str) -> tuple[list[str], list[str]]:
    """Read names and ids of labels, one per line.

    Parameters
    ----------
    path : str
        The file, which may be compressed. Lines may be ``id<TAB>name``.

    Returns
    -------
    names : list of str
        In Unicode normal form C, as the labels of sources are. If a name occurs on several lines, its id is
        appended in parentheses.
    ids : list of str
        Empty where a line has none.

    Raises
    ------
    InputError
        If a line is blank or repeats a name; the message gives the line number.
    """
    pairs = [line.partition("\t") if "\t" in line else ("", "", line) for line in _lines_of_names(path)]
    ids = [id.strip() for id, _, _ in pairs]
    return _checked_names(path, [composed(_single_spaced(name)) for _, _, name in pairs], ids), ids


def _lines_of_names(path: str, with_spaces: bool = False) -> list[str]:
    tally = Tally(path)
    lines: list[str] = []
    for text in LineReader(path, tally).texts():
        lines += decoded(tally, len(lines) + 1, split_lines(text))
    while lines and not (lines[-1] if with_spaces else lines[-1].strip()):
        lines.pop()
    return lines


def _single_spaced(name: str) -> str:
    return " ".join(name.split())


def _checked_names(path: str, names: list[str], ids: Sequence[str]) -> list[str]:
    counts = Counter(names)
    seen: dict[str, int] = {}
    for i in range(len(names)):
        if not names[i]:
            raise InputError.at(path, i + 1, "name", "text", "a blank line")
        if ids and ids[i] and counts[names[i]] > 1:
            names[i] = f"{names[i]} ({ids[i]})"
        if names[i] in seen:
            raise InputError.at(
                path, i + 1, "name", "a unique name", f"{names[i]!r}, as on line {seen[names[i]]}"
            )
        seen[names[i]] = i + 1
    return names
