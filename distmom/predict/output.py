"""Atomic writing of output directories: predictions, topic shares, factors and components of rows.

An output is written to a temporary directory and then renamed, or uploaded to an object store (see
`distmom.corpus.files.uploads`). It contains a record, such as ``predictions.json``, with size and sha256 of all
other files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from distmom.corpus import AnyCorpus
from distmom.corpus.files.aside import check_name, make_aside, recover, remove_temporary
from distmom.corpus.files.commit import check_writable, destination, put_directory, remove_tree
from distmom.corpus.files.records import RecordFormat, are_files, check_file, describe_files
from distmom.corpus.files.space import space_explained
from distmom.corpus.files.storage import is_url
from distmom.corpus.files.uploads import check_vacant, upload_directory
from distmom.engine import Engine, Observer, RunDirectory, open_engine, open_executor
from distmom.errors import ELSEWHERE, StoreError, UsageError

#: record formats, by kind of output
OUTPUTS = {
    "components": RecordFormat("distmom-components", 1, "run 'distmom transform' again"),
    "factors": RecordFormat("distmom-factors", 1, "run 'distmom transform' again"),
    "predictions": RecordFormat("distmom-predictions", 2, "run 'distmom predict' again", older=(1,)),
    "shares": RecordFormat("distmom-shares", 1, "run 'distmom transform' again"),
}


@dataclass(frozen=True)
class Workspace:
    """A temporary directory beside an output, or in ``TMPDIR`` for one in an object store.

    Attributes
    ----------
    run : Path
        Directory for the sums and rows of passes; removed at the end.
    out : Path
        The directory that becomes the output; initially empty.
    summary : dict
        JSON values to store in the record of the output, in addition to the digests of its files.
    """

    run: Path
    out: Path
    summary: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def engine(
        self, corpus: AnyCorpus, client: Any, memory_limit: int | None, observer: Observer | None
    ) -> Iterator[Engine]:
        """Open an engine for the passes of the output; a context manager.

        Parameters
        ----------
        corpus : AnyCorpus
        client : distributed.Client, Executor or None
            Where the passes run; None for this process.
        memory_limit, observer
            As in `distmom.engine.open_engine`.
        """
        run = RunDirectory(self.run, durable=False)
        with (
            open_executor(client) as executor,
            open_engine(corpus, run, executor, memory_limit, observer) as engine,
        ):
            yield engine


def check_place(out: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> Path | None:
    """Check that an output may be written; return its directory, or None for a URL.

    Parameters and errors are those of `put_in_place`.
    """
    if is_url(out):
        check_vacant(out, kind, overwrite)
        return None
    target = destination(out)
    check_name(target)
    recover(target)
    if target.exists() and not (target / _array(kind)).exists():
        raise UsageError(f"{target}: exists and does not contain {kind}; choose another location")
    if target.exists() and not overwrite:
        raise UsageError(f"{target}: already exists; {ELSEWHERE}")
    check_writable(target)
    return target


@contextmanager
def put_in_place(out: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> Iterator[Workspace]:
    """Provide a temporary directory that becomes the output when the block ends; a context manager.

    If the block raises, an existing output is left unchanged.

    Parameters
    ----------
    out : path-like
        Directory of the output, or the URL below which its files are uploaded.
    kind : {"components", "factors", "predictions", "shares"}
    overwrite : bool, default=False
        Replace an earlier output of the same kind.

    Yields
    ------
    Workspace

    Raises
    ------
    UsageError
        If ``out`` exists, unless it is an earlier output of the same kind and ``overwrite`` is True.
    """
    publish: Callable[[Path], None]
    target = check_place(out, kind, overwrite=overwrite)
    if target is None:
        temporary = Path(tempfile.mkdtemp(prefix="distmom-"))
        publish = partial(upload_directory, place=out, kind=kind, overwrite=overwrite)
    else:
        with space_explained(target):
            temporary = make_aside(target)
        publish = partial(put_directory, final=target, overwrite=overwrite)
    workspace = Workspace(temporary / "run", temporary / "out")
    try:
        with space_explained(temporary):
            workspace.out.mkdir()
            yield workspace
            files = describe_files(workspace.out)
            OUTPUTS[kind].write(workspace.out / f"{kind}.json", {**workspace.summary, "files": files})
            publish(workspace.out)
    finally:
        _remove(temporary, target)


def _remove(temporary: Path, target: Path | None) -> None:
    """Remove a directory to which abandoned tasks may still be writing."""
    with suppress(OSError):
        remove_tree(temporary)
    if temporary.exists():
        remove_temporary(temporary, target)


def output_kind(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of output in a directory, or None if it is not an output."""
    place = Path(path)
    kinds = (k for k in OUTPUTS if (place / f"{k}.json").exists() or (place / _array(k)).exists())
    return next(kinds, None)


def _array(kind: str) -> str:
    """Return the name of the array or group that identifies an output, also if its record is missing."""
    return f"{kind}.zarr"


def read_output(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Return the record of an output, without reading the files it lists.

    Raises
    ------
    StoreError
        If there is no record, or it is damaged or of another version.
    """
    file = Path(path) / f"{kind}.json"
    if not file.is_file():
        raise StoreError(
            f"{file}: there is no such file: damaged, or written by an older distmom; {OUTPUTS[kind].remedy}"
        )
    record = OUTPUTS[kind].read(file)
    if not are_files(record.get("files")):
        raise StoreError(
            f"{file}: files: expected sizes and digests of files in this directory, got other entries"
        )
    return record


def verify_output(path: str | os.PathLike[str], kind: str) -> list[str]:
    """Read every file of an output and return the problems found, one sentence per file."""
    problems = []
    for key, entry in read_output(path, kind)["files"].items():
        try:
            check_file(Path(path), key, entry)
        except StoreError as error:
            problems.append(str(error))
    return problems
