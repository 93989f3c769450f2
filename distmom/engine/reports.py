"""Reports on finished tasks, which are kept in a run directory until their pass is committed.

A task of a run that can be resumed writes the report on its group beside its partial sums: names, sizes and
checksums of their files, a copy of the sums in memory, and the digests of stored rows. The driver that resumes the
run takes these files over, and a task whose report and files are intact returns the result of the first task. The
tree of sums is the same, and so are the bits.

Tasks that make sparse matrices of the total of a pass report on them in the same way (see
`distmom.engine.maps.Maps.map_runs`), each call in a directory of its own below that of the pass.

A report is named by the fingerprint of all that determines the partial sums. No task waits for the disk: files
outlive the process that wrote them, and files that a power failure damages are found by their checksums and made
again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distmom.corpus.files.records import RecordFormat
from distmom.engine.environment import Environment
from distmom.engine.stored.arrays import StoredRows
from distmom.engine.stored.held import HeldSum
from distmom.engine.stored.scratch import ScratchArray, scratch_file, write_scratch
from distmom.engine.sums.additive import Sums, large_to_files
from distmom.engine.sums.folded import Folded
from distmom.engine.sums.sparse import SparsePart
from distmom.engine.sums.tall import TallPart
from distmom.errors import StoreError

#: format of a report
REPORT = RecordFormat("distmom-group", 1, "remove the file")
SUFFIX = ".json"


@dataclass(frozen=True)
class Report:
    """The place of the report on one task.

    Attributes
    ----------
    directory : str
        Directory of the files of the task, which contains the report.
    key : str
        Fingerprint of all that determines the partial sums.
    subject : str
        Name of the shards or of the item that the task is about, for messages.
    """

    directory: str
    key: str
    subject: str

    @property
    def path(self) -> Path:
        """File of the report."""
        return Path(self.directory, self.key[:32] + SUFFIX)

    def read(self, outputs: str, *, hold_sums: bool, hold_tall: bool) -> Folded | None:
        """Return the result of the task that wrote the report; None unless the report and its files are intact.

        Parameters
        ----------
        outputs : str
            Directory of the stored rows of the pass.
        hold_sums : bool
            Whether large sums are returned in memory; in files otherwise.
        hold_tall : bool
            Whether tall and sparse sums are returned in memory.
        """
        if not self.path.exists():
            return None
        try:
            content = REPORT.read(self.path)
            if content["key"] != self.key:
                return None
            for file in _files(content):
                self._opened(file).check()
            for name, digests in content["rows"].items():
                stored = StoredRows(f"{outputs}/{name}", digests)
                for shard in digests:
                    stored.read(int(shard))
            return self._folded(content, hold_sums, hold_tall)
        except StoreError:
            return None

    def _folded(self, content: dict[str, Any], hold_sums: bool, hold_tall: bool) -> Folded:
        in_memory = self._opened(content["in_memory"])

        def value(entry: dict[str, Any]) -> ScratchArray | np.ndarray:
            if "name" in entry:
                return self._opened(entry)
            stop = entry["start"] + math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
            array: np.ndarray = (
                in_memory.read(entry["start"], stop).view(entry["dtype"]).reshape(entry["shape"])
            )
            # Copied, as elements of several sizes follow each other in the file.
            return array.copy()

        def part(entry: dict[str, Any]) -> ScratchArray | HeldSum:
            found = value(entry)
            if hold_tall:
                return HeldSum(_loaded(found))
            return found if isinstance(found, ScratchArray) else write_scratch(self.directory, found)

        sums = Sums({name: value(entry) for name, entry in content["sums"]})
        if hold_sums:
            sums = Sums({name: _loaded(each) for name, each in sums.items()})
        else:
            sums = large_to_files(sums, self.directory)
        tall = {(name, i, j): TallPart(*map(part, parts)) for name, i, j, parts in content["tall"]}
        runs = {
            (name, i): tuple(SparsePart(*map(part, parts)) for parts in found)
            for name, i, found in content["runs"]
        }
        return Folded(
            sums, content["rows"], {}, tall, runs, files=sums.files(), n_found=1,
            environments=frozenset(Environment(**each) for each in content["environments"]),
        )  # fmt: skip

    def write(self, folded: Folded) -> None:
        """Write the report on a group, once all that is in memory is in a file too.

        If another attempt gave other bits, its report stays, and ``differing`` of ``folded`` names the group.
        """
        arrays: list[np.ndarray] = []

        def entry(value: Any) -> dict[str, Any]:
            if isinstance(value, ScratchArray):
                return _entry(value)
            array = value.array if isinstance(value, HeldSum) else np.asarray(value)
            start = sum(each.nbytes for each in arrays)
            arrays.append(np.ascontiguousarray(array))
            return {"start": start, "shape": array.shape, "dtype": array.dtype.str}

        content: dict[str, Any] = {
            "key": self.key,
            "sums": [(name, entry(value)) for name, value in folded.sums.items()],
            "rows": folded.row_digests,
            "environments": [asdict(each) for each in folded.environments],
            "tall": [
                (*place, [entry(part.single), entry(part.double)]) for place, part in folded.tall.items()
            ],
            "runs": [
                (*place, [[entry(run.indptr), entry(run.indices), entry(run.data)] for run in runs])
                for place, runs in folded.runs.items()
            ],
        }
        with scratch_file(self.directory, (sum(each.nbytes for each in arrays),), "|u1") as writer:
            for array in arrays:
                writer.write(array)
        content["in_memory"] = _entry(writer.written)
        got = _digest(content)
        with suppress(StoreError):
            before = REPORT.read(self.path)
            if before["key"] == self.key and (first := _digest(before)) != got:
                folded.differing += (f"{self.subject}: sha256 {first[:12]} and {got[:12]}",)
                return
        REPORT.write(self.path, content, survives_power_failure=False)

    def _opened(self, entry: dict[str, Any]) -> ScratchArray:
        # The directory may have been renamed since.
        path = Path(self.directory, Path(entry["name"]).name)
        return ScratchArray(
            str(path), tuple(entry["shape"]), entry["dtype"], entry["block_bytes"], entry["checksum"]
        )


def _entry(file: ScratchArray) -> dict[str, Any]:
    entry = asdict(file)
    return {"name": Path(entry.pop("path")).name, **entry}


def _digest(content: dict[str, Any]) -> str:
    """Return the sha256 of a report without the names of files, which every attempt chooses."""

    def unnamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: unnamed(each) for key, each in value.items() if key != "name"}
        return [unnamed(each) for each in value] if isinstance(value, list | tuple) else value

    values = {key: unnamed(content[key]) for key in ("sums", "rows", "tall", "runs", "in_memory")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _loaded(value: ScratchArray | np.ndarray) -> np.ndarray:
    return value.read(0, value.shape[0]) if isinstance(value, ScratchArray) else value


def _files(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of all files that a report names."""
    entries = [content["in_memory"], *(entry for _, entry in content["sums"])]
    for *_, parts in content["tall"]:
        entries += parts
    for *_, runs in content["runs"]:
        entries += [entry for parts in runs for entry in parts]
    return [entry for entry in entries if "name" in entry]


def has_reports(run: Path) -> bool:
    """Return whether a run directory holds reports on finished groups."""
    return any((run / "partial").glob(f"*/*/*{SUFFIX}"))


def remove_others(directory: Path, reports: Collection[Report]) -> None:
    """Remove all files of an interrupted pass but those of some reports."""
    left = set()
    for report in reports:
        with suppress(StoreError):
            content = REPORT.read(report.path)
            left |= {report.path.name, *(entry["name"] for entry in _files(content))}
    for path in directory.glob("*"):
        # Directories hold what was made of the total.
        if path.name not in left and not path.is_dir():
            path.unlink(missing_ok=True)
