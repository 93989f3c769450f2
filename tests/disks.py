"""Small file systems that become full."""

import os
import subprocess
from contextlib import contextmanager

import pytest

needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs")


@contextmanager
def small_disk(place, size):
    """Mount a tmpfs of some bytes; yield a function that changes its size."""
    place.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=False)
    if done.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")

    def resize(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
