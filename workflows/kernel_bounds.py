"""Rates of a machine that bound kernels, and the table of kernels beside their bounds, for `bench_kernels`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from timeit import repeat
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from distmom.compiled import compiled

#: side of the square matrices, and length of the vectors, on which the rates are measured
SIDE, LENGTH = 1536, 1 << 26
#: number of rows that are read at random places
N_PLACES = 500_000


@compiled
def add_up(places: Any, matrix: Any, total: Any) -> None:
    """Add rows of a matrix to a vector."""
    for i in range(len(places)):
        row = matrix[np.uint64(places[i])]
        for c in range(len(total)):
            total[c] += row[c]


@cache
def rate_of_rows(width: int) -> float:
    """Measure the bytes per second at which rows of ``width`` float32 are read at random places."""
    matrix, total = np.ones((LENGTH // width, width), np.float32), np.zeros(width, np.float32)
    places = np.random.default_rng(0).integers(0, len(matrix), N_PLACES)
    add_up(places[:1], matrix, total)
    return 4.0 * width * N_PLACES / min(repeat(lambda: add_up(places, matrix, total), number=1, repeat=3))


@compiled
def change(places: Any, vector: Any) -> None:
    """Add one to the numbers of a vector at some places."""
    for i in range(len(places)):
        vector[np.uint64(places[i])] += vector.dtype.type(1)


@cache
def rate_of_changes(length: int, dtype: str) -> float:
    """Measure the numbers per second that are changed at random places of a vector."""
    vector, places = np.zeros(length, dtype), np.random.default_rng(0).integers(0, length, N_PLACES, np.int32)
    change(places[:1], vector)
    return N_PLACES / min(repeat(lambda: change(places, vector), number=1, repeat=5))


@dataclass(frozen=True)
class Machine:
    """Rates of one thread: operations per second of a matrix product, and bytes per second of memory."""

    operations: float
    n_bytes: float

    @classmethod
    def measured(cls) -> Machine:
        """Measure a single-precision matrix product, and the sum of two vectors."""
        a = np.ones((SIDE, SIDE), np.float32)
        x, y = np.ones(LENGTH, np.float32), np.ones(LENGTH, np.float32)
        with threadpool_limits(limits=1):
            product = min(repeat(lambda: a @ a, number=1, repeat=5))
            addition = min(repeat(lambda: np.add(x, x, out=y), number=1, repeat=5))
        return cls(2.0 * SIDE**3 / product, 2.0 * x.nbytes / addition)


class Bounded:
    """Runs benchmarks of kernels, and compares their times with their bounds.

    Parameters
    ----------
    machine : Machine
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.rows: list[tuple[str, float, str, float, str]] = []

    def run(
        self,
        benchmark: Any,
        kernel: Callable[..., Any],
        *arguments: Any,
        operations: float = 0.0,
        n_bytes: float = 0.0,
        width: int = 0,
        changes: tuple[float, int, str] | None = None,
    ) -> None:
        """Time a kernel that makes so many multiplications and additions, and moves so many bytes.

        If ``width`` is given, the bytes are those of rows at random places, of ``width`` float32 each. ``changes``
        are a number of changes of single numbers, and the length and type of the vector that has these numbers.
        """
        benchmark(kernel, *arguments)
        if benchmark.stats is None:
            return
        bounds = {"product": operations / self.machine.operations, "memory": n_bytes / self.machine.n_bytes}
        name = max(bounds, key=lambda each: bounds[each])
        seconds = benchmark.stats.stats.median
        benchmark.extra_info.update(bounds)
        random = f"{n_bytes / rate_of_rows(width) / seconds:.0%}" if width else ""
        if changes is not None:
            random = f"{changes[0] / rate_of_changes(*changes[1:]) / seconds:.0%}"
        self.rows.append(
            (benchmark.name.removeprefix("test_"), seconds, name, bounds[name] / seconds, random)
        )

    def table(self) -> str:
        """Return the table of all kernels so far, in Markdown."""
        lines = [
            f"One thread: {self.machine.operations / 1e9:.1f} GFLOP/s, {self.machine.n_bytes / 1e9:.1f} GB/s",
            "",
            "| kernel | ms | bound by | share of the bound | of random places |",
            "|---|---:|---|---:|---:|",
            *(
                f"| {name} | {1e3 * s:.1f} | {bound} | {share:.0%} | {random} |"
                for name, s, bound, share, random in self.rows
            ),
        ]
        return "\n".join(lines)
