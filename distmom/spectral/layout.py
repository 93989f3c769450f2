"""What the arrays of a model must be before a compiled loop reads them: their types, shapes that agree, ranges.

A layout names every array that a model may have. Sizes have names too, which stand for the same number in all
arrays of a model: ``d`` words, ``m`` labels, ``k`` components. A size whose name ends with ``*`` may be zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus.arrays import check_csr
from distmom.engine.state import SLAB_ROWS, release
from distmom.errors import StoreError

FLOATS = ("<f4", "<f8")
INDICES = ("<i4", "<i8")


@dataclass(frozen=True)
class Array:
    """An array that a model has.

    Attributes
    ----------
    shape : tuple of str or int
    types : tuple of str
        Types that it may have.
    least : float or None
        Its least value; None: any.
    below : str or None
        Name of a size that all of its values are below.
    finite : bool
        No value is NaN or infinite.
    optional : bool
        A model may be without it.
    """

    shape: tuple[str | int, ...]
    types: tuple[str, ...] = FLOATS
    least: float | None = None
    below: str | None = None
    finite: bool = True
    optional: bool = False


@dataclass(frozen=True)
class Matrix:
    """A sparse matrix that a model has: the arrays of a `distmom.engine.Csr`.

    Attributes
    ----------
    shape : (str, str)
    types : tuple of str
        Types that its values may have.
    indices : tuple of str
        Types that its columns may have.
    """

    shape: tuple[str, str]
    types: tuple[str, ...] = ("<f4",)
    indices: tuple[str, ...] = ("<i4",)


Layout = Mapping[str, Array | Matrix]


def check_entries(place: str, entries: Mapping[str, Any], layout: Layout, sizes: dict[str, int]) -> None:
    """Check what a record says of arrays, before any of them is read.

    Parameters
    ----------
    place : str
        What errors call the model.
    entries : mapping of str to mapping
        Shape and dtype of every array.
    layout : Layout
    sizes : dict of str to int
        Sizes known so far; those that the arrays bring are added.

    Raises
    ------
    StoreError
        If an array is missing or not in the layout, has another type, or a shape that does not go with the others.
    """
    unknown = set(entries)
    for name, array in _each(layout):
        entry = entries.get(name)
        if entry is None:
            if array.optional:
                continue
            raise StoreError(f"{place}: array {name}: expected one, got none")
        unknown.discard(name)
        if entry["dtype"] not in array.types:
            types = " or ".join(array.types)
            raise StoreError(f"{place}: array {name}: type: expected {types}, got {entry['dtype']!r}")
        if not _fits(entry["shape"], array.shape, sizes):
            raise StoreError(
                f"{place}: array {name}: shape: expected {_described(array.shape, sizes)}, got {entry['shape']}"
            )
    if unknown:
        raise StoreError(f"{place}: array {min(unknown)!r}: is not one of this kind of model")


def check_values(
    place: str, arrays: Mapping[str, np.ndarray], layout: Layout, sizes: Mapping[str, int]
) -> None:
    """Check what arrays hold whose shapes go together.

    Raises
    ------
    StoreError
        If a value is out of range, or a sparse matrix is none.
    """
    for name, item in layout.items():
        if isinstance(item, Matrix):
            indptr, indices, data = (arrays[f"{name}/{part}"] for part in ("indptr", "indices", "data"))
            check_csr(f"{place}: array {name}", data, indices, indptr, sizes[item.shape[1]])
            _check_range(f"{place}: array {name}/data", data, Array((), item.types), sizes)
        elif name in arrays:
            _check_range(f"{place}: array {name}", arrays[name], item, sizes)


def _each(layout: Layout) -> Iterator[tuple[str, Array]]:
    """Yield every array of a layout, those of matrices one by one."""
    for name, item in layout.items():
        if isinstance(item, Array):
            yield name, item
            continue
        yield f"{name}/indptr", Array((f"{item.shape[0]}+1",), ("<i8",))
        yield f"{name}/indices", Array((f"{name}*",), item.indices)
        yield f"{name}/data", Array((f"{name}*",), item.types)


def _fits(shape: Any, wanted: tuple[str | int, ...], sizes: dict[str, int]) -> bool:
    """Whether a shape is the one wanted; sizes that are not known yet are taken from it."""
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
            raise StoreError(f"{place}: expected finite numbers, got others")
        if part.size and array.least is not None and part.min() < array.least:
            raise StoreError(f"{place}: expected numbers from {array.least:g}, got {part.min():g}")
        if part.size and below is not None and part.max() >= below:
            raise StoreError(f"{place}: expected numbers below {below}, got {part.max():g}")
        release(values)


def _is_finite(values: np.ndarray) -> bool:
    # A sum is not finite if one of its terms is not, and takes no memory; that of large terms may overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float64)) or np.isfinite(values).all())
