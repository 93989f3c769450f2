"""Retries of work after a transient error of a disk or of a network file system."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from distmom.errors import StoreError

_R = TypeVar("_R")

logger = logging.getLogger(__name__)

#: seconds before the second and the third attempt
PAUSES_S = (1.0, 4.0)
#: errors of the system after which the same request may succeed
_PASSING = frozenset(
    getattr(errno, name)
    for name in (
        "EIO", "ESTALE", "EAGAIN", "EBUSY", "ENOLCK", "ETIMEDOUT", "EREMOTEIO", "ENETDOWN", "ENETUNREACH",
        "ENETRESET", "ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "EHOSTDOWN", "EHOSTUNREACH",
    )
    if hasattr(errno, name)
)  # fmt: skip


def attempted(function: Callable[..., _R], *arguments: Any) -> _R:
    """Call a function that may be called repeatedly; up to three times where errors may pass.

    Parameters
    ----------
    function : callable
        Called with ``arguments``.

    Raises
    ------
    Exception
        The error of the last call.
    """
    for pause in PAUSES_S:
        try:
            return function(*arguments)
        except (OSError, StoreError) as error:
            if not _may_pass(error):
                raise
            logger.warning("another attempt follows in %g s after an error of the system: %s", pause, error)
        # Here, where the error no longer keeps the arrays of the call in memory.
        time.sleep(pause)
    return function(*arguments)


def _may_pass(error: BaseException | None) -> bool:
    """Return whether an error, or one that has caused it, is one of the system that may pass."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        error = error.__cause__
    return False
