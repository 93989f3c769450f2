"""Products of second moments with a test matrix or a basis: the base of such passes, and one fused loop.

For rows x_i with weights w_i the loop adds ``sum_i w_i x_i (x_i' B)``, or ``sum_i w_i (x_i x_i' - diag x_i) B``
with distinct positions, one row at a time, so that the products ``x_i' B`` of a row stay in the cache. B is a
basis or the test matrix Omega, whose entries are a function of seed, word and column and are computed on the
fly: Omega is neither stored nor sent.

Entries of Omega are uniform on (-sqrt 3, sqrt 3), with mean 0 and variance 1: sub-Gaussian, as a range finder
requires, at a tenth of the cost of Gaussian entries. Random signs would be as cheap, but two words of a small
vocabulary often get rows that are equal up to sign, which makes Omega singular.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.compiled import compiled
from distmom.engine.passes import Pass
from distmom.engine.stored.arrays import Columns, StoredColumns
from distmom.engine.sums.additive import SumSpec
from distmom.hashing import scramble

_SCALE = np.float32(3.0**0.5 / 2.0**31)


@dataclass(frozen=True)
class SketchPass(Pass):
    """Base class of passes that multiply a second moment by a test matrix or a basis.

    Attributes
    ----------
    n_columns : int
        Columns of the test matrix.
    seed : int
        Seed of the test matrix; its row for a word depends on seed and word alone.
    basis : matrix of shape (n_words, n_columns), optional
        Replaces the test matrix in a power pass; an array, or slabs of columns.
    n_probes : int
        Number of columns of the probes; 0 (default) for no probes.
    probes : matrix of shape (n_words, n_probes), optional
        Replaces the further columns of the test matrix that are the first probes.
    single : bool
        Multiply in float32, and accumulate large sums in float32 except for frequent words.
    first_column : int
        Number of the first column of ``basis``, where it is a slab of columns.

    Notes
    -----
    Sums: ``sketch`` (n_words, n_columns) tall, ``mass`` (); with probes also ``noise`` (n_words, n_probes),
    the product of the probes with the second moment in which every document has a random sign. Its mean is
    zero, and its magnitude that of the sampling error of the moment (symmetrisation). Documents with weights
    are an enumerated population, which has no sampling error.
    """

    n_columns: int = 0
    seed: int = 0
    basis: Any = None
    n_probes: int = 0
    probes: Any = None
    single: bool = False
    first_column: int = 0

    @property
    def name(self) -> str:
        return "sketch" if self.basis is None else "power"

    @property
    def n_stored_slabs(self) -> int:
        return n_stored_slabs(self.basis)

    @property
    def mapped_bytes(self) -> int:
        return 0 if self.basis is None else (4 if self.single else 8) * self.n_features * self.n_columns

    def for_columns(self, index: int, columns: tuple[slice, ...]) -> Pass:
        basis = self.basis
        if isinstance(basis, StoredColumns) and len(basis.parts) == len(columns):
            # The other slabs of the basis are not needed, and are not memory-mapped.
            part = StoredColumns((basis.parts[index],))
            return replace(self, columns=columns[index], basis=part, first_column=columns[index].start)
        return replace(self, columns=columns[index])

    def specs(self) -> dict[str, SumSpec]:
        dtype = "float32" if self.single else "float64"
        specs = {
            "sketch": SumSpec((self.n_features, self.n_columns), dtype, tall="features", separable=True),
            "mass": SumSpec(()),
        }
        if self.n_probes:
            specs["noise"] = SumSpec((self.n_features, self.n_probes), dtype, tall="features")
        return specs

    def about(self, origin: Any) -> SketchPass:
        """Return the pass with an origin that is subtracted from every row, for sketches that can do so."""
        raise TypeError(f"{type(self).__name__} subtracts no origin from its rows")

    @property
    def own_columns(self) -> slice:
        """The columns of the sketch that the pass adds up."""
        return self.columns or slice(0, self.n_columns)

    def basis_part(self) -> np.ndarray:
        """Return these columns of the basis; a matrix without rows stands for the test matrix."""
        own, first = self.own_columns, self.first_column
        return _columns_of(self.basis, own.start - first, own.stop - first)

    def probes_part(self) -> np.ndarray:
        """Return the probes; a matrix without rows stands for further columns of the test matrix."""
        return _columns_of(self.probes, 0, self.n_probes)

    def matrix(self) -> np.ndarray:
        """Return the columns of the basis or the test matrix with which the pass multiplies, float64."""
        if self.basis is None:
            return self._drawn(self.own_columns.start, self.own_columns.stop)
        return np.asarray(self.basis_part(), np.float64)

    def probe_matrix(self) -> np.ndarray:
        """Return the probes, those given or further columns of the test matrix, float64."""
        if self.probes is None:
            return self._drawn(self.n_columns, self.n_columns + self.n_probes)
        return np.asarray(self.probes_part(), np.float64)

    def _drawn(self, start: int, stop: int) -> np.ndarray:
        return omega(np.arange(self.n_features), stop - start, omega_key(self.seed), start).astype(np.float64)

    def signs(self, first: int, n: int) -> np.ndarray:
        """Return the random signs of n documents from number ``first``, (n,)."""
        return np.random.default_rng((self.seed, first)).choice((-1.0, 1.0), n)


def drawn_bytes(pass_: SketchPass) -> int:
    """Return the bytes of what `SketchPass.matrix` returns: a basis, or a test matrix in two precisions."""
    return (12 if pass_.basis is None else 8) * pass_.n_features * pass_.n_columns


@dataclass(frozen=True)
class DenseSketchPass(SketchPass):
    """Base class of sketches of dense rows, whose products are formed by BLAS."""

    @property
    def has_exact_columns(self) -> bool:
        # The last bits of products by BLAS depend on the number of columns.
        return False

    @property
    def mapped_bytes(self) -> int:
        # The product of a piece of rows, and the test matrix in single and double precision, without the sum.
        return (20 if self.basis is None else 16) * self.n_features * self.n_columns


class ProjectedPass(Pass):
    """Base class of passes that multiply rows by a stored matrix, such as a basis, with its sizes for plans.

    Attributes
    ----------
    basis : matrix of shape (n_features, rank)
        An array, or slabs of columns; a field of subclasses, as is its rank. Subclasses with fields of other names
        define `projector`.
    rank : int
    single : bool
        Whether the matrix is float32: a field of subclasses that may have one, False for all others.
    """

    basis: Any
    rank: int
    single: bool = False

    @property
    def projector(self) -> tuple[Any, int]:
        """The matrix, and the number of its columns."""
        return self.basis, self.rank

    @property
    def value_bytes(self) -> int:
        """Bytes of a value of the matrix."""
        return 4 if self.single else 8

    @property
    def n_stored_slabs(self) -> int:
        return n_stored_slabs(self.projector[0])

    @property
    def mapped_bytes(self) -> int:
        return self.value_bytes * self.n_features * self.projector[1]


def n_stored_slabs(basis: Any) -> int:
    """Return the number of slabs of columns in which a basis is stored."""
    return len(basis.parts) if isinstance(basis, StoredColumns) else 1


def _columns_of(matrix: Any, start: int, stop: int) -> np.ndarray:
    """Return some columns of a matrix, which may be in slabs; without one, a matrix without rows."""
    if matrix is None:
        return np.zeros((0, stop - start), np.float32)
    parts = matrix.parts if isinstance(matrix, Columns) else (matrix,)
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return np.asarray(whole if (start, stop) == (0, whole.shape[1]) else whole[:, start:stop].copy())


@compiled
def _fill_row(key: Any, word: Any, first: Any, row: Any) -> None:
    """Fill ``row`` with the entries of a word from column ``first`` on.

    The two halves of the word's 64 bits enter one before and one between the rounds of a 32-bit finaliser
    (murmur3), so that rows are equal only if all 64 bits are; 32-bit steps are vectorised.
    """
    bits = scramble(key ^ scramble(np.uint64(word)))
    a, b = np.uint32(bits), np.uint32(bits >> np.uint64(32))
    for c in range(row.shape[0]):
        h = np.uint32(np.uint32(np.uint32(c) + np.uint32(first)) * np.uint32(0x9E3779B9) + a)
        h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        h = np.uint32(np.uint32((h ^ (h >> np.uint32(13))) + b) * np.uint32(0xC2B2AE35))
        h = h ^ (h >> np.uint32(16))
        row[c] = (np.float32(np.int32(h)) + np.float32(0.5)) * _SCALE


def omega_key(seed: int, stream: int = 0) -> np.uint64:
    """Return the key of the test matrix of a seed; ``stream`` distinguishes matrices of one seed."""
    return np.uint64(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0])


def omega(words: np.ndarray, n_columns: int, key: np.uint64, first: int = 0) -> np.ndarray:
    """Return rows of the test matrix.

    Parameters
    ----------
    words : ndarray of shape (n,), integer
    n_columns : int
        A wider matrix begins with the columns of a narrower one.
    key : uint64
        As returned by `omega_key`.
    first : int
        Number of the first column returned; 0 by default.

    Returns
    -------
    ndarray of shape (n, n_columns), float32
    """
    out = np.empty((len(words), n_columns), np.float32)
    _fill(np.asarray(words, np.int64), key, first, out)
    return out


@compiled
def _fill(words: Any, key: Any, first: Any, out: Any) -> None:
    for i in range(len(words)):
        _fill_row(key, words[i], first, out[i])


@compiled
def _add_rows(indices: Any, data: Any, matrix: Any, out: Any) -> None:
    """Add rows of a matrix to ``out``, four at a time, as `distmom.moments.kernels.gather` does.

    Ones take the place of empty ``data``. A kernel of another module cannot be called (see `compiled`).
    """
    kind, r, size = out.dtype.type, out.shape[0], len(indices)
    n_fours = size - size % 4
    one = kind(1.0)
    for p in range(0, n_fours, 4):
        x0, x1, x2, x3 = one, one, one, one
        if len(data):
            x0, x1, x2, x3 = kind(data[p]), kind(data[p + 1]), kind(data[p + 2]), kind(data[p + 3])
        # Unsigned: a signed subscript may be negative, which would be checked on every access.
        row0, row1 = matrix[np.uint64(indices[p])], matrix[np.uint64(indices[p + 1])]
        row2, row3 = matrix[np.uint64(indices[p + 2])], matrix[np.uint64(indices[p + 3])]
        for c in range(r):
            out[c] = (((out[c] + x0 * row0[c]) + x1 * row1[c]) + x2 * row2[c]) + x3 * row3[c]
    for p in range(n_fours, size):
        x, row = (kind(data[p]) if len(data) else one), matrix[np.uint64(indices[p])]
        for c in range(r):
            out[c] += x * row[c]


@compiled
def add_product(
    indptr: Any,
    indices: Any,
    data: Any,
    weights: Any,
    basis: Any,
    key: Any,
    first: Any,
    distinct: Any,
    out: Any,
) -> None:
    """Add the weighted second moment of sparse rows, times some columns of B, to ``out``.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR rows, (n, d); ``data`` may be empty, and every value is then 1.
    weights : ndarray of shape (n,)
        Weight of each row.
    basis : ndarray of shape (d, r)
        Columns of B; a matrix without rows stands for columns of the test matrix, from ``first`` on.
    key : uint64
        Key of the test matrix.
    first : int
    distinct : bool
        Leave out the pairs of a position with itself.
    out : ndarray of shape (d, r)
        Changed in place; products are computed in its type.
    """
    r = out.shape[1]
    drawn = basis.shape[0] == 0
    one = out.dtype.type(1.0)
    row = np.empty(r, np.float32)
    products = np.empty(r, out.dtype)
    for i in range(indptr.shape[0] - 1):
        products[:] = 0.0
        start, stop = indptr[i], indptr[i + 1]
        if drawn:
            for p in range(start, stop):
                x = out.dtype.type(data[p]) if len(data) else one
                _fill_row(key, indices[p], first, row)
                for c in range(r):
                    products[c] += x * row[c]
        else:
            _add_rows(indices[start:stop], data[start:stop] if len(data) else data, basis, products)
        w = out.dtype.type(weights[i])
        for c in range(r):
            products[c] *= w
        for p in range(start, stop):
            x = out.dtype.type(data[p]) if len(data) else one
            target = out[np.uint64(indices[p])]
            for c in range(r):
                target[c] += x * products[c]
        if distinct:
            for p in range(start, stop):
                x = w * (out.dtype.type(data[p]) if len(data) else one)
                target = out[np.uint64(indices[p])]
                if drawn:
                    _fill_row(key, indices[p], first, row)
                    for c in range(r):
                        target[c] -= x * row[c]
                else:
                    source = basis[np.uint64(indices[p])]
                    for c in range(r):
                        target[c] -= x * source[c]


@compiled
def scatter_rows(indptr: Any, indices: Any, rows: Any, out: Any) -> None:
    """Add ``Y' rows`` to ``out``, Y the 0/1 rows of a CSR matrix (n, L).

    Parameters
    ----------
    indptr, indices : ndarray
    rows : ndarray of shape (n, r)
    out : ndarray of shape (L, r)
        Changed in place.
    """
    for i in range(indptr.shape[0] - 1):
        for p in range(indptr[i], indptr[i + 1]):
            target = out[np.uint64(indices[p])]
            for c in range(rows.shape[1]):
                target[c] += out.dtype.type(rows[i, c])
