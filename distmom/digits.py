"""Numbers as records and summaries show them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_rounded = np.vectorize(lambda x: float(f"{x:.6g}"), otypes=[np.float64])


def significant(values: ArrayLike) -> list[Any]:
    """Return values of any shape in nested lists, rounded to six significant digits, whatever their unit."""
    return list(_rounded(values).tolist())
