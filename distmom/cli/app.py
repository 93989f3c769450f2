"""The command line: parse, call the library, print. Results go to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import resources
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

import distmom
from distmom.cli import run as runs
from distmom.cli.options import (
    DataFlowGroup,
    LocalPath,
    cluster_options,
    input_options,
    json_option,
    memory_option,
    model_options,
    overwrite_option,
    parameters,
    quiet_option,
)
from distmom.cli.progress import PassProgress
from distmom.corpus import Corpus, copy_corpus, ingest, open_corpus
from distmom.corpus.ingest import detect_format
from distmom.corpus.storage import is_url
from distmom.engine import Executor, open_executor
from distmom.errors import ClusterError, InputError, StoreError, UsageError
from distmom.models.artifact import check_target, load_record
from distmom.simulate import PRESETS, load_truth, preset, synthesise

# The estimators and what needs them are imported by the commands that do: it takes longer than all the rest.
if TYPE_CHECKING:
    from distmom.models import MultiLabelMoM


@click.group(
    cls=DataFlowGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(distmom.__version__, prog_name="distmom")
def cli() -> None:
    """Latent structure and labels of large text corpora, by the method of moments.

    \b
    A first run:   distmom demo
    Own data:      distmom ingest titles.tsv corpus
                   distmom fit corpus model -k 100
                   distmom predict model new.tsv out --top 5
    """


@contextmanager
def _executor(workers: int | None, memory_limit: int | None, scheduler: str | None) -> Iterator[Executor]:
    if workers is None:
        workers = 0 if scheduler is not None else len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        with _children_without_interrupt():
            opened = open_executor(scheduler=scheduler, workers=workers, memory_limit=memory_limit)
            executor = stack.enter_context(opened)
        yield executor


@contextmanager
def _children_without_interrupt() -> Iterator[None]:
    """Hold SIGINT back while processes are started, so that they never receive it.

    Ctrl-C in a terminal reaches every process of the group, and each worker would print a traceback. Threads
    and processes inherit the mask; one that arrives meanwhile is delivered here at the end.
    """
    # Started by itself later, it would lift the mask.
    resource_tracker.ensure_running()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result, allow_nan=True))
        return
    width = max((len(key) for key in result), default=0)
    for key, value in result.items():
        click.echo(f"{key:<{width}}  {_shown(value, key)}")


def _shown(value: Any, key: str = "") -> str:
    """Return a value as a person reads it."""
    if isinstance(value, float):
        if key.endswith("_seconds"):
            return f"{value:.1f}"
        return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(entry)}" for name, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "default" if value is None else str(value)


@cli.command()
@click.option(
    "--out",
    type=LocalPath(path_type=Path),
    default=Path("distmom-demo"),
    show_default=True,
    help="Directory of corpus, model and report.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Processes of the local cluster.",
)
@json_option
@quiet_option
def demo(out: Path, workers: int, as_json: bool, quiet: bool) -> None:
    """Run the main job on the bundled corpus: ingest, fit, evaluate, report.

    \b
    Example: distmom demo
    """
    from distmom.evaluate.evaluation import evaluate_corpus
    from distmom.evaluate.report import write_report
    from distmom.models import MultiLabelMoM

    if out.exists() and not (out / "report.html").exists() and any(out.iterdir()):
        raise UsageError(f"{out}: exists and is not the result of an earlier demo")
    data = resources.files("distmom") / "data"
    with (
        resources.as_file(data / "titles-train.tsv.xz") as train,
        resources.as_file(data / "titles-test.tsv.xz") as test,
        resources.as_file(data / "titles-labels.txt.xz") as labels,
        PassProgress(quiet=quiet) as progress,
        _executor(workers, None, None) as executor,
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
            test, out / "test", format="tsv", labels=labels, like=_like(model), overwrite=True,
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
            click.echo("state " + _topic_line(topic))
    _print(result, as_json)


@cli.command("ingest")
@click.argument("src", type=click.Path())
@click.argument("dst", type=LocalPath())
@input_options
@click.option(
    "--min-df",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Fewest documents of a word.",
)
@click.option(
    "--max-df",
    default="1.0",
    show_default=True,
    help="Most documents of a word: a number, or a share such as 0.5.",
)
@click.option("--stop-words", default=None, help="'english', or a file of words that are left out.")
@click.option(
    "--ngrams",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="Longest run of words that is a feature.",
)
@click.option(
    "--shard-docs", type=click.IntRange(min=1), default=20000, show_default=True, help="Documents a shard."
)
@click.option("--like", type=click.Path(), help="Model whose vocabulary and label names are used.")
@overwrite_option
@cluster_options
@json_option
def ingest_command(
    src: str, dst: str, format_: str | None, labels: str | None, vocab: str | None, label_source: str | None,
    zero_based: bool | None, text_field: str, labels_field: str, strict: bool, min_df: int, max_df: str,
    stop_words: str | None, ngrams: int, shard_docs: int, like: str | None, overwrite: bool, workers: int | None,
    memory_limit: int | None, scheduler: str | None, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Read a corpus from text or sparse rows into Zarr shards.

    Interrupted, the same command goes on where it stopped.

    \b
    Examples: distmom ingest titles.tsv.xz corpus --labels subjects.txt
              distmom ingest train.txt corpus --format xmc
    """
    _check_source(src, format_, zero_based)
    with PassProgress(quiet=quiet) as progress, _executor(workers, memory_limit, scheduler) as executor:
        corpus = ingest(
            src, dst, format=format_, labels=labels, vocabulary=vocab, label_source=label_source,
            zero_based=zero_based, text_field=text_field, labels_field=labels_field, strict=strict,
            min_df=min_df, max_df=_count_or_share(max_df, "--max-df"),
            stop_words=stop_words, ngram_max=ngrams, shard_documents=shard_docs, overwrite=overwrite,
            like=_like_model(like), map=executor.map, progress=progress.stage,
        )  # fmt: skip
    _print(_describe_corpus(corpus), as_json)


