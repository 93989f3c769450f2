"""Arrays of an output to which rows are appended shard by shard, each chunk written once."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np


class AppendedArray:
    """Writes rows to a Zarr array in order; a context manager, which writes the last rows unless the block raises.

    Parameters
    ----------
    array : zarr.Array
        As from `distmom.corpus.files.encoding.create_array`.
    """

    def __init__(self, array: Any) -> None:
        self._array, self._chunk = array, int(array.chunks[0])
        self._at = 0
        self._rest: list[np.ndarray] = []
        self._n_rest = 0

    def append(self, values: np.ndarray) -> None:
        """Add rows, and write the chunks that they complete."""
        self._rest.append(values)
        self._n_rest += len(values)
        if self._n_rest >= self._chunk:
            self._write(self._n_rest - self._n_rest % self._chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._write(self._n_rest)

    def _write(self, n_rows: int) -> None:
        if not n_rows:
            return
        whole = np.concatenate(self._rest) if len(self._rest) > 1 else self._rest[0]
        self._array[self._at : self._at + n_rows] = whole[:n_rows]
        self._at += n_rows
        self._rest, self._n_rest = [whole[n_rows:]], self._n_rest - n_rows
