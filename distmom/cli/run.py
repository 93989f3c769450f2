"""The record of a fit, an update or of moments on disk, so that it can be interrupted and resumed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distmom.cli.parameters import table
from distmom.cli.shared import open_input
from distmom.corpus import Corpus, LayeredCorpus, ViewCorpus
from distmom.corpus.commit import Lock
from distmom.corpus.records import RecordFormat
from distmom.engine import RunDirectory
from distmom.engine.environment import differing, environment
from distmom.engine.events import read_log
from distmom.errors import ClusterError, InputError, StoreError, UsageError
from distmom.spectral.artifact import check_target

#: name of the estimator of kept moments
MOMENTS = "moments"
#: of run.json
RUN = RecordFormat("distmom-run", 2, "remove the run directory and start the run again")
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
    """Moments whose basis a run of moments uses, or the model that is updated.

    Attributes
    ----------
    path : str
    digest : str
        Of the basis (see `TopicMoments.basis_digest`), or of the record of the model.
    """

    path: str
    digest: str


@dataclass(frozen=True)
class Run:
    """A fit, or the adding up of moments, that has begun.

    Attributes
    ----------
    path : Path
        Its directory.
    corpus, corpus_digest : str
        Path or URL of the corpus or the file of views, and its digest.
    model : Path
        Where the model or the moments will be written.
    model_name : str
        Of the estimator, as `distmom.models.ESTIMATORS` lists it.
    parameters : dict
        Of the model.
    overwrite : bool
        An existing model may be replaced.
    temporary : bool
        The directory is removed once the model is written.
    like : Like or None
        With moments in the basis of other moments, and with updates of a model, whose only parameter is ``remove``.
    groups : str or None
        Path of the file of groups, with views.
    """

    path: Path
    corpus: str
    corpus_digest: str
    model: Path
    model_name: str
    parameters: dict[str, Any]
    overwrite: bool
    temporary: bool
    like: Like | None = None
    groups: str | None = None

    @contextmanager
    def carried_out(self, workers: int | None, scheduler: str | None) -> Iterator[RunDirectory]:
        """Lock the run while it is carried out; a context manager that yields its directory.

        Errors that end it carry the command that resumes it as a note. A run is removed if it is refused before
        its first pass, and a temporary one when it is done.
        """
        with RunDirectory(self.path).held() as directory:
            try:
                yield directory
            except (KeyboardInterrupt, ClusterError, StoreError, OSError) as error:
                where = [f"--workers {workers}"] if workers is not None else []
                where += [f"--scheduler {scheduler}"] if scheduler is not None else []
                error.add_note(" ".join(["distmom resume", shlex.quote(str(self.path)), *where]))
                raise
            except (UsageError, InputError):
                # Passes that were made may serve with other options.
                if not _has_passes(self.path):
                    shutil.rmtree(self.path, ignore_errors=True)
                raise
        if self.temporary:
            shutil.rmtree(self.path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run; UsageError if another process has locked it."""
        with Lock(self.path / "lock"):
            yield

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


def _has_passes(path: Path) -> bool:
    return any((path / "passes").glob("*/DONE.json"))


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

    Raises
    ------
    UsageError
        If the model exists, or the directory holds another run.
    """
    target = Path(model).absolute()
    check_target(target, overwrite)
    opened = open_input(corpus, model_name, groups)
    place = str(Path(corpus).absolute()) if isinstance(opened, ViewCorpus) else opened.path
    groups = None if groups is None else str(Path(groups).absolute())
    path = Path(run).absolute() if run is not None else target.with_name(target.name + ".run")
    begun = Run(
        path, place, opened.digest, target, model_name, parameters, overwrite, run is None, like, groups
    )
    if (path / "run.json").exists() and _has_passes(path):
        old = reopen(path)
        if changed := _differences(old, begun):
            raise UsageError(
                f"{path}: holds another run, which differs in {', '.join(changed)}; resume it with "
                f"'distmom resume {path}', remove it, or give another --run"
            )
    elif path.exists() and any(path.iterdir()) and not (path / "run.json").exists():
        raise UsageError(f"{path}: exists and is not a run")
    path.mkdir(parents=True, exist_ok=True)
    record = {
        "corpus": begun.corpus,
        "corpus_digest": begun.corpus_digest,
        "model": str(begun.model),
        "model_name": model_name,
        "parameters": parameters,
        "overwrite": overwrite,
        "temporary": begun.temporary,
        "versions": environment().versions(),
        **({} if like is None else {"like": vars(like)}),
        **({} if groups is None else {"groups": groups}),
    }
    with begun.lock():
        RUN.write(path / "run.json", record)
    return begun


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
        Path(path).absolute(), record["corpus"], record["corpus_digest"], Path(record["model"]),
        record["model_name"], record["parameters"], record["overwrite"], record["temporary"],
        Like(**record["like"]) if "like" in record else None, record.get("groups"),
    )  # fmt: skip


def describe(path: str | Path) -> dict[str, Any]:
    """Return the record of a run."""
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
    committed = sorted(p.parent.name for p in (Path(path) / "passes").glob("*/DONE.json"))
    return {**record, "committed": committed, "environments": RunDirectory(path).environments()}


def last_event(path: str | Path) -> dict[str, Any]:
    """Return the last event of the log of a run, if it has any, as the entry ``last_event``."""
    events = read_log(RunDirectory(path).log)
    return {"last_event": events[-1].to_json()} if events else {}
