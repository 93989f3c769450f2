"""The exceptions of distmom, each with the exit code of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: what to do about a destination that exists, for messages of functions and of commands
ELSEWHERE = "choose another location or overwrite it (overwrite=True, or --overwrite)"


class DistmomError(Exception):
    """Base class of all errors raised by distmom."""

    exit_code = 1


class UsageError(DistmomError, ValueError):
    """An invalid argument or combination of arguments."""

    exit_code = 2


class InputError(DistmomError, ValueError):
    """Input data that is not valid in its declared format."""

    exit_code = 3

    @classmethod
    def at(cls, path: object, line: int | None, what: str, expected: str, got: str) -> InputError:
        """Build an error from path, line (None if unknown), subject, and the expected and actual values."""
        place = f"{path}:{line}" if line is not None else f"{path}"
        return cls(f"{place}: {what}: expected {expected}, got {got}")


class NumericalError(InputError):
    """Data from which the requested model cannot be computed; the message gives the decisive numbers."""


class StoreError(DistmomError):
    """A stored corpus, run or model that is damaged, incomplete or of another version."""

    exit_code = 4


class OutOfSpaceError(DistmomError, OSError):
    """A disk that became full; the message gives the path, and the bytes that are free."""


class ClusterError(DistmomError):
    """A Dask cluster that could not finish its work."""

    exit_code = 5


class WorkersLostError(ClusterError):
    """A task whose workers died each time it ran.

    Attributes
    ----------
    index : int or None
        Number of the task among those that read data; None for others.
    """

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class TakenOverError(ClusterError):
    """A run or an ingest that another process has taken over, as this one seemed to have ended."""


class CancelledError(DistmomError):
    """A run that ended because this was requested."""

    exit_code = 130


#: errors of the system that another path would not meet
_WRONG_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that ends with an error."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, OSError):
        return 2 if isinstance(error, _WRONG_PATH) else 1
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


@contextmanager
def interrupts_restored() -> Iterator[None]:
    """Raise the KeyboardInterrupt that a compiled kernel has turned into a SystemError; a context manager.

    A signal that arrives while a kernel runs is handled in the first Python function that the kernel calls to
    build its result. A kernel that returns several arrays ignores the exception and builds the others, and Python
    raises a SystemError because there is both a result and an exception.
    """
    try:
        yield
    except SystemError as error:
        cause = error.__cause__
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
