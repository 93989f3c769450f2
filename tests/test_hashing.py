import numpy as np

from distmom.compiled import compiled
from distmom.hashing import GOLDEN, scramble, scramble_array

#: first outputs of splitmix64 from the seeds 0 and 1234567, as its authors' program prints them
REFERENCE = {
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423],
}


@compiled
def outputs(seed, n):
    out = np.empty(n, np.uint64)
    for i in range(n):
        out[i] = scramble(seed + np.uint64(i + 1) * GOLDEN)
    return out


def test_bits_are_those_of_splitmix64():
    for seed, expected in REFERENCE.items():
        assert outputs(np.uint64(seed), 3).tolist() == expected


def test_arrays_have_the_bits_of_their_elements():
    x = np.concatenate(
        [np.arange(100, dtype=np.uint64), np.uint64(2**64 - 1) - np.arange(100, dtype=np.uint64)]
    )
    one_by_one = [int(scramble(value)) for value in x]
    assert scramble_array(x.reshape(20, 10)).ravel().tolist() == one_by_one
    assert scramble_array(x[:0]).dtype == np.uint64
