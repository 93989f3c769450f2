"""Temporary directories beside a path, named after their process; later processes remove those that are left."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import uuid
from contextlib import suppress
from pathlib import Path

from distmom.corpus.files.commit import TEMPORARY, restore_replaced
from distmom.corpus.files.lock import birth, is_alive, this_boot
from distmom.errors import UsageError

logger = logging.getLogger(__name__)

#: bytes that the name of a file may have on the file systems of Linux
_NAME_BYTES = 255


def recover(target: Path) -> None:
    """Undo a replacement that an ended process left unfinished, and remove its temporary directories."""
    restore_replaced(target)
    remove_left(target)


def check_name(target: Path) -> None:
    """Raise a UsageError if the name of a path leaves no room for those of temporary directories beside it."""
    excess = len(os.fsencode(_named(target).name)) - _NAME_BYTES
    if excess > 0:
        raise UsageError(
            f"{target}: the name is too long, as temporary directories beside it are named after it: make it at "
            f"least {excess} bytes shorter"
        )


def make_aside(target: Path) -> Path:
    """Create an empty directory beside a path, and the directories above both; return it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = _named(target)
    aside.mkdir()
    return aside


def remove_left(target: Path) -> None:
    """Remove the temporary directories beside a path that ended processes of this host have left there."""
    if not target.parent.exists():
        return
    name = re.compile(re.escape(TEMPORARY + target.name) + r"-([0-9a-f]{8})-([0-9]+)-([0-9]*)-[0-9a-f]{8}")
    for path in target.parent.iterdir():
        found = name.fullmatch(path.name)
        if found is None or found[1] != _host():
            continue
        if not is_alive(int(found[2]), int(found[3]) if found[3] else None):
            remove_temporary(path, target)


def remove_temporary(directory: Path, target: Path | None = None) -> None:
    """Remove a temporary directory, and log a warning if that fails.

    Parameters
    ----------
    directory : Path
    target : Path, optional
        The path beside which it was made, for which `remove_left` tries again; none for a directory elsewhere.
    """
    try:
        shutil.rmtree(directory)
    except OSError as error:
        # Another process may have removed it, or parts of it, at the same time.
        shutil.rmtree(directory, ignore_errors=True)
        if not _is_gone(directory):
            then = "remove it" if target is None else f"the next command that writes to {target} tries again"
            reason = error.strerror or error
            logger.warning(
                "%s: the temporary directory could not be removed: %s; %s", directory, reason, then
            )


def _is_gone(path: Path) -> bool:
    """Return whether a path no longer exists; False if a failing disk does not answer."""
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def discard(path: Path) -> None:
    """Remove a directory; its name is freed at once, before its content is removed.

    `remove_left` removes what an interruption or a disk error leaves of it; a warning is logged. A link to a
    directory, or one that cannot be renamed, stays, and only its content is removed.
    """
    aside = _named(path)
    if path.is_symlink():
        # A link of the user, as to a larger disk.
        _empty(path)
        return
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        # Another process has been faster, and a third one may be making it anew.
        return
    except OSError:
        # A mount point, or a directory in a parent that cannot be written to, cannot be renamed: it is emptied.
        shutil.rmtree(path, ignore_errors=True)
    else:
        remove_temporary(aside, path)


def _empty(directory: Path) -> None:
    """Remove the content of a directory, if it exists, as far as that is possible."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def _named(target: Path) -> Path:
    """Return a name, next to a path, for a temporary directory of this process."""
    pid = os.getpid()
    own = f"{_host()}-{pid}-{birth(pid) or ''}-{uuid.uuid4().hex[:8]}"
    return target.with_name(f"{TEMPORARY}{target.name}-{own}")


def _host() -> str:
    """Return eight digits that distinguish hosts, boots of a host and process namespaces."""
    return hashlib.sha256(f"{socket.gethostname()} {this_boot()}".encode()).hexdigest()[:8]
