"""Commands that use models: predict, evaluate, report and demo."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import click

from distmom.cli.chosen_names import chosen_names
from distmom.cli.options import (
    Cluster,
    LocalPath,
    Threshold,
    cluster_options,
    input_options,
    json_option,
    output_format_option,
    overwrite_option,
    quiet_option,
)
from distmom.cli.progress import PassProgress
from distmom.cli.shared import given_flags, load_model_that, open_source, open_workers, show, topic_line
from distmom.cli.terminal import say
from distmom.corpus import ingest
from distmom.errors import ELSEWHERE, UsageError
from distmom.simulate import load_truth
from distmom.spectral.capabilities import Capability, require


@click.command()
@click.argument("model", type=click.Path())
@click.argument("src", type=click.Path(), nargs=-1, required=True)
@click.argument("out", type=click.Path())
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Labels per document.")
@click.option(
    "--threshold",
    type=Threshold(),
    default=None,
    metavar="P|best",
    help="Write only labels of at least this probability; 'best' uses the one with the best F1. [default: all of --top]",
)
@click.option(
    "--only-labels",
    metavar="FILE|NAME,...",
    default=None,
    help="Score only these labels: a file of their names, one per line, or names separated by commas. [default: all]",
)
@click.option("--fill", is_flag=True, help="Also give labels to documents without a known word.")
@output_format_option
@input_options
@overwrite_option
@cluster_options
@json_option
def predict(
    model: str, src: tuple[str, ...], out: str, top: int, threshold: float | str | None, only_labels: str | None,
    fill: bool, output_format: str, overwrite: bool, cluster: Cluster, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Rank labels for the documents of a corpus, of a file, or of several files of one format.

    \b
    Examples: distmom predict model new-titles.tsv out --top 5
              distmom predict model part-*.parquet out --id-column id
              distmom predict model new-titles.tsv out --top 20 --threshold best
              distmom predict model new-titles.tsv out --only-labels fisheries,forestry
              distmom predict model s3://bucket/corpus s3://bucket/out
    """
    from distmom.predict import predict_corpus
    from distmom.predict.output import check_place

    fitted = load_model_that(model, Capability.LABELS)
    if threshold is not None:
        fitted.require_probabilities("--threshold")
    # Before the source is read, which may take long.
    check_place(out, "predictions", overwrite=overwrite)
    labels = None if only_labels is None else chosen_names(only_labels, fitted.label_names_)
    with (
        PassProgress(quiet=cluster.quiet) as progress,
        open_workers(cluster) as executor,
        open_source(src, fitted, executor, options) as corpus,
    ):
        result = predict_corpus(
            fitted, corpus, out, top=top, threshold=threshold, labels=labels, fill=fill, output_format=output_format,
            client=executor, memory_limit=cluster.memory_limit, observer=progress, overwrite=overwrite,
        )  # fmt: skip
    show(result, as_json)


#: parameters of the command evaluate for models that rank labels
_OF_LABELS = ("head", "auc_documents", "propensity_a", "propensity_b", "per_label")


