"""Commands that look at what is there, a corpus, a run or a model: info, verify."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from distmom.cli import run as runs
from distmom.cli.moments import are_moments, describe_moments
from distmom.cli.options import json_option
from distmom.cli.shared import describe_corpus, show
from distmom.corpus import open_corpus
from distmom.corpus.storage import is_url
from distmom.errors import StoreError, UsageError
from distmom.models import load_model
from distmom.models.artifact import load_record


@click.command()
@click.argument("path", type=click.Path())
@json_option
def info(path: str, as_json: bool) -> None:
    """Say what a corpus, run, model or kept moments are.

    \b
    Example: distmom info corpus
    """
    kind = _kind(path)
    if kind == "model":
        place = Path(path)
        record = load_record(place)
        model = load_model(place)
        heads = {"heads": [name for name, _ in model.scorer_.heads]} if hasattr(model, "scorer_") else {}
        result = {
            "kind": "model",
            "model": record["model"],
            **{f"param {k}": v for k, v in record["parameters"].items()},
            "n_words": model.n_features_in_,
            "n_labels": len(getattr(model, "label_names_", ())),
            "n_documents": model.n_documents_,
            **heads,
            "fit_seconds": round(model.fit_seconds_, 2),
            "bytes": sum(f.stat().st_size for f in place.rglob("*") if f.is_file()),
        }
    elif kind == "moments":
        from distmom.models import TopicMoments

        result = {"kind": "moments", **describe_moments(TopicMoments.load(path))}
    elif kind == "run":
        result = {"kind": "run", **runs.describe(path)}
    else:
        result = {"kind": "corpus", **describe_corpus(open_corpus(path))}
    show(result, as_json)


@click.command()
@click.argument("path", type=click.Path())
@json_option
def verify(path: str, as_json: bool) -> None:
    """Read every byte of a corpus, run, model or kept moments and check it. Exit code 4 when something is wrong.

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
        else:
            problems = open_corpus(path).verify()
    except StoreError as error:
        problems = [str(error)]
    if as_json:
        click.echo(json.dumps({"path": path, "problems": problems}))
    elif not problems:
        click.echo(f"{path}: all bytes are as written")
    else:
        for problem in problems:
            click.echo(problem)
    if problems:
        sys.exit(StoreError.exit_code)


def _kind(path: str) -> str:
    """Tell whether a place holds moments, a model, a run, or otherwise a corpus."""
    if is_url(path):
        return "corpus"
    if not Path(path).exists():
        raise UsageError(f"{path}: there is no such directory")
    if are_moments(path):
        return "moments"
    return next((kind for kind in ("model", "run") if (Path(path) / f"{kind}.json").exists()), "corpus")
