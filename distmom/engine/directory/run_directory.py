"""The directory of a run: stored arrays, stored rows, partial sums, and the committed sums of each pass.

Layout of a run directory::

    run.json                        record of the command, and the versions it runs with
    states/<digest>.npy             stored arrays, which passes read (bases, whitening matrices)
    passes/<name>-<fingerprint>/    one committed pass: one .npy file per sum, and DONE.json, written last
    rows/<name>-<fingerprint>/      one Zarr array per shard and row output, named by its digest
    partial/<epoch>/<pass>/         partial sums of a running pass, and what was made of its total
    partial/<epoch>/spare/          files of earlier partial sums, to be overwritten
    plan.json                       number of threads for which passes are planned
    environment.json                software and processors of the processes that have run tasks
    log.jsonl                       events of passes
    epochs/, lease.json, cancel     who carries the run out, and how that ended (`distmom.engine.directory.epochs`)

A pass is committed by renaming its directory, once its files and everything they refer to are on disk; the next
pass does not wait for the disk. A commit never replaces an intact result: a pass, stored array or row that exists
already is the same. A rerun looks up a pass by its fingerprint, which covers its parameters, the digests of its
inputs and the digest of the corpus, so that stale results are never used. Partial sums belong to one epoch, as
tasks of an earlier one may still be writing theirs. A driver that resumes a run renames the directories that have
reports on finished groups (see `distmom.engine.reports`), so that an earlier driver no longer finds them.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distmom.corpus.files.commit import (
    TEMPORARY,
    put_if_absent,
    refuse_below_file,
    sha256_file,
    sync_path,
    sync_tree,
    write_atomic,
)
from distmom.corpus.files.records import RecordFormat, are_files, check_file
from distmom.engine.directory.committer import Committer
from distmom.engine.directory.epochs import check_records
from distmom.engine.directory.events import read_log
from distmom.engine.directory.lease import Lease, leased
from distmom.engine.directory.partials import PartialFiles, remove_tree, remove_unfinished
from distmom.engine.directory.planned import PlannedThreads
from distmom.engine.environment import Environment
from distmom.engine.stored.arrays import StoredArray, StoredColumns, StoredRows, map_file, state_digest
from distmom.engine.stored.scratch import ScratchArray
from distmom.engine.stored.writer import ArrayWriter
from distmom.engine.sums.additive import Sum, Sums
from distmom.errors import StoreError, UsageError

logger = logging.getLogger(__name__)

#: format of environment.json
ENVIRONMENT = RecordFormat("distmom-environment", 1, "remove the file")
#: directories that a run makes first, before it has an epoch or a record
FIRST_DIRECTORIES = ("states", "passes", "rows")
#: format of DONE.json
COMMITTED = RecordFormat("distmom-pass", 2, "remove the run directory and start the run again")


def committed_passes(run: str | os.PathLike[str]) -> list[str]:
    """Return the names of the directories of the committed passes of a run, sorted; nothing is created."""
    # A driver that was killed may leave a complete directory that it has not renamed yet.
    found = (done.parent.name for done in Path(run, "passes").glob("*/DONE.json"))
    return sorted(name for name in found if not name.startswith(TEMPORARY))


class RunDirectory:
    """The directory of one run.

    Parameters
    ----------
    path : path-like
        Created if it does not exist. Workers must see it under the same path.
    durable : bool, default True
        False for a temporary directory: nothing is synchronised to disk.

    Attributes
    ----------
    path : Path
    durable : bool
    partials : PartialFiles
    planned : PlannedThreads
    lease : Lease or None
        The hold on the run while it is held.

    Raises
    ------
    UsageError
        If the path is a file, or below one.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        self.path: Path = Path(path).absolute()
        self.durable: bool = durable
        self.partials: PartialFiles = PartialFiles(self.path, durable)
        self.planned: PlannedThreads = PlannedThreads(self.path / "plan.json" if durable else None)
        #: kept here alone for a temporary directory, and in a file for others
        self._environments: list[dict[str, str]] = []
        self.lease: Lease | None = None
        refuse_below_file(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path}: exists and is not a run")
        for name in FIRST_DIRECTORIES:
            (self.path / name).mkdir(parents=True, exist_ok=True)
        self._committer = Committer()
        self._committing = threading.Event()
        self._committing.set()

    @property
    def log(self) -> Path:
        """File of the log (see `distmom.engine.directory.events`)."""
        return self.path / "log.jsonl"

    @property
    def states(self) -> Path:
        """Directory of the stored arrays."""
        return self.path / "states"

    @contextmanager
    def held(self, interrupt: Callable[[], None] | None = None) -> Iterator[RunDirectory]:
        """Hold the run in an epoch of its own, and remove unfinished files of earlier ones; a context manager.

        The partial sums of passes that were interrupted are taken over. They are kept on exit with an error.

        Parameters
        ----------
        interrupt : callable, optional
            As in `distmom.engine.directory.lease.leased`.

        Raises
        ------
        UsageError
            If another process that is running holds the run.
        TakenOverError
            On exit with an error, if another process has taken the run over.
        """
        with leased(self.path, durable=self.durable, interrupt=interrupt) as lease:
            self.partials.take_over(lease.epoch)
            try:
                lease.check()
                for name in FIRST_DIRECTORIES:
                    remove_unfinished(self.path / name)
                self.lease = lease
                yield self
                self.partials.keep_none()
            finally:
                self.partials.leave()
                self.lease = None

    def environments(self) -> list[dict[str, str]]:
        """Return the environments of the processes that have run tasks so far."""
        path = self.path / "environment.json"
        if self.durable:
            self._environments = ENVIRONMENT.read(path)["environments"] if path.exists() else []
        return self._environments

    def record_environments(self, environments: Iterable[Environment]) -> None:
        """Add the environments of processes that have run tasks; log a warning if processors differ."""
        before = self.environments()
        new = [asdict(each) for each in sorted(environments, key=str) if asdict(each) not in before]
        if not new:
            return
        self._environments = found = before + new
        if len({(each["processor"], each["blas"]) for each in found}) > 1:
            kinds = sorted({f"{each['processor']} ({each['blas']})" for each in found})
            logger.warning(
                "the last bits of results depend on the processor, and processors differ: %s",
                "; ".join(kinds),
            )
        if self.durable:
            ENVIRONMENT.write(
                self.path / "environment.json", {"environments": found}, survives_power_failure=True
            )

    def put(self, array: np.ndarray) -> StoredArray:
        """Write an array once and return its handle; equal arrays share one file."""
        array = np.ascontiguousarray(array)
        digest = state_digest(array)
        path = self.path / "states" / f"{digest[:32]}.npy"
        # An existing file may have been truncated by a power failure.
        if not (path.exists() and _is_intact(path, digest)):
            write = partial(np.save, arr=array, allow_pickle=False)
            write_atomic(path, write, survives_power_failure=False)
        return StoredArray(str(path), digest)

    def new_state(self) -> Path:
        """Return a temporary name for a stored array whose digest is not known yet."""
        return self.path / "states" / f"{TEMPORARY}{uuid.uuid4().hex}.npy"

    def partials_of(self, name: str, key: str) -> Path:
        """Return the directory of the partial sums of a pass, kept until its commit if the run can be resumed."""
        return self.partials.of_pass(self.pass_path(name, key).name)

    def writer(self, dtype: str, size: int, width: int | None = None) -> ArrayWriter:
        """Return an `ArrayWriter` of a stored array of about ``size`` elements, in rows of ``width`` if given."""
        return ArrayWriter(self.path / "states", dtype, size, self.partials.spare, width)

    def sync(self, states: StoredColumns) -> None:
        """Start to synchronise stored arrays to disk in the background, ahead of their commit."""
        if self.durable:
            for part in states.parts:
                self._committer.add(partial(sync_path, part.path))

    def flush(self) -> None:
        """Wait until all passes are committed; raises the error of a failed commit."""
        self._committer.flush()

    def pass_path(self, name: str, key: str) -> Path:
        """Return the directory in which the total of a pass is committed."""
        return self.path / "passes" / f"{name}-{key[:16]}"

    def rows_directory(self, name: str, key: str, output: str) -> str:
        """Return the directory in which a row output of a pass is stored."""
        return str(self.path / "rows" / f"{name}-{key[:16]}" / output)

    def commit_pass(
        self,
        name: str,
        key: str,
        sums: Mapping[str, Sum],
        record: dict[str, Any],
        states: Sequence[StoredArray] = (),
        files: Iterable[ScratchArray] = (),
    ) -> None:
        """Write the total of a pass and commit it; its partial sums are then no longer kept.

        Parameters
        ----------
        name, key : str
            Name and fingerprint of the pass.
        sums : mapping of str to ndarray
        record : dict
            Other results of the pass, JSON values.
        states : sequence of StoredArray, default ()
            Stored arrays that the record names. If there are any, the commit runs in the background, and `flush`
            waits for it.
        files : iterable of ScratchArray, default ()
            Partial sums, which later files overwrite.

        Raises
        ------
        Exception
            The error of an earlier commit in the background, if one has failed.
        """
        self._committer.check()
        if states and not self.durable:
            self.partials.release(files)
            return
        if states:
            paths = [state.path for state in states]
            small = {sum_name: np.array(value) for sum_name, value in sums.items()}
            # The partial sums of one pass at most wait for the disk.
            self._committing.wait()
            self._committing = self._committer.add(
                partial(self._sync_and_commit, paths, list(files), name, key, small, record)
            )
        else:
            self._commit(name, key, sums, record)
            self.partials.committed(self.pass_path(name, key).name, files)
            self.partials.release()

    def _sync_and_commit(
        self, paths: list[str], files: list[ScratchArray], name: str, key: str, *commit: Any
    ) -> None:
        for path in paths:
            sync_path(path)
        sync_path(self.path / "states")
        self._commit(name, key, *commit)
        self.partials.committed(self.pass_path(name, key).name, files)

    def _commit(self, name: str, key: str, sums: Mapping[str, Sum], record: dict[str, Any]) -> None:
        if self.lease is not None:
            self.lease.fence()
        target = self.pass_path(name, key)
        temporary = self.path / "passes" / f"{TEMPORARY}{uuid.uuid4().hex}"
        temporary.mkdir()
        try:
            if self.durable and (rows := self.path / "rows" / target.name).exists():
                sync_tree(rows)
                sync_path(rows.parent)
            files: dict[str, dict[str, Any]] = {}
            for sum_name, value in sums.items():
                path = temporary / f"{sum_name}.npy"
                np.save(path, value, allow_pickle=False)
                files[path.name] = {"size": path.stat().st_size, "sha256": sha256_file(path)}
            done = {"pass": name, "fingerprint": key, "files": files, "record": record}
            (temporary / "DONE.json").write_bytes(COMMITTED.dump(done))
            if self.durable:
                sync_tree(temporary)
            put_if_absent(temporary, target, _is_whole_pass)
            if self.durable:
                sync_path(target.parent)
        finally:
            remove_tree(temporary)

    def load_pass(self, name: str, key: str) -> tuple[Sums, dict[str, Any]] | None:
        """Return the memory-mapped sums and the record of a committed pass; None if it is not committed.

        Raises
        ------
        StoreError
            If the pass is committed but one of its files is missing or has changed.
        """
        directory = self.pass_path(name, key)
        if not (directory / "DONE.json").exists():
            return None
        return load_sums(str(directory))

    def discard_pass(self, name: str, key: str) -> None:
        """Remove the commit of a pass whose sums, rows or stored arrays are damaged."""
        temporary = self.path / "passes" / f"{TEMPORARY}{uuid.uuid4().hex}"
        with suppress(FileNotFoundError):
            os.rename(self.pass_path(name, key), temporary)
        remove_tree(temporary)

    def verify(self) -> list[str]:
        """Read every stored array, committed sum, stored row and event; return descriptions of all problems."""
        problems = check_records(self.path)

        def check(read: Callable[[], object]) -> None:
            try:
                read()
            except StoreError as error:
                problems.append(str(error))

        check(self.environments)
        check(self.planned.check)
        check(partial(read_log, self.log))
        for path in sorted((self.path / "states").glob("[!.]*.npy")):
            check(partial(_check_state, path))
        for directory in sorted((self.path / "passes").glob("[!.]*")):
            try:
                record = load_sums(str(directory))[1]
            except StoreError as error:
                problems.append(str(error))
                continue
            for output, digests in record["rows"].items():
                stored = StoredRows(str(self.path / "rows" / directory.name / output), digests)
                for shard in digests:
                    check(partial(stored.read, int(shard)))
        return problems


def _is_whole_pass(directory: Path) -> bool:
    try:
        load_sums(str(directory))
    except StoreError:
        return False
    return True


def _is_intact(path: Path, digest: str) -> bool:
    try:
        return state_digest(map_file(str(path))) == digest
    except StoreError:
        return False


def _check_state(path: Path) -> None:
    got = state_digest(map_file(str(path)))
    if got[:32] != path.stem:
        raise StoreError(
            f"{path}: stored array has changed: expected digest {path.stem[:12]}, got {got[:12]}"
        )


def load_sums(directory: str) -> tuple[Sums, dict[str, Any]]:
    """Open the committed sums in a directory written by `RunDirectory.commit_pass`."""
    place = Path(directory)
    done = COMMITTED.read(place / "DONE.json")
    files: Any = done.get("files")
    name = f"{done.get('pass')}-{str(done.get('fingerprint'))[:16]}"
    if not are_files(files) or not isinstance(done.get("record"), dict) or name != place.name:
        raise StoreError(f"{place}/DONE.json: expected the record of this pass, got the record of {name}")
    for file_name, entry in files.items():
        check_file(place, file_name, entry)
    sums = Sums({name.removesuffix(".npy"): map_file(str(place / name)) for name in files})
    return sums, done["record"]
