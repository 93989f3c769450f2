"""Runs of commands: a fit, an update or the adding up of moments, which can be interrupted and resumed."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distmom.cli.options import Cluster
from distmom.cli.run_record import RUN, Like, describe
from distmom.cli.shared import open_input, show
from distmom.corpus import Corpus, LayeredCorpus, ViewCorpus
from distmom.corpus.files.aside import check_name, discard, recover, remove_left
from distmom.corpus.files.commit import destination, refuse_inside
from distmom.corpus.files.space import space_explained
from distmom.corpus.files.storage import is_url, place_of
from distmom.engine import RunDirectory
from distmom.engine.directory import epochs
from distmom.engine.directory.run_directory import FIRST_DIRECTORIES, committed_passes
from distmom.engine.environment import differing, environment
from distmom.engine.reports import has_reports
from distmom.errors import (
    CancelledError,
    ClusterError,
    DistmomError,
    InputError,
    StoreError,
    TakenOverError,
    UsageError,
    interrupts_restored,
)
from distmom.spectral.saved.artifact import check_target, record_digest, staged

#: name of the estimator of kept moments
MOMENTS = "moments"


@dataclass(frozen=True)
class Run:
    """A fit, an update or the adding up of moments that has begun.

    Attributes
    ----------
    path : Path
        Its directory.
    corpus, corpus_digest : str
        Path or URL of the corpus or the file of views, and its digest.
    model : str
        Path or URL where the model or the moments will be written.
    model_name : str
        Name of the estimator, as `distmom.models.ESTIMATORS` lists it.
    parameters : dict
        Parameters of the model.
    overwrite : bool
        An existing model may be replaced.
    temporary : bool
        The directory is removed once the model is written.
    like : Like or None
        With moments in the basis of other moments, and with updates of a model, whose only parameter is ``remove``.
    groups : str or None
        Path of the file of groups, with views.
    is_new : bool
        Its record has not been written yet.
    """

    path: Path
    corpus: str
    corpus_digest: str
    model: str
    model_name: str
    parameters: dict[str, Any]
    overwrite: bool
    temporary: bool
    like: Like | None = None
    groups: str | None = None
    is_new: bool = False

    @contextmanager
    def carried_out(self, cluster: Cluster) -> Iterator[RunDirectory]:
        """Hold the run while it is carried out; a context manager that yields its directory.

        Errors that end it carry the command that resumes it as a note. A run is removed if it is refused before
        its first pass, and a temporary one when it is done.
        """
        begun = False
        try:
            # Without space for the lock, nothing has begun. Later errors also state how to resume the run.
            with space_explained(self.path), RunDirectory(self.path).held(interrupt) as directory:
                begun = True
                try:
                    with interrupts_restored(), space_explained(self.path):
                        if self.is_new:
                            self._begin()
                        yield directory
                except (KeyboardInterrupt, ClusterError, StoreError, OSError, CancelledError) as error:
                    # Without its record there is nothing to resume: the same command begins the run.
                    if (self.path / "run.json").exists():
                        error.add_note(self._resume_command(cluster))
                    raise
                assert directory.lease is not None
                directory.lease.result = self._result()
        except (TakenOverError, CancelledError, OSError) as error:
            # Also where a disk fails before the run is held, or when its end is recorded.
            if not getattr(error, "__notes__", []) and (self.path / "run.json").exists():
                error.add_note(self._resume_command(cluster))
            raise
        except (UsageError, InputError):
            # Sums that have been added up may still be of use, as with another destination.
            if begun and not _has_sums(self.path) and not is_job(self.path):
                discard(self.path)
            raise
        if self.temporary:
            # If a failing disk keeps it, the same command removes it.
            discard(self.path)

    def _resume_command(self, cluster: Cluster) -> str:
        where = ["--workers", str(cluster.workers)] if cluster.workers is not None else []
        if cluster.scheduler is not None:
            # Imported here, as it takes long, and a fit in this process does without it.
            from distmom.engine.executors.connections import security_options

            where += ["--scheduler", cluster.scheduler, *security_options(cluster.scheduler)]
        return shlex.join(["distmom", "resume", str(self.path), *where])

    def _result(self) -> dict[str, str]:
        return {"model": self.model, "sha256": str(record_digest(self.model))}

    def _begin(self) -> None:
        """Write the record; a UsageError if another run has begun here meanwhile."""
        _check_same(self)
        record = {
            "corpus": self.corpus,
            "corpus_digest": self.corpus_digest,
            "model": self.model,
            "model_name": self.model_name,
            "parameters": self.parameters,
            "overwrite": self.overwrite,
            "temporary": self.temporary,
            "versions": environment().versions(),
            **({} if self.like is None else {"like": vars(self.like)}),
            **({} if self.groups is None else {"groups": self.groups}),
        }
        RUN.write(self.path / "run.json", record)

    def check_target(self) -> None:
        """Check that the model can be written, or that an earlier driver of the run wrote it; else a UsageError.

        Temporary directories that ended processes left beside the model are removed first.
        """
        if not is_url(self.model):
            recover(destination(self.model))
        with self._conflict_explained():
            if self.overwrite or not self._is_saved():
                check_target(self.model, self.overwrite)

    def save(self, model: Any, directory: RunDirectory) -> None:
        """Save a model, or moments, as the result of the run, unless an earlier driver of the run has done so.

        Raises
        ------
        TakenOverError
            If another process has taken the run over.
        UsageError
            If the model of another run is in its place and may not be replaced.
        """
        if not self.overwrite and self._is_saved():
            return
        assert directory.lease is not None
        with (
            self._conflict_explained(),
            space_explained(self.model),
            staged(self.model, overwrite=self.overwrite) as (temporary, put),
        ):
            model.save(temporary)
            directory.lease.mark_saving(str(record_digest(temporary)))
            try:
                put()
            except UsageError:
                # Another driver of this run, which was taken to have ended, may have been faster.
                if not self._is_saved():
                    raise

    def _is_saved(self) -> bool:
        """Whether the model at the path was saved by this run."""
        digests = epochs.saved_digests(self.path)
        return bool(digests) and record_digest(self.model) in digests

    @contextmanager
    def _conflict_explained(self) -> Iterator[None]:
        """State in errors about the path of the model how to keep the finished passes; a context manager."""
        try:
            yield
        except UsageError as error:
            if not _has_sums(self.path):
                raise
            raise UsageError(
                f"{error}; this run is kept: repeat its command with another destination, or with --overwrite, "
                f"and with --run {shlex.quote(str(self.path))}"
            ) from error

    def is_finished(self) -> bool:
        """Whether the run has ended well, and the model at its path is still the one that it saved."""
        end = epochs.end_of(self.path, epochs.latest_epoch(self.path))
        if end is None or end.state != "done" or end.result is None:
            return False
        return dict(end.result) == self._result()

    def open_corpus(self) -> Corpus | LayeredCorpus | ViewCorpus:
        """Open the corpus or the views.

        Raises
        ------
        UsageError
            If it is not the one the run was begun with.
        StoreError
            If it cannot be read now.
        """
        try:
            corpus = open_input(self.corpus, self.model_name, self.groups)
        except UsageError as error:
            # Perhaps a place that is not mounted or keys that have expired: committed passes are kept.
            raise StoreError(str(error)) from error
        if corpus.digest != self.corpus_digest:
            raise UsageError(
                f"{self.corpus}: changed since the run began: expected digest {self.corpus_digest[:12]}, "
                f"got {corpus.digest[:12]}"
            )
        return corpus

    def verify(self) -> list[str]:
        """Read all stored files and return the problems found."""
        return RunDirectory(self.path).verify()


def _has_sums(path: Path) -> bool:
    """Return whether passes of a run have been committed, or groups of a pass finished."""
    return bool(committed_passes(path)) or has_reports(path)


def create(
    corpus: str,
    model: str,
    run: str | None,
    model_name: str,
    parameters: dict[str, Any],
    overwrite: bool,
    like: Like | None = None,
    groups: str | None = None,
) -> Run:
    """Begin a run, or resume the same one.

    A temporary run of another model that could not be computed from its data is removed.

    Raises
    ------
    UsageError
        If the model exists, or the directory holds another run. The record of a new run is written when it is
        carried out.
    """
    target = place_of(model)
    if run is None and is_url(target):
        raise UsageError(f"{target}: give --run, a directory on a file system, where passes are committed")
    path = Path(run).absolute() if run is not None else Path(f"{target}.run")
    opened = open_input(corpus, model_name, groups)
    place = str(Path(corpus).absolute()) if isinstance(opened, ViewCorpus) else opened.path
    groups = None if groups is None else str(Path(groups).absolute())
    begun = Run(
        path,
        place,
        opened.digest,
        target,
        model_name,
        parameters,
        overwrite,
        run is None,
        like,
        groups,
        is_new=True,
    )
    if run is not None:
        refuse_inside(path)
    if not is_url(target):
        check_name(destination(target))
    check_name(path)
    remove_left(path)
    if path.exists() and not _may_be_run(path):
        raise UsageError(f"{path}: exists and is not a run")
    if begun.temporary and begun.is_finished() and _is_left(path):
        if _is_same(begun):
            return replace(begun, is_new=False)
        discard(path)
    begun.check_target()
    if begun.temporary and _is_refused(path) and not _is_same(begun):
        discard(path)
    _check_same(begun)
    return begun


def _may_be_run(path: Path) -> bool:
    """Return whether a path is a directory that holds a run, or only the empty ones that a run creates first."""
    if not path.is_dir():
        return False
    if any((path / name).exists() for name in ("run.json", "epochs", "job.json")):
        return True
    return all(
        each.name in FIRST_DIRECTORIES and each.is_dir() and not any(each.iterdir())
        for each in path.iterdir()
    )


def _check_same(new: Run) -> None:
    """Check that the directory of a run does not hold another run with finished work; a UsageError otherwise."""
    if (new.path / "run.json").exists() and _has_sums(new.path):
        old = reopen(new.path)
        if changed := _differences(old, new):
            raise UsageError(
                f"{new.path}: holds another run, which differs in {', '.join(changed)}; resume it with "
                f"'distmom resume {new.path}', remove it, or give another --run"
            )


def _is_left(path: Path) -> bool:
    """Whether the last process that carried out a run has ended and left its directory."""
    owner = epochs.owner_of(path, epochs.latest_epoch(path))
    return owner is not None and owner.is_gone


def _is_refused(path: Path) -> bool:
    """Whether a run ended because its model cannot be computed from the data, so that resuming it is of no use."""
    end = epochs.end_of(path, epochs.latest_epoch(path))
    refused = end is not None and (end.state, end.exit_code) == ("failed", InputError.exit_code)
    return refused and _is_left(path) and not is_job(path)


def _is_same(new: Run) -> bool:
    """Whether the directory of a run holds the same run."""
    try:
        return not _differences(reopen(new.path), new)
    except DistmomError:
        return False


def show_finished(run: Run, as_json: bool) -> bool:
    """Return whether a run has ended well; if so, report it, and remove it if it is temporary."""
    if run.is_new or not run.is_finished():
        return False
    if run.temporary and _is_left(run.path):
        discard(run.path)
    show({"model": run.model, "finished": True}, as_json)
    return True


def is_job(path: Path) -> bool:
    """Whether a directory is that of a job, whose run it may also hold."""
    return (path / "job.json").exists()


def interrupt() -> None:
    """Interrupt this process as SIGTERM would, if it has a handler for that signal."""
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN, None):
        os.kill(os.getpid(), signal.SIGTERM)


def _differences(old: Run, new: Run) -> list[str]:
    """Return the entries in which two runs differ, so that one cannot resume the other."""
    if old.model_name != new.model_name:
        return ["model"]
    was, now = (None if run.like is None else run.like.digest for run in (old, new))
    if was != now:
        return ["like"]
    changed = [name for name, value in new.parameters.items() if old.parameters.get(name) != value]
    return changed or ["corpus"] * (old.corpus_digest != new.corpus_digest)


def reopen(path: str | Path) -> Run:
    """Read a run; UsageError if there is none, StoreError if its record is damaged or of other versions."""
    record = describe(path)
    if record["versions"] != environment().versions():
        wrong = differing(record["versions"], environment().versions())
        raise UsageError(f"{path}: was begun with other versions: {wrong}; begin a new run")
    return Run(
        Path(path).absolute(), record["corpus"], record["corpus_digest"], record["model"],
        record["model_name"], record["parameters"], record["overwrite"], record["temporary"],
        Like(**record["like"]) if "like" in record else None, record.get("groups"),
    )  # fmt: skip
