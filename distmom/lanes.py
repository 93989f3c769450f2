"""Vectors of eight numbers in compiled kernels, whose order of operations is the same on every processor.

The compiler does not vectorize sums, as that would change their order, and short loops gain little from what it
vectorizes. With lanes, a kernel states both::

    total = spread(zero)
    for c in range(0, width, LANES):
        total = total + load(x, c) * load(y, c)
    return sum_of(total)

Lanes of one type are added, subtracted, multiplied and divided elementwise. Callers pad arrays to a multiple of
`LANES` (`padded`), as positions are not checked.

Kernels are cached with a copy of what they call, so the code of an operation never changes: another one gets
another name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, overload, register_model

from distmom.compiled import compiled

#: numbers of a vector
LANES = 8

_INDEX = ir.IntType(32)


class Lanes(types.Type):
    """The type of `LANES` numbers of one floating-point type in a compiled kernel."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """A vector register, or several."""

    def __init__(self, manager: Any, lanes: Lanes) -> None:
        number = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, LANES))


def _lanes_of(array: Any) -> Lanes:
    """Return the type of the lanes of an array; TypingError if its elements are not next to each other."""
    if array.layout != "C":
        raise TypingError(f"lanes: expected a C-contiguous array, got {array}")
    return Lanes(array.dtype)


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> tuple[Any, int]:
    """Return the address of the lanes of an array at a position, and its alignment in bytes."""
    array = signature.args[0]
    number = context.get_value_type(array.dtype)
    address = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
    lanes = builder.bitcast(address, ir.VectorType(number, LANES).as_pointer())
    return lanes, context.get_abi_alignment(number)


@intrinsic  # type: ignore[untyped-decorator]
def load(typing: Any, array: Any, at: Any) -> Any:
    """Return the `LANES` elements of a contiguous array from a position."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, alignment = _pointer(context, builder, signature, args)
        return builder.load(address, align=alignment)

    return _lanes_of(array)(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Set the `LANES` elements of a contiguous array from a position."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, alignment = _pointer(context, builder, signature, args)
        builder.store(args[2], address, align=alignment)
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes_of(array)), generate


@intrinsic  # type: ignore[untyped-decorator]
def accumulate(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Add lanes of the same or of single precision to the elements of a contiguous array from a position."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, alignment = _pointer(context, builder, signature, args)
        added = args[2]
        if lanes.dtype != array.dtype:
            added = builder.fpext(added, context.get_value_type(_lanes_of(array)))
        total = builder.fadd(builder.load(address, align=alignment), added)
        builder.store(total, address, align=alignment)
        return context.get_dummy_value()

    if lanes.dtype not in (array.dtype, types.float32):
        raise TypingError(f"lanes: expected an array of {lanes.dtype}, got {array}")
    return types.void(array, types.intp, lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def spread(typing: Any, number: Any) -> Any:
    """Return lanes that all hold one number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        undefined = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
        first = builder.insert_element(undefined, args[0], _INDEX(0))
        return builder.shuffle_vector(
            first, undefined, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
        )

    return Lanes(number)(number), generate


@intrinsic  # type: ignore[untyped-decorator]
def sum_of(typing: Any, lanes: Any) -> Any:
    """Return the sum of all lanes: the second half is added to the first until one number is left."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (left,), size = args, LANES
        while size > 1:
            size //= 2
            half = ir.VectorType(_INDEX, size)
            low, high = ir.Constant(half, list(range(size))), ir.Constant(half, list(range(size, 2 * size)))
            left = builder.fadd(
                builder.shuffle_vector(left, left, low), builder.shuffle_vector(left, left, high)
            )
        return builder.extract_element(left, _INDEX(0))

    return lanes.dtype(lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def positive(typing: Any, lanes: Any) -> Any:
    """Return the lanes with zero in place of negative numbers and NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, [0.0] * LANES)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[0], zero)

    return lanes(lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def magnitude(typing: Any, lanes: Any) -> Any:
    """Return the absolute values of lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = args[0].type
        name = f"llvm.fabs.v{LANES}f{lanes.dtype.bitwidth}"
        absolute = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(absolute, args)

    return lanes(lanes), generate


def _elementwise(symbol: Callable[..., Any], instruction: str) -> None:
    """Define an arithmetic operator of lanes."""

    @intrinsic  # type: ignore[untyped-decorator]
    def combine(typing: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args)

        return left(left, right), generate

    @overload(symbol)  # type: ignore[untyped-decorator]
    def of_lanes(left: Any, right: Any) -> Any:
        def combined(left: Any, right: Any) -> Any:
            return combine(left, right)

        return combined if isinstance(left, Lanes) and left == right else None


_elementwise(operator.add, "fadd")
_elementwise(operator.sub, "fsub")
_elementwise(operator.mul, "fmul")
_elementwise(operator.truediv, "fdiv")


@compiled
def padded(size: Any) -> Any:
    """Return the least multiple of `LANES` that is at least a size."""
    return (size + LANES - 1) // LANES * LANES


@compiled
def dot(x: Any, y: Any, width: Any) -> Any:
    """Return the inner product of the first ``width`` elements of two vectors, a multiple of `LANES`."""
    total = load(x, 0) * load(y, 0)
    for c in range(LANES, width, LANES):
        total = total + load(x, c) * load(y, c)
    return sum_of(total)
