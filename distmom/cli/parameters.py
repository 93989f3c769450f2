"""Command-line options made from the parameters of estimators.

They come from a table that `distmom.cli.generate` writes, so that ``--help`` imports no estimator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import click

from distmom.errors import UsageError
from distmom.models import ESTIMATORS, estimator
from distmom.spectral.capabilities import Capability

F = TypeVar("F", bound=Callable[..., Any])

#: the declarations of the estimators
TABLE = Path(__file__).with_name("parameters.json")
#: the model that is fitted unless ``--model`` names another
DEFAULT_MODEL = ESTIMATORS[0].name
#: options with other names than their parameters
_FLAGS = {"n_components": ("-k", "--n-components"), "random_state": ("--seed",)}
_KINDS: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_CHOSEN = "distmom.cli.model"


@cache
def table() -> dict[str, Any]:
    """Return the declarations of the estimators by name (see `distmom.cli.generate`)."""
    found: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def can(model: str, capability: Capability) -> bool:
    """Return whether the models of a class, named as on the command line, have a capability."""
    return capability in table()[model]["capabilities"]


def flag(name: str) -> str:
    """Return the option of a parameter, such as ``--n-components``."""
    return _FLAGS.get(name, (f"--{name.replace('_', '-')}",))[-1]


class Value(click.ParamType):  # type: ignore[type-arg]
    """The value of a parameter, within the bounds that are declared.

    Parameters
    ----------
    name : str
        Name of the parameter.
    declared : dict
        Its entry in the table.
    """

    def __init__(self, name: str, declared: dict[str, Any]) -> None:
        self.parameter, self.declared = name, declared
        kind = {"int": "integer", "float": "number", "str": "text"}[declared["kind"]]
        self.name = f"{kind}|auto" if declared.get("auto") else kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # Imported here, because it imports scikit-learn.
        from distmom.spectral.parameters import Parameter

        kind = _KINDS[self.declared["kind"]]
        if isinstance(value, str) and not (self.declared.get("auto") and value == "auto"):
            # A value that is not a number is rejected by the check of the parameter, which states the expected ones.
            with suppress(ValueError):
                value = kind(value)
        if not (value == 0 and _zero_is_none(self.declared)):
            fields = {**self.declared, "kind": kind, "choices": ()}
            Parameter(**fields).check(flag(self.parameter), value)
        return value


@cache
def options_of(model: str) -> tuple[click.Option, ...]:
    """Return an option for every parameter of an estimator, given by its name on the command line."""
    return tuple(_option(name, declared) for name, declared in table()[model]["parameters"].items())


def _option(name: str, declared: dict[str, Any]) -> click.Option:
    flags = _FLAGS.get(name, (flag(name),))
    text = _help(name, declared)
    if declared["kind"] == "bool":
        return click.Option([f"{flags[-1]}/--no-{flags[-1][2:]}", name], default=None, help=text)
    if "choices" in declared:
        return click.Option([*flags, name], type=click.Choice(declared["choices"]), help=text)
    return click.Option([*flags, name], type=Value(name, declared), help=text)


def _help(name: str, declared: dict[str, Any]) -> str:
    default, text = declared["default"], declared["help"]
    if _zero_is_none(declared):
        text += f" 0: {declared['unset']}."
    if declared["kind"] == "bool":
        default = flag(name)[2:] if default else f"no-{flag(name)[2:]}"
    default = declared["unset"] if default is None else default
    notes = [f"default: {default:g}" if isinstance(default, float) else f"default: {default}"]
    notes += [f"at least {declared['least']:g}"] if "least" in declared else []
    # A bound that only reflects the type of the number is not shown.
    notes += [f"below {declared['below']:g}"] if declared.get("below", math.inf) < 1 << 32 else []
    return f"{text} [{'; '.join(notes)}]"


def _zero_is_none(declared: dict[str, Any]) -> bool:
    """Whether 0, which is out of bounds, stands for None on the command line."""
    return bool(declared.get("none")) and declared.get("least", 0) > 0


def parameter_options(model: str) -> Callable[[F], F]:
    """Add the options of one estimator to a command; those that are not given are None."""

    def add(command: F) -> F:
        # From the last to the first, as decorators of click add options.
        known = command.__dict__.setdefault("__click_params__", [])
        known.extend(reversed(options_of(model)))
        return command

    return add


class ModelCommand(click.Command):
    """A command with the options of the model that ``--model`` names; those that are not given are None.

    Parameters
    ----------
    *arguments, **settings
        As for `click.Command`.
    models : tuple of str
        Names that ``--model`` accepts.
    """

    def __init__(self, *arguments: Any, models: tuple[str, ...], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.models = models
        self._model = click.Option(
            ["--model", "model_name"], type=click.Choice(models), default=DEFAULT_MODEL, show_default=True,
            help="Model; --model MODEL --help lists its options.",
        )  # fmt: skip
        self._groups = click.Option(
            ["--groups"], type=click.Path(), help="The .npy file with the group of every row of the views."
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        arguments = [param for param in own if isinstance(param, click.Argument)]
        rest = [param for param in own if not isinstance(param, click.Argument)]
        return [*arguments, self._model, *self._options(ctx.meta.get(_CHOSEN, DEFAULT_MODEL)), *rest]

    def _options(self, model: str) -> tuple[click.Option, ...]:
        source = (self._groups,) if can(model, Capability.VIEWS) else ()
        return (*source, *options_of(model))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        model = _named(args) or DEFAULT_MODEL
        self._model.type.convert(model, self._model, ctx)
        ctx.meta[_CHOSEN] = model
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            owners = [other for other in self.models if error.option_name in self._flags(other)]
            if not owners:
                raise
            raise UsageError(
                f"{error.option_name}: not an option of --model {model}, but of {', '.join(owners)}"
            ) from error

    def _flags(self, model: str) -> set[str]:
        return {name for option in self._options(model) for name in (*option.opts, *option.secondary_opts)}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        model = ctx.meta.get(_CHOSEN, DEFAULT_MODEL)
        with formatter.section("Models"):
            formatter.write_dl([(name, table()[name]["summary"]) for name in self.models])
        of_model = self._options(model)
        params = self.get_params(ctx)
        rest = [p for p in params if isinstance(p, click.Option) and p not in of_model]
        for title, shown in ((f"Options of --model {model}", of_model), ("Options", rest)):
            with formatter.section(title):
                formatter.write_dl([record for p in shown if (record := p.get_help_record(ctx)) is not None])


def _named(args: list[str]) -> str | None:
    """Return the model that arguments name, the last one if there are several, as in click; None without one."""
    found = None
    for i, argument in enumerate(args):
        if argument == "--":
            break
        if argument == "--model" and i + 1 < len(args):
            found = args[i + 1]
        elif argument.startswith("--model="):
            found = argument.partition("=")[2]
    return found


def given(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an estimator set by options; 0 becomes None where it stands for None."""
    found = {}
    for name, declared in table()[model]["parameters"].items():
        if (value := options.get(name)) is not None:
            found[name] = None if value == 0 and _zero_is_none(declared) else value
    return found


def parameters(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of an estimator: those set by options, and defaults for the others."""
    known: dict[str, Any] = estimator(model)().get_params()
    return known | given(model, options)
