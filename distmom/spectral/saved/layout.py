"""Layout of the arrays of a model, and checks of stored arrays against it before a compiled loop reads them.

Sizes in shapes have names, which stand for the same number in all arrays of a model: ``d`` words, ``m`` labels,
``k`` components. A size whose name ends with ``*`` may be zero, and differs between variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus.files.decoding import check_csr
from distmom.engine.stored.arrays import SLAB_ROWS, release
from distmom.errors import StoreError

FLOATS = ("<f4", "<f8")


@dataclass(frozen=True)
class Array:
    """The declaration of an array of a model.

    Attributes
    ----------
    shape : tuple of str or int
    types : tuple of str, default ("<f4", "<f8")
        Dtypes that are allowed.
    least : float or None, default None
        Lower bound of the values, inclusive; None: no bound.
    below : str or None, default None
        Name of a size that is the upper bound of the values, exclusive; None: no bound.
    finite : bool, default True
        Whether NaN and infinite values are refused.
    optional : bool, default False
        Whether a model may lack the array.
    """

    shape: tuple[str | int, ...]
    types: tuple[str, ...] = FLOATS
    least: float | None = None
    below: str | None = None
    finite: bool = True
    optional: bool = False


@dataclass(frozen=True)
class Matrix:
    """The declaration of a sparse matrix of a model: the arrays of a `distmom.engine.Csr`.

    Attributes
    ----------
    shape : (str, str)
    types : tuple of str, default ("<f4",)
        Dtypes allowed for the values.
    indices : tuple of str, default ("<i4",)
        Dtypes allowed for the column indices.
    """

    shape: tuple[str, str]
    types: tuple[str, ...] = ("<f4",)
    indices: tuple[str, ...] = ("<i4",)


Layout = Mapping[str, Array | Matrix]


def check_entries(place: str, entries: Mapping[str, Any], layout: Layout, sizes: dict[str, int]) -> None:
    """Check the shapes and dtypes that a record declares, before any array is read.

    Parameters
    ----------
    place : str
        Name of the model for messages.
    entries : mapping of str to mapping
        Shape and dtype of every array.
    layout : Layout
    sizes : dict of str to int
        Sizes known so far; the sizes read from the entries are added.

    Raises
    ------
    StoreError
        If an array is missing or not in the layout, has another dtype, or a shape inconsistent with the others.
    """
    unknown = set(entries)
    for name, array in _each(layout):
        entry = entries.get(name)
        if entry is None:
            if array.optional:
                continue
            raise StoreError(f"{place}: array {name}: missing")
        unknown.discard(name)
        if entry["dtype"] not in array.types:
            types = " or ".join(array.types)
            raise StoreError(f"{place}: array {name}: type: expected {types}, got {entry['dtype']!r}")
        if not _fits(entry["shape"], array.shape, sizes):
            raise StoreError(
                f"{place}: array {name}: shape: expected {_described(array.shape, sizes)}, got {entry['shape']}"
            )
    if unknown:
        raise StoreError(f"{place}: array {min(unknown)!r}: not an array of this class of model")


def check_values(
    place: str, arrays: Mapping[str, np.ndarray], layout: Layout, sizes: Mapping[str, int]
) -> None:
    """Check the values of arrays whose shapes have been checked.

    Parameters
    ----------
    place : str
        Name of the model for messages.
    arrays : mapping of str to ndarray
    layout : Layout
    sizes : mapping of str to int
        From `check_entries`.

    Raises
    ------
    StoreError
        If a value is out of range, or the structure of a sparse matrix is invalid.
    """
    for name, item in layout.items():
        if isinstance(item, Matrix):
            indptr, indices, data = (arrays[f"{name}/{part}"] for part in ("indptr", "indices", "data"))
            check_csr(f"{place}: array {name}", data, indices, indptr, sizes[item.shape[1]])
            _check_range(f"{place}: array {name}/data", data, Array((), item.types), sizes)
        elif name in arrays:
            _check_range(f"{place}: array {name}", arrays[name], item, sizes)


def _each(layout: Layout) -> Iterator[tuple[str, Array]]:
    """Yield every array of a layout, including the three arrays of each sparse matrix."""
    for name, item in layout.items():
        if isinstance(item, Array):
            yield name, item
            continue
        yield f"{name}/indptr", Array((f"{item.shape[0]}+1",), ("<i8",))
        yield f"{name}/indices", Array((f"{name}*",), item.indices)
        yield f"{name}/data", Array((f"{name}*",), item.types)


def _fits(shape: Any, wanted: tuple[str | int, ...], sizes: dict[str, int]) -> bool:
    """Return whether a shape is as declared; sizes that are not known yet are taken from it."""
    if len(shape) != len(wanted):
        return False
    for size, name in zip(shape, wanted, strict=True):
        if isinstance(name, int):
            if size != name:
                return False
            continue
        base = name.removesuffix("+1")
        own = size - (base != name)
        if own < (0 if base.endswith("*") else 1) or sizes.setdefault(base, own) != own:
            return False
    return True


def _described(wanted: tuple[str | int, ...], sizes: Mapping[str, int]) -> str:
    parts = []
    for name in wanted:
        base = str(name).removesuffix("+1")
        parts.append(f"{name} = {sizes[base] + (base != name)}" if base in sizes else f"{name}")
    return f"[{', '.join(parts)}]"


def _check_range(place: str, values: np.ndarray, array: Array, sizes: Mapping[str, int]) -> None:
    below = None if array.below is None else sizes[array.below]
    for start in range(0, len(values), SLAB_ROWS):
        part = values[start : start + SLAB_ROWS]
        if array.finite and not _is_finite(part):
            raise StoreError(f"{place}: expected finite numbers, got NaN or infinity")
        if part.size and array.least is not None and part.min() < array.least:
            raise StoreError(f"{place}: expected numbers of at least {array.least:g}, got {part.min():g}")
        if part.size and below is not None and part.max() >= below:
            raise StoreError(f"{place}: expected numbers below {below}, got {part.max():g}")
        release(values)


def _is_finite(values: np.ndarray) -> bool:
    # A finite sum needs no memory and has finite terms only; a sum of large finite terms may overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float64)) or np.isfinite(values).all())
