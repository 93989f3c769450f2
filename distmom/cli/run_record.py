"""The record of a run, ``run.json``: its format, and the description of a run by ``distmom info``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distmom.cli.parameters import table
from distmom.corpus.files.records import RecordFormat
from distmom.engine import RunDirectory
from distmom.engine.directory.events import read_log
from distmom.engine.directory.run_directory import committed_passes
from distmom.errors import StoreError, UsageError

#: format of the record
RUN = RecordFormat("distmom-run", 2, "remove the run directory and start the run again")
#: entries that every record has, and their types
_ENTRIES = {
    "corpus": str,
    "corpus_digest": str,
    "model": str,
    "model_name": str,
    "parameters": dict,
    "overwrite": bool,
    "temporary": bool,
    "versions": dict,
}


@dataclass(frozen=True)
class Like:
    """The moments whose basis a run of moments uses, or the model that an update starts from.

    Attributes
    ----------
    path : str
    digest : str
        Digest of the basis (see `TopicMoments.basis_digest`), or of the record of the model.
    """

    path: str
    digest: str


def describe(path: str | Path) -> dict[str, Any]:
    """Return the record of a run, with the passes committed so far and the environments that they ran in.

    Raises
    ------
    UsageError
        If the directory holds no run.
    StoreError
        If the record is damaged.
    """
    file = Path(path) / "run.json"
    if not file.exists():
        raise UsageError(f"{path}: not a run (no run.json)")
    record = RUN.read(file)
    for name, kind in _ENTRIES.items():
        if not isinstance(record.get(name), kind):
            raise StoreError(f"{file}: {name}: expected a {kind.__name__}, got {record.get(name)!r}")
    if record["model_name"] not in table():
        raise StoreError(
            f"{file}: model_name: expected one of {', '.join(table())}, got {record['model_name']!r}"
        )
    like = record.get("like")
    if like is not None and not (isinstance(like, dict) and set(like) == {"path", "digest"}):
        raise StoreError(f"{file}: like: expected path and digest, got {like!r}")
    if not isinstance(record.get("groups", ""), str):
        raise StoreError(f"{file}: groups: expected a path, got {record['groups']!r}")
    return {
        **record,
        "committed": committed_passes(path),
        "environments": RunDirectory(path).environments(),
    }


def last_event(path: str | Path) -> dict[str, Any]:
    """Return the last event of the log of a run, if it has any, as the entry ``last_event``."""
    events = read_log(RunDirectory(path).log)
    return {"last_event": events[-1].to_json()} if events else {}
