"""Numbers keep six significant digits in any unit and shape."""

import numpy as np

from distmom.digits import significant


def test_numbers_keep_six_significant_digits_in_any_unit():
    assert significant([1.23456789e-12, -7.0, 0.0, 98765432.1]) == [1.23457e-12, -7.0, 0.0, 98765400.0]
    assert significant(np.float32([[0.1, 0.2]])) == [[0.1, 0.2]]
    assert significant(np.zeros((0, 3))) == []
