"""Layers of a corpus, its shards, and the protocol that all corpora meet.

A corpus has aligned layers. Each is along units (independent documents, sequences or groups) or along rows (the
observations of units), and is a CSR matrix, a dense matrix, or a vector of symbols. `starts` maps units to rows. A
unit that is longer than a shard is cut: it continues in the next shard, whose block begins with a few rows of
context.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from distmom.errors import UsageError

KINDS = ("csr", "dense", "symbols")
AXES = ("units", "rows")
#: rows before a cut that the next shard repeats: the largest halo of a pass
CONTEXT_ROWS = 8
#: bytes of the rows of a shard where their number is not given
SHARD_BYTES = 32 << 20
#: rows of a shard where their number is not given, at most: a pass may store many numbers for each symbol
SHARD_ROWS = 1 << 20


@dataclass(frozen=True)
class Layer:
    """A layer of a corpus.

    Attributes
    ----------
    name : str
    kind : {"csr", "dense", "symbols"}
    along : {"units", "rows"}
    width : int
        Number of columns, or of symbols.
    dtype : str
        Type of the values on disk.
    """

    name: str
    kind: str
    along: str
    width: int
    dtype: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a manifest."""
        return asdict(self)


class Shard(Protocol):
    """The properties of a shard that the engine reads."""

    @property
    def id(self) -> str:
        """Name of the shard."""

    @property
    def digest(self) -> str:
        """Checksum of its content."""

    @property
    def first(self) -> int:
        """Position of its first unit in the corpus."""

    @property
    def n_documents(self) -> int:
        """Number of units, or parts of units, in the shard."""

    @property
    def n_rows(self) -> int:
        """Number of rows of its block."""

    @property
    def n_entries(self) -> int:
        """Number of stored values of its features."""

    @property
    def n_targets(self) -> int:
        """Number of stored labels."""

    @property
    def block_bytes(self) -> int:
        """Bytes of its block in memory, including the parts it is divided into."""


class AnyCorpus(Protocol):
    """A corpus that passes can scan: on disk, in an object store, in a file of views, or in memory."""

    @property
    def digest(self) -> str:
        """Checksum of the content."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Its layers; the first is the one whose columns are the features."""

    @property
    def shards(self) -> Sequence[Shard]:
        """All shards, in order."""

    @property
    def n_documents(self) -> int:
        """Number of units: documents, sequences, groups, or rows."""

    @property
    def n_words(self) -> int:
        """Number of features: columns or symbols of the first layer."""

    @property
    def n_labels(self) -> int:
        """Number of labels, 0 without labels."""

    @property
    def document_frequency(self) -> np.ndarray:
        """Number of units or rows with a value of each feature, of shape (n_words,)."""

    @property
    def label_frequency(self) -> np.ndarray:
        """Number of units with each label, of shape (n_labels,)."""

    def read_shard(self, index: int) -> Any:
        """Return the block of one shard."""

    def verify(self) -> list[str]:
        """Read everything and return the problems found."""


def _is_corpus(value: Any) -> bool:
    return hasattr(value, "layers") and hasattr(value, "shards")


def refuse_corpus(X: Any, name: str = "X") -> None:
    """Raise a UsageError if a corpus is given in place of documents or rows."""
    if _is_corpus(X):
        raise UsageError(
            f"{name}: expected documents or rows, got a corpus, which is for fit_corpus, for predict_corpus and "
            "transform_corpus of distmom.predict, and for distmom.evaluate"
        )


def check_corpus(corpus: Any) -> None:
    """Check that an argument is a corpus; else a UsageError."""
    if _is_corpus(corpus):
        return
    found = f"the path {str(corpus)!r}" if isinstance(corpus, str | os.PathLike) else type(corpus).__name__
    raise UsageError(
        "corpus: expected a corpus, as distmom.open_corpus(path), distmom.ingest or distmom.corpus.text_corpus "
        f"returns it, got {found}"
    )