@cli.command()
@click.argument("preset_name", metavar="PRESET", type=click.Choice(list(PRESETS)))
@click.argument("dst", type=click.Path())
@click.option("--docs", type=click.IntRange(min=1), default=None, help="Documents. [default: the preset's]")
@click.option("--words", type=click.IntRange(min=2), default=None, help="Words. [default: the preset's]")
@click.option("--states", type=click.IntRange(1, 65536), default=None, help="States. [default: the preset's]")
@click.option(
    "--first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the first document; for test documents, the number of training documents.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything.")
@click.option(
    "--shard-docs", type=click.IntRange(min=1), default=20000, show_default=True, help="Documents a shard."
)
@overwrite_option
@cluster_options
@json_option
def synth(
    preset_name: str, dst: str, docs: int | None, words: int | None, states: int | None, first: int, seed: int,
    shard_docs: int, overwrite: bool, workers: int | None, memory_limit: int | None, scheduler: str | None,
    quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Draw a planted corpus of the size of a known one, with its truth in DST.truth.

    The same documents come out whatever the number of workers and the size of shards.

    
    Examples: distmom synth wikilshtc train --docs 200000
              distmom synth wikilshtc test --first 200000 --docs 10000
              distmom fit train model --head posterior
              distmom evaluate model test --truth test.truth
    """
    model = preset(preset_name, n_documents=docs, n_words=words, n_states=states, seed=seed)
    with PassProgress(quiet=quiet) as progress, _executor(workers, memory_limit, scheduler) as executor:
        corpus = synthesise(
            model, dst, first=first, shard_documents=shard_docs, overwrite=overwrite, map=executor.map,
            progress=progress.stage,
        )  # fmt: skip
    _print(_describe_corpus(corpus), as_json)


def _check_source(src: str, format_: str | None, zero_based: bool | None) -> None:
    """Refuse, before a cluster is opened, a file that cannot be read as it is."""
    if not Path(src).is_file():
        raise UsageError(f"{src}: {'is not a file' if Path(src).exists() else 'there is no such file'}")
    if (format_ or detect_format(src)) == "svmlight" and zero_based is None:
        raise UsageError(
            f"{src}: svmlight files number words from 0 or from 1; give --zero-based or --one-based"
        )


def _count_or_share(text: str, flag: str) -> int | float:
    try:
        return int(text) if re.fullmatch(r"\d+", text) else float(text)
    except ValueError:
        raise UsageError(f"{flag}: expected a number of documents or a share, got {text!r}") from None


def _like_model(path: str | None) -> SimpleNamespace | None:
    """Return the columns of a model that is stored at a path, if one is given."""
    if path is None:
        return None
    from distmom.models import MultiLabelMoM

    return _like(MultiLabelMoM.load(path))


def _like(model: MultiLabelMoM) -> SimpleNamespace:
    return SimpleNamespace(
        vocabulary=model.vocabulary_, label_names=model.label_names_, settings=model.settings_
    )


def _describe_corpus(corpus: Corpus) -> dict[str, Any]:
    return {
        "n_documents": corpus.n_documents,
        "n_words": corpus.n_words,
        "n_labels": corpus.n_labels,
        "n_shards": len(corpus.shards),
        "nnz_words": sum(s.nnz_words for s in corpus.shards),
        "nnz_labels": sum(s.nnz_labels for s in corpus.shards),
        "digest": corpus.digest,
        "warnings": dict(corpus.warnings),
    }


def _kind(path: str) -> str:
    """Tell whether a place is a model, a run, or otherwise a corpus."""
    if is_url(path):
        return "corpus"
    if not Path(path).exists():
        raise UsageError(f"{path}: there is no such directory")
    return next((kind for kind in ("model", "run") if (Path(path) / f"{kind}.json").exists()), "corpus")


@cli.command()
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@overwrite_option
@quiet_option
@json_option
def copy(src: str, dst: str, overwrite: bool, quiet: bool, as_json: bool) -> None:
    """Copy a corpus to or from an object store; SRC and DST are each a path or a URL.

    Keys and endpoint of a store come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
    AWS_ENDPOINT_URL). Interrupted, the same command goes on where it stopped.

    \b
    Examples: distmom copy corpus s3://bucket/corpus
              distmom copy s3://bucket/corpus corpus
    """
    with PassProgress(quiet=quiet) as progress:
        corpus = copy_corpus(src, dst, overwrite=overwrite, progress=progress.stage)
    _print(_describe_corpus(corpus), as_json)


@cli.command()
@click.argument("path", type=click.Path())
@json_option
def info(path: str, as_json: bool) -> None:
    """Say what a corpus, run or model is.

    \b
    Example: distmom info corpus
    """
    kind = _kind(path)
    if kind == "model":
        from distmom.models import MultiLabelMoM

        place = Path(path)
        record = load_record(place)
        model = MultiLabelMoM.load(place)
        result = {
            "kind": "model",
            **{f"param {k}": v for k, v in record["parameters"].items()},
            "n_words": model.n_features_in_,
            "n_labels": len(model.label_names_),
            "n_documents": model.n_documents_,
            "heads": [name for name, _ in model.scorer_.heads],
            "fit_seconds": round(model.fit_seconds_, 2),
            "bytes": sum(f.stat().st_size for f in place.rglob("*") if f.is_file()),
        }
    elif kind == "run":
        result = {"kind": "run", **runs.describe(path)}
    else:
        result = {"kind": "corpus", **_describe_corpus(open_corpus(path))}
    _print(result, as_json)


@cli.command()
@click.argument("path", type=click.Path())
@json_option
def verify(path: str, as_json: bool) -> None:
    """Read every byte of a corpus, run or model and check it. Exit code 4 when something is wrong.

    \b
    Example: distmom verify corpus
    """
    kind = _kind(path)
    problems: list[str] = []
    try:
        if kind == "model":
            from distmom.models import MultiLabelMoM

            MultiLabelMoM.load(path)
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


@cli.command()
@click.argument("corpus", type=click.Path())
@model_options
@memory_option
@json_option
def plan(corpus: str, memory_limit: int | None, as_json: bool, **options: Any) -> None:
    """Tell passes, tasks and memory of a fit before anything runs.

    \b
    Example: distmom plan corpus -k 100 --memory-limit 2GiB
    """
    from distmom.models import MultiLabelMoM
    from distmom.models.planning import plan_fit, plan_to_json

    planned = plan_fit(MultiLabelMoM(**parameters(options)), open_corpus(corpus), memory_limit)
    result = plan_to_json(planned)
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(f"{'pass':<10} {'scans':>5} {'tasks':>6} {'slabs':>5} {'worker MiB':>10} {'sums MiB':>9}")
    for p in planned:
        click.echo(
            f"{p.name:<10} {p.n_scans:>5} {p.n_tasks:>6} {p.n_slabs:>5} {p.task_bytes / 2**20:>10.0f} "
            f"{p.sums_bytes / 2**20:>9.1f}"
        )
    whole = "added up whole" if result["third_moment"] == "full" else "by slices, in a pass of its own"
    click.echo(f"third moment: {whole} (--third-moment {result['third_moment']})")
    click.echo(
        f"in all: {result['n_scans']} scans, {result['n_tasks']} tasks, {result['worker_bytes'] / 2**20:.0f} MiB "
        f"a worker at most, {result['disk_bytes'] / 2**20:.0f} MiB of disk"
    )


@cli.group()
def bench() -> None:
    """Measure what a fit costs at least.

    \b
    Example: distmom bench floor corpus -k 100
    """


@bench.command()
@click.argument("corpus", type=click.Path())
@click.option(
    "-k", "--n-components", type=click.IntRange(min=1), default=100, show_default=True, help="Latent states."
)
@click.option(
    "--n-oversamples", type=click.IntRange(min=0), default=10, show_default=True, help="Further columns."
)
@click.option(
    "--n-power-iter", type=click.IntRange(min=0), default=1, show_default=True, help="Power passes."
)
@cluster_options
@json_option
def floor(
    corpus: str, n_components: int, n_oversamples: int, n_power_iter: int, workers: int | None,
    memory_limit: int | None, scheduler: str | None, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Time the bare kernels of 'fit --head posterior' over documents that are in memory already.

    \b
    Example: distmom bench floor corpus -k 100
    """
    from distmom.models.floor import measure_floor

    opened = open_corpus(corpus)
    with _executor(workers, memory_limit, scheduler) as executor:
        seconds = measure_floor(
            opened, n_components, n_oversamples=n_oversamples, n_power_iter=n_power_iter, executor=executor
        )
    _print({name: round(value, 3) for name, value in seconds.items()}, as_json)


