"""Directories and file systems of the soak: they are compared, measured and mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def same(one: Path, other: Path) -> bool:
    """Whether two directories have the same files, apart from records with times or paths."""
    names = [{path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (one, other)]
    return names[0] == names[1] and all(
        (one / name).read_bytes() == (other / name).read_bytes()
        for name in names[0]
        if name.name != "model.json"
    )


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@contextmanager
def tmpfs(place: Path, size: int) -> Iterator[None]:
    """Mount a small file system; a context manager."""
    place.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={max(size, 1 << 16)}", "tmpfs", str(place)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def may_mount(place: Path) -> bool:
    """Whether this user may mount a tmpfs."""
    mounted = place / "mounted"
    try:
        with tmpfs(mounted, 1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        with suppress(OSError):
            mounted.rmdir()
