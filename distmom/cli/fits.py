"""Commands that fit models or report the cost of a fit: plan, bench, fit, resume."""

from __future__ import annotations

import logging
from typing import Any

import click

from distmom.cli import run as runs
from distmom.cli.moments import add_up, are_moments, fit_kept
from distmom.cli.options import (
    Cluster,
    cluster_options,
    json_option,
    memory_option,
    overwrite_option,
    run_option,
)
from distmom.cli.parameters import ModelCommand, parameters
from distmom.cli.progress import PassProgress
from distmom.cli.shared import json_text, open_input, open_workers, show, unit_name
from distmom.cli.terminal import say
from distmom.cli.updates import add_documents
from distmom.corpus import open_words
from distmom.corpus.files.space import find_usage, held_bytes
from distmom.engine import cpu_count
from distmom.errors import UsageError
from distmom.models import ESTIMATORS, estimator
from distmom.spectral.capabilities import Capability

logger = logging.getLogger(__name__)

#: share of a text in words of most documents above which a background topic is suggested
MANY_COMMON = 0.2
#: share of held-out documents with a copy among the others above which copies are mentioned
MANY_REPEATED = 0.04


@click.command(cls=ModelCommand, models=tuple(listing.name for listing in ESTIMATORS))
@click.argument("corpus", type=click.Path())
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=None,
    help="Number of processes for the estimate of the time; 0 omits the time. [default: one per core]",
)
@memory_option
@json_option
def plan(
    corpus: str, model_name: str, workers: int | None, memory_limit: int | None, as_json: bool,
    groups: str | None = None, **options: Any,
) -> None:  # fmt: skip
    """Report the passes, tasks, memory and time of a fit before anything runs.

    The time is a range, estimated by trying every pass on one block of documents.

    CORPUS is as in 'distmom fit'. The models 'moments' and 'search' stand for the commands of those names.

    \b
    Examples: distmom plan corpus -k 100 --memory-limit 2GiB
              distmom plan views.npy --model factors --groups groups.npy
    """
    model = estimator(model_name)(**parameters(model_name, options))
    n_workers = cpu_count() if workers is None else workers
    planned = model.plan(open_input(corpus, model_name, groups), memory_limit, n_workers=n_workers or None)
    if as_json:
        click.echo(json_text(planned.to_json()))
        return
    for line in str(planned).splitlines():
        say(line)


@click.group()
def bench() -> None:
    """Measure a lower bound of the cost of a fit.

    \b
    Example: distmom bench floor corpus -k 100
    """


@bench.command()
@click.argument("corpus", type=click.Path())
@click.option(
    "-k",
    "--n-components",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Number of latent states.",
)
@click.option(
    "--n-oversamples",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Columns of the sketch beyond the states.",
)
@click.option(
    "--n-power-iter", type=click.IntRange(min=0), default=1, show_default=True, help="Number of power passes."
)
@cluster_options
@json_option
def floor(
    corpus: str, n_components: int, n_oversamples: int, n_power_iter: int, cluster: Cluster, as_json: bool,
) -> None:  # fmt: skip
    """Time the bare kernels of 'fit --head posterior' over documents in memory.

    \b
    Example: distmom bench floor corpus -k 100
    """
    from distmom.models.multilabel.latent.floor import measure_floor

    opened = open_words(corpus)
    with open_workers(cluster) as executor:
        seconds = measure_floor(
            opened, n_components, n_oversamples=n_oversamples, n_power_iter=n_power_iter, executor=executor
        )
    show({name: round(value, 3) for name, value in seconds.items()}, as_json)


@click.command(cls=ModelCommand, models=tuple(e.name for e in ESTIMATORS if e.command == "fit"))
@click.argument("corpus", type=click.Path())
@click.argument("model", type=click.Path())
@run_option("MODEL")
@overwrite_option
@cluster_options
@json_option
def fit(
    corpus: str, model: str, model_name: str, run_path: str | None, overwrite: bool, cluster: Cluster,
    as_json: bool, groups: str | None = None, **options: Any,
) -> None:  # fmt: skip
    """Fit a model to a corpus on a Dask cluster, a local one by default; small corpora are fitted in this process.

    \b
    Examples: distmom fit corpus model -k 100
              distmom fit corpus model -k 50 --head posterior --scheduler tcp://host:8786
              distmom fit corpus topics -k 50 --model lda
              distmom fit moments topics -k 50 --model lda
              distmom fit views.npy model -k 5 --model factors --groups groups.npy
              distmom fit corpus s3://bucket/model -k 100 --run run

    In place of a corpus, topic models take moments that 'distmom moments' has kept; the defaults are then --alpha0 1,
    --init tensor and --n-refine 0. Factors may be fitted to views in a file: rows of numbers (.npy or .npz).
    """
    if are_moments(corpus):
        for name, value in (
            ("--run", run_path),
            ("--workers", cluster.workers),
            ("--scheduler", cluster.scheduler),
            ("--memory-limit", cluster.memory_limit),
        ):
            if value is not None:
                raise UsageError(f"{name}: expected none with kept moments, which are fitted in this process")
        show(fit_kept(corpus, model, model_name, overwrite, options), as_json)
        return
    known = parameters(model_name, options)
    run = runs.create(corpus, model, run_path, model_name, known, overwrite, groups=groups)
    if not runs.show_finished(run, as_json):
        _run_fit(run, cluster, as_json)


