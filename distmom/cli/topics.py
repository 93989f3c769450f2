"""Commands of topics: transform, topics, search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from scipy.sparse import vstack

from distmom.cli.moments import are_moments
from distmom.cli.options import (
    INPUT_NAMES,
    Cluster,
    cluster_options,
    input_options,
    json_option,
    output_format_option,
    overwrite_option,
)
from distmom.cli.parameters import flag, given, parameter_options, table
from distmom.cli.progress import PassProgress
from distmom.cli.shared import (
    json_text,
    only_source,
    open_source,
    open_views,
    open_workers,
    refuse_given,
    require_in,
    show,
    topic_line,
    unit_name,
)
from distmom.cli.terminal import say
from distmom.corpus import open_corpus, open_words
from distmom.errors import NumericalError, UsageError
from distmom.spectral.capabilities import Capability, require

if TYPE_CHECKING:
    from distmom.engine import Executor
    from distmom.models.topics.search import FoundTopic, TopicSearch


@click.command()
@click.argument("model", type=click.Path())
@click.argument("src", type=click.Path(), nargs=-1, required=True)
@click.argument("out", type=click.Path())
@click.option(
    "--method",
    type=click.Choice(["vb", "fast"]),
    default=None,
    help="Infer shares by variational Bayes (vb), or by least squares in one sparse product (fast). [default: vb]",
)
@click.option(
    "--groups",
    type=click.Path(),
    default=None,
    help="File with the group of every row, for factors of views.",
)
@output_format_option
@input_options
@overwrite_option
@cluster_options
@json_option
def transform(
    model: str, src: tuple[str, ...], out: str, method: str | None, groups: str | None, output_format: str,
    overwrite: bool, cluster: Cluster, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Write shares of topics or components of documents, factors of groups of views, or components of rows.

    \b
    Examples: distmom transform model corpus out
              distmom transform model views.npy out --groups groups.npy
              distmom transform mixture corpus out
    """
    from distmom.models import load_model
    from distmom.predict import assign_rows, transform_corpus, transform_views
    from distmom.predict.output import check_place

    fitted = load_model(model)
    if fitted.can(Capability.FACTORS):
        refuse_given(["method", "output_format", *options], f"not an option with {model}, which reads views")
        source = only_source(src, "views are read from one file")
        are_views = Path(source).is_file() or groups is not None
        views = open_views(source, groups) if are_views else open_corpus(source)
        with (
            PassProgress(quiet=cluster.quiet, unit=unit_name(views)) as progress,
            open_workers(cluster) as executor,
        ):
            result = transform_views(
                fitted, views, out, client=executor, memory_limit=cluster.memory_limit, observer=progress,
                overwrite=overwrite,
            )  # fmt: skip
        show(result, as_json)
        return
    has_components = fitted.can(Capability.COMPONENTS)
    if has_components and not fitted.can(Capability.DOCUMENTS):
        refuse_given(
            ["method", "groups", "output_format", *options],
            f"not an option with {model}, which reads a corpus of rows",
        )
        rows = open_corpus(only_source(src, "rows are read from one corpus"))
        with (
            PassProgress(quiet=cluster.quiet, unit=unit_name(rows)) as progress,
            open_workers(cluster) as executor,
        ):
            result = assign_rows(
                fitted, rows, out, client=executor, memory_limit=cluster.memory_limit, observer=progress,
                overwrite=overwrite,
            )  # fmt: skip
        show(result, as_json)
        return
    write: Callable[..., dict[str, Any]] = assign_rows
    if has_components:
        refuse_given(["method", "output_format"], f"not an option with {model}, which gives components")
    else:
        require_in(fitted, Capability.SHARES, model)
        write = partial(transform_corpus, method=method or "vb", output_format=output_format)
    if groups is not None:
        require(fitted, Capability.FACTORS, "--groups")
    # Before the source is read, which may take long.
    check_place(out, "components" if has_components else "shares", overwrite=overwrite)
    with (
        PassProgress(quiet=cluster.quiet) as progress,
        open_workers(cluster) as executor,
        open_source(src, fitted, executor, options) as corpus,
    ):
        result = write(
            fitted, corpus, out, client=executor, memory_limit=cluster.memory_limit, observer=progress,
            overwrite=overwrite,
        )  # fmt: skip
    show(result, as_json)


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of words and labels per topic.",
)
@click.option(
    "--by",
    type=click.Choice(["probability", "relevance", "lift"]),
    default=None,
    help="How words and labels of topics are ranked. [default: relevance]",
)
@click.option(
    "--states", is_flag=True, help="Print the latent states of a multi-label model in place of its topics."
)
@json_option
def topics(model: str, top: int, by: str | None, states: bool, as_json: bool) -> None:
    """Print the words of each topic and, for a multi-label model, its labels, or those of each latent state.

    \b
    Examples: distmom topics model --top 10
              distmom topics model --states
    """
    from distmom.models import load_model

    fitted = load_model(model)
    hint = "'distmom report' shows its components" if fitted.can(Capability.FACTORS) else ""
    require(fitted, Capability.TOPICS, model, fitted.diagnostics_.get("states_error", hint))
    ways: dict[str, Any] = {} if by is None else {"by": by}
    if states:
        require(fitted, Capability.LABELS, "--states")
        ways["states"] = True
    if by is not None and (states or getattr(fitted, "corpus_topics_", None) is None):
        require(fitted, Capability.SHARES, "--by")
    found = fitted.topics(top, **ways)
    if as_json:
        click.echo(json_text({"topics": found}))
        return
    for topic in found:
        say(topic_line(topic))


