"""The errors distmom raises, each with the exit code its command line returns."""

from __future__ import annotations


class DistmomError(Exception):
    """Base of every error that distmom raises on purpose."""

    exit_code = 1


class UsageError(DistmomError, ValueError):
    """An argument, or a combination of arguments, that cannot be used."""

    exit_code = 2


class InputError(DistmomError, ValueError):
    """Input data that cannot be read as what it was declared to be."""

    exit_code = 3

    @classmethod
    def at(cls, path: object, line: int | None, what: str, expected: str, got: str) -> InputError:
        """Name the place, what is wrong there, what was expected and what was found."""
        place = f"{path}:{line}" if line is not None else f"{path}"
        return cls(f"{place}: {what}: expected {expected}, got {got}")


class NumericalError(InputError):
    """Data from which the requested model cannot be computed, with the numbers that say so."""


class StoreError(DistmomError):
    """A corpus, run or model on disk that is damaged, incomplete or of another version."""

    exit_code = 4


class ClusterError(DistmomError):
    """A Dask cluster that could not finish the work it was given."""

    exit_code = 5
