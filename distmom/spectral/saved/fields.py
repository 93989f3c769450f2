"""Fields of the state of a model: the declaration of a field determines how it is stored, checked and read back.

The state of a model is a frozen dataclass whose fields are declared with `array`, `record`, `group`, `variants`
or, for JSON values, `value`; a field without a declaration is a number. The files of a model, the checks on
loading, and the fitted attributes of its estimator are derived from the declarations. A stored state consists of
named arrays and of JSON values, the content of its fields.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np

from distmom.engine import Csr, MixedRows
from distmom.spectral.saved.layout import FLOATS, Array, Layout, Matrix

Arrays = Mapping[str, np.ndarray]

#: records that a state may hold, by name
_RECORDS: dict[str, type[Any]] = {"Csr": Csr, "MixedRows": MixedRows}


@dataclass(frozen=True, kw_only=True)
class Field(ABC):
    """The declaration of a field.

    Attributes
    ----------
    may_lack : bool, default False
        Whether a stored model may lack the field, which then has its default value.
    attribute : str or None, default None
        Name of the attribute of the estimator; None: the name of the field with an underscore.
    """

    #: whether the field has content in addition to its arrays
    has_content: ClassVar[bool] = True
    #: whether the field is an attribute of the estimator, rather than a part that the estimator takes apart itself
    is_attribute: ClassVar[bool] = True

    may_lack: bool = False
    attribute: str | None = None

    def layout(self, content: Any, place: str) -> dict[str, Array | Matrix]:
        """Return the layout of the arrays of the field, whose names begin with ``place``."""
        return {}

    @abstractmethod
    def pack(self, item: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
        """Add the arrays of the field to ``arrays`` and return its content."""

    @abstractmethod
    def unpack(self, content: Any, place: str, arrays: Arrays) -> Any:
        """Return the value of the field; a ValueError if its content has another type."""

    def attribute_name(self, name: str) -> str:
        """Return the name of the attribute of the estimator for the field of a given name."""
        return self.attribute or f"{name}_"

    def to_attribute(self, item: Any) -> Any:
        """Return the attribute of the estimator for the value of the field."""
        return item

    def from_attribute(self, value: Any) -> Any:
        """Return the value of the field for the attribute of the estimator."""
        return value


@dataclass(frozen=True, kw_only=True)
class ArrayField(Field):
    """A field that is an array, or None if the array is optional; see `array`."""

    has_content = False

    array: Array
    transposed: bool = False

    def layout(self, content: Any, place: str) -> dict[str, Array | Matrix]:
        return {place: self.array}

    def pack(self, item: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
        if item is not None:
            arrays[place] = item

    def unpack(self, content: Any, place: str, arrays: Arrays) -> Any:
        return arrays.get(place)

    def to_attribute(self, item: Any) -> Any:
        return item.T if self.transposed and item is not None else item

    def from_attribute(self, value: Any) -> Any:
        return self.to_attribute(value)


@dataclass(frozen=True, kw_only=True)
class RecordField(Field):
    """A field that is a record of arrays and numbers; see `record`."""

    of: Layout

    def layout(self, content: Any, place: str) -> dict[str, Array | Matrix]:
        return {f"{place}/{name}" if name else place: item for name, item in self.of.items()}

    def pack(self, item: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
        return _pack_record(item, place, arrays)

    def unpack(self, content: Any, place: str, arrays: Arrays) -> Any:
        return _unpack_record(content, place, arrays)


@dataclass(frozen=True, kw_only=True)
class GroupField(Field):
    """A field that is another state, or None; see `group`."""

    is_attribute = False

    state: type[Any]

    def layout(self, content: Any, place: str) -> dict[str, Array | Matrix]:
        return {} if content is None else layout_of(self.state, content, f"{place}/")

    def pack(self, item: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
        return None if item is None else pack(item, arrays, f"{place}/")

    def unpack(self, content: Any, place: str, arrays: Arrays) -> Any:
        return None if content is None else unpack(self.state, content, arrays, f"{place}/")


@dataclass(frozen=True, kw_only=True)
class VariantsField(Field):
    """A field that is a tuple of pairs (name, state); see `variants`."""

    is_attribute = False

    states: Mapping[str, type[Any]]

    def layout(self, content: Any, place: str) -> dict[str, Array | Matrix]:
        found: dict[str, Array | Matrix] = {}
        for entry in content:
            state, variant = self.states[entry["kind"]], entry["name"]
            each = layout_of(state, entry["fields"], f"{place}/{variant}/")
            found |= {name: _of_variant(item, variant) for name, item in each.items()}
        return found

    def pack(self, item: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
        return [
            {"name": name, "kind": type(own).__name__, "fields": pack(own, arrays, f"{place}/{name}/")}
            for name, own in item
        ]

    def unpack(self, content: Any, place: str, arrays: Arrays) -> Any:
        found = []
        for entry in content:
            state, name = self.states[entry["kind"]], entry["name"]
            found.append((name, unpack(state, entry["fields"], arrays, f"{place}/{name}/")))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class ValueField(Field):
    """A field that is a JSON value; see `value`."""

    def pack(self, item: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
        return item

    def unpack(self, content: Any, place: str, arrays: Arrays) -> Any:
        return content


@dataclass(frozen=True, kw_only=True)
class NumberField(ValueField):
    """A field without a declaration: a size, a finite number, or None for a value derived from other fields.

    Attributes
    ----------
    annotation : str
        Type of the field in its class.
    """

    annotation: str

    def unpack(self, content: Any, place: str, arrays: Arrays) -> Any:
        return _number(content, self.annotation, place)


def array(
    *shape: str | int,
    types: tuple[str, ...] = FLOATS,
    least: float | None = None,
    finite: bool = True,
    optional: bool = False,
    attribute: str | None = None,
    transposed: bool = False,
    below: str | None = None,
) -> Any:
    """Declare a field of a state that is an array.

    Parameters
    ----------
    *shape : str or int
        Shape on disk.
    types : tuple of str, default ("<f4", "<f8")
        Dtypes that are allowed.
    least : float, optional
        Lower bound of the values, inclusive; no bound by default.
    finite : bool, default True
        Whether NaN and infinite values are refused.
    optional : bool, default False
        Whether the field may be None.
    attribute : str, optional
        Name of the attribute of the estimator; the name of the field with an underscore by default.
    transposed : bool, default False
        Whether the attribute is the transpose of the stored array.
    below : str, optional
        Name of the size that all values are below; no bound by default.
    """
    stored = Array(shape, types, least, below=below, finite=finite, optional=optional)
    declared = ArrayField(array=stored, attribute=attribute, transposed=transposed)
    return _declare(declared, None if optional else MISSING)


def record(layout: Layout) -> Any:
    """Declare a field that is a `distmom.engine.Csr` or `MixedRows`, by the layout of its arrays."""
    return _declare(RecordField(of=layout))


def group(state: type[Any], *, may_lack: bool = False) -> Any:
    """Declare a field that is another state, or None.

    Parameters
    ----------
    state : type
    may_lack : bool, default False
        Whether a stored model may lack the field, which is then None.
    """
    return _declare(GroupField(state=state, may_lack=may_lack), None)


def variants(*states: type[Any]) -> Any:
    """Declare a field that is a tuple of pairs (name, state), where each state is of one of the given classes."""
    return _declare(VariantsField(states={state.__name__: state for state in states}))


def value(attribute: str | None = None, default: Any = MISSING) -> Any:
    """Declare a field that is a JSON value; a stored model may lack it if there is a default."""
    return _declare(ValueField(attribute=attribute, may_lack=default is not MISSING), default)


def _declare(declared: Field, default: Any = MISSING) -> Any:
    return field(default=default, metadata={Field: declared})


def declared_fields(state: Any) -> Iterator[tuple[str, Field, Any]]:
    """Yield the name, the declaration and the default value of every field of a state or of its class."""
    for f in fields(state):
        declared = f.metadata.get(Field)
        if declared is None:
            declared = NumberField(annotation=str(f.type), may_lack=f.default is not MISSING)
        yield f.name, declared, f.default


def layout_of(state: type[Any], content: Mapping[str, Any], prefix: str = "") -> dict[str, Array | Matrix]:
    """Return the layout of the arrays of a state.

    Parameters
    ----------
    state : type
        A dataclass of declared fields.
    content : mapping
        Content of the fields, as `pack` returned it; it determines which groups and variants are present.
    prefix : str, default ""
        Prefix of the names of the arrays.
    """
    found: dict[str, Array | Matrix] = {}
    for name, declared, _ in declared_fields(state):
        is_given = declared.has_content and not (declared.may_lack and name not in content)
        found |= declared.layout(content[name] if is_given else None, f"{prefix}{name}")
    return found


def pack(state: Any, arrays: dict[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    """Add the arrays of a state, named as in its layout, to ``arrays`` and return the content of its fields."""
    content: dict[str, Any] = {}
    for name, declared, _ in declared_fields(state):
        own = declared.pack(getattr(state, name), f"{prefix}{name}", arrays)
        if declared.has_content:
            content[name] = own
    return content


def unpack(state: type[Any], content: Mapping[str, Any], arrays: Arrays, prefix: str = "") -> Any:
    """Rebuild a state from what `pack` gave; a ValueError if a field has another type."""
    values: dict[str, Any] = {}
    for name, declared, default in declared_fields(state):
        if declared.has_content and declared.may_lack and name not in content:
            values[name] = default
        else:
            own = content[name] if declared.has_content else None
            values[name] = declared.unpack(own, f"{prefix}{name}", arrays)
    return state(**values)


def _of_variant(item: Array | Matrix, variant: str) -> Array | Matrix:
    """Return a declaration whose sizes with ``*`` stand for the same number within one variant only."""

    def local(size: Any) -> Any:
        return f"{variant} {size}" if isinstance(size, str) and size.endswith("*") else size

    if isinstance(item, Matrix):
        return item
    return replace(item, shape=tuple(map(local, item.shape)), below=local(item.below))


def _pack_record(item: Any, prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for f in fields(item):
        part = getattr(item, f.name)
        if is_dataclass(part) and not isinstance(part, type):
            content[f.name] = _pack_record(part, f"{prefix}/{f.name}", arrays)
        elif isinstance(part, np.ndarray):
            arrays[f"{prefix}/{f.name}"] = part
        else:
            content[f.name] = part
    return {"record": type(item).__name__, **content}


def _unpack_record(content: Mapping[str, Any], prefix: str, arrays: Arrays) -> Any:
    kind, values = _RECORDS[content["record"]], dict[str, Any]()
    for f in fields(kind):
        place = f"{prefix}/{f.name}"
        if place in arrays:
            values[f.name] = arrays[place]
        elif f.type in _RECORDS:
            values[f.name] = _unpack_record(content[f.name], place, arrays)
        else:
            values[f.name] = _number(content[f.name], str(f.type), place)
    return kind(**values)


def _number(value: Any, annotation: str, place: str) -> Any:
    """Return a size, a finite number, or None, as the annotation requires; a ValueError for other values."""
    if annotation == "int":
        suits = type(value) is int and value > 0
    elif annotation == "float":
        suits = type(value) in (int, float) and math.isfinite(value)
    else:
        suits = value is None
    if not suits:
        raise ValueError(f"{place}: expected {annotation}, got {value!r}")
    return value
