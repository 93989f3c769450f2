import fcntl
import importlib
import pkgutil
import signal
import subprocess
import sys
import timeit
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError

import distmom
from distmom import compiled as module
from distmom.errors import interrupts_restored


def add_one(x):
    return x + 1


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch):
    def refuse(self, function):
        raise RuntimeError("cannot cache function 'add_one': no locator available")

    monkeypatch.setattr(module.FunctionCache, "__init__", refuse)
    assert module.compiled(add_one)(2) == 3


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache for kernels that are made from now on."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_waits_for_a_kernel_is_reported_once_the_kernel_is_missing(cache):
    reports = []
    with module.watched(lambda: reports.append("first")):
        assert module.compiled(add_one)(2) == 3
    assert reports == ["first"]
    with module.watched(lambda: reports.append("cached")):
        assert module.compiled(add_one)(2) == 3
    assert reports == ["first"]
    assert len(list(cache.rglob("*.nbc"))) == 1


def is_free(path):
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_the_lock_is_held_while_a_kernel_compiles_and_released_even_after_an_error(cache):
    held = []
    inner = module.compiled(add_one)

    @numba.extending.overload(held_now := lambda: None)
    def seen_by_the_compiler():
        held.append([is_free(path) for path in cache.rglob(module.LOCK)])
        return lambda: None

    @module.compiled
    def outer(x):
        held_now()
        return inner(x)

    assert outer(3) == 4
    (lock,) = cache.rglob(module.LOCK)
    assert held
    assert not any(free for frees in held for free in frees)
    assert is_free(lock)
    with pytest.raises(TypingError):
        outer("text")
    assert is_free(lock)


def test_a_kernel_is_compiled_although_the_holder_of_the_lock_never_ends(cache, monkeypatch):
    kernel = module.compiled(add_one)
    lock = Path(kernel.stats.cache_path) / module.LOCK
    monkeypatch.setattr(module, "WAIT_S", 0.1)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert kernel(2) == 3


SCRIPT = """
import sys, time
from pathlib import Path
import kernels
print("ready", flush=True)
sys.stdin.readline()
assert kernels.second(2.0) == 10.5
found = [kernels.first, kernels.second]
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in found), flush=True)
"""
KERNELS = """
from distmom.compiled import compiled

@compiled
def first(x):
    return sum([x * i for i in range(4)])

@compiled
def second(x):
    first(1)
    return first(x) - 1.5
"""


def test_processes_that_start_at_once_compile_each_kernel_once(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path), "PATH": ""}
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdin=-1, stdout=-1, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    misses = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    # The second kernel, and the first one for whole numbers and for others.
    assert sum(misses) == 3
    assert len(list((tmp_path / "cache").rglob("*.nbc"))) == 3


def test_division_by_zero_follows_numpy():
    assert np.isinf(module.compiled(lambda x: 1.0 / x)(0.0))


@pytest.mark.parametrize("value", [1, 2.5])
def test_kernels_are_their_functions(value):
    assert module.compiled(add_one)(value) == add_one(value)


def kernels():
    """Return every kernel of the package with the name of its module."""
    found = {}
    for place in pkgutil.walk_packages(distmom.__path__, "distmom."):
        for value in vars(importlib.import_module(place.name)).values():
            if isinstance(value, Dispatcher) and value.py_func.__module__ == place.name:
                found[f"{place.name}.{value.py_func.__name__}"] = value
    return found


def test_kernels_call_kernels_of_their_own_module_only():
    """The cache of a kernel is not renewed when another file changes (see `compiled`)."""
    called = {}
    for name, kernel in kernels().items():
        function = kernel.py_func
        others = (function.__globals__.get(each) for each in function.__code__.co_names)
        modules = {other.py_func.__module__ for other in others if isinstance(other, Dispatcher)}
        called[name] = modules - {function.__module__, "distmom.hashing", "distmom.lanes"}
    assert len(called) > 50
    assert {name: modules for name, modules in called.items() if modules} == {}


def wait_and_fill(n):
    total = 0.0
    for i in range(n):
        total += np.sin(i)
    return np.full(3, total), np.full(3, n)


def test_an_interrupt_in_a_kernel_is_an_interrupt():
    """The kernel runs for a second or more, so that the signal arrives in it."""
    kernel = module.compiled(wait_and_fill)
    kernel(1)
    seconds = min(timeit.repeat(lambda: kernel(1_000_000), number=1, repeat=3))
    n = int(1_000_000 * 1.5 / seconds)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt), interrupts_restored():
            kernel(n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_other_errors_of_the_interpreter_stay():
    with pytest.raises(SystemError, match="bad call"), interrupts_restored():
        raise SystemError("bad call") from ValueError("x")
