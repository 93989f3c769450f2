"""The entry point: signals and logging around the command line."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from distmom.cli.exits import exit_code
from distmom.cli.terminal import plain, say
from distmom.errors import UsageError

#: seconds after which a signal is sent again whose exception Python has dropped
AGAIN_S = 0.05


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Without ``arguments``, those of the process are used, which is expected to end with the command.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Sentence())
    logger = logging.getLogger("distmom")
    logger.addHandler(handler)
    try:
        with _interruptible(is_last=arguments is None):
            return exit_code(partial(_run, arguments))
    except KeyboardInterrupt:
        # The signal came just before errors of the command are caught, or just after.
        say("interrupted", err=True)
        return 130
    finally:
        logger.removeHandler(handler)


def _run(arguments: list[str] | None) -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        # Imports and worker processes would fail with errors that do not name the cause.
        raise UsageError("the current directory has been removed: change to another one") from error
    # Imported here, because it takes a second, during which an interrupt must be caught too.
    from distmom.cli.app import cli

    # After the import, which sets levels of its own.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    cli.main(args=arguments, prog_name="distmom", standalone_mode=False)


class _Sentence(logging.Formatter):
    """Log records as plain sentences."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return plain(prefix + record.getMessage())


@contextmanager
def _interruptible(*, is_last: bool) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT or SIGTERM, and let no second one disturb the clean-up.

    Python drops an exception that is raised in a destructor or in the callback of a weak reference. The signal is
    sent again then.

    Parameters
    ----------
    is_last : bool
        Whether the process ends after the block. A second signal is then ignored until it has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = has_ended = False
    received = signal.SIGINT

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted, received
        if interrupted:
            return
        interrupted, received = True, signal.Signals(number)
        raise KeyboardInterrupt

    def dropped(given: sys.UnraisableHookArgs) -> None:
        nonlocal interrupted
        if not interrupted or not issubclass(given.exc_type, KeyboardInterrupt):
            hook(given)
            return
        interrupted = False
        # Destructors run anywhere, also where locks of the threading module are held.
        _thread.start_new_thread(send_again, ())

    def send_again() -> None:
        time.sleep(AGAIN_S)
        if not has_ended:
            signal.pthread_kill(main_thread, received)

    main_thread = threading.get_ident()
    hook, sys.unraisablehook = sys.unraisablehook, dropped
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, old in kept.items():
        if old is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        has_ended, sys.unraisablehook = True, hook
        for number, old in kept.items():
            signal.signal(number, signal.SIG_IGN if interrupted and is_last else old)


if __name__ == "__main__":
    sys.exit(main())
