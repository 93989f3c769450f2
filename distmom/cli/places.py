"""Commands that describe and check corpora, runs, models and outputs: info, verify."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from distmom.cli import run as runs
from distmom.cli.moments import are_moments, describe_moments
from distmom.cli.options import json_option
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
    kind = _kind(path)
    if kind == "model":
        with local_model(path) as place:
            record, model = load_record(place), load_model(place)
        heads = {"heads": [name for name, _ in model.scorer_.heads]} if model.can(Capability.LABELS) else {}
        sizes = {"n_words": model.n_features_in_, "n_labels": len(model.label_names_),
                 "n_documents": model.n_documents_}  # fmt: skip
        if model.can(Capability.VIEWS):
            sizes = {"n_features": model.n_features_in_, "n_groups": model.n_documents_}
        result = {
            "kind": "model",
            "model": record["model"],
            **{f"param {k}": v for k, v in record["parameters"].items()},
            **sizes,
            **heads,
            "fit_seconds": round(model.fit_seconds_, 2),
            "bytes": _size(path),
        }
    elif kind == "moments":
        from distmom.models import TopicMoments

        result = {"kind": "moments", **describe_moments(TopicMoments.load(path))}
    elif kind == "run":
        result = {"kind": "run", **runs.describe(path), **runs.last_event(path)}
    elif kind == "job":
        from distmom.jobs import open_job

        result = {"kind": "job", **open_job(Path(path)).status()}
    elif kind in _OUTPUTS:
        from distmom.predict.output import read_output

        with local_directory(path, kind, only={f"{kind}.json"}) as place:
            record = read_output(place, kind)
        hidden = ("files", "format", "format_version")
        entries = {name: value for name, value in record.items() if name not in hidden}
        result = {"kind": kind, **entries, "n_files": len(record["files"]), "bytes": _size(path)}
    elif kind == "truth":
        truth = load_truth(path)
        sizes = {name: value for name, value in vars(truth.model).items() if name.startswith("n_")}
        result = {"kind": "truth", "first": truth.first, **sizes, "seed": truth.model.seed}
    else:
        result = {"kind": "corpus", **describe_corpus(open_corpus(path))}
    show(result, as_json)


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
    problems: list[str] = []
    try:
        kind = _kind(path)
        if kind == "model":
            load_model(path)
        elif kind == "moments":
            from distmom.models import TopicMoments

            TopicMoments.load(path)
        elif kind == "run":
            problems = runs.reopen(path).verify()
        elif kind == "job":
            from distmom.jobs import open_job

            open_job(Path(path))
            problems = check_records(Path(path))
        elif kind in _OUTPUTS:
            from distmom.predict.output import verify_output

            with local_directory(path, kind) as place:
                problems = verify_output(place, kind)
        elif kind == "truth":
            load_truth(path)
        else:
            problems = open_corpus(path).verify()
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


def _kind(path: str) -> str:
    """Return the kind of a place; a corpus if it is nothing else."""
    if is_url(path):
        try:
            contents = find_contents(path)
        except UsageError:
            # Without the right to list, a store refuses access to an object that is not there.
            return "corpus"
        return "corpus" if contents is None else contents.kind
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


def _size(path: str) -> int:
    """Return the size of all files of a model or an output in bytes."""
    if is_url(path) and (contents := find_contents(path)) is not None:
        return contents.n_bytes
    return held_bytes(path)
