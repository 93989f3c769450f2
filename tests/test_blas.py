import threading

from threadpoolctl import threadpool_info, threadpool_limits

from distmom.blas import one_blas_thread


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
