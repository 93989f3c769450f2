"""The package of the Dask operator, whose definitions and chart the tests use."""

import subprocess
import sys

import pytest

#: the release of the operator
OPERATOR = "dask-kubernetes==2026.3.0"


def operator_wheel(folder):
    """Download the package into a folder and return its path; skip the test where that is not possible."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), OPERATOR]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        pytest.skip(f"needs the package {OPERATOR}, which 'pip download' does not get: {done.stderr[-300:]}")
    [wheel] = folder.glob("dask_kubernetes-*.whl")
    return wheel
