"""Options that several commands share, and their types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from distmom.corpus import FORMATS
from distmom.corpus.storage import is_url
from distmom.errors import UsageError
from distmom.linalg import METHODS
from distmom.models import ESTIMATORS, estimator
from distmom.models.multilabel.program import HEADS
from distmom.moments.weighting import WEIGHTINGS

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1000, "kib": 1 << 10, "m": 10**6, "mb": 10**6, "mib": 1 << 20,
          "g": 10**9, "gb": 10**9, "gib": 1 << 30, "t": 10**12, "tb": 10**12, "tib": 1 << 40}  # fmt: skip


class Bytes(click.ParamType[int]):
    """A size such as ``2GiB`` or ``500MB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(value))
        if match is None or match[2].lower() not in _UNITS:
            self.fail(f"expected a size such as 2GiB or 500MB, got {value!r}", param, ctx)
        return int(float(match[1]) * _UNITS[match[2].lower()])


class NumberOrAuto(click.ParamType[Any]):
    """A number of some type, or ``auto``."""

    name = "number|auto"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return "auto"
        try:
            return self.kind(value)
        except ValueError:
            whole = "a whole number" if self.kind is int else "a number"
            return self.fail(f"expected {whole} or auto, got {value!r}", param, ctx)


class DataFlowGroup(click.Group):
    """Lists commands in the order in which data flows through them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class Address(click.ParamType[str]):
    """The address of a scheduler, ``HOST:PORT`` or ``tcp://HOST:PORT``."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if re.fullmatch(r"(\w+://)?(\[[0-9a-fA-F:.]+\]|[^:/\s]+):\d{1,5}", str(value)) is None:
            self.fail(f"expected an address such as tcp://HOST:8786, got {value!r}", param, ctx)
        return str(value)


