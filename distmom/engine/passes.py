"""Passes: scans over all shards that add every block of rows to named sums.

A pass is a frozen dataclass. Its fields are its only state, so that it can be sent to a worker and its fingerprint
computed from them; a field may hold an array or a `StoredArray`, which the engine opens before the first block.
The same object runs on one block in a test, over a corpus in-process and on a cluster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import FunctionType
from typing import Any

import numpy as np

from distmom.corpus.files.records import plain_number
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.engine.sums.sparse import SparseSum
from distmom.engine.sums.tall import TallSum
from distmom.hashing import GOLDEN, scramble_array

Rows = Mapping[str, np.ndarray]

#: more units than any shard has: the ``block_rows`` of passes that take a shard as one block, as the number of
#: rows of a unit is not bounded
WHOLE_SHARD = 1 << 40


@dataclass(frozen=True)
class Selection:
    """A random subset of the documents, determined by a hash of their positions in the corpus.

    Attributes
    ----------
    fraction : float
        Expected share of held-out documents.
    heldout : bool
        Select the held-out documents; otherwise all other documents.
    seed : int, default 0
        Seed of the hash.
    offset : float, default 0.0
        Start of the held-out range of hash values: shares of 0.1 at offsets 0 and 0.1 are disjoint.
    """

    fraction: float
    heldout: bool
    seed: int = 0
    offset: float = 0.0

    @property
    def share(self) -> float:
        """Expected share of the selected documents."""
        return self.fraction if self.heldout else 1.0 - self.fraction

    def mask(self, first: int, n_documents: int) -> np.ndarray:
        """Return which of the documents ``first, first + 1, ...`` are selected, a bool array."""
        key = np.arange(first, first + n_documents, dtype=np.uint64)
        with np.errstate(over="ignore"):
            key += np.uint64(self.seed) * GOLDEN + np.uint64(0x632BE59BD9B4E019)
        key = scramble_array(key)
        edges = (self.offset, self.offset + self.fraction)
        low, high = (np.uint64(min(edge, 1.0) * (2**64 - 2**12)) for edge in edges)
        held = (key >= low) & (key < high)
        return held if self.heldout else ~held

    def positions(self, first: int, n_documents: int) -> np.ndarray:
        """Return the positions of the next selected documents from ``first`` on, an int array."""
        size = n_documents
        while (chosen := np.flatnonzero(self.mask(first, size))).size < n_documents:
            size *= 2
        return first + chosen[:n_documents]


@dataclass(frozen=True)
class Pass:
    """Base class of all passes.

    Subclasses are frozen dataclasses that define `specs` and `add`.

    Attributes
    ----------
    n_features : int
        Number of features of the pass.
    selection : Selection or None
        Documents that the pass reads; None (default) means all.
    features : slice or None
        The slab of features whose sums are accumulated; set by the engine, None (default) means all.
    columns : slice or None
        The slab of columns of separable tall sums that is accumulated; set by the engine, None (default) means
        all.
    numbers : ndarray of shape (n_features of the corpus,), int32, or None
        Number of every feature of the corpus among those of the pass, ascending, -1 for features that the pass
        leaves out; None (default) means all features. An array or a stored array.
    """

    n_features: int
    selection: Selection | None = None
    features: slice | None = None
    columns: slice | None = None
    numbers: Any = None

    #: units of a block
    block_rows = 2048
    #: rows before the first row of a cut unit that `add` reads (see `distmom.corpus.RowBlock`), at most 8
    halo = 0
    #: entries per row of a tall sum below which a group takes more time for its sums than for its entries
    entries_per_row = 16
    #: axis of the rows that `add` returns, "units" or "rows"
    row_axis = "units"

    @property
    def name(self) -> str:
        """Name of the pass in progress reports and file names."""
        return type(self).__name__.removesuffix("Pass").lower()

    @property
    def has_exact_columns(self) -> bool:
        """Whether columns of separable sums have the same bits however many are added together."""
        return True

    @property
    def estimated(self) -> bool:
        """Whether the sizes of the pass depend on data, so that a plan can only estimate them."""
        return False

    @property
    def slab(self) -> slice:
        """The slab of features as a slice with both ends."""
        return self.features if self.features is not None else slice(0, self.n_features)

    def positions(self, block: Any) -> np.ndarray:
        """Return the positions in the corpus of the units of a block."""
        if self.selection is None:
            return np.arange(block.first, block.first + block.n_documents)
        return self.selection.positions(block.first, block.n_documents)

    def for_columns(self, index: int, columns: tuple[slice, ...]) -> Pass:
        """Return the pass restricted to one of the slabs of columns."""
        return replace(self, columns=columns[index])

    @property
    def n_stored_slabs(self) -> int:
        """Number of slabs of columns of the stored matrix whose columns correspond to those of a separable sum."""
        return 1

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the stored matrices that a task reads, over all columns."""
        return 0

    def specs(self) -> dict[str, SumSpec]:
        """Return the specification of every sum by name."""
        raise TypeError(f"{type(self).__name__} does not define its sums")

    def working_bytes(self, n_rows: int) -> int:
        """Return the bytes that `add` needs for a block of ``n_rows`` rows, without the block and the sums."""
        return 0

    @property
    def finish_bytes(self) -> int:
        """Bytes that a worker needs to finish the total."""
        return 0

    @property
    def row_bytes(self) -> int:
        """Bytes that the pass stores per unit, or per row with ``row_axis="rows"``."""
        return 0

    def zero(self, frequent: Mapping[str, np.ndarray] | None = None, files: str | None = None) -> Sums:
        """Return empty accumulators for all sums.

        Parameters
        ----------
        frequent : mapping of str to ndarray, optional
            Rows of tall sums that are accumulated in float64, by axis; other rows are accumulated in float32.
            All rows in float64 by default.
        files : str, optional
            Directory to which sparse sums write their runs; they are kept in memory by default.
        """
        sums = Sums()
        for name, spec in self.specs().items():
            if spec.tall is None:
                sums[name] = spec.zero(self.slab)
            elif spec.sparse:
                sums[name] = SparseSum(files)
            else:
                n_rows, width = spec.shape
                if self.columns is not None and spec.separable:
                    width = self.columns.stop - self.columns.start
                sums[name] = TallSum.zero(n_rows, width, (frequent or {}).get(spec.tall))
        return sums

    def add(self, sums: Sums, block: Any, rows: Rows) -> Rows | None:
        """Add one block to ``sums`` in place and return the rows to store, if any.

        Parameters
        ----------
        sums : Sums
            Changed in place.
        block : Block or RowBlock
            Documents in memory.
        rows : mapping of str to ndarray of shape (n_documents, ...) or (n_rows, ...)
            Rows that earlier passes stored for these units or their rows, by the names given to `Engine.run`.
        """
        raise TypeError(f"{type(self).__name__} does not define how a block is added")


