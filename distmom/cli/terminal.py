"""Lines on the terminal, in which text from data cannot move the cursor, change colours or hide other text."""

from __future__ import annotations

import re

import click

#: control characters, those that end lines or change the direction of text, and lone surrogates
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Return text as it may be printed on one line, control characters as escapes such as ``\\x1b``."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(line: str, *, err: bool = False) -> None:
    """Print one line, to standard error if ``err``."""
    click.echo(plain(line), err=err)