@click.command()
@click.argument("model", type=click.Path())
@click.argument("src", type=click.Path(), nargs=-1, required=True)
@click.option("--head", default=None, help="Measure only this head of the model.")
@click.option(
    "--auc-documents",
    type=click.IntRange(min=1),
    default=None,
    help="Measure AUC on about this many documents. [default: all]",
)
@click.option(
    "--propensity-a", type=float, default=0.55, show_default=True, help="A of the propensity model of PSP@k."
)
@click.option(
    "--propensity-b", type=float, default=1.5, show_default=True, help="B of the propensity model of PSP@k."
)
@click.option(
    "--per-label",
    type=LocalPath(path_type=Path),
    default=None,
    help="File to write, tab-separated: counts, precision, recall and F1 of every label.",
)
@click.option(
    "--truth",
    type=click.Path(),
    default=None,
    help="Truth of a planted corpus (DST.truth of 'distmom synth'); also measures how well its states or topics "
    "were recovered.",
)
@input_options
@cluster_options
@json_option
def evaluate(
    model: str, src: tuple[str, ...], head: str | None, auc_documents: int | None, propensity_a: float, propensity_b: float,
    per_label: Path | None, truth: str | None, cluster: Cluster, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Measure a model on documents: labels against the given ones, topics by perplexity and coherence.

    \b
    Examples: distmom evaluate model test.tsv --labels subjects.txt
              distmom evaluate model test --per-label labels.tsv
    """
    from distmom.evaluate.assigned import checked_table
    from distmom.evaluate.dispatch import evaluate as evaluate_model
    from distmom.evaluate.recovery import score_recovery

    fitted = load_model_that(model, Capability.DOCUMENTS)
    of_labels: dict[str, Any] = {}
    if fitted.can(Capability.LABELS):
        names = [name for name, _ in fitted.scorer_.heads]
        if head is not None and head not in names:
            raise UsageError(f"--head: expected one of {', '.join(names)}, got {head!r}")
        if per_label is not None:
            fitted.require_probabilities("--per-label")
            # Before the source is read, which may take long.
            checked_table(per_label)
        of_labels = {
            "head": head, "auc_documents": auc_documents,
            "propensity_a": propensity_a, "propensity_b": propensity_b, "per_label": per_label,
        }  # fmt: skip
    for option in given_flags(_OF_LABELS):
        require(fitted, Capability.LABELS, option)
    recovery = score_recovery(fitted, load_truth(truth)) if truth is not None else {}
    with (
        PassProgress(quiet=cluster.quiet) as progress,
        open_workers(cluster) as executor,
        open_source(src, fitted, executor, options) as corpus,
    ):
        metrics = evaluate_model(
            fitted, corpus, client=executor, memory_limit=cluster.memory_limit, observer=progress, **of_labels
        )
    if not as_json:
        # Its sums are for the report.
        metrics.pop("reliability", None)
    show({**metrics, **recovery}, as_json)


@click.command()
@click.argument("model", type=click.Path())
@click.argument("out", type=LocalPath(path_type=Path))
@click.option(
    "--metrics",
    type=click.Path(path_type=Path),
    default=None,
    help="Output of 'evaluate --json', to be included.",
)
@click.option(
    "--shares",
    type=click.Path(),
    default=None,
    help="Directory or URL written by 'distmom transform'; documents, correlations and labels of topics are included.",
)
@overwrite_option
def report(model: str, out: Path, metrics: Path | None, shares: str | None, overwrite: bool) -> None:
    """Write a self-contained HTML report of a model.

    \b
    Examples: distmom report model report.html
              distmom report model report.html --shares out
    """
    from distmom.evaluate.dispatch import write_report
    from distmom.models import load_model

    if out.exists() and not overwrite:
        raise UsageError(f"{out}: already exists; {ELSEWHERE}")
    shown = None
    if metrics is not None:
        try:
            shown = json.loads(metrics.read_text())
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{metrics}: not the JSON of 'evaluate --json': {error}") from error
    fitted = load_model(model)
    if shares is not None:
        require(fitted, Capability.SHARES, "--shares")
    if metrics is not None:
        require(fitted, Capability.DOCUMENTS, "--metrics")
    write_report(fitted, out, metrics=shown, shares=shares)
    say(str(out))


#: file of a directory whose content belongs to the demo, also if it was interrupted
_DEMO_MARK = "demo.txt"


@click.command()
@click.option(
    "--out",
    type=LocalPath(path_type=Path),
    default=Path("distmom-demo"),
    show_default=True,
    help="Directory for the corpus, the model and the report.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Number of processes of the local cluster.",
)
@json_option
@quiet_option
def demo(out: Path, workers: int, as_json: bool, quiet: bool) -> None:
    """Run the main commands on the bundled corpus: ingest, fit, evaluate, report.

    \b
    Example: distmom demo
    """
    from distmom.evaluate.dispatch import write_report
    from distmom.evaluate.evaluation import evaluate_corpus
    from distmom.models import MultiLabelMoM

    mark = out / _DEMO_MARK
    if out.exists() and not mark.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not the result of an earlier demo")
    out.mkdir(parents=True, exist_ok=True)
    mark.write_text(
        "The corpora, the model and the report here are replaced when 'distmom demo' is repeated.\n"
    )
    data = resources.files("distmom") / "data"
    with (
        resources.as_file(data / "titles-train.tsv.xz") as train,
        resources.as_file(data / "titles-test.tsv.xz") as test,
        resources.as_file(data / "titles-labels.txt.xz") as labels,
        PassProgress(quiet=quiet) as progress,
        open_workers(Cluster(workers=workers)) as executor,
    ):
        corpus = ingest(
            train, out / "corpus", format="tsv", labels=labels, stop_words="english", overwrite=True,
            shard_documents=5000, map=executor.map, progress=progress.stage,
        )  # fmt: skip
        progress.line(
            f"corpus: {corpus.n_documents:,} titles, {corpus.n_words:,} words, {corpus.n_labels:,} subjects"
        )
        model = MultiLabelMoM(100).fit_corpus(corpus, client=executor, observer=progress)
        model.save(out / "model", overwrite=True)
        held_out = ingest(
            test, out / "test", format="tsv", labels=labels, like=model, overwrite=True,
            shard_documents=5000, map=executor.map,
        )  # fmt: skip
        metrics = evaluate_corpus(model, held_out, client=executor, observer=progress)
    write_report(model, out / "report.html", metrics=metrics)
    result = {
        **_main_metrics(metrics),
        "fit_seconds": round(model.fit_seconds_, 2),
        "report": str(out / "report.html"),
    }
    if not as_json:
        for topic in model.topics(6)[:5]:
            say("topic " + topic_line(topic))
    show(result, as_json)


def _main_metrics(metrics: dict[str, float]) -> dict[str, float]:
    names = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "AUC", "n_documents")
    return {name: metrics[name] for name in names if name in metrics}
