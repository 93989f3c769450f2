"""Commands that describe and check corpora, runs, models and outputs: info, verify."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distmom.cli import run as runs
from distmom.cli.moments import are_moments, describe_moments
from distmom.cli.options import json_option
from distmom.cli.run_record import describe, last_event
from distmom.cli.shared import describe_corpus, show
from distmom.cli.terminal import say
from distmom.corpus import open_corpus
from distmom.corpus.files.space import held_bytes
from distmom.corpus.files.storage import is_url
from distmom.corpus.files.uploads import find_contents, local_directory
from distmom.engine.directory.epochs import check_records
from distmom.errors import StoreError, UsageError
from distmom.models import load_model
from distmom.simulate import load_truth
from distmom.spectral.capabilities import Capability
from distmom.spectral.saved.artifact import load_record, local_model

if TYPE_CHECKING:
    from distmom.jobs import Job
    from distmom.models import TopicMoments

#: kinds of outputs, the keys of `distmom.predict.output.OUTPUTS`, whose import takes long
_OUTPUTS = ("components", "factors", "predictions", "shares")


@click.command()
@click.argument("path", type=click.Path())
@json_option
def info(path: str, as_json: bool) -> None:
    """Describe a corpus, run, model, kept moments, predictions, shares, factors, components, or the
    truth of a planted corpus.

    \b
    Example: distmom info corpus
    """
    kind = place_kind(path)
    show({"kind": kind, **_KINDS[kind].describe(path)}, as_json)


@click.command()
@click.argument("path", type=click.Path())
@json_option
def verify(path: str, as_json: bool) -> None:
    """Read every byte and check it. The exit code is 4 when something is wrong.

    PATH is a corpus, a run, a model, kept moments, predictions, shares, factors, components, or the truth of a
    planted corpus.

    \b
    Example: distmom verify corpus
    """
    try:
        problems = _KINDS[place_kind(path)].verify(path)
    except StoreError as error:
        problems = [str(error)]
    if as_json:
        click.echo(json.dumps({"path": path, "problems": problems}))
    elif not problems:
        say(f"{path}: all bytes are as written")
    else:
        for problem in problems:
            say(problem)
    if problems:
        sys.exit(StoreError.exit_code)


def place_kind(path: str) -> str:
    """Return the kind of a place; a corpus if it is nothing else."""
    if is_url(path):
        try:
            contents = find_contents(path)
        except UsageError:
            # Without permission to list, a store refuses access to an object that is not there.
            return "corpus"
        return contents.kind if contents is not None and contents.kind in _KINDS else "corpus"
    if not Path(path).exists():
        raise UsageError(f"{path}: there is no such directory")
    if are_moments(path):
        return "moments"
    for kind in ("model", "run", "job", "truth"):
        if (Path(path) / f"{kind}.json").exists():
            return kind
    if (Path(path) / "manifest.json").exists():
        return "corpus"
    from distmom.predict.output import output_kind

    return output_kind(path) or "corpus"


def _describe_model(path: str) -> dict[str, Any]:
    with local_model(path) as place:
        record, model = load_record(place), load_model(place)
    heads: dict[str, Any] = {}
    if model.can(Capability.VIEWS):
        sizes = {"n_features": model.n_features_in_, "n_groups": model.n_documents_}
    elif model.can(Capability.ROWS):
        sizes = {"n_features": model.n_features_in_, "n_units": model.n_documents_}
    else:
        sizes = {"n_words": model.n_features_in_, "n_documents": model.n_documents_}
    if model.can(Capability.LABELS):
        sizes["n_labels"] = len(model.label_names_)
        heads["heads"] = [name for name, _ in model.scorer_.heads]
    return {
        "model": record["model"],
        **{f"param {k}": v for k, v in record["parameters"].items()},
        **sizes,
        **heads,
        "fit_seconds": round(model.fit_seconds_, 2),
        "bytes": _size(path),
    }


def _verify_model(path: str) -> list[str]:
    load_model(path)
    return []


def _load_moments(path: str) -> TopicMoments:
    from distmom.models import TopicMoments

    return TopicMoments.load(path)


def _verify_moments(path: str) -> list[str]:
    _load_moments(path)
    return []


def _open_job(path: str) -> Job:
    from distmom.jobs import open_job

    return open_job(Path(path))


def _verify_job(path: str) -> list[str]:
    _open_job(path)
    return check_records(Path(path))


def _describe_output(kind: str, path: str) -> dict[str, Any]:
    from distmom.predict.output import read_output

    with local_directory(path, kind, only={f"{kind}.json"}) as place:
        record = read_output(place, kind)
    hidden = ("files", "format", "format_version")
    entries = {name: value for name, value in record.items() if name not in hidden}
    return {**entries, "n_files": len(record["files"]), "bytes": _size(path)}


def _verify_output(kind: str, path: str) -> list[str]:
    from distmom.predict.output import verify_output

    with local_directory(path, kind) as place:
        return verify_output(place, kind)


def _describe_truth(path: str) -> dict[str, Any]:
    truth = load_truth(path)
    sizes = {name: value for name, value in vars(truth.model).items() if name.startswith("n_")}
    return {"first": truth.first, **sizes, "seed": truth.model.seed}


def _verify_truth(path: str) -> list[str]:
    load_truth(path)
    return []


@dataclass(frozen=True)
class _Kind:
    """How to describe a place of one kind, and how to read all of it to find problems."""

    describe: Callable[[str], dict[str, Any]]
    verify: Callable[[str], list[str]]


_KINDS = {
    "model": _Kind(_describe_model, _verify_model),
    "moments": _Kind(lambda path: describe_moments(_load_moments(path)), _verify_moments),
    "run": _Kind(
        lambda path: {**describe(path), **last_event(path)}, lambda path: runs.reopen(path).verify()
    ),
    "job": _Kind(lambda path: _open_job(path).status(), _verify_job),
    "truth": _Kind(_describe_truth, _verify_truth),
    "corpus": _Kind(lambda path: describe_corpus(open_corpus(path)), lambda path: open_corpus(path).verify()),
    **{kind: _Kind(partial(_describe_output, kind), partial(_verify_output, kind)) for kind in _OUTPUTS},
}


def _size(path: str) -> int:
    """Return the size of all files of a model or an output in bytes."""
    if is_url(path) and (contents := find_contents(path)) is not None:
        return contents.n_bytes
    return held_bytes(path)
