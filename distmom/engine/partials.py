"""The partial sums in a run directory: kept for a run that is resumed, overwritten by later ones, or removed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from distmom.corpus.commit import TEMPORARY
from distmom.engine.lease import Lease
from distmom.engine.scratch import SPARE, ScratchArray


class PartialFiles:
    """Base class of a run directory, with the files of partial sums.

    Parameters
    ----------
    path : Path
        Of the run directory.
    durable : bool
        False for a temporary directory.
    """

    def __init__(self, path: Path, durable: bool) -> None:
        self.path: Path = path
        self.durable: bool = durable
        #: the hold on the run while it is held
        self.lease: Lease | None = None
        # A directory that is not held, such as a temporary one, has no epoch.
        self._partials = self.path / "partial" / uuid.uuid4().hex[:12]
        #: names of the directories of partial sums that are kept until their pass is committed
        self._kept: set[str] = set()

    def take_over_partials(self, epoch: int) -> None:
        """Take over the partial sums of interrupted passes in an epoch, the latest of each, and remove others."""
        self._partials = self.path / "partial" / f"{epoch:04d}"
        self._kept.clear()
        for place in self._earlier(epoch):
            for of_pass in place.glob("*") if self.durable and place.name.isdigit() else ():
                is_committed = (self.path / "passes" / of_pass.name).exists()
                if not is_committed and any(of_pass.glob("*.json")):
                    self._partials.mkdir(parents=True, exist_ok=True)
                    # A later epoch has come further, and another driver may be faster.
                    with suppress(OSError):
                        os.rename(of_pass, self._partials / of_pass.name)
                        self._kept.add(of_pass.name)
            remove_tree(place)

    def leave_partials(self, epoch: int) -> None:
        """End an epoch: leave what is kept to the next driver, which may be taking it over just now."""
        for place in self._earlier(epoch):
            # Written meanwhile by late tasks of an earlier driver.
            remove_tree(place)
        self.drop_partials()

    def _earlier(self, epoch: int) -> list[Path]:
        """Return the directories of partial sums of earlier drivers, the latest first.

        A later driver, if this one is taken over just now, has its own.
        """
        found = [
            place
            for place in (self.path / "partial").glob("*")
            if not place.name.isdigit() or int(place.name) < epoch
        ]
        return sorted(found, reverse=True)

    @property
    def keeps_groups(self) -> bool:
        """Whether the finished groups of a pass are kept until it is committed: in a run that can be resumed."""
        return self.durable and self.lease is not None

    def partial(self, name: str) -> Path:
        """Return a directory for partial sums of this driver, which `spare_partials` releases."""
        return self._partials / name

    @property
    def spare(self) -> Path:
        """Directory of the files that may be overwritten."""
        return self._partials / SPARE

    def recycle(self, files: Iterable[ScratchArray]) -> None:
        """Release reported files that are no longer read and not kept, so that later files overwrite them."""
        # A pass that begins may remove the directory while an earlier one is committed in the background.
        with suppress(OSError):
            self.spare.mkdir(parents=True, exist_ok=True)
        for file in files:
            if Path(file.path).parent.name not in self._kept:
                with suppress(OSError):
                    os.rename(file.path, self.spare / uuid.uuid4().hex)

    def spare_partials(self, files: Iterable[ScratchArray] = ()) -> None:
        """Release all partial sums that are not kept: recycle the reported files and remove all others.

        A file that was not reported may still be written by an abandoned attempt of a task.
        """
        self.recycle(files)
        for place in self._partials.glob("*"):
            if place.name != SPARE and place.name not in self._kept:
                remove_tree(place)

    def drop_partials(self) -> None:
        """Remove all partial sums of this driver that are not kept, and its spare files."""
        for place in self._partials.glob("*"):
            if place.name not in self._kept:
                remove_tree(place)
        for empty in (self._partials, self._partials.parent):
            with suppress(OSError):
                empty.rmdir()


def remove_tree(path: Path) -> None:
    """Remove a directory and all below it, as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)


def remove_unfinished(path: Path) -> None:
    """Remove all temporary files and directories below a directory, in which late tasks may still be writing."""
    for folder, folders, files in os.walk(path):
        for name in folders:
            if name.startswith(TEMPORARY):
                remove_tree(Path(folder) / name)
        for name in files:
            if name.startswith(TEMPORARY):
                (Path(folder) / name).unlink(missing_ok=True)
