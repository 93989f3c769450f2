"""The exceptions of distmom, each with the exit code of the command line."""

from __future__ import annotations


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


class ClusterError(DistmomError):
    """A Dask cluster that could not finish its work."""

    exit_code = 5
