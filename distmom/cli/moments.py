"""Commands of kept moments: moments, combine, and the fit to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from distmom.cli import run as runs
from distmom.cli.options import (
    Cluster,
    LocalPath,
    cluster_options,
    json_option,
    overwrite_option,
    run_option,
)
from distmom.cli.parameters import can, flag, given, parameter_options, parameters
from distmom.cli.progress import PassProgress
from distmom.cli.run_record import Like
from distmom.cli.shared import open_workers, show
from distmom.cli.updates import combine_models
from distmom.corpus.files.storage import is_url
from distmom.errors import StoreError, UsageError
from distmom.models import ESTIMATORS, estimator
from distmom.spectral.capabilities import Capability
from distmom.spectral.saved.artifact import check_target, load_record

if TYPE_CHECKING:
    from distmom.models import TopicMoments

#: parameters of moments for which a model fitted to them has its own values
_FREE = ("n_components", "n_parts", "random_state")
#: defaults of models fitted to moments, where those of the model need documents
_WITHOUT_DOCUMENTS = {"alpha0": 1.0, "init": "tensor", "n_refine": 0}


@click.command()
@click.argument("corpus", type=click.Path())
@click.argument("dst", type=LocalPath())
@parameter_options("moments")
@click.option("--like", type=click.Path(), default=None,
              help="Moments whose words and basis are used, so that the two can be added.")  # fmt: skip
@run_option("DST")
@overwrite_option
@cluster_options
@json_option
def moments(
    corpus: str, dst: str, like: str | None, run_path: str | None, overwrite: bool, cluster: Cluster,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Add up the moments of a corpus and keep them, for later fits without the corpus.

    If interrupted, the same command, or 'distmom resume DST.run', resumes after the last finished groups of shards.

    \b
    Examples: distmom moments corpus moments -k 50
              distmom moments more more-moments --like moments
    """
    from distmom.models import TopicMoments

    chosen = given("moments", options)
    if like is not None and chosen:
        raise UsageError(f"{flag(next(iter(chosen)))}: expected none with --like {like}, which fixes it")
    first = TopicMoments(**chosen) if like is None else TopicMoments.load(like)
    basis = None if like is None else Like(str(Path(like).absolute()), first.basis_digest)
    run = runs.create(corpus, dst, run_path, runs.MOMENTS, first.get_params(), overwrite, basis)
    if not runs.show_finished(run, as_json):
        add_up(run, cluster, as_json, first)


def add_up(run: runs.Run, cluster: Cluster, as_json: bool, first: TopicMoments | None = None) -> None:
    """Make the missing passes of a run of moments, save the moments and show their main numbers.

    Parameters
    ----------
    run : Run
    cluster : Cluster
    as_json : bool
        Show the numbers as JSON.
    first : TopicMoments, optional
        The moments that the run began with: without sums, or those whose basis it uses. Read by default.
    """
    with run.carried_out(cluster) as directory, PassProgress(quiet=cluster.quiet) as progress:
        corpus: Any = run.open_corpus()
        first = _begun_with(run) if first is None else first
        run.check_target()
        if run.like is None:
            # In a given basis the first pass is the largest, and is refused in time if it does not fit.
            first.plan(corpus, cluster.memory_limit)
        with open_workers(cluster, corpus) as executor:
            found = (first.fit_corpus if run.like is None else first.of)(
                corpus, client=executor, run=directory, memory_limit=cluster.memory_limit, observer=progress
            )
            run.save(found, directory)
    show(describe_moments(found), as_json)


def _begun_with(run: runs.Run) -> TopicMoments:
    """Return the moments that a run began with: new ones without sums, or the moments whose basis it uses.

    Raises
    ------
    UsageError
        If the moments have changed since.
    StoreError
        If they cannot be read now.
    """
    from distmom.models import TopicMoments

    if run.like is None:
        return TopicMoments(**run.parameters)
    try:
        first = TopicMoments.load(run.like.path)
    except UsageError as error:
        # The place may not be mounted now, which is no reason to discard finished passes.
        raise StoreError(str(error)) from error
    if (first.basis_digest, first.get_params()) != (run.like.digest, run.parameters):
        raise UsageError(f"{run.like.path}: changed since the run began")
    return first


