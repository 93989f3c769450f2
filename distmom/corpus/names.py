"""Names of columns."""

from __future__ import annotations

from collections.abc import Sequence

from distmom.errors import InputError


def check_names(what: str, names: Sequence[str] | None, expected: int) -> list[str]:
    """Return the names of columns, their numbers if none are given.

    Raises
    ------
    InputError
        If their number is not the one expected, or a name is not text, is empty, holds a line break or other
        control character, or occurs twice.
    """
    if names is None:
        return [str(column) for column in range(expected)]
    if len(names) != expected:
        raise InputError.at(what, None, "number of entries", str(expected), str(len(names)))
    seen: dict[str, int] = {}
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name or not is_plain(name):
            raise InputError.at(
                what, None, f"entry {position}", "text without control characters", repr(name)[:80]
            )
        if name in seen:
            raise InputError.at(
                what, None, f"entry {position}", "a name of its own", f"{name!r} as entry {seen[name]}"
            )
        seen[name] = position
    return list(names)


def is_plain(name: str) -> bool:
    """Whether a name has no control character, line separator or lone surrogate, and so fits on a line."""
    return name.isprintable() or not any(
        character < " "
        or "\x7f" <= character <= "\x9f"
        or character in "\u2028\u2029"
        or "\ud800" <= character <= "\udfff"
        for character in name
    )
