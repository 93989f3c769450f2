"""Software versions and processor of a process, on which the bits of a result depend."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding
import numba
import numpy
import scipy
import scipy.linalg  # so that its BLAS is among the libraries of every process
import zarr
from threadpoolctl import threadpool_info

import distmom


@dataclass(frozen=True)
class Environment:
    """The software and the processor of one process.

    Attributes
    ----------
    distmom : str
        Version, and the first digits of the sha256 of the source.
    python, numpy, scipy, numba, zarr : str
        Versions.
    machine : str
        Instruction set.
    processor : str
        Model of the processor, for which kernels are compiled.
    blas : str
        Libraries that multiply matrices, with their versions and kernels.
    """

    distmom: str
    python: str
    numpy: str
    scipy: str
    numba: str
    zarr: str
    machine: str
    processor: str
    blas: str

    def versions(self) -> dict[str, str]:
        """Return the versions that must be the same in every process of a run."""
        return {name: value for name, value in asdict(self).items() if name not in ("processor", "blas")}


@cache
def environment() -> Environment:
    """Return the environment of this process."""
    libraries = {
        f"{info['internal_api']} {info.get('version')} {info.get('architecture', '')}".strip()
        for info in threadpool_info()
        if info["user_api"] == "blas"
    }
    return Environment(
        distmom=f"{distmom.__version__}+{source_digest()[:12]}",
        python=platform.python_version(),
        numpy=numpy.__version__,
        scipy=scipy.__version__,
        numba=numba.__version__,
        zarr=zarr.__version__,
        machine=platform.machine(),
        processor=llvmlite.binding.get_host_cpu_name(),
        blas=", ".join(sorted(libraries)),
    )


@cache
def source_digest() -> str:
    """Return the sha256 of the names and contents of the installed modules of distmom."""
    package = Path(distmom.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def differing(expected: Mapping[str, str], got: Mapping[str, str]) -> str:
    """Return which versions differ, as a clause of a message; empty if all agree."""
    return "; ".join(
        f"{name}: expected {value}, got {got.get(name, 'none')}"
        for name, value in expected.items()
        if got.get(name) != value
    )
