"""Shared parts of commands: places to run tasks, sources, and output of results."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from distmom.cli.options import INPUT_NAMES, Cluster
from distmom.cli.parameters import can
from distmom.cli.terminal import say
from distmom.corpus import AnyCorpus, Corpus, LayeredCorpus, ViewCorpus, ingest, open_corpus, open_words
from distmom.corpus.files.storage import is_url
from distmom.corpus.sources.formats import check_documents, detect_format, refuse_parts
from distmom.engine import Executor, cpu_count, is_small, open_executor
from distmom.errors import UsageError
from distmom.spectral.capabilities import Capability, require


@contextmanager
def open_workers(cluster: Cluster, corpus: Any = None) -> Iterator[Executor]:
    """Open a place to run tasks, by default one local process per core, or threads here for a small corpus."""
    workers, threads = cluster.workers, 1
    if workers is None and cluster.scheduler is None:
        n_cores = cpu_count()
        # Processes would take longer to start than they save.
        here = corpus is not None and cluster.memory_limit is None and is_small(corpus)
        workers, threads = (0, n_cores) if here else (n_cores, 1)
    with open_executor(
        scheduler=cluster.scheduler, workers=workers or 0, threads=threads, memory_limit=cluster.memory_limit
    ) as executor:
        yield executor


#: command that makes use of a capability
_COMMANDS = {
    Capability.LABELS: "predict",
    Capability.SHARES: "transform",
    Capability.FACTORS: "transform",
    Capability.COMPONENTS: "transform",
    Capability.SEARCH: "find",
}


def load_model_that(path: str | os.PathLike[str], capability: Capability) -> Any:
    """Read a model; a UsageError that names the command for such models if it lacks a capability."""
    from distmom.models import load_model

    model = load_model(path)
    require_in(model, capability, path)
    return model


def require_in(model: Any, capability: Capability, path: str | os.PathLike[str]) -> None:
    """Refuse a model that lacks a capability, with a UsageError that names the command for such models."""
    command = next((command for able, command in _COMMANDS.items() if model.can(able)), None)
    require(model, capability, path, f"use 'distmom {command}' with such models" if command else "")


def show(result: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON, or one entry per line."""
    if as_json:
        click.echo(json_text(result))
        return
    width = max((len(key) for key in result), default=0)
    for key, value in result.items():
        say(f"{key:<{width}}  {_shown(value, key)}")


