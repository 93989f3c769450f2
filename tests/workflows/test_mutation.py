"""Mutation testing without its extra."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "workflows" / "mutation.py"
#: runs the script without the package that makes mutants
WITHOUT = """
import runpy, sys

sys.modules["cosmic_ray"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, str(SCRIPT), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_help_does_without_cosmic_ray():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--mutants" in done.stdout


def test_a_missing_package_is_named():
    done = run()
    assert done.returncode == 2
    assert done.stderr.endswith("is not installed: pip install 'distmom[mutation,test]'\n")
    assert "Traceback" not in done.stderr
