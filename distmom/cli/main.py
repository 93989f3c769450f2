"""The entry point: signals, errors and exit codes around the command line."""

from __future__ import annotations

import io
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from distmom.cli.terminal import plain, say
from distmom.errors import DistmomError, exit_code_of, interrupts_restored


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Sentence())
    logger = logging.getLogger("distmom")
    logger.addHandler(handler)
    try:
        with _interruptible():
            return exit_code(arguments)
    finally:
        logger.removeHandler(handler)


def exit_code(arguments: list[str] | None) -> int:
    """Run the command line, say what has gone wrong, and return its exit code."""
    try:
        # Imported here, because it takes a second, during which an interrupt must be caught too.
        from distmom.cli.app import cli

        # After the import, which sets levels of its own.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with interrupts_restored():
            cli.main(args=arguments, prog_name="distmom", standalone_mode=False)
    except click.ClickException as error:
        with io.StringIO() as shown:
            error.show(shown)
            _say(shown.getvalue().rstrip("\n"), None)
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        _say("interrupted", error)
        return 130
    except DistmomError as error:
        _say(f"error: {error}", error)
        return error.exit_code
    except SystemExit as error:
        # Click has none to report a closed pipe to, and exits with 1.
        return int(error.code or 0)
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        _say(f"error: {place}{error.strerror or error}", error)
        return exit_code_of(error)
    return 0


class _Sentence(logging.Formatter):
    """Log records as plain sentences."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return plain(prefix + record.getMessage())


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM raise KeyboardInterrupt, and let no second one disturb the cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted:
            return
        interrupted = True
        raise KeyboardInterrupt

    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, old in kept.items():
        if old is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, old in kept.items():
            signal.signal(number, old)


def _say(text: str, error: BaseException | None) -> None:
    for line in text.split("\n"):
        say(line, err=True)
    # An error that is raised again while that which it caused is handled makes a circle.
    seen = set[int]()
    while error is not None and id(error) not in seen:
        for note in getattr(error, "__notes__", []):
            say(f"to resume: {note}", err=True)
            return
        seen.add(id(error))
        error = error.__cause__ or error.__context__


if __name__ == "__main__":
    sys.exit(main())