def json_text(value: Any) -> str:
    """Return a value as JSON, which has no numbers that are not finite: they become null."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: Any, key: str = "") -> str:
    """Return a value as a person reads it."""
    if isinstance(value, float):
        if key.endswith("_seconds"):
            return f"{value:.1f}"
        return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(entry)}" for name, entry in value.items()) or "none"
    if isinstance(value, list | tuple):
        return (
            ", ".join(f"[{_shown(x)}]" if isinstance(x, list | tuple) else _shown(x) for x in value) or "none"
        )
    if value is None:
        return "none" if key and not key.startswith("param ") else "default"
    return str(value)


def given_flags(names: Container[str]) -> list[str]:
    """Return the options of the current command that were given, among those of the parameters with these names."""
    context = click.get_current_context()
    return [
        param.opts[-1]
        for param in context.command.params
        if param.name in names
        and context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]


def refuse_given(names: Container[str], why: str) -> None:
    """Refuse options of the current command, by the names of their parameters, if they were given; UsageError."""
    for option in given_flags(names):
        raise UsageError(f"{option}: {why}")


def only_source(src: Sequence[str], reason: str) -> str:
    """Return the single source of a command; a UsageError, which gives the reason, if there are several."""
    if len(src) > 1:
        raise UsageError(f"{src[1]}: expected one source, got {len(src)}, as {reason}")
    return src[0]


def check_source(src: Sequence[str], format_: str | None, zero_based: bool | None) -> None:
    """Refuse files that cannot be read with the given options, before a cluster is opened."""
    for path in src:
        check_documents(path)
    if (format_ or detect_format(src[0])) == "svmlight" and zero_based is None:
        raise UsageError(
            f"{src[0]}: svmlight files number words from 0 or from 1; give --zero-based or --one-based"
        )


def open_views(path: str, groups: str | None) -> ViewCorpus:
    """Open a file of views and the file of their groups.

    Raises
    ------
    UsageError
        If a file is missing.
    InputError
        If a file is not valid; the message has its path.
    """
    if groups is None:
        raise UsageError(f"{path}: views need --groups, a file with the group of every row")
    for place in (path, groups):
        if not Path(place).is_file():
            raise UsageError(
                f"{place}: expected an .npy or .npz file, got "
                f"{'something else' if Path(place).exists() else 'none'}"
            )
    return ViewCorpus(path, groups)


def open_input(path: str, model: str, groups: str | None) -> Corpus | LayeredCorpus | ViewCorpus:
    """Open the input of a model, which is a corpus or a file of views, depending on the name of the model."""
    if groups is not None or (can(model, Capability.VIEWS) and Path(path).is_file()):
        return open_views(path, groups)
    return open_corpus(path)


@contextmanager
def open_source(
    src: Sequence[str], like: Any, executor: Executor, options: dict[str, Any]
) -> Iterator[Corpus]:
    """Open a corpus, or read files into a temporary one, with the vocabulary of a fitted model or a corpus."""
    if len(src) == 1 and (is_url(src[0]) or Path(src[0]).is_dir()):
        refuse_parts(src[0])
        corpus = open_words(src[0])
        refuse_given(INPUT_NAMES, f"is for files, and {src[0]} is a corpus")
        yield corpus
        return
    check_source(src, options["format_"], options["zero_based"])
    with tempfile.TemporaryDirectory(prefix="distmom-") as temporary:
        yield ingest(
            src, Path(temporary) / "corpus", format=options["format_"], labels=options["labels"],
            vocabulary=options["vocab"], label_source=options["label_source"], zero_based=options["zero_based"],
            text_field=options["text_field"], labels_field=options["labels_field"],
            label_separator=options["label_separator"], id_column=options["id_column"], strict=options["strict"],
            like=like, map=executor.map,
        )  # fmt: skip


def unit_name(corpus: AnyCorpus) -> str:
    """Return the name of the units of a corpus, in the plural."""
    if isinstance(corpus, ViewCorpus):
        return "groups"
    if isinstance(corpus, LayeredCorpus):
        return "rows" if corpus.n_rows == corpus.n_documents else "units"
    return "documents"


def describe_corpus(corpus: Corpus | LayeredCorpus) -> dict[str, Any]:
    """Return the main numbers of a corpus."""
    if isinstance(corpus, LayeredCorpus):
        return {
            "n_units": corpus.n_documents,
            "n_rows": corpus.n_rows,
            "largest_unit": corpus.largest,
            "layers": [
                f"{layer.name}: {layer.kind} {layer.dtype} along {layer.along}, {layer.width} "
                f"{'symbols' if layer.kind == 'symbols' else 'columns'}"
                for layer in corpus.layers
            ],
            "has_ids": corpus.has_ids,
            "n_shards": len(corpus.shards),
            "n_cut_units": len({shard.first for shard in corpus.shards if shard.continued}),
            "digest": corpus.digest,
            "warnings": dict(corpus.warnings),
        }
    return {
        "n_documents": corpus.n_documents,
        "n_words": corpus.n_words,
        "n_labels": corpus.n_labels,
        "has_ids": corpus.has_ids,
        "n_shards": len(corpus.shards),
        "nnz_words": sum(s.nnz_words for s in corpus.shards),
        "nnz_labels": sum(s.nnz_labels for s in corpus.shards),
        "digest": corpus.digest,
        "warnings": dict(corpus.warnings),
    }


def topic_line(topic: dict[str, Any]) -> str:
    """Return a state or topic as one line."""
    words = " ".join(word for word, _ in topic["words"])
    labels = ", ".join(name for name, _ in topic["labels"])
    error = f" ±{topic['weight_error']:.4f}" if topic.get("weight_error") is not None else ""
    line = f"{topic['state']:>3}  {topic['weight']:.4f}{error}  {words}"
    return f"{line}  [{labels}]" if topic["labels"] else line
