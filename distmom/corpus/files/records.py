"""Records: JSON files that carry their own checksum and list other files with size and digest.

A record is written in one canonical form: sorted keys, one entry per line, UTF-8. A file that differs from
this form is rejected, so that every altered byte is detected, even one that does not change the value of the
JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import numpy as np

from distmom.corpus.files.commit import sha256_file, write_atomic
from distmom.errors import StoreError

_T = TypeVar("_T")

#: maximum size of a record in bytes
MAX_RECORD_BYTES = 256 << 20


@dataclass(frozen=True)
class RecordFormat:
    """A kind of record.

    Attributes
    ----------
    name : str
        Value of the entry ``format``.
    version : int
        Value of the entry ``format_version``; incremented whenever the format of the files changes.
    remedy : str
        Advice on files of another version, for error messages.
    older : tuple of int, default ()
        Earlier versions that readers accept as well; they look at ``format_version``.
    """

    name: str
    version: int
    remedy: str
    older: tuple[int, ...] = ()

    def dump(self, content: Mapping[str, Any], version: int | None = None) -> bytes:
        """Return a record of JSON values as bytes, with format, version (by default the latest) and checksum."""
        own = {"format": self.name, "format_version": self.version if version is None else version}
        # Convert keys to strings before sorting: numbers and their digits sort differently.
        values = json.loads(json.dumps({**content, **own}, default=plain_number))
        return dump_json({**values, "checksum": _checksum(values)})

    def write(
        self,
        path: str | os.PathLike[str],
        content: Mapping[str, Any],
        *,
        survives_power_failure: bool = True,
    ) -> None:
        """Write a record atomically (see `write_atomic`)."""
        write_atomic(path, self.dump(content), survives_power_failure=survives_power_failure)

    def parse(self, place: str, content: bytes) -> tuple[dict[str, Any], str]:
        """Parse a record; return its entries without the checksum, and the checksum.

        Raises
        ------
        StoreError
            If it is of another format or version, or differs in any byte from the record written.
        """
        record = parse_json(place, content)
        if (found := record.get("format")) != self.name:
            old = f": damaged, or written by an older distmom; {self.remedy}" if found is None else ""
            raise StoreError(f"{place}: format: expected {self.name!r}, got {found!r}{old}")
        version = record.get("format_version")
        if type(version) is not int or version not in (self.version, *self.older):
            older = version is None or (type(version) is int and version < self.version)
            by = f"an older distmom; {self.remedy}" if older else "a newer distmom; update distmom to read it"
            raise StoreError(
                f"{place}: format_version: expected {self.version}, got {version!r}: written by {by}"
            )
        checksum = record.pop("checksum", None)
        try:
            again = dump_json({**record, "checksum": _checksum(record)})
        except RecursionError as error:
            raise StoreError(f"{place}: is nested too deeply for a distmom record") from error
        if again != content or not isinstance(checksum, str):
            raise StoreError(
                f"{place}: checksum: expected {checksum!r}, got a different one; the file was altered: "
                f"restore it, or {self.remedy}"
            )
        return record, checksum

    def read(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Read and check a record; StoreError as `parse`, or if the file cannot be read."""
        try:
            with open(path, "rb") as stream:
                if (size := os.fstat(stream.fileno()).st_size) > MAX_RECORD_BYTES:
                    raise StoreError(f"{path}: size: expected at most {MAX_RECORD_BYTES} bytes, got {size}")
                content = stream.read()
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        return self.parse(str(path), content)[0]


#: types of the fields of a dataclass that a record may hold, by annotation
_FIELDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "int | None": (int, NoneType),
    "float": (int, float),
    "bool": (bool,),
    "list[str]": (list,),
    "dict[str, str]": (dict,),
    "Mapping[str, str] | None": (dict, NoneType),
}


