"""Errors of a command as messages and exit codes."""

from __future__ import annotations

import io
from collections.abc import Callable

import click

from distmom.cli.terminal import say
from distmom.errors import DistmomError, exit_code_of, interrupts_restored


def exit_code(command: Callable[[], object]) -> int:
    """Run a command, report its error if there is one, and return its exit code."""
    try:
        with interrupts_restored():
            command()
    except click.ClickException as error:
        with io.StringIO() as shown:
            error.show(shown)
            # Click indents the choices of an argument that is missing by tabs.
            _say(shown.getvalue().rstrip("\n").replace("\n\t", "\n  "), None)
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        _say("interrupted", error)
        return 130
    except DistmomError as error:
        _say(f"error: {error}", error)
        return error.exit_code
    except SystemExit as error:
        # A closed pipe leaves nobody to report to; click exits with 1.
        return int(error.code or 0)
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        _say(f"error: {place}{error.strerror or error}", error)
        return exit_code_of(error)
    return 0


def _say(text: str, error: BaseException | None) -> None:
    for line in text.split("\n"):
        say(line, err=True)
    # The chain of causes is circular where an error is raised again while an error that it caused is handled.
    seen = set[int]()
    while error is not None and id(error) not in seen:
        for note in getattr(error, "__notes__", []):
            say(f"to resume: {note}", err=True)
            return
        seen.add(id(error))
        error = error.__cause__ or error.__context__
