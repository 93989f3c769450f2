"""``.npy`` files as distmom writes them, read with a check of every byte of the header.

The header must be the one form in which NumPy writes it. So no parser of Python literals meets damaged bytes, none
of them goes unnoticed, and nothing is mapped or allocated before the size it declares is known to be there.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from distmom.errors import StoreError

_MAGIC = b"\x93NUMPY\x01\x00"
_DICTIONARY = re.compile(
    r"\{'descr': '(<[fiu][248]|\|[iub]1)', 'fortran_order': (False|True), 'shape': \(([0-9, ]{0,99})\), \} *\n"
)


@dataclass(frozen=True)
class NpyHeader:
    """What an ``.npy`` file declares.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
    order : {"C", "F"}
    offset : int
        Where the elements begin.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    order: str
    offset: int

    @property
    def n_bytes(self) -> int:
        """Size of the file that it is the header of."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(stream: BinaryIO, place: str) -> NpyHeader:
    """Read the header of an ``.npy`` file; StoreError unless it is as NumPy writes it for numbers."""
    start = stream.read(len(_MAGIC) + 2)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    text = stream.read(length).decode("latin-1")
    found = _DICTIONARY.fullmatch(text)
    if found is None or len(text) != length or not start.startswith(_MAGIC):
        raise StoreError(f"{place}: expected an .npy file of numbers, got another header")
    shape = tuple(int(size) for size in found[3].split(",") if size.strip().isdecimal())
    dtype: np.dtype[np.generic] = np.dtype(found[1])
    declared = f"{{'descr': {dtype.str!r}, 'fortran_order': {found[2]}, 'shape': {shape}, }}"
    if text.rstrip(" \n") != declared:
        raise StoreError(f"{place}: expected the header {declared}, got another; the file was altered")
    return NpyHeader(shape, dtype, "F" if found[2] == "True" else "C", len(start) + len(text))


def map_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Map an ``.npy`` file into memory, read-only; its elements are not checked.

    Raises
    ------
    StoreError
        If it cannot be read, is no such file, or has another size than it declares.
    """
    try:
        with open(path, "rb") as stream:
            header = read_npy_header(stream, str(path))
            size = os.fstat(stream.fileno()).st_size
        if size != header.n_bytes:
            raise StoreError(
                f"{path}: cannot be read: expected {header.n_bytes} bytes for {header.dtype.str} of shape "
                f"{header.shape}, got {size}"
            )
        return np.memmap(path, header.dtype, "r", header.offset, header.shape, header.order)  # type: ignore[call-overload,no-any-return]
    except (OSError, ValueError, OverflowError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error