def from_record(kind: type[_T], record: Mapping[str, Any], place: str) -> _T:
    """Return a dataclass with the entries of a record; StoreError if one is missing or of another type.

    Fields are annotated as `_FIELDS` lists; the entries of a list and the values of a dict are texts.
    """
    values: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in record:
            raise StoreError(f"{place}: {each.name}: expected an entry, got none")
        value = values[each.name] = record[each.name]
        inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        # True is an int to Python.
        is_other = isinstance(value, bool) and each.type != "bool"
        if (
            is_other
            or not isinstance(value, _FIELDS[str(each.type)])
            or not all(isinstance(x, str) for x in inner)
        ):
            raise StoreError(f"{place}: {each.name}: expected {each.type}, got {value!r}")
    return kind(**values)


def plain_number(value: Any) -> Any:
    """Return a number of NumPy, such as a parameter from a grid, as one of Python, for `json.dumps`."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"expected a JSON value, got one of type {type(value).__name__}")


def dump_json(content: Mapping[str, Any]) -> bytes:
    """Return a JSON object in canonical form."""
    # A file name may contain lone surrogates.
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "surrogatepass")


def parse_json(place: str, content: bytes) -> dict[str, Any]:
    """Parse a JSON object, or raise StoreError."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{place}: is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise StoreError(f"{place}: expected a JSON object, got {type(record).__name__}")
    return record


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(dump_json(record)).hexdigest()


def describe_files(root: Path, below: str = "") -> dict[str, dict[str, Any]]:
    """Return size and sha256 of every file in a directory, or below a name in it, by path relative to ``root``."""
    start = root / below
    found = [start] if start.is_file() else sorted(path for path in start.rglob("*") if path.is_file())
    return {
        path.relative_to(root).as_posix(): {"size": path.stat().st_size, "sha256": sha256_file(path)}
        for path in found
    }


def are_files(entries: Any) -> bool:
    """Whether ``entries`` maps relative paths that stay inside their directory to sizes and digests."""
    return isinstance(entries, dict) and all(
        is_below(key)
        and isinstance(entry, dict)
        and type(entry.get("size")) is int
        and entry["size"] >= 0
        and isinstance(entry.get("sha256"), str)
        for key, entry in entries.items()
    )


def is_below(key: str) -> bool:
    """Whether a path with ``/`` between its parts is relative and stays inside its directory."""
    return "\0" not in key and all(part not in ("", ".", "..") for part in key.split("/"))


def locate(root: Path, key: str) -> Path:
    """Return the path of a file listed in a record; StoreError unless it is a file inside the directory."""
    path = root / key
    if not is_below(key) or (_has_link(root, key) and not path.resolve().is_relative_to(root.resolve())):
        raise StoreError(
            f"{root}: {key!r}: expected the name of a file in this directory, got one outside it"
        )
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file")
    return path


def _has_link(root: Path, key: str) -> bool:
    """Whether a part of a path below a directory is a link; only then can the file be elsewhere."""
    place = os.fspath(root)
    for part in key.split("/"):
        place = os.path.join(place, part)
        if os.path.islink(place):
            return True
    return False


def check_file(root: Path, key: str, entry: Mapping[str, Any]) -> None:
    """Check size and digest of a file listed in a record; StoreError if it is missing or differs."""
    path = _of_size(root, key, entry)
    try:
        _same(path, sha256_file(path), entry)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_file(root: Path, key: str, entry: Mapping[str, Any]) -> bytes:
    """Return the content of a file listed in a record; StoreError if it is missing or differs."""
    path = _of_size(root, key, entry)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    _same(path, hashlib.sha256(content).hexdigest(), entry)
    return content


def _of_size(root: Path, key: str, entry: Mapping[str, Any]) -> Path:
    path = locate(root, key)
    if (size := path.stat().st_size) != entry["size"]:
        raise StoreError(f"{path}: expected {entry['size']} bytes, got {size}")
    return path


def _same(path: Path, sha256: str, entry: Mapping[str, Any]) -> None:
    if sha256 != entry["sha256"]:
        raise StoreError(f"{path}: expected sha256 {entry['sha256'][:12]}, got {sha256[:12]}")
