"""Shared options of commands, and their types."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar, cast

import click

from distmom.corpus import FORMATS
from distmom.corpus.files.storage import is_url
from distmom.corpus.sources.row_formats import ROW_FORMATS

F = TypeVar("F", bound=Callable[..., Any])
#: largest n of n-grams
MAX_NGRAM = 10


# Types of click take a parameter in its latest versions only.
class Bytes(click.ParamType):  # type: ignore[type-arg]
    """A size such as ``2GiB`` or ``500MB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        # Imported here, as it takes longer than all of the help.
        from distmom.engine import parse_bytes

        # A unit alone would be read as one such unit, and a negative number would be accepted.
        if str(value).strip()[:1].isdigit():
            with suppress(ValueError, OverflowError):
                return int(parse_bytes(str(value)))
        return self.fail(f"expected a size such as 2GiB or 500MB, got {value!r}", param, ctx)


class DataFlowGroup(click.Group):
    """Lists commands in the order in which data flows through them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class Address(click.ParamType):  # type: ignore[type-arg]
    """The address of a scheduler, ``HOST:PORT`` or ``tcp://HOST:PORT``."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # A web address is that of a dashboard.
        if re.fullmatch(r"(?!https?:)(\w+://)?(\[[0-9a-fA-F:.]+\]|[^:/\s]+):\d{1,5}", str(value)) is None:
            self.fail(f"expected an address such as tcp://HOST:8786, got {value!r}", param, ctx)
        return str(value)


class Threshold(click.ParamType):  # type: ignore[type-arg]
    """A probability, or ``best``."""

    name = "probability"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value == "best":
            return "best"
        with suppress(ValueError):
            if 0.0 <= float(value) <= 1.0:
                return float(value)
        return self.fail(f"expected a probability from 0 to 1 or 'best', got {value!r}", param, ctx)


class NgramRange(click.ParamType):  # type: ignore[type-arg]
    """The longest length of n-grams, such as ``2``, or the shortest and the longest, such as ``3-5``."""

    name = "range"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(?:([0-9]{1,2})-)?([0-9]{1,2})", str(value))
        shortest, longest = (int(found[1] or 1), int(found[2])) if found else (0, 0)
        if not 1 <= shortest <= longest <= MAX_NGRAM:
            self.fail(
                f"expected a number from 1 to {MAX_NGRAM}, or two such as 3-5, got {value!r}", param, ctx
            )
        return shortest, longest


class LocalPath(click.Path):
    """A path that is written to; URLs are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_url(value):
            self.fail(f"expected a local path, got {value!r}", param, ctx)
        return super().convert(value, param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress on stderr.")
workers_option = click.option(
    "--workers", type=click.IntRange(min=0), default=None,
    help="Number of local worker processes; 0 runs in this process. [default: one per core, or threads for a small corpus]",
)  # fmt: skip
memory_option = click.option(
    "--memory-limit", type=Bytes(), default=None, help="Memory of one worker, e.g. 2GiB."
)
scheduler_option = click.option(
    "--scheduler", type=Address(), default=None, help="Address of a running Dask scheduler, tcp://HOST:PORT."
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing destination.")


def run_option(target: str) -> Callable[[F], F]:
    """Return the option for the directory of a run, given the argument of its result."""
    return click.option(
        "--run", "run_path", type=LocalPath(), default=None,
        help=f"Directory of the run. [default: {target}.run, removed at the end]",
    )  # fmt: skip


output_format_option = click.option(
    "--output-format", type=click.Choice(["tsv", "jsonl", "zarr"]), default="tsv", show_default=True,
    help="Text format that is written in addition to the Zarr arrays; 'zarr' writes only the arrays.",
)  # fmt: skip


def tls_options(*, expose: bool = False) -> Callable[[F], F]:
    """Return the options for the security of connections, in force while a command runs.

    With ``expose``, certificates are also passed to the command, which puts them in force itself.
    """

    def set_files(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            # Imported here, as it takes longer than all of the help.
            from distmom.engine.executors.connections import certified

            name = str(parameter.name)
            if not expose:
                files = dict.fromkeys(("ca_file", "cert", "key"))
                context.with_resource(certified(**{**files, name: value}))
        return value

    def allow(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            from distmom.engine.executors.connections import insecure_allowed

            context.with_resource(insecure_allowed())

    def add(command: F) -> F:
        command = click.option(
            "--insecure", is_flag=True, expose_value=False, callback=allow,
            help="Connect to a scheduler on another host without TLS.",
        )(command)  # fmt: skip
        for flag, name, what in (
            ("--tls-key", "key", "Key of the client"),
            ("--tls-cert", "cert", "Certificate of the client"),
            ("--tls-ca-file", "ca_file", "Certificate of the authority"),
        ):
            command = click.option(
                flag, name, type=click.Path(exists=True, dir_okay=False), default=None, expose_value=expose,
                callback=set_files, help=f"{what}, for a scheduler with TLS (PEM file).",
            )(command)  # fmt: skip
        return command

    return add


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where the tasks of a command run, and whether its progress is shown; None where the option is not given.

    Attributes
    ----------
    workers : int or None, default None
        Number of local worker processes.
    memory_limit : int or None, default None
        Bytes that one worker may use.
    scheduler : str or None, default None
        Address of a running scheduler.
    quiet : bool, default False
        Show no progress.
    """

    workers: int | None = None
    memory_limit: int | None = None
    scheduler: str | None = None
    quiet: bool = False


def cluster_options(command: F) -> F:
    """Add the options for the place where tasks run, which the command receives as ``cluster``, a `Cluster`."""

    @wraps(command)
    def with_cluster(*arguments: Any, **given: Any) -> Any:
        cluster = Cluster(**{field.name: given.pop(field.name) for field in fields(Cluster)})
        return command(*arguments, cluster=cluster, **given)

    # Another name than that of the command, which the function above calls.
    extended = tls_options()(cast(F, with_cluster))
    for option in (quiet_option, scheduler_option, memory_option, workers_option):
        extended = option(extended)
    return extended


def input_options(command: F) -> F:
    """Add the options for reading a file."""
    options = [
        click.option(
            "--format",
            "format_",
            type=click.Choice(list(dict.fromkeys([*FORMATS, *ROW_FORMATS]))),
            help="Format of the file. [default: inferred from its name]",
        ),
        click.option("--labels", type=click.Path(), help="File of label names, one per line."),
        click.option(
            "--vocab",
            type=click.Path(),
            help="File of words, one per line: for texts, the words to keep; otherwise, the names of the columns.",
        ),
        click.option("--label-source", type=click.Path(), help="File with the labels of a file of features."),
        click.option(
            "--zero-based/--one-based",
            default=None,
            help="Whether svmlight features and labels count from 0 or 1.",
        ),
        click.option(
            "--text-field",
            default="text",
            show_default=True,
            help="Field with the text (jsonl, csv, parquet, arrow).",
        ),
        click.option(
            "--labels-field",
            default="labels",
            show_default=True,
            help="Field with the labels (jsonl, csv, parquet, arrow); by default, 'label' is read, too.",
        ),
        click.option(
            "--label-separator",
            default=",",
            show_default=True,
            help="Separator of labels (tsv, csv); '' if documents have at most one label.",
        ),
        click.option(
            "--id-column",
            help="Field with the ids of documents (jsonl, csv, parquet, arrow), or column with the ids of rows. [default: rows are numbered]",
        ),
        click.option("--strict", is_flag=True, help="Also refuse input that could be repaired."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


#: names of the parameters that `input_options` adds to a command
INPUT_NAMES = tuple(str(param.name) for param in click.command("read")(input_options(lambda: None)).params)
