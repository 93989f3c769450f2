"""Fields of the state of a model, and checks of its arrays before a compiled loop reads them.

The state of a model is a frozen dataclass whose fields are declared with `array`, `record`, `group`, `variants`
or, for JSON values, `value`. From the declarations follow the files of a model, the checks when it is read, and
the fitted attributes of its estimator. Sizes in shapes have names, which stand for the same number in all arrays
of a model: ``d`` words, ``m`` labels, ``k`` components. A size whose name ends with ``*`` may be zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import numpy as np

from distmom.corpus.arrays import check_csr
from distmom.engine.state import SLAB_ROWS, release
from distmom.errors import StoreError

FLOATS = ("<f4", "<f8")


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


def array(
    *shape: str | int,
    types: tuple[str, ...] = FLOATS,
    least: float | None = None,
    finite: bool = True,
    optional: bool = False,
    attribute: str | None = None,
    transposed: bool = False,
) -> Any:
    """Declare a field of a state that is an array.

    Parameters
    ----------
    *shape : str or int
        On disk.
    types : tuple of str, default ("<f4", "<f8")
    least : float, optional
        Its least value; any by default.
    finite : bool, default True
        No value is NaN or infinite.
    optional : bool, default False
        It may be None.
    attribute : str, optional
        Of the estimator; the name of the field with an underscore by default.
    transposed : bool, default False
        The attribute is the transpose of what is stored.
    """
    layout = {"": Array(shape, types, least, finite=finite, optional=optional)}
    metadata = {"layout": layout, "attribute": attribute, "transposed": transposed, "kind": "array"}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


def record(layout: Layout) -> Any:
    """Declare a field that is a `distmom.engine.Csr` or `MixedRows`, by the layout of its arrays."""
    by_suffix = {f"/{name}" if name else "": item for name, item in layout.items()}
    return field(metadata={"layout": by_suffix, "kind": "record"})


def group(state: type[Any]) -> Any:
    """Declare a field that is another state, or None."""
    return field(default=None, metadata={"kind": "group", "state": state})


def variants(*states: type[Any]) -> Any:
    """Declare a field that is a tuple of (name, state), each of one of some classes."""
    return field(metadata={"kind": "variants", "states": {state.__name__: state for state in states}})


def value(attribute: str | None = None, default: Any = MISSING) -> Any:
    """Declare a field with a JSON value."""
    return field(default=default, metadata={"kind": "value", "attribute": attribute})


def layout_of(state: type[Any], rest: Mapping[str, Any], prefix: str = "") -> dict[str, Array | Matrix]:
    """Return the layout of the arrays of a state.

    Parameters
    ----------
    state : type
        A dataclass of declared fields.
    rest : mapping
        Its fields that are not arrays, which determine the groups and variants that are there.
    prefix : str, default ""
        Of the names of the arrays.
    """
    found: dict[str, Array | Matrix] = {}
    for f in fields(state):
        kind, place = f.metadata.get("kind", "value"), f"{prefix}{f.name}"
        if kind in ("array", "record"):
            found |= {f"{place}{suffix}": item for suffix, item in f.metadata["layout"].items()}
        elif kind == "group" and rest[f.name] is not None:
            found |= layout_of(f.metadata["state"], rest[f.name], f"{place}/")
        elif kind == "variants":
            for entry in rest[f.name]:
                own = f.metadata["states"][entry["kind"]]
                found |= layout_of(own, entry["fields"], f"{place}/{entry['name']}/")
    return found


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
