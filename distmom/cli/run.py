"""The record of a fit on disk, so that it can be interrupted and resumed."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import scipy
import zarr

import distmom
from distmom.corpus import Corpus, open_corpus
from distmom.corpus.commit import Lock, write_atomic
from distmom.engine import RunDirectory
from distmom.errors import StoreError, UsageError
from distmom.models.artifact import check_target


def versions() -> dict[str, str]:
    """Return the versions that the bits of a result depend on."""
    return {
        "distmom": distmom.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "zarr": zarr.__version__,
        "machine": platform.machine(),
    }


@dataclass(frozen=True)
class Run:
    """A fit that was begun.

    Attributes
    ----------
    path : Path
        Its directory.
    corpus, corpus_digest : str
    model : Path
        Where the model will be written.
    model_name : str
        Kind of the model, as `distmom.models.MODELS` names it.
    parameters : dict
        Of the model.
    overwrite : bool
        An existing model may be replaced.
    temporary : bool
        The directory is removed once the model is written.
    """

    path: Path
    corpus: str
    corpus_digest: str
    model: Path
    model_name: str
    parameters: dict[str, Any]
    overwrite: bool
    temporary: bool

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run; UsageError if another process does."""
        with Lock(self.path / "lock"):
            yield

    def open_corpus(self) -> Corpus:
        """Open the corpus.

        Raises
        ------
        UsageError
            If it is not the one the run was begun with.
        StoreError
            If it cannot be read now.
        """
        try:
            corpus = open_corpus(self.corpus)
        except UsageError as error:
            # A place that is not mounted, or keys that have expired: no reason to give up what is computed.
            raise StoreError(str(error)) from error
        if corpus.digest != self.corpus_digest:
            raise UsageError(
                f"{self.corpus}: changed since the run began: expected digest {self.corpus_digest[:12]}, "
                f"got {corpus.digest[:12]}"
            )
        return corpus

    def verify(self) -> list[str]:
        """Read all that is stored, and return what is wrong with it."""
        return RunDirectory(self.path).verify()

    def has_passes(self) -> bool:
        """Whether any pass is committed."""
        return _has_passes(self.path)


def _has_passes(path: Path) -> bool:
    return any((path / "passes").glob("*/DONE.json"))


def create(
    corpus: str, model: str, run: str | None, model_name: str, parameters: dict[str, Any], overwrite: bool
) -> Run:
    """Begin a run, or take up the same one again.

    Raises
    ------
    UsageError
        If the model exists, or the directory holds another run.
    """
    target = Path(model).absolute()
    check_target(target, overwrite)
    opened = open_corpus(corpus)
    path = Path(run).absolute() if run is not None else target.with_name(target.name + ".run")
    begun = Run(path, opened.path, opened.digest, target, model_name, parameters, overwrite, run is None)
    if (path / "run.json").exists() and _has_passes(path):
        old = reopen(path)
        same = (old.corpus_digest, old.model_name, old.parameters) == (
            begun.corpus_digest, begun.model_name, begun.parameters
        )  # fmt: skip
        if not same:
            changed = [k for k in parameters if old.parameters.get(k) != parameters[k]] or ["corpus"]
            changed = ["model"] if old.model_name != model_name else changed
            raise UsageError(
                f"{path}: holds another run, which differs in {', '.join(changed)}; resume it with "
                f"'distmom resume {path}', remove it, or give another --run"
            )
    elif path.exists() and any(path.iterdir()) and not (path / "run.json").exists():
        raise UsageError(f"{path}: exists and is not a run")
    path.mkdir(parents=True, exist_ok=True)
    record = {
        "format": "distmom-run",
        "corpus": begun.corpus,
        "corpus_digest": begun.corpus_digest,
        "model": str(begun.model),
        "model_name": model_name,
        "parameters": parameters,
        "overwrite": overwrite,
        "temporary": begun.temporary,
        "versions": versions(),
    }
    with begun.lock():
        write_atomic(path / "run.json", json.dumps(record, indent=1).encode())
    return begun


def reopen(path: str | Path) -> Run:
    """Read a run; UsageError if there is none, StoreError if its record is damaged or of other versions."""
    record = describe(path)
    if record["versions"] != versions():
        differing = [k for k, v in versions().items() if record["versions"].get(k) != v]
        raise UsageError(f"{path}: was begun with other versions of {', '.join(differing)}; begin a new run")
    return Run(
        Path(path).absolute(), record["corpus"], record["corpus_digest"], Path(record["model"]),
        record["model_name"], record["parameters"], record["overwrite"], record["temporary"],
    )  # fmt: skip


def describe(path: str | Path) -> dict[str, Any]:
    """Return the record of a run."""
    file = Path(path) / "run.json"
    if not file.exists():
        raise UsageError(f"{path}: not a run (no run.json)")
    try:
        record = json.loads(file.read_text())
        if record["format"] != "distmom-run":
            raise KeyError("format")
        record["committed"] = sorted(p.parent.name for p in (Path(path) / "passes").glob("*/DONE.json"))
        for key in (
            "corpus",
            "corpus_digest",
            "model",
            "model_name",
            "parameters",
            "overwrite",
            "temporary",
            "versions",
        ):
            record[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file}: not a readable run: {error}") from error
    return dict(record)
