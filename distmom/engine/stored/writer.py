"""The writer of a stored array that arrives in pieces."""

from __future__ import annotations

import io
import os
import uuid
from pathlib import Path
from types import TracebackType

import numpy as np

from distmom.corpus.files.commit import TEMPORARY
from distmom.engine.stored.arrays import SLAB_ROWS, SlabChecksum, StoredArray, slab_digest
from distmom.engine.stored.scratch import claimed


class ArrayWriter:
    """Writes a stored array of one or two dimensions piece by piece; a context manager.

    Parameters
    ----------
    directory : Path
    dtype : str
    size : int
        Approximate number of elements.
    spare : Path
        Directory of files that may be overwritten.
    width : int, optional
        Number of columns of a two-dimensional array; one dimension by default.

    Attributes
    ----------
    stored : StoredArray
        The handle; set when the context is left without an error.
    """

    stored: StoredArray

    def __init__(self, directory: Path, dtype: str, size: int, spare: Path, width: int | None = None) -> None:
        self._path = directory / f"{TEMPORARY}{uuid.uuid4().hex}.npy"
        self._mode = "r+b" if claimed(self._path, size * np.dtype(dtype).itemsize, spare) else "xb"
        self._directory, self._dtype = directory, np.dtype(dtype)
        self._size, self._width = 0, width
        self._slab = SLAB_ROWS * (width or 1)
        self._checksums: list[str] = []
        self._open = SlabChecksum()

    def __enter__(self) -> ArrayWriter:
        self._stream = open(self._path, self._mode)
        self._stream.write(self._header())
        return self

    def append(self, values: np.ndarray) -> None:
        """Write further elements."""
        content = np.ascontiguousarray(values, self._dtype).reshape(-1)
        self._stream.write(content.data)
        start = 0
        while start < len(content):
            stop = min(len(content), start + self._slab - self._size % self._slab)
            self._open.update(content[start:stop])
            self._size += stop - start
            start = stop
            if self._size % self._slab == 0:
                self._close_slab()

    def _close_slab(self) -> None:
        self._checksums.append(self._open.hexdigest())
        self._open = SlabChecksum()

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self._size,) if self._width is None else (self._size // self._width, self._width)

    def _header(self) -> bytes:
        """Return the header of the file; its length does not depend on the size."""
        header = io.BytesIO()
        record = {"descr": self._dtype.str, "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(header, record)
        return header.getvalue()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._stream:
                if error is None:
                    self._stream.truncate()
                    self._stream.seek(0)
                    self._stream.write(self._header())
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        if error is not None:
            self._path.unlink(missing_ok=True)
            return
        if self._size % self._slab:
            self._close_slab()
        digest = slab_digest(self._shape, self._dtype, self._checksums)
        path = self._directory / f"{digest[:32]}.npy"
        os.replace(self._path, path)
        self.stored = StoredArray(str(path), digest)
