"""Arrays that one process writes and reads, held in memory in place of files.

A fit in one process reads the partial sums of a pass as soon as they are complete, and if its run directory is
temporary it never resumes. Small arrays therefore need neither files nor the checks of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from distmom.engine.stored.arrays import StoredArray, StoredRows, slab_checksum, slab_digest

#: largest number of bytes of the partial sums of a pass, of the outputs of a map over rows, and of the rows of a
#: pass that are held; of the latter two a program keeps several
HELD_SUM_BYTES, HELD_STATE_BYTES = 256 << 20, 32 << 20
#: share of a memory limit that these bytes may take
HELD_SHARE = 1 / 32


def may_hold(n_bytes: int, most: int, memory_limit: int | None) -> bool:
    """Return whether arrays of ``n_bytes`` in total may be held in memory; without a limit, at most ``most``."""
    if memory_limit is not None:
        most = min(most, int(HELD_SHARE * memory_limit))
    return n_bytes <= most


@dataclass(frozen=True)
class Holding:
    """Decides which arrays made by tasks stay in memory.

    Attributes
    ----------
    in_process : bool
        Whether tasks run in the process that reads their results.
    durable : bool
        Whether the run may be resumed, by a process that reads stored arrays and rows.
    memory_limit : int or None
        Bytes that one worker may use.
    """

    in_process: bool
    durable: bool
    memory_limit: int | None

    def holds_sums(self, n_bytes: int) -> bool:
        """Return whether the partial sums of a pass, ``n_bytes`` in total, are held in memory."""
        return self.in_process and may_hold(n_bytes, HELD_SUM_BYTES, self.memory_limit)

    def holds_states(self, n_bytes: int) -> bool:
        """Return whether arrays that later passes read stay in memory: only in a run that cannot be resumed."""
        held = self.in_process and not self.durable
        return held and may_hold(n_bytes, HELD_STATE_BYTES, self.memory_limit)


@dataclass(frozen=True)
class HeldSum:
    """A part of a sum in memory, read as a `distmom.engine.stored.scratch.ScratchArray`.

    Attributes
    ----------
    array : ndarray
    """

    array: np.ndarray

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return ``array[start:stop]``."""
        return self.array[start:stop]


@dataclass(frozen=True)
class HeldArray(StoredArray):
    """A stored array without a file; ``path`` is empty.

    Attributes
    ----------
    array : ndarray
        Read-only.
    """

    array: np.ndarray = field(compare=False)

    def load(self) -> np.ndarray:
        """Return the array."""
        return self.array


@dataclass(frozen=True)
class HeldRows(StoredRows):
    """Rows without files.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Rows of every shard.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def read(self, shard: int) -> np.ndarray:
        """Return the rows of one shard."""
        return self.arrays[str(shard)]


class HeldOutput:
    """Rows of fixed width that tasks of this process fill, as `distmom.engine.sums.tall.RowOutput`.

    Parameters
    ----------
    n_rows, width : int
    dtype : str
    """

    def __init__(self, n_rows: int, width: int, dtype: str) -> None:
        self.dtype: str = dtype
        self.width: int = width
        self._array = np.empty((n_rows, width), dtype)

    def room(self, rows: slice) -> np.ndarray:
        """Return the array in which some rows are made."""
        return self._array[rows]

    def write(self, start: int, rows: np.ndarray) -> str:
        """Return the checksum of rows that were made in their `room`."""
        return slab_checksum(rows)

    def finish(self, n_rows: int, checksums: Sequence[str]) -> HeldArray:
        """Return the handle of the complete array."""
        self._array.flags.writeable = False
        return HeldArray("", slab_digest(self._array.shape, self._array.dtype, checksums), self._array)

    def discard(self) -> None:
        """Do nothing, as there is no file."""
