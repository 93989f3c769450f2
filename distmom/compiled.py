"""Compilation of numerical kernels under one set of rules, by one process of a host at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])

#: name of the file in a directory of the cache that a process locks while it compiles a kernel of this directory
LOCK = "compiling.lock"
#: seconds that a process waits for another one to compile a kernel, before it compiles the kernel itself
WAIT_S = 60.0
#: seconds between two attempts to lock the file
_POLL_S = 0.005


def compiled(function: _Kernel) -> _Kernel:
    """Compile a kernel that runs on one thread without holding the interpreter lock.

    Floating-point operations keep their IEEE order (no fast-math, no threads inside), so a kernel always
    returns the same bits. Division by zero gives inf or nan as in NumPy.

    A kernel is compiled on its first call and kept in Numba's cache on disk. Processes that start at once do not
    compile the same kernel twice: one compiles it, the others wait and read it from the cache.

    Parameters
    ----------
    function : callable
        A function in numba's nopython subset that calls only kernels of its own module, `distmom.hashing.scramble`
        and `distmom.lanes`, whose code never changes: the cache on disk holds a copy of all that a kernel calls,
        but is invalidated by a change of the kernel's own file alone.

    Returns
    -------
    callable
        The compiled kernel, with the type of ``function``.
    """
    kernel: Any = njit(nogil=True, error_model="numpy")(function)
    try:
        cache = _OneCompiler(kernel.py_func)
    except RuntimeError:
        # numba cannot cache if neither the installation nor the home directory is writable.
        return cast(_Kernel, kernel)
    kernel._cache = cache
    kernel.compile = cache.around(kernel.compile)
    return cast(_Kernel, kernel)


#: functions that `watched` calls
_watchers: list[Callable[[], None]] = []


@contextmanager
def watched(report: Callable[[], None]) -> Iterator[None]:
    """Call a function whenever this process compiles a kernel, or waits for another one to do so.

    Parameters
    ----------
    report : callable
        Called in the thread that needs the kernel, before it is compiled; often more than once.
    """
    _watchers.append(report)
    try:
        yield
    finally:
        _watchers.remove(report)


class _OneCompiler(FunctionCache):  # type: ignore[misc]
    """The cache of a kernel, in which a missing kernel is compiled by one process at a time.

    Without a lock, two processes that add to a cache at once may store the code of one signature under the name
    of another. A lock is held until the call of `compile` that acquired it has stored its result; this covers the
    kernels that the call compiles in turn. All state is guarded by numba's lock of the compiler.
    """

    #: files locked by this process, and the depth of nested compilations
    _locked: ClassVar[dict[Path, int]] = {}
    _depth: ClassVar[int] = 0

    def around(self, compile_kernel: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that compiles a kernel for a signature and then releases all locks."""

        def compile_one(signature: Any) -> Any:
            with global_compiler_lock:
                _OneCompiler._depth += 1
                try:
                    return compile_kernel(signature)
                finally:
                    _OneCompiler._depth -= 1
                    if _OneCompiler._depth == 0:
                        while self._locked:
                            os.close(self._locked.popitem()[1])

        return compile_one

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature from the cache; None, with the lock held, if it is missing."""
        path = Path(self.cache_path) / LOCK
        if path in self._locked:
            return super().load_overload(sig, target_context)
        descriptor = _opened(path)
        if descriptor is None:
            return super().load_overload(sig, target_context)
        keep = False
        try:
            # Several processes may read at once.
            _lock(descriptor, fcntl.LOCK_SH)
            found = super().load_overload(sig, target_context)
            if found is None:
                _report()
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                _lock(descriptor, fcntl.LOCK_EX)
                # Another process may have compiled it meanwhile.
                found = super().load_overload(sig, target_context)
            keep = found is None
            return found
        finally:
            if keep:
                self._locked[path] = descriptor
            else:
                os.close(descriptor)


def _report() -> None:
    for report in tuple(_watchers):
        report()


def _opened(path: Path) -> int | None:
    """Open the file to be locked; None where the cache cannot be written, so that nothing is added to it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _lock(descriptor: int, kind: int) -> None:
    """Lock a file, unless its holder does not release it in time or the file system has no locks.

    The lock saves time and guards entries of the cache; without it a kernel is compiled all the same.
    """
    started, waits = time.monotonic(), False
    with suppress(OSError):
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if not waits:
                    _report()
                waits = True
                if time.monotonic() - started > WAIT_S:
                    return
                time.sleep(_POLL_S)
