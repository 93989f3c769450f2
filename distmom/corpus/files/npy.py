"""Reading of ``.npy`` files written by distmom, with a check of every byte of the header.

The header must have exactly the form that NumPy writes. Damaged bytes are therefore always detected and never
reach a parser of Python literals, and nothing is mapped or allocated until the file is known to have the
declared size.
"""

from __future__ import annotations

import io
import lzma
import math
import mmap
import os
import re
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
from scipy import sparse

from distmom.errors import StoreError

_MAGIC = b"\x93NUMPY\x01\x00"
_DICTIONARY = re.compile(
    r"\{'descr': '(<[fiu][248]|\|[iub]1)', 'fortran_order': (False|True), 'shape': \(([0-9, ]{0,99})\), \} *\n"
)

#: errors with which NumPy, SciPy and zipfile meet damaged or crafted arrays and archives
UNREADABLE = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError,
    RuntimeError, SyntaxError, struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError,
)  # fmt: skip


@dataclass(frozen=True)
class NpyHeader:
    """The header of an ``.npy`` file.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
    order : {"C", "F"}
    offset : int
        Position of the first element in the file, in bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    order: Literal["C", "F"]
    offset: int

    @property
    def n_bytes(self) -> int:
        """Expected size of the file."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


def check_npy_mark(path: str | os.PathLike[str]) -> None:
    """Raise ValueError unless a file begins as ``.npy`` files do; NumPy takes any other for pickled objects."""
    with open(path, "rb") as file:
        if file.read(6) != _MAGIC[:6]:
            raise ValueError("it does not begin as such files do")


def read_npy_header(stream: BinaryIO, place: str) -> NpyHeader:
    """Read the header of an ``.npy`` file; StoreError unless it is exactly as NumPy writes it for numbers."""
    start = stream.read(len(_MAGIC) + 2)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    text = stream.read(length).decode("latin-1")
    found = _DICTIONARY.fullmatch(text)
    if found is None or len(text) != length or not start.startswith(_MAGIC):
        raise StoreError(f"{place}: expected an .npy file of numbers, got a different header")
    shape = tuple(int(size) for size in found[3].split(",") if size.strip().isdecimal())
    dtype: np.dtype[np.generic] = np.dtype(found[1])
    declared = f"{{'descr': {dtype.str!r}, 'fortran_order': {found[2]}, 'shape': {shape}, }}"
    if text.rstrip(" \n") != declared:
        raise StoreError(
            f"{place}: expected the header {declared}, got a different one; the file was altered"
        )
    return NpyHeader(shape, dtype, "F" if found[2] == "True" else "C", len(start) + len(text))


def map_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Map an ``.npy`` file into memory, read-only; its elements are not checked.

    Raises
    ------
    StoreError
        If it cannot be read, is not an ``.npy`` file of numbers, or does not have the declared size.
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
            mapped = map_bytes(stream, size)
            return np.ndarray(header.shape, header.dtype, mapped, header.offset, order=header.order)
    except (OSError, ValueError, OverflowError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error


def parse_npy(content: bytes, place: str) -> np.ndarray:
    """Return the array of an ``.npy`` file, read-only; StoreError unless it is one of numbers, of its size."""
    header = read_npy_header(io.BytesIO(content), place)
    if len(content) != header.n_bytes:
        raise StoreError(f"{place}: cannot be read: expected {header.n_bytes} bytes, got {len(content)}")
    return np.ndarray(header.shape, header.dtype, content, header.offset, order=header.order)


class MappedFile(mmap.mmap):
    """The bytes of a file, mapped into memory.

    Arrays are made from these bytes, and not by `numpy.memmap`: joblib sends the latter to other processes by the
    name of the file, but fitted models keep arrays of temporary runs, whose files have been removed.

    Attributes
    ----------
    path : str
    """

    path: str


def map_bytes(stream: BinaryIO, size: int) -> MappedFile:
    """Map the first bytes of an open file, read-only; a ValueError if it has fewer, or if `size` is 0."""
    mapped = MappedFile(stream.fileno(), size, access=mmap.ACCESS_READ)
    mapped.path = os.fspath(stream.name)
    return mapped


def mapped_file(array: np.ndarray) -> mmap.mmap | None:
    """Return the bytes of a file that an array or a view of one is made from; None for other arrays."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def member_of(archive: Any, name: str) -> np.ndarray:
    """Return an array of an opened ``.npz`` file; a ValueError if the member is something else."""
    member = archive[name]
    if not isinstance(member, np.ndarray):
        raise ValueError(f"{name} is not an array")
    return member


def load_sparse(path: str | os.PathLike[str]) -> Any:
    """Read a matrix of ``scipy.sparse.save_npz``; one of `UNREADABLE` if there is none.

    The structure of a matrix that is not CSR is checked, as its conversion would write out of bounds; that of
    a CSR matrix is left to the caller.
    """
    matrix: Any = sparse.load_npz(path)
    if matrix.format in ("csc", "bsr"):
        matrix.check_format(full_check=True)
    return matrix
