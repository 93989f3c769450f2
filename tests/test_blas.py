import os
import threading
import time

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from distmom.blas import map_on_cores, one_blas_thread, pieces
from distmom.linalg.orthonormal import orthonormalise
from distmom.linalg.tensors.tensor import contract_two


def n_threads():
    return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


def test_the_last_of_several_threads_restores_the_limit():
    """A thread that ends first leaves the other with one BLAS thread."""
    with threadpool_limits(2):
        before = n_threads()
        assert 2 in before
        entered, leave, seen = threading.Event(), threading.Event(), []

        def other():
            with one_blas_thread():
                entered.set()
                leave.wait(20)
                seen.append(n_threads())

        thread = threading.Thread(target=other)
        with one_blas_thread():
            thread.start()
            assert entered.wait(20)
            assert n_threads() == {1}
        assert n_threads() == {1}
        leave.set()
        thread.join()
        assert seen == [{1}]
        assert n_threads() == before


def test_pieces_cover_a_range_and_results_are_in_their_order():
    assert pieces(10, 4) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert pieces(0, 4) == []
    delays = [0.03, 0.0, 0.02, 0.01]

    def late(delay):
        time.sleep(delay)
        return delay

    assert map_on_cores(late, delays) == delays


def test_the_number_of_cores_changes_no_bit_of_bases_and_contractions(monkeypatch):
    rng = np.random.default_rng(0)
    slab, T, U = rng.normal(size=(9000, 7)), rng.normal(size=(60, 60, 60)), rng.normal(size=(60, 9))
    found = []
    for cores in ({0}, {0, 1, 2}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: cores, raising=False)
        found.append((orthonormalise([slab]).slabs[0].tobytes(), contract_two(T, U).tobytes()))
    assert found[0] == found[1]
    basis = np.frombuffer(found[0][0]).reshape(9000, 7)
    np.testing.assert_allclose(basis.T @ basis, np.eye(7), atol=1e-14)
    np.testing.assert_allclose(
        np.frombuffer(found[0][1]).reshape(60, 9), np.einsum("ijl,jn,ln->in", T, U, U), rtol=1e-9, atol=1e-9
    )