class LocalPath(click.Path):
    """A path that is written to, and so no URL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_url(value):
            self.fail(f"expected a local path, got {value!r}; only 'distmom copy' takes URLs", param, ctx)
        return super().convert(value, param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress on stderr.")
workers_option = click.option(
    "--workers", type=click.IntRange(min=0), default=None,
    help="Processes of a local cluster; 0 runs in this process. [default: one a core]",
)  # fmt: skip
memory_option = click.option(
    "--memory-limit", type=Bytes(), default=None, help="What one worker may use, e.g. 2GiB."
)
scheduler_option = click.option(
    "--scheduler", type=Address(), default=None, help="Address of a running Dask scheduler, tcp://HOST:PORT."
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what is at the destination.")


def run_option(target: str) -> Callable[[F], F]:
    """Return the option that says where a run is kept, by the argument that says where its result goes."""
    return click.option(
        "--run", "run_path", type=LocalPath(), default=None,
        help=f"Directory of the run. [default: {target}.run, removed at the end]",
    )  # fmt: skip


def cluster_options(command: F) -> F:
    """Add the options that say where tasks run."""
    for option in (quiet_option, scheduler_option, memory_option, workers_option):
        command = option(command)
    return command


def input_options(command: F) -> F:
    """Add the options that say how a file is read."""
    options = [
        click.option(
            "--format",
            "format_",
            type=click.Choice(list(FORMATS)),
            help="Told by the file's name if it can be.",
        ),
        click.option("--labels", type=click.Path(), help="File of label names, one a line."),
        click.option(
            "--vocab",
            type=click.Path(),
            help="File of words, one a line: of a text's words those to keep, else the names of the columns.",
        ),
        click.option(
            "--label-source", type=click.Path(), help="The file of labels that goes with a file of features."
        ),
        click.option(
            "--zero-based/--one-based", default=None, help="First number of svmlight features and labels."
        ),
        click.option(
            "--text-field", default="text", show_default=True, help="Field of the text (jsonl, csv)."
        ),
        click.option(
            "--labels-field", default="labels", show_default=True, help="Field of the labels (jsonl, csv)."
        ),
        click.option("--strict", is_flag=True, help="Refuse also what can safely be repaired."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def model_options(command: F) -> F:
    """Add the parameters of all models; what is not given is left to the model."""
    options = [
        click.option(
            "-k", "--n-components", type=NumberOrAuto(int),
            help="Latent states or topics; rank of the sketch of heads. auto counts topics. (auto: topic models) "
            "[default: 100]",
        ),
        click.option(
            "--model", "model_name", type=click.Choice([listing.name for listing in ESTIMATORS]), default="multilabel", show_default=True,
            help="Which model is fitted.",
        ),
        click.option(
            "--head", type=click.Choice(HEADS), help="How labels are scored. (multilabel) [default: auto]"
        ),
        click.option(
            "--alpha0", type=NumberOrAuto(float),
            help="Sum of the Dirichlet parameters that moments are corrected for, a number or auto. (lda) "
            "[default: auto]",
        ),
        click.option(
            "--init", type=click.Choice(["auto", "tensor", "anchors"]),
            help="Start from the third moment, from anchor words, or from the better. (lda) [default: auto]",
        ),
        click.option(
            "--n-refine", type=NumberOrAuto(int),
            help="Passes of refinement; auto is 2 where refinement is cvb, else 4. (topic models) [default: auto]",
        ),
        click.option(
            "--refine", type=click.Choice(["auto", "em", "vb", "cvb"]),
            help="By EM, by variational Bayes, or by the same collapsed, which auto takes for documents of less than "
            "30 words in the mean. (lda, anchors, eca) [default: auto]",
        ),
        click.option(
            "--min-df", type=NumberOrAuto(float),
            help="Least share of the documents that a word of the moments is in; auto is 0.005, or less where "
            "documents are short. (topic models) [default: auto]",
        ),
        click.option(
            "--max-df", type=float, help="Largest share of the same. (topic models) [default: 0.5]"
        ),
        click.option(
            "--max-count", type=click.IntRange(min=0),
            help="Largest count of a word in a document that the moments see, 0 for any. (lda, single-topic, "
            "anchors) [default: 2]",
        ),
        click.option(
            "--scale-words/--no-scale-words", default=None,
            help="Scale words of the moments by the inverse root of their frequency. (topic models) [default: scale]",
        ),
        click.option(
            "--background", is_flag=True, default=None,
            help="Let one of the topics take the words that all documents have; for long documents, or texts with "
            "their stop words. (lda)",
        ),
        click.option(
            "--eta", type=float,
            help="What refinement adds to the count of every word in every topic. (topic models) [default: 0.05]",
        ),
        click.option(
            "--moments", type=click.Choice(["paper", "distinct"]),
            help="Pairs of word positions with or without a position paired with itself. (multilabel) "
            "[default: paper]",
        ),
        click.option(
            "--weighting", type=click.Choice(list(WEIGHTINGS)),
            help="How much each document counts. (not eca) [default: pooled; tokens for topic models]",
        ),
        click.option(
            "--length-scale", type=float,
            help="Length with a quarter of the largest weight, for --weighting length. (multilabel) "
            "[default: 100]",
        ),
        click.option(
            "--decomposition", type=click.Choice(list(METHODS)),
            help="Method for the third moment. [default: joint]",
        ),
        click.option(
            "--third-moment", type=click.Choice(["auto", "full", "slices"]),
            help="Add up all of the third moment, or a few slices of it in one more pass; auto takes slices "
            "where the whole does not fit --memory-limit. (multilabel) [default: auto]",
        ),
        click.option(
            "--n-oversamples", type=click.IntRange(min=0),
            help="Columns of a sketch beyond its rank. [default: 10; k with distinct positions; k/2, at least 20, "
            "for topic models]",
        ),
        click.option(
            "--n-power-iter", type=click.IntRange(min=0),
            help="Power passes of the word sketch. [default: 2; 6 with distinct positions; 4 for topic models]",
        ),
        click.option(
            "--n-residual-passes", type=click.IntRange(min=0),
            help="Residual passes of the linear head. (multilabel) [default: 2; 1 with auto]",
        ),
        click.option(
            "--smoothing", type=float,
            help="Share of all documents' words mixed into the states when scoring. (multilabel) [default: 0.1]",
        ),
        click.option(
            "--propensity", type=float,
            help="Power of the inverse propensity on scores. (multilabel) [default: 0]",
        ),
        click.option(
            "--precision", type=click.Choice(["single", "double"]),
            help="Type in which blocks are multiplied; sums are double. [default: single]",
        ),
        click.option(
            "--decompose-on", type=click.Choice(["scheduler", "client"]),
            help="Where the tensor is decomposed when there is a cluster. [default: scheduler]",
        ),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of all random numbers."),
        click.option(
            "--force", is_flag=True, default=None, help="Fit more states than the corpus can carry. (multilabel)"
        ),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def those_given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, no cap of counts where it is 0."""
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("max_count") == 0:
        given["max_count"] = None
    return given


def parameters(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of a model, those that options of `model_options` gave and its own defaults.

    Raises
    ------
    UsageError
        If an option was given that the model does not have.
    """
    given = those_given(options)
    given["random_state"] = given.pop("seed")
    known: dict[str, Any] = estimator(model)().get_params()
    for name in given:
        if name not in known:
            raise UsageError(f"--{name.replace('_', '-')}: not an option of --model {model}")
    return known | given