def cut_block(shard: Any, rows: Rows, axes: Mapping[str, str], taken: slice | np.ndarray) -> tuple[Any, Rows]:
    """Return some units of a shard, and the rows stored for them.

    Parameters
    ----------
    shard : Block or RowBlock
    rows : mapping of str to ndarray
        Rows stored for the shard.
    axes : mapping of str to {"units", "rows"}
        Axis of each.
    taken : slice or bool ndarray
        Units.
    """
    block = shard.take(taken)
    if "rows" not in axes.values():
        return block, {name: value[taken] for name, value in rows.items()}
    if isinstance(taken, slice):
        of_rows: slice | np.ndarray = slice(
            *(int(shard.starts[i]) - shard.context for i in (taken.start, taken.stop))
        )
    else:
        of_rows = np.repeat(taken, shard.sizes)
    return block, {name: value[of_rows if axes[name] == "rows" else taken] for name, value in rows.items()}


def transform_fields(value: Any, function: Callable[[Any], Any]) -> Any:
    """Rebuild dataclasses, tuples and dicts with ``function`` applied to every leaf."""
    if isinstance(value, tuple):
        return type(value)(transform_fields(item, function) for item in value)
    if isinstance(value, dict):
        return {key: transform_fields(item, function) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "load"):
        changed = {f.name: transform_fields(getattr(value, f.name), function) for f in fields(value)}
        return replace(value, **changed)
    return function(value)


def resolve(pass_: Pass) -> Pass:
    """Return the pass with every stored value loaded."""
    opened: Pass = transform_fields(pass_, lambda leaf: leaf.load() if hasattr(leaf, "load") else leaf)
    return opened


def named(function: Callable[..., Any]) -> str:
    """Return the name of a function of a module; a TypeError for others, which depend on more than arguments."""
    if not isinstance(function, FunctionType) or function.__closure__ or "<lambda>" in function.__qualname__:
        raise TypeError(f"expected a function of a module, got {function!r}")
    return f"{function.__module__}.{function.__qualname__}"


def fingerprint(value: Any) -> str:
    """Return the sha256 of everything that determines a value: types, names, numbers and array contents."""
    digest = hashlib.sha256()

    def visit(item: Any) -> None:
        if hasattr(item, "load") and hasattr(item, "digest"):
            digest.update(b"stored:" + item.digest.encode())
        elif is_dataclass(item) and not isinstance(item, type):
            digest.update(type(item).__qualname__.encode())
            for f in fields(item):
                digest.update(f"|{f.name}=".encode())
                visit(getattr(item, f.name))
        elif isinstance(item, np.ndarray):
            digest.update(f"array{item.shape}{item.dtype.str}".encode())
            digest.update(np.ascontiguousarray(item).data)
        elif isinstance(item, (tuple, list)):
            digest.update(f"sequence{len(item)}".encode())
            for part in item:
                visit(part)
        elif isinstance(item, dict):
            digest.update(f"mapping{len(item)}".encode())
            for key in sorted(item):
                digest.update(f"|{key}=".encode())
                visit(item[key])
        elif isinstance(item, slice):
            visit((item.start, item.stop, item.step))
        else:
            digest.update(json.dumps(item, default=plain_number).encode())

    visit(value)
    return digest.hexdigest()
