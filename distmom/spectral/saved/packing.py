"""States of models as named arrays and JSON values, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np

from distmom.engine import Csr, MixedRows
from distmom.spectral.saved.layout import group_entry

#: records that a state may hold, by name
_RECORDS: dict[str, type[Any]] = {"Csr": Csr, "MixedRows": MixedRows}


def pack(state: Any, arrays: dict[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    """Add the arrays of a state, as its layout declares them, to ``arrays`` and return its other fields."""
    rest: dict[str, Any] = {}
    for f in fields(state):
        item, kind, place = getattr(state, f.name), f.metadata.get("kind", "value"), f"{prefix}{f.name}"
        if kind == "array":
            if item is not None:
                arrays[place] = item
        elif kind == "record":
            rest[f.name] = _pack_record(item, place, arrays)
        elif kind == "group":
            rest[f.name] = None if item is None else pack(item, arrays, f"{place}/")
        elif kind == "variants":
            rest[f.name] = [
                {"name": name, "kind": type(own).__name__, "fields": pack(own, arrays, f"{place}/{name}/")}
                for name, own in item
            ]
        else:
            rest[f.name] = item
    return rest


def _pack_record(item: Any, prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    for f in fields(item):
        part = getattr(item, f.name)
        if is_dataclass(part) and not isinstance(part, type):
            rest[f.name] = {"record": type(part).__name__, **_pack_record(part, f"{prefix}/{f.name}", arrays)}
        elif isinstance(part, np.ndarray):
            arrays[f"{prefix}/{f.name}"] = part
        else:
            rest[f.name] = part
    return {"record": type(item).__name__, **rest}


def unpack(
    state: type[Any], rest: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str = ""
) -> Any:
    """Rebuild a state from what `pack` gave; a ValueError if a field has another type."""
    values: dict[str, Any] = {}
    for f in fields(state):
        kind, place = f.metadata.get("kind", "value"), f"{prefix}{f.name}"
        if kind == "array":
            values[f.name] = arrays.get(place)
        elif kind == "record":
            values[f.name] = _unpack_record(rest[f.name], place, arrays)
        elif kind == "group":
            own = group_entry(f, rest)
            values[f.name] = None if own is None else unpack(f.metadata["state"], own, arrays, f"{place}/")
        elif kind == "variants":
            values[f.name] = tuple(
                (
                    entry["name"],
                    unpack(
                        f.metadata["states"][entry["kind"]],
                        entry["fields"],
                        arrays,
                        f"{place}/{entry['name']}/",
                    ),
                )
                for entry in rest[f.name]
            )
        elif f.name not in rest and f.default is not MISSING:
            # A field that models of this version may lack.
            values[f.name] = f.default
        elif "kind" in f.metadata or _is_number(rest[f.name], str(f.type)):
            values[f.name] = rest[f.name]
        else:
            raise ValueError(f"{place}: expected {f.type}, got {rest[f.name]!r}")
    return state(**values)


def _unpack_record(rest: Mapping[str, Any], prefix: str, arrays: Mapping[str, np.ndarray]) -> Any:
    kind, values = _RECORDS[rest["record"]], dict[str, Any]()
    for f in fields(kind):
        place = f"{prefix}/{f.name}"
        if place in arrays:
            values[f.name] = arrays[place]
        elif f.type in _RECORDS:
            values[f.name] = _unpack_record(rest[f.name], place, arrays)
        elif _is_number(rest[f.name], str(f.type)):
            values[f.name] = rest[f.name]
        else:
            raise ValueError(f"{place}: expected {f.type}, got {rest[f.name]!r}")
    return kind(**values)


def _is_number(value: Any, kind: str) -> bool:
    """Return whether a value suits a field: a size, a finite number, or None for an array that is absent."""
    if kind == "int":
        return type(value) is int and value > 0
    if kind == "float":
        return type(value) in (int, float) and math.isfinite(value)
    return value is None
