"""Files of partial sums, written over those of earlier ones.

Memory of the system's cache that was in use a moment ago is several times faster to write to than new one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: name of the directory of files that may be written over
SPARE = "spare"


def spare_of(path: str | os.PathLike[str]) -> Path:
    """Return the directory of spare files beside that of a partial sum, ``partial/<pass>/<file>``."""
    return Path(path).parent.parent / SPARE


@contextmanager
def scratch_file(path: str | os.PathLike[str], n_bytes: int, spare: Path) -> Iterator[Any]:
    """Open a file that is there under its name once it is whole, written over a spare one where there is one.

    Parameters
    ----------
    path : path-like
    n_bytes : int
        How much will be written, about.
    spare : Path
        Directory of the files that may be written over.
    """
    target = Path(path)
    # A twin of this task may write the same bytes at the same time.
    own = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = "r+b" if claimed(own, n_bytes, spare) else "xb"
    try:
        with open(own, mode) as stream:
            yield stream
            stream.truncate()
        os.replace(own, target)
    except BaseException:
        own.unlink(missing_ok=True)
        raise


def claimed(own: Path, n_bytes: int, spare: Path) -> bool:
    """Take the spare file of the best size, unless all are much too large, and give it a name of one's own."""
    sizes = []
    with suppress(OSError), os.scandir(spare) as entries:
        for entry in entries:
            with suppress(OSError):
                sizes.append((abs(entry.stat().st_size - n_bytes), entry.path))
    for distance, path in sorted(sizes):
        if distance > n_bytes:
            return False
        # Another task may have been faster.
        with suppress(OSError):
            os.rename(path, own)
            return True
    return False
