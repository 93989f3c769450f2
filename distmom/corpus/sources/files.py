"""The files of a source: their paths, their one format, and whether they change while they are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Set

from distmom.corpus.sources.formats import FORMATS, checked_format
from distmom.errors import InputError, UsageError


def paths_of(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files of a source; a UsageError if there is none, or something else is given."""
    if isinstance(source, str | os.PathLike):
        return [os.fspath(source)]
    if isinstance(source, bytes | Set) or not isinstance(source, Iterable):
        raise UsageError(f"source: expected a path or a list of paths, got {type(source).__name__}")
    paths: list[str | os.PathLike[str]] = list(source)
    if not paths:
        raise UsageError("source: expected a file or several, got none")
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"source: expected a path or a list of paths, got a list with {path!r:.60}")
    return [os.fspath(path) for path in paths]


def format_of_all(paths: list[str], format: str | None) -> str:
    """Return the format of the files of a source.

    Raises
    ------
    UsageError
        If they differ in format, the format is for one file only, or a file is missing or given twice.
    """
    name = checked_format(paths[0], format)
    for path in paths[1:]:
        if not FORMATS[name].names_words:
            raise UsageError(f"{path}: expected one file with format {name}, as its columns have no names")
        own = checked_format(path, format)
        if own != name:
            raise UsageError(f"{path}: expected files of one format, got {own} after {name} ({paths[0]})")
    known = set[str]()
    for path in paths:
        real = os.path.realpath(path)
        if real in known:
            raise UsageError(f"{path}: expected each file once, got it twice")
        known.add(real)
    return name


def described(paths: list[str]) -> str:
    """Return a name for the files of a source in messages."""
    others = len(paths) - 1
    return paths[0] if not others else f"{paths[0]} and {others} other file{'s' if others > 1 else ''}"


class SourceFiles:
    """Files and directories that must not change while they are read.

    Parameters
    ----------
    paths : sequence of str or path-like
        Files that are read, with all files of directories.

    Attributes
    ----------
    state : list of (str, int, int)
        Absolute path, size in bytes and time of modification in nanoseconds of every file.

    Raises
    ------
    UsageError
        If there is no such file.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._paths = [os.fspath(path) for path in paths]
        self._before = self._seen()
        self.state: list[tuple[str, int, int]] = [
            (os.path.abspath(file), *seen) for file, seen in self._before.items()
        ]

    @property
    def n_bytes(self) -> int:
        """Size of all files together."""
        return sum(size for size, _ in self._before.values())

    def check_unchanged(self) -> None:
        """Raise an InputError if a file has changed, or a directory has another file or lacks one.

        A path that cannot be opened any more is a UsageError.
        """
        now = self._seen()
        for file in self._before | now:
            if self._before.get(file) != now.get(file):
                raise InputError.at(
                    file, None, "source", "a file that does not change during ingest", "a file that changed"
                )

    def _seen(self) -> dict[str, tuple[int, int]]:
        """Return size and time of modification of every file, by its path as given."""
        found = {}
        for path in self._paths:
            files = [path]
            if os.path.isdir(path):
                files = sorted(
                    os.path.join(folder, name) for folder, _, some in os.walk(path) for name in some
                )
            try:
                for file in files:
                    status = os.stat(file)
                    found[file] = (status.st_size, status.st_mtime_ns)
            except OSError as error:
                raise UsageError(f"{path}: cannot be opened: {error.strerror or error}") from error
        return found
