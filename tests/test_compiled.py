import numpy as np
import pytest

from distmom import compiled as module


def add_one(x):
    return x + 1


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch):
    real = module.njit

    def refuse(*, cache, **options):
        if cache:
            raise RuntimeError("cannot cache function 'add_one': no locator available")
        return real(cache=cache, **options)

    monkeypatch.setattr(module, "njit", refuse)
    assert module.compiled(add_one)(2) == 3


def test_division_by_zero_follows_numpy():
    assert np.isinf(module.compiled(lambda x: 1.0 / x)(0.0))


@pytest.mark.parametrize("value", [1, 2.5])
def test_kernels_are_their_functions(value):
    assert module.compiled(add_one)(value) == add_one(value)
