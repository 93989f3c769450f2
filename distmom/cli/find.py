"""Command find: one component of a fitted search, from side information."""

from __future__ import annotations

import math
from typing import Any

import click
import numpy as np

from distmom.cli.options import json_option
from distmom.cli.shared import json_text, load_model_that, show
from distmom.cli.terminal import say
from distmom.corpus.files.npy import check_npy_mark
from distmom.errors import InputError, UsageError
from distmom.spectral.capabilities import Capability


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--rows",
    type=click.Path(),
    default=None,
    help="File (.npy) of labelled rows, most of which belong to the component; for regressions, the response is last.",
)
@click.option(
    "--along",
    type=click.Path(),
    default=None,
    help="File (.npy) with a vector, in place of labelled rows; finds the component whose product with it is largest.",
)
@click.option(
    "--target",
    default=None,
    help="Name or number, from 0, of a column of side information of the fit, in place of labelled rows.",
)
@click.option(
    "--side",
    metavar="HOW",
    default=None,
    help="How labelled rows or a vector are transformed, as --side of 'distmom fit': auto, project or whiten. "
    "[default: that of the fit]",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="Number of columns to show."
)
@click.option(
    "--force", is_flag=True, help="Show a component even if the side information does not determine it."
)
@json_option
def find(
    model: str,
    rows: str | None,
    along: str | None,
    target: str | None,
    side: str | None,
    top: int,
    force: bool,
    as_json: bool,
) -> None:
    """Find one component of a mixture of rows from side information, without estimating the others.

    MODEL is the result of 'distmom fit --model gaussian-search', 'regression-search' or 'subspace-search'. No further
    pass over the rows is made.

    \b
    Examples: distmom find model --rows labelled.npy
              distmom find model --target 0
    """
    fitted = load_model_that(model, Capability.SEARCH)
    if sum(given is not None for given in (rows, along, target)) != 1:
        raise UsageError("give one of --rows, --along and --target")
    if target is not None and "n_targets" not in fitted.get_params():
        raise UsageError(f"--target: not an option with {model}, which has no columns of side information")
    given: dict[str, Any] = {
        name: _read(name, path) for name, path in (("rows", rows), ("along", along)) if path
    }
    if target is not None:
        # The name of a column may be a number, too, such as a year.
        is_number = target.isdecimal() and int(target) < fitted.targets_.shape[2]
        given["target"] = int(target) if is_number else target
    if side is not None:
        fitted.set_params(side=side)
        fitted.check_parameters()
    found = fitted.search(**given, force=force)
    result = {name: _plain(value) for name, value in vars(found).items()}
    if as_json:
        click.echo(json_text(result))
        return
    values = np.array([x for name in ("mean", "coef", "basis") if name in result for x in result.pop(name)])
    show(result, as_json)
    if values.ndim > 1:
        # A basis has many columns, and any rotation of them spans the same subspace.
        values = np.linalg.norm(values, axis=1)
    for i in np.argsort(-np.abs(values), kind="stable")[:top]:
        say(f"{values[i]:>12.6g}  {fitted.vocabulary_[i]}")


def _read(name: str, path: str) -> np.ndarray:
    """Read labelled rows, or a vector along the component, as finite numbers."""
    try:
        check_npy_mark(path)
        found = np.asarray(np.load(path, allow_pickle=False))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as an .npy file: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: cannot be read as an .npy file: {error}") from error
    if found.dtype.kind not in "biuf":
        raise InputError.at(path, None, "type of the values", "real numbers", str(found.dtype))
    if name == "rows" and found.ndim != 2:
        raise InputError.at(
            path, None, "shape", "a matrix with a row for each labelled row", str(found.shape)
        )
    if not np.isfinite(found).all():
        place = np.argwhere(~np.isfinite(found))[0]
        raise InputError.at(
            path, None, f"value at {place.tolist()}", "a finite number", str(found[tuple(place)])
        )
    return found


def _plain(value: Any) -> Any:
    """Return a field as a JSON value; numbers that are not finite are None."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return float(value) if math.isfinite(value) else None