@click.command()
@click.argument("run", type=click.Path())
@cluster_options
@json_option
def resume(run: str, cluster: Cluster, as_json: bool) -> None:
    """Resume an interrupted fit, update or moments after the last finished groups of shards.

    A run whose process may still be running on another host is taken over once that process has shown no sign of
    life for a minute. A finished run is left as it is.

    \b
    Example: distmom resume model.run
    """
    begun = runs.reopen(run)
    if runs.show_finished(begun, as_json):
        return
    carry_on = add_up if begun.model_name == runs.MOMENTS else _run_fit
    if begun.model_name != runs.MOMENTS and begun.like is not None:
        carry_on = add_documents
    carry_on(begun, cluster, as_json)


def _run_fit(run: runs.Run, cluster: Cluster, as_json: bool) -> None:
    model = estimator(run.model_name)(**run.parameters)
    with run.carried_out(cluster) as directory, PassProgress(quiet=cluster.quiet) as progress:
        corpus = run.open_corpus()
        progress.unit = unit_name(corpus)
        planned = model.plan(corpus, cluster.memory_limit)
        run.check_target()
        with open_workers(cluster, corpus) as executor:
            progress.line(
                f"fitting {executor.description}: {planned.scans}, {planned.n_tasks} tasks, "
                f"at most {planned.worker_bytes / 2**20:,.0f} MiB per worker, "
                f"{planned.disk_bytes / 2**20:,.0f} MiB of disk"
            )
            usage = find_usage(run.path)
            # The space that a resumed run already occupies counts towards the space that it needs.
            needed = planned.disk_bytes - held_bytes(run.path)
            if usage is not None and usage[0] < needed:
                logger.warning(
                    "%s: the fit may need %.0f MiB of disk, but only %.0f MiB are free",
                    run.path.parent, needed / 2**20, usage[0] / 2**20,
                )  # fmt: skip
            if dashboard := getattr(executor, "dashboard", None):
                progress.line(f"dashboard: {dashboard}")
            model.fit_corpus(
                corpus, client=executor, run=directory, memory_limit=cluster.memory_limit, observer=progress
            )
            run.save(model, directory)
        common = model.diagnostics_.get("common_words", 0.0)
        has_background = run.parameters.get("background") or model.diagnostics_.get("background")
        if common > MANY_COMMON and not has_background:
            progress.line(
                f"words that are in more than {model.max_df:.0%} of the documents make up {common:.0%} of the text and "
                "are shared by the topics; --background gives them a topic of their own"
            )
    result = {"model": run.model, "fit_seconds": round(model.fit_seconds_, 2), **model.summary()}
    if as_json:
        show(result, as_json)
        return
    for name, bounds in result.items():
        if name.startswith("theorem_1_bounds"):
            result[name] = {entry: _bound(value) for entry, value in bounds.items()}
    # A table reads better than one long line.
    held_out = result.pop("held_out", {})
    show(result, as_json)
    for name, scores in held_out.items():
        say(f"held out  {name:<18} " + "  ".join(f"{key} {x:.4f}" for key, x in scores.items()))
    if model.can(Capability.LABELS) and model.selection_ is not None:
        say(_choice_line(model.selection_))
        if (repeated := model.selection_["repeated"]) > MANY_REPEATED:
            say(
                f"{repeated:.0%} of the held-out documents have the same words as another document; if new documents will "
                "repeat known ones less often, remove such copies before the fit: a blend chosen with them relies too "
                "much on the nearest documents"
            )


def _bound(value: float | None) -> float | str:
    if value is None:
        return "none (too few documents)"
    return value if value <= 1 else f"{value:.1e} (uninformative: above 1)"


def _choice_line(selection: dict[str, Any]) -> str:
    """Return the heads that ``head="auto"`` chose and their expected metric, as one line."""
    heads = ", ".join(selection["weights"])
    first, error = selection["held_out"]["auto"]["P@1"], selection["precision_error"]
    stated = selection.get("expected", {"metric": "P@1"})
    expected = [f"P@1 {first:.4f} with standard error {error:.4f}"]
    if stated["metric"] != "P@1":
        expected.insert(
            0, f"{stated['metric']} {stated['value']:.4f} with standard error {stated['error']:.4f}"
        )
    return (
        f"chosen: {heads}; expected {', '.join(expected)}, measured on {selection['n_held_out']:,} held-out "
        "documents"
    )
