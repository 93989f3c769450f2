"""Checks of seeds and numbers."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from distmom.errors import UsageError


def generator(seed: Any, name: str = "random_state") -> np.random.Generator:
    """Return the generator of a seed, or of whatever NumPy takes for one; a UsageError if it is invalid."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: expected a whole number from 0, got {seed!r:.60}") from error


def check_whole(name: str, number: Any, least: int) -> None:
    """Check that a parameter is a whole number of at least ``least``; else a UsageError."""
    if not (isinstance(number, Integral) and int(number) >= least):
        raise UsageError(f"{name}: expected a whole number of at least {least}, got {number!r:.60}")
