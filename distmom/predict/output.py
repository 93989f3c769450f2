"""The protocol by which results for documents reach the disk: written aside, then put in place whole.

An output directory has a record, ``predictions.json`` or ``shares.json``, with size and sha256 of all other files.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distmom.corpus.commit import destination, put_directory, restore_replaced
from distmom.corpus.records import RecordFormat, are_files, check_file, describe_files
from distmom.errors import StoreError, UsageError

#: outputs by the names of their records
OUTPUTS = {
    "predictions": RecordFormat("distmom-predictions", 1, "run 'distmom predict' again"),
    "shares": RecordFormat("distmom-shares", 1, "run 'distmom transform' again"),
}
#: by which an output is known that has no record
_HOLDS = {"predictions": "predictions.tsv", "shares": "shares.zarr"}


@dataclass(frozen=True)
class Workspace:
    """A temporary directory beside an output.

    Attributes
    ----------
    run : Path
        For the states and rows of passes; removed at the end.
    out : Path
        What takes the name of the output; an empty directory at first.
    summary : dict
        What the record of the output holds beside the digests of its files; JSON values.
    """

    run: Path
    out: Path
    summary: dict[str, Any] = field(default_factory=dict)


@contextmanager
def put_in_place(out: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> Iterator[Workspace]:
    """Write into a temporary directory beside an output, which takes its name once the block has ended.

    Where the block raises, the output is left as it was.

    Parameters
    ----------
    out : path-like
    kind : {"predictions", "shares"}
    overwrite : bool
        Replace an earlier output of that kind.

    Raises
    ------
    UsageError
        If the output exists, and is not an earlier one or ``overwrite`` is not given.
    """
    target = destination(out)
    restore_replaced(target)
    if target.exists() and not (overwrite and (target / _HOLDS[kind]).exists()):
        raise UsageError(f"{target}: exists; choose another path, or overwrite earlier {kind}")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".tmp-{target.name}-{uuid.uuid4().hex[:8]}"
    workspace = Workspace(temporary / "run", temporary / "out")
    workspace.out.mkdir(parents=True)
    try:
        yield workspace
        files = describe_files(workspace.out)
        OUTPUTS[kind].write(workspace.out / f"{kind}.json", {**workspace.summary, "files": files})
        put_directory(workspace.out, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def output_kind(path: str | os.PathLike[str]) -> str | None:
    """Return what kind of output a directory is, or None if it is none."""
    place = Path(path)
    kinds = (
        kind for kind, name in _HOLDS.items() if any((place / n).exists() for n in (f"{kind}.json", name))
    )
    return next(kinds, None)


def read_output(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Return the record of an output; the files that it names are not read.

    Raises
    ------
    StoreError
        If there is no record, or it is damaged or of another version.
    """
    file = Path(path) / f"{kind}.json"
    if not file.is_file():
        raise StoreError(
            f"{file}: there is no such file: damaged, or an older distmom; {OUTPUTS[kind].remedy}"
        )
    record = OUTPUTS[kind].read(file)
    if not are_files(record.get("files")):
        raise StoreError(f"{file}: files: expected sizes and digests of files in this directory, got others")
    return record


def verify_output(path: str | os.PathLike[str], kind: str) -> list[str]:
    """Read every file of an output, and return what is wrong, one sentence per file."""
    problems = []
    for key, entry in read_output(path, kind)["files"].items():
        try:
            check_file(Path(path), key, entry)
        except StoreError as error:
            problems.append(str(error))
    return problems