@click.command()
@click.argument("src", metavar="CORPUS", type=click.Path())
@click.option(
    "--word",
    "words",
    multiple=True,
    help="A word that is more frequent in the topic than in others; repeatable.",
)
@click.option(
    "--documents",
    type=click.Path(),
    default=None,
    help="Corpus or file of documents about the topic, in place of words.",
)
@click.option(
    "--targets",
    type=click.Path(),
    default=None,
    help="Text file with the words of one topic per line, in place of words; a topic is found for every line.",
)
@parameter_options("search")
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="Number of words to show."
)
@click.option(
    "--force", is_flag=True, help="Show a topic even if the words do not distinguish it from others."
)
@input_options
@cluster_options
@json_option
def search(
    src: str, words: tuple[str, ...], documents: str | None, targets: str | None, top: int,
    force: bool, cluster: Cluster, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Find one topic of a corpus from words or documents about it, without estimating the others.

    CORPUS may also be moments kept by 'distmom moments', for which no further pass is made.

    \b
    Examples: distmom search corpus --word ball --word coach -k 50
              distmom search moments --documents about.tsv
              distmom search moments --targets words.txt --force
    """
    from distmom.models import TopicMoments, TopicSearch

    if sum((bool(words), documents is not None, targets is not None)) != 1:
        raise UsageError("give --word, once or more, or --documents, or --targets")
    if documents is None:
        refuse_given(INPUT_NAMES, "is for the file of --documents")
    lines = [] if targets is None else _read_targets(targets)
    chosen = given("search", options)
    columns: Any
    if are_moments(src):
        for name, value in (
            ("--workers", cluster.workers),
            ("--scheduler", cluster.scheduler),
            ("--memory-limit", cluster.memory_limit),
        ):
            if value:
                raise UsageError(
                    f"{name}: expected none with kept moments, which are searched in this process"
                )
    with (
        PassProgress(quiet=cluster.quiet) as progress,
        open_workers(replace(cluster, workers=0) if are_moments(src) else cluster) as executor,
    ):
        if are_moments(src):
            settled = table()["moments"]["parameters"].keys() - {"n_components"}
            for name in [name for name in chosen if name in settled]:
                raise UsageError(f"{flag(name)}: expected none, as the moments in {src} fix it")
            kept = TopicMoments.load(src)
            model = TopicSearch(**{"n_components": kept.n_components, **chosen}).fit_moments(kept)
            columns = SimpleNamespace(vocabulary=kept.vocabulary_, label_names=[], settings=kept.settings_)
        else:
            columns = open_words(src)
        # Before any pass over the corpus.
        known = frozenset(columns.vocabulary)
        for place, some in (("", words), *((f"{targets}:{number}: ", line) for number, line in lines)):
            if unknown := [word for word in some if word not in known]:
                raise UsageError(f"{place}search: {unknown[0]!r} is not in the vocabulary")
        about = None if documents is None else _rows_about(documents, columns, executor, options)
        if not are_moments(src):
            model = TopicSearch(**chosen)
            model.fit_corpus(columns, client=executor, memory_limit=cluster.memory_limit, observer=progress)
        if targets is not None:
            found = [_search_line(model, targets, number, line, force) for number, line in lines]
        elif about is None:
            found = [model.search(words, force=force)]
        else:
            found = [model.search(documents=about, force=force)]
    answers = [_shown(model, each, top) for each in found]
    if targets is not None:
        answers = [{"target": line, **each} for (_, line), each in zip(lines, answers, strict=True)]
    if as_json:
        click.echo(json_text({"topics": answers} if targets is not None else answers[0]))
        return
    for each in answers:
        listed = each.pop("words")
        show(each, as_json)
        for word, probability in listed:
            say(f"{probability:.4f}  {word}")


def _rows_about(documents: str, columns: Any, executor: Executor, options: dict[str, Any]) -> Any:
    """Return the documents of a corpus or file as rows of words, (n, n_words) sparse."""
    from distmom.predict import align

    with open_source((documents,), columns, executor, options) as about:
        aligned = align(about, list(columns.vocabulary), list(columns.label_names))
        if not aligned.shards:
            raise UsageError(f"{documents}: has no documents")
        return vstack([aligned.read_shard(i).words for i in range(len(aligned.shards))])


def _shown(model: TopicSearch, found: FoundTopic, top: int) -> dict[str, Any]:
    """Return the numbers and words by which a topic is printed."""
    order = np.argsort(-found.topic, kind="stable")[:top]
    return {
        "share": found.share,
        "gap": found.gap,
        "noise": found.noise,
        "n_documents_needed": math.ceil(found.n_documents_needed) if found.gap > 0.0 else None,
        "negative_mass": found.negative_mass,
        "words": [(model.vocabulary_[i], float(found.topic[i])) for i in order if found.topic[i] > 0.0],
    }


def _read_targets(path: str) -> list[tuple[int, list[str]]]:
    """Return the words of every line that is not blank, with its number from 1."""
    try:
        # A byte order mark is left out.
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from error
    lines = [(i, line.split()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path}: expected words of a topic on every line, got no words")
    return lines


def _search_line(model: TopicSearch, path: str, number: int, words: list[str], force: bool) -> FoundTopic:
    try:
        return model.search(words, force=force)
    except (UsageError, NumericalError) as error:
        raise type(error)(f"{path}:{number}: {error}") from error
