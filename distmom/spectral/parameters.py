"""Parameters of estimators: declared once, with type, bounds and help.

A parameter is declared in the body of a class: ``n_components: int = parameter("Topics.", default=100, least=1)``.
The constructor and its signature, the checks, the section "Parameters" of the docstring and the options of the
command line are generated from the declarations. A subclass fixes an inherited parameter with
``alpha0: float = fixed(0.0)``: it is no longer a parameter of that class.
"""

from __future__ import annotations

import inspect
import math
import numbers
import textwrap
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import numpy as np

from distmom.errors import UsageError
from distmom.spectral.bases import BaseEstimator

_T = TypeVar("_T")

#: line width of the help in docstrings
_WIDTH = 108


@dataclass(frozen=True)
class Parameter:
    """The declaration of one parameter.

    Attributes
    ----------
    default : int, float, str, bool or None
    help : str
        Sentences for docstrings and the command line.
    kind : type
        int, float, str or bool.
    choices : tuple of str
        All values of a parameter that is a word; empty for other parameters.
    least, below : float or None
        Bounds of a number, ``least`` inclusive and ``below`` exclusive; None: no bound.
    auto, none : bool
        Whether ``"auto"``, and None, are allowed.
    unset : str
        Meaning of None.
    kw_only : bool
        Whether the parameter is keyword-only in the constructor.
    """

    default: Any
    help: str
    kind: type
    choices: tuple[str, ...] = ()
    least: float | None = None
    below: float | None = None
    auto: bool = False
    none: bool = False
    unset: str = ""
    kw_only: bool = True

    @property
    def values(self) -> str:
        """Type, values and default in numpydoc's form."""
        if self.choices:
            text = "{" + ", ".join(f'"{choice}"' for choice in self.choices) + "}"
        else:
            text = self.kind.__name__
            text += ' or "auto"' if self.auto else ""
        text += " or None" if self.none else ""
        default = f'"{self.default}"' if isinstance(self.default, str) else f"{self.default}"
        return f"{text}, default {default}"

    def check(self, name: str, value: Any) -> None:
        """Raise a UsageError if a value is of the wrong type or out of bounds."""
        if (value is None and self.none) or (self.auto and isinstance(value, str) and value == "auto"):
            return
        if self.choices:
            if not (isinstance(value, str) and value in self.choices):
                raise UsageError(f"{name}: expected one of {', '.join(self.choices)}, got {value!r}")
            return
        if self.kind is bool and not isinstance(value, bool | np.bool_):
            raise UsageError(f"{name}: expected True or False, got {value!r}")
        if self.kind in (int, float):
            self._check_number(name, value)

    @property
    def _number(self) -> str:
        """Description of the expected number, for messages."""
        return ("a whole number" if self.kind is int else "a number") + (", or 'auto'" if self.auto else "")

    def _check_number(self, name: str, value: Any) -> None:
        whole = self.kind is int
        wanted = numbers.Integral if whole else numbers.Real
        or_auto = ", or 'auto'" if self.auto else ""
        # True and False are whole numbers of Python.
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise UsageError(f"{name}: expected {self._number}, got {value!r}")
        # A whole number is compared as it is: as a float, a large seed would be rounded out of bounds.
        if not whole and not (math.isfinite(value) or (self.below is not None and math.isinf(value))):
            raise UsageError(f"{name}: expected a finite number{or_auto}, got {value}")
        if self.least is not None and value < self.least:
            raise UsageError(f"{name}: expected at least {self.least:g}{or_auto}, got {value}")
        if self.below is not None and not value < self.below:
            raise UsageError(f"{name}: expected a number below {self.below:g}{or_auto}, got {value}")


def parameter(
    help: str,
    *,
    default: _T,
    kind: type | None = None,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    below: float | None = None,
    auto: bool = False,
    none: bool = False,
    unset: str = "",
    kw_only: bool = True,
) -> _T:
    """Declare a parameter of an estimator (see `Parameter`); ``kind`` is inferred if it is None."""
    found = kind if kind is not None else str if choices else type(default)
    declared = Parameter(default, help, found, choices, least, below, auto, none, unset, kw_only)
    # The class holds the declaration, its instances a value.
    return cast(_T, declared)


def fixed(value: _T, *, init: Literal[False] = False) -> _T:
    """Fix an inherited parameter; ``init`` is read by type checkers, and removes it from the constructor."""
    return value


class Parametrised(BaseEstimator):
    """Base class of estimators whose parameters are declared with `parameter`."""

    @classmethod
    def parameters(cls) -> dict[str, Parameter]:
        """Return the parameters by name, in the order of declaration, keyword-only ones last."""
        found: dict[str, Parameter] = {}
        for base in reversed(cls.__mro__):
            for name, value in vars(base).items():
                if isinstance(value, Parameter):
                    found[name] = value
                elif name in found:
                    del found[name]
        return dict(sorted(found.items(), key=lambda item: item[1].kw_only))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = cls.parameters()
        if not declared:
            return
        kinds = inspect.Parameter
        signature = inspect.Signature(
            [kinds("self", kinds.POSITIONAL_OR_KEYWORD)]
            + [
                kinds(
                    name, kinds.KEYWORD_ONLY if p.kw_only else kinds.POSITIONAL_OR_KEYWORD, default=p.default
                )
                for name, p in declared.items()
            ]
        )

        def __init__(self: Any, *arguments: Any, **values: Any) -> None:  # noqa: N807
            bound = signature.bind(self, *arguments, **values)
            bound.apply_defaults()
            for name, value in bound.arguments.items():
                if name != "self":
                    setattr(self, name, value)

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        __init__.__qualname__ = f"{cls.__qualname__}.__init__"
        setattr(cls, "__init__", __init__)  # noqa: B010
        if cls.__doc__ and "Attributes\n" in cls.__doc__ and "Parameters\n    ---" not in cls.__doc__:
            cls.__doc__ = cls.__doc__.replace("    Attributes\n", _section(declared) + "    Attributes\n", 1)

    def check_parameters(self) -> None:
        """Raise a UsageError if a parameter is of the wrong type or out of bounds."""
        for name, declared in self.parameters().items():
            declared.check(name, getattr(self, name))


def _section(declared: dict[str, Parameter]) -> str:
    """Return the section "Parameters" of a docstring."""
    lines = ["    Parameters", "    ----------"]
    for name, p in declared.items():
        text = p.help + (f" None: {p.unset}." if p.unset else "")
        lines.append(f"    {name} : {p.values}")
        lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines) + "\n\n"
