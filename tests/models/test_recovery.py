import numpy as np
import pytest
from helpers import planted_corpus
from numpy.testing import assert_allclose, assert_array_equal

from distmom.engine import StoredColumns, open_engine
from distmom.spectral.steps.recovery import Recovery, product, store_columns, to_columns


def absolute(rows, matrix, factor):
    return {"size": factor * np.abs(matrix), "row": matrix[:, :1]}, {}


@pytest.mark.parametrize("slab_rows", [7, 1 << 15])
def test_rows_recovered_by_slabs_are_those_of_the_product(monkeypatch, slab_rows):
    for module in ("engine.stored.arrays", "engine.sums.tall", "engine.maps", "spectral.steps.recovery"):
        monkeypatch.setattr(f"distmom.{module}.SLAB_ROWS", slab_rows)
    rng = np.random.default_rng(0)
    Q, C = rng.standard_normal((40, 5)), rng.standard_normal((5, 3))
    C[:, 2] = 0.0
    expected = Q @ C
    with open_engine(planted_corpus(20, d=10)[2]) as engine:
        basis = StoredColumns((engine.put(Q[:, :2]), engine.put(Q[:, 2:])))
        recovered = product(basis, 40, C)
        assert_allclose(recovered.whole(), expected)
        masses = recovered.masses(engine)
        assert_allclose(masses.positive, np.maximum(expected, 0.0).sum(axis=0))
        assert_allclose(masses.negative, np.maximum(-expected, 0.0).sum(axis=0))
        stored, _ = recovered.distributions(engine, "float64")
        found = to_columns(stored)
        assert_allclose(found.sum(axis=0), [1.0, 1.0, 0.0])
        assert_allclose(found[:, :2], (np.maximum(expected, 0.0) / masses.positive.clip(1e-9))[:, :2])


@pytest.mark.parametrize("piece_rows", [4, 1 << 12])
def test_sums_follow_the_pieces_and_columns_are_stored_in_slabs(piece_rows):
    matrix = np.random.default_rng(1).standard_normal((10, 5)).astype(np.float32)
    with open_engine(planted_corpus(20, d=10)[2]) as engine:
        masses = Recovery((matrix,), 10, 5, np.asarray, piece_rows=piece_rows).masses(engine)
        pieces = [np.maximum(matrix[i : i + piece_rows], 0.0).sum(axis=0) for i in range(0, 10, piece_rows)]
        expected = pieces[0]
        for piece in pieces[1:]:
            expected = expected + piece
        assert_array_equal(masses.positive, expected)
        stored = store_columns(
            engine, absolute, (matrix,), 10, {"size": (5, 2), "row": (1, 1)}, "float32", np.float32(2.0)
        )
        assert [part.load().shape[1] for part in stored["size"].parts] == [3, 2]
        assert_array_equal(to_columns(stored["size"]), 2.0 * np.abs(matrix))
        assert_array_equal(to_columns(stored["row"]), matrix[:, :1])


def test_the_largest_entries_of_columns_are_kept_in_all_slabs(monkeypatch):
    rng = np.random.default_rng(2)
    matrix = rng.standard_normal((50, 3))
    # The last column has fewer positive entries than are kept.
    matrix[4:, 2] = -1.0
    monkeypatch.setattr("distmom.spectral.steps.recovery.SLAB_ROWS", 7)
    for n in (1, 6, 50):
        expected = np.maximum(matrix, 0.0)
        for column in expected.T:
            column[np.argsort(-column)[n:]] = 0.0
        with open_engine(planted_corpus(20, d=10)[2]) as engine:
            of_matrix = Recovery((matrix,), 50, 3, np.asarray).largest(n)
            stored, _ = of_matrix.distributions(engine, "float64")
            assert_allclose(to_columns(stored), expected / expected.sum(axis=0), atol=1e-15)
