"""The protocol by which results for documents reach the disk: written aside, then put in place whole."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distmom.corpus.commit import destination, put_directory, restore_replaced
from distmom.errors import UsageError


@dataclass(frozen=True)
class Workspace:
    """A temporary directory beside an output.

    Attributes
    ----------
    run : Path
        For the states and rows of passes; removed at the end.
    out : Path
        What takes the name of the output; an empty directory at first.
    """

    run: Path
    out: Path


@contextmanager
def put_in_place(
    out: str | os.PathLike[str], *, holds: str, called: str, overwrite: bool = False
) -> Iterator[Workspace]:
    """Write into a temporary directory beside an output, which takes its name once the block has ended.

    Where the block raises, the output is left as it was.

    Parameters
    ----------
    out : path-like
    holds : str
        A name in the output by which an earlier one is known.
    called : str
        What the output is called in errors.
    overwrite : bool
        Replace an earlier output.

    Raises
    ------
    UsageError
        If the output exists, and is not an earlier one or ``overwrite`` is not given.
    """
    target = destination(out)
    restore_replaced(target)
    if target.exists() and not (overwrite and (target / holds).exists()):
        raise UsageError(f"{target}: exists; choose another path, or overwrite earlier {called}")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".tmp-{target.name}-{uuid.uuid4().hex[:8]}"
    workspace = Workspace(temporary / "run", temporary / "out")
    workspace.out.mkdir(parents=True)
    try:
        yield workspace
        put_directory(workspace.out, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