@click.command()
@click.argument("dst", type=LocalPath())
@click.option("--add", "added", type=click.Path(), multiple=True, required=True,
              help="Moments, or multi-label models with kept sums; repeatable.")  # fmt: skip
@click.option("--subtract", "taken", type=click.Path(), multiple=True,
              help="Moments or models of documents to be removed; repeatable.")  # fmt: skip
@overwrite_option
@json_option
def combine(dst: str, added: tuple[str, ...], taken: tuple[str, ...], overwrite: bool, as_json: bool) -> None:
    """Add moments of several corpora, and subtract those of some documents.

    Multi-label models with kept sums are combined in the same way if they are updates of one model. The documents of
    that model are in all of its updates, so it is subtracted once for every update after the first.

    \b
    Examples: distmom combine all --add monday --add tuesday
              distmom combine less --add all --subtract withdrawn
              distmom combine both --add model-monday --add model-tuesday --subtract model
    """
    from distmom.models import TopicMoments

    check_target(dst, overwrite)
    if not are_moments(added[0]):
        combine_models(dst, added, taken, overwrite, as_json)
        return
    total = TopicMoments.load(added[0])
    for path in added[1:]:
        total = total + TopicMoments.load(path)
    for path in taken:
        total = total - TopicMoments.load(path)
    total.save(dst, overwrite=overwrite)
    show(describe_moments(total), as_json)


def describe_moments(found: TopicMoments) -> dict[str, Any]:
    """Return the main numbers and the parameters of moments."""
    return {
        **found.summary(),
        **{f"param {name}": value for name, value in found.get_params().items()},
    }


def are_moments(path: str) -> bool:
    """Whether a place holds moments."""
    if is_url(path) or not (Path(path) / "model.json").is_file():
        return False
    return load_record(path).get("model") == "TopicMoments"


def fit_kept(src: str, dst: str, model_name: str, overwrite: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Fit a topic model to moments, save it, and return its main numbers.

    Raises
    ------
    UsageError
        If it is no topic model, or an option needs documents.
    """
    from distmom.models import TopicMoments

    if not can(model_name, Capability.MOMENTS):
        names = [e.name for e in ESTIMATORS if e.command == "fit" and can(e.name, Capability.MOMENTS)]
        raise UsageError(f"{src}: holds moments of topics: expected --model {', '.join(names)}")
    kind = estimator(model_name)
    check_target(dst, overwrite)
    if Path(src).resolve() == Path(dst).resolve():
        raise UsageError(f"{dst}: holds the moments themselves")
    moments = TopicMoments.load(src)
    settled = {name: value for name, value in moments.get_params().items() if name not in _FREE}
    for name in settled.keys() & {name for name, value in options.items() if value is not None}:
        raise UsageError(f"{flag(name)}: expected none, as the moments in {src} fix it")
    known = parameters(model_name, options)
    defaults = {**_WITHOUT_DOCUMENTS, "n_components": moments.n_components}
    known |= {name: value for name, value in defaults.items() if options.get(name) is None}
    known |= settled
    names = kind().get_params()
    model = kind(**{name: value for name, value in known.items() if name in names}).fit_moments(moments)
    model.save(dst, overwrite=overwrite)
    errors = np.zeros(0) if model.weights_error_ is None else model.weights_error_
    errors = errors[np.isfinite(errors)]
    result = {
        "model": dst,
        "n_documents": model.n_documents_,
        "n_topics": model.n_components_,
        "fit_seconds": round(model.fit_seconds_, 2),
        "residual": model.diagnostics_.get("residual"),
        "weight_errors": float(errors.mean()) if len(errors) else None,
    }
    return {name: value for name, value in result.items() if value is not None}