@dataclass(frozen=True)
class RowShard:
    """A shard of rows.

    Attributes
    ----------
    id : str
    first : int
        Position of its first unit in the corpus.
    n_documents : int
        Number of units, or parts of units, in the shard.
    digest : str
    first_row : int
        Position of its first row, without context, in the corpus.
    n_rows : int
        Number of rows, without context.
    n_entries : int
        Number of values of the first layer.
    block_bytes : int
        Peak memory in bytes of its block.
    continued : bool, default False
        The first unit began in an earlier shard.
    continues : bool, default False
        The last unit continues in the next shard.
    """

    id: str
    first: int
    n_documents: int
    digest: str
    first_row: int
    n_rows: int
    n_entries: int
    block_bytes: int
    continued: bool = False
    continues: bool = False

    #: rows have no labels
    n_targets = 0


@dataclass(frozen=True)
class Cut:
    """Rows of consecutive units that make one shard.

    Attributes
    ----------
    first, last : int
        Units from ``first`` up to, not including, ``last``; the first and the last may be parts.
    start, stop : int
        Rows.
    """

    first: int
    last: int
    start: int
    stop: int

    def context(self, starts: np.ndarray) -> int:
        """Return how many rows before ``start`` the shard repeats."""
        return int(min(CONTEXT_ROWS, self.start - starts[self.first]))

    def starts(self, starts: np.ndarray) -> np.ndarray:
        """Return the starts of the units of the shard among its rows, context included."""
        edges = np.clip(starts[self.first : self.last + 1], self.start, self.stop)
        return np.asarray(edges - self.start + self.context(starts), np.int64)


def cut_units(starts: np.ndarray, shard_rows: int) -> Iterator[Cut]:
    """Yield the shards of units: whole units where they fit, a longer unit in several shards.

    Parameters
    ----------
    starts : ndarray of shape (n_units + 1,)
        Unit i has the rows ``starts[i] : starts[i + 1]``.
    shard_rows : int
        Largest number of rows of a shard.
    """
    n_units = len(starts) - 1
    unit, row = 0, 0
    while unit < n_units:
        last = int(np.searchsorted(starts, row + shard_rows, side="right")) - 1
        if last > unit:
            yield Cut(unit, last, row, int(starts[last]))
            unit, row = last, int(starts[last])
        elif starts[unit + 1] - row <= shard_rows:
            yield Cut(unit, unit + 1, row, int(starts[unit + 1]))
            unit, row = unit + 1, int(starts[unit + 1])
        else:
            yield Cut(unit, unit + 1, row, row + shard_rows)
            row += shard_rows


def rows_per_shard(row_bytes: int, shard_rows: int | None = None) -> int:
    """Return the number of rows of a shard: as given, or about 32 MiB and at most `SHARD_ROWS`.

    Raises
    ------
    UsageError
        If the number is below `CONTEXT_ROWS`.
    """
    if shard_rows is None:
        return max(CONTEXT_ROWS, min(SHARD_ROWS, SHARD_BYTES // max(1, row_bytes)))
    if shard_rows < CONTEXT_ROWS:
        raise UsageError(f"shard_rows: expected at least {CONTEXT_ROWS}, got {shard_rows}")
    return shard_rows


def select_layers(layers: Sequence[Layer], names: Sequence[str]) -> tuple[Layer, ...]:
    """Return layers by name, in the order of the names; UsageError if there is no such layer."""
    known = {layer.name: layer for layer in layers}
    for name in names:
        if name not in known:
            raise UsageError(f"layer: expected one of {', '.join(known)}, got {name!r}")
    return tuple(known[name] for name in names)


def check_layer_name(name: str) -> None:
    """Raise UsageError unless a layer can have a name: it is also the name of files."""
    if not name.isidentifier() or len(name) > 64:
        raise UsageError(
            f"layer: expected a name of at most 64 letters, digits and underscores, got {name[:70]!r}"
        )
    if name == "starts":
        raise UsageError("layer: expected another name than that of the starts of units, got 'starts'")


def word_layers(corpus: Any) -> tuple[Layer, ...]:
    """Return the layers of a corpus of words and labels."""
    values = {"counts": "int32", "weights": "float32"}[corpus.values]
    return (
        Layer("words", "csr", "units", corpus.n_words, values),
        Layer("labels", "csr", "units", corpus.n_labels, "uint8"),
    )


def row_bytes_of(layers: Sequence[Layer]) -> int:
    """Return the bytes of a row in memory: dense values as float64, symbols as int32."""
    return sum({"dense": 8 * layer.width, "symbols": 4}.get(layer.kind, 0) for layer in layers)