@cli.command()
@click.argument("corpus", type=click.Path())
@click.argument("model", type=LocalPath())
@model_options
@click.option(
    "--run",
    "run_path",
    type=LocalPath(),
    default=None,
    help="Directory of the run. [default: MODEL.run, removed at the end]",
)
@overwrite_option
@cluster_options
@json_option
def fit(
    corpus: str, model: str, run_path: str | None, overwrite: bool, workers: int | None, memory_limit: int | None,
    scheduler: str | None, quiet: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Fit a model to a corpus on a Dask cluster, or in this process with --workers 0.

    \b
    Examples: distmom fit corpus model -k 100
              distmom fit corpus model -k 50 --head posterior --scheduler tcp://host:8786
    """
    run = runs.create(corpus, model, run_path, parameters(options), overwrite)
    _run_fit(run, workers, memory_limit, scheduler, quiet, as_json)


@cli.command()
@click.argument("run", type=click.Path())
@cluster_options
@json_option
def resume(
    run: str, workers: int | None, memory_limit: int | None, scheduler: str | None, quiet: bool, as_json: bool
) -> None:
    """Go on with an interrupted fit after its last committed pass.

    \b
    Example: distmom resume model.run
    """
    _run_fit(runs.reopen(run), workers, memory_limit, scheduler, quiet, as_json)


def _run_fit(
    run: runs.Run,
    workers: int | None,
    memory_limit: int | None,
    scheduler: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from distmom.models import MultiLabelMoM
    from distmom.models.planning import plan_fit, plan_to_json

    model = MultiLabelMoM(**run.parameters)
    try:
        with run.lock(), PassProgress(quiet=quiet) as progress:
            corpus = run.open_corpus()
            planned = plan_to_json(plan_fit(model, corpus, memory_limit))
            check_target(run.model, run.overwrite)
            with _executor(workers, memory_limit, scheduler) as executor:
                progress.line(
                    f"fitting {executor.description}: {planned['n_scans']} scans, {planned['n_tasks']} tasks, "
                    f"at most {planned['worker_bytes'] / 2**20:,.0f} MiB a worker"
                )
                model.fit_corpus(
                    corpus, client=executor, run=run.path, memory_limit=memory_limit, observer=progress
                )
                model.save(run.model, overwrite=run.overwrite)
    except (KeyboardInterrupt, ClusterError, StoreError, OSError) as error:
        where = [f"--workers {workers}"] if workers is not None else []
        where += [f"--scheduler {scheduler}"] if scheduler is not None else []
        error.add_note(" ".join(["distmom resume", shlex.quote(str(run.path)), *where]))
        raise
    except (UsageError, InputError):
        # The same would happen again: there is nothing to resume.
        if run.temporary or not run.has_passes():
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    if run.temporary:
        shutil.rmtree(run.path)
    result: dict[str, Any] = {"model": str(run.model), "fit_seconds": round(model.fit_seconds_, 2)}
    shown = (
        "n_states",
        "third_moment",
        "residual",
        "sum_pi",
        "off_diagonal_share",
        "mean_log_likelihood",
        "n_usable_eigenvalues",
    )
    result.update({name: model.diagnostics_[name] for name in shown if name in model.diagnostics_})
    if "clipped_words" in model.diagnostics_:
        clipped = model.diagnostics_["clipped_words"]
        result["clipped_words"] = sum(clipped) / max(1, len(clipped))
    bounds = dict(model.diagnostics_.get("bounds", {}))
    if bounds:
        chance = 1 - bounds.pop("delta")
        result[f"theorem_1_bounds_{chance:.0%}"] = {
            name: value if as_json or value <= 1 else f"{value:.1e} (says nothing: above 1)"
            for name, value in bounds.items()
        }
    if model.selection_ is not None:
        result["chosen"] = {name: round(w, 4) for name, w in model.selection_["weights"].items()}
        result["held_out"] = {
            name: {key: round(x, 4) for key, x in scores.items()}
            for name, scores in model.selection_["held_out"].items()
        }
    if as_json:
        _print(result, as_json)
        return
    held_out = result.pop("held_out", {})
    _print(result, as_json)
    for name, scores in held_out.items():
        click.echo(f"held out  {name:<18} " + "  ".join(f"{key} {x:.4f}" for key, x in scores.items()))


@contextmanager
def _source(src: str, model: MultiLabelMoM, executor: Executor, options: dict[str, Any]) -> Iterator[Corpus]:
    """Open a corpus, or read a file with the model's vocabulary into a temporary one."""
    if is_url(src) or Path(src).is_dir():
        yield open_corpus(src)
        return
    _check_source(src, options["format_"], options["zero_based"])
    with tempfile.TemporaryDirectory(prefix="distmom-") as temporary:
        yield ingest(
            src, Path(temporary) / "corpus", format=options["format_"], labels=options["labels"],
            vocabulary=options["vocab"], label_source=options["label_source"], zero_based=options["zero_based"],
            text_field=options["text_field"], labels_field=options["labels_field"], strict=options["strict"],
            like=_like(model), map=executor.map,
        )  # fmt: skip


@cli.command()
@click.argument("model", type=click.Path())
@click.argument("src", type=click.Path())
@click.argument("out", type=LocalPath())
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Labels a document.")
@input_options
@overwrite_option
@cluster_options
@json_option
def predict(
    model: str, src: str, out: str, top: int, overwrite: bool, workers: int | None, memory_limit: int | None,
    scheduler: str | None, quiet: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Rank labels for the documents of a corpus or file.

    \b
    Example: distmom predict model new-titles.tsv out --top 5
    """
    from distmom.models import MultiLabelMoM
    from distmom.predict import predict_corpus

    fitted = MultiLabelMoM.load(model)
    with (
        PassProgress(quiet=quiet) as progress,
        _executor(workers, memory_limit, scheduler) as executor,
        _source(src, fitted, executor, options) as corpus,
    ):
        result = predict_corpus(
            fitted, corpus, out, top=top, client=executor, memory_limit=memory_limit, observer=progress,
            overwrite=overwrite,
        )  # fmt: skip
    _print(result, as_json)


@cli.command()
@click.argument("model", type=click.Path())
@click.argument("src", type=click.Path())
@click.option("--head", default=None, help="One of the model's heads, scored alone.")
@click.option(
    "--auc-documents",
    type=click.IntRange(min=1),
    default=None,
    help="Measure AUC on about this many documents. [default: all]",
)
@click.option(
    "--propensity-a", type=float, default=0.55, show_default=True, help="A of the propensity model."
)
@click.option("--propensity-b", type=float, default=1.5, show_default=True, help="B of the propensity model.")
@click.option(
    "--truth",
    type=click.Path(),
    default=None,
    help="Truth of a planted corpus: also score the recovery of its states.",
)
@input_options
@cluster_options
@json_option
def evaluate(
    model: str, src: str, head: str | None, auc_documents: int | None, propensity_a: float, propensity_b: float,
    truth: str | None, workers: int | None, memory_limit: int | None, scheduler: str | None, quiet: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Measure a model on labelled documents.

    \b
    Example: distmom evaluate model test.tsv --labels subjects.txt
    """
    from distmom.evaluate.evaluation import evaluate_corpus
    from distmom.evaluate.recovery import score_recovery
    from distmom.models import MultiLabelMoM

    fitted = MultiLabelMoM.load(model)
    names = [name for name, _ in fitted.scorer_.heads]
    if head is not None and head not in names:
        raise UsageError(f"--head: expected one of {', '.join(names)}, got {head!r}")
    recovery = score_recovery(fitted, load_truth(truth)) if truth is not None else {}
    with (
        PassProgress(quiet=quiet) as progress,
        _executor(workers, memory_limit, scheduler) as executor,
        _source(src, fitted, executor, options) as corpus,
    ):
        metrics = evaluate_corpus(
            fitted, corpus, head=head, auc_documents=auc_documents, propensity_a=propensity_a,
            propensity_b=propensity_b, client=executor, memory_limit=memory_limit, observer=progress,
        )  # fmt: skip
    _print({**metrics, **recovery}, as_json)


def _main_metrics(metrics: dict[str, float]) -> dict[str, float]:
    names = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "AUC", "n_documents")
    return {name: metrics[name] for name in names if name in metrics}


def _topic_line(topic: dict[str, Any]) -> str:
    words = " ".join(word for word, _ in topic["words"])
    labels = ", ".join(name for name, _ in topic["labels"])
    return f"{topic['state']:>3}  {topic['weight']:.4f}  {words}  [{labels}]"


@cli.command()
@click.argument("model", type=click.Path())
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, help="Words and labels a state."
)
@json_option
def topics(model: str, top: int, as_json: bool) -> None:
    """Print words and labels of each latent state.

    \b
    Example: distmom topics model --top 10
    """
    from distmom.models import MultiLabelMoM

    fitted = MultiLabelMoM.load(model)
    if not hasattr(fitted, "components_"):
        raise UsageError(
            f"{model}: the model has no latent states: {fitted.diagnostics_.get('states_error', '')}"
        )
    found = fitted.topics(top)
    if as_json:
        click.echo(json.dumps({"topics": found}))
        return
    for topic in found:
        click.echo(_topic_line(topic))


@cli.command()
@click.argument("model", type=click.Path())
@click.argument("out", type=LocalPath(path_type=Path))
@click.option(
    "--metrics", type=click.Path(path_type=Path), default=None, help="JSON of 'evaluate --json', to be shown."
)
@overwrite_option
def report(model: str, out: Path, metrics: Path | None, overwrite: bool) -> None:
    """Write a self-contained HTML report of a model.

    \b
    Example: distmom report model report.html
    """
    from distmom.evaluate.report import write_report
    from distmom.models import MultiLabelMoM

    if out.exists() and not overwrite:
        raise UsageError(f"{out}: exists; choose another path, or --overwrite")
    shown = None
    if metrics is not None:
        try:
            shown = json.loads(metrics.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"{metrics}: not the JSON of 'evaluate --json': {error}") from error
    write_report(MultiLabelMoM.load(model), out, metrics=shown)
    click.echo(str(out))
