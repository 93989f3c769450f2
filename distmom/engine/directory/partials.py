"""The partial sums in a run directory: kept for a run that is resumed, overwritten by later ones, or removed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from distmom.corpus.files.commit import TEMPORARY
from distmom.engine.stored.scratch import SPARE, ScratchArray

#: prefix of the directory of a driver without an epoch: random digits alone could be read as an epoch
_NO_EPOCH = "no-epoch-"


class PartialFiles:
    """The files of the partial sums of one driver of a run.

    Parameters
    ----------
    run : Path
        Run directory.
    durable : bool
        Whether the run can be resumed; False for a temporary directory.
    """

    def __init__(self, run: Path, durable: bool) -> None:
        self._run = run
        self._durable = durable
        #: number of the epoch; None while the run is not held, as for a temporary directory
        self._epoch: int | None = None
        self._folder = run / "partial" / f"{_NO_EPOCH}{uuid.uuid4().hex[:12]}"
        #: names of the directories of passes that are kept until their pass is committed
        self._kept: set[str] = set()

    def take_over(self, epoch: int) -> None:
        """Begin an epoch: take over the partial sums of interrupted passes, the latest of each; remove others."""
        self._epoch = epoch
        self._folder = self._run / "partial" / f"{epoch:04d}"
        self._kept.clear()
        for place in self._earlier(epoch):
            for of_pass in place.glob("*") if self._durable and epoch_of(place) is not None else ():
                is_committed = (self._run / "passes" / of_pass.name).exists()
                if not is_committed and any(of_pass.glob("*.json")):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    # A later epoch has come further, and another driver may be faster.
                    with suppress(OSError):
                        os.rename(of_pass, self._folder / of_pass.name)
                        self._kept.add(of_pass.name)
            remove_tree(place)

    def keep_none(self) -> None:
        """Keep no partial sums any longer, as all passes of the run are committed."""
        self._kept.clear()

    def leave(self) -> None:
        """End the epoch, and leave the kept sums to the next driver, which may already be taking them over."""
        assert self._epoch is not None
        for place in self._earlier(self._epoch):
            # Late tasks of an earlier driver may have written it.
            remove_tree(place)
        self.drop()
        self._epoch = None

    def _earlier(self, epoch: int) -> list[Path]:
        """Return the directories of partial sums of earlier drivers, the latest first.

        A later driver, if this one is being taken over, has its own.
        """
        found = [
            place
            for place in (self._run / "partial").glob("*")
            if (other := epoch_of(place)) is None or other < epoch
        ]
        return sorted(found, key=lambda place: epoch_of(place) or 0, reverse=True)

    @property
    def keeps_groups(self) -> bool:
        """Whether the finished groups of a pass are kept until it is committed: in a run that can be resumed."""
        return self._durable and self._epoch is not None

    def place(self, name: str) -> Path:
        """Return a directory for partial sums, which `release` removes."""
        return self._folder / name

    def of_pass(self, name: str) -> Path:
        """Return the directory of the partial sums of a pass, kept until `committed` if the run can be resumed."""
        if self.keeps_groups:
            self._kept.add(name)
        return self.place(name)

    def committed(self, name: str, files: Iterable[ScratchArray]) -> None:
        """Recycle the reported files of a pass and remove its directory; files of other passes may be in use."""
        self._kept.discard(name)
        self.recycle(files)
        remove_tree(self.place(name))

    @property
    def spare(self) -> Path:
        """Directory of the files that may be overwritten."""
        return self._folder / SPARE

    def recycle(self, files: Iterable[ScratchArray]) -> None:
        """Release reported files that are no longer read and not kept, so that later files overwrite them."""
        unused = [file.path for file in files if Path(file.path).parent.name not in self._kept]
        if not unused:
            return
        # A pass that begins may remove the directory while an earlier one is committed in the background.
        with suppress(OSError):
            self.spare.mkdir(parents=True, exist_ok=True)
        for path in unused:
            with suppress(OSError):
                os.rename(path, self.spare / uuid.uuid4().hex)

    def release(self, files: Iterable[ScratchArray] = ()) -> None:
        """Release all partial sums that are not kept: recycle the reported files and remove all others.

        A file that was not reported may still be written by an abandoned attempt of a task.
        """
        self.recycle(files)
        for place in self._folder.glob("*"):
            if place.name != SPARE and place.name not in self._kept:
                remove_tree(place)

    def drop(self) -> None:
        """Remove all partial sums of this driver that are not kept, and its spare files."""
        for place in self._folder.glob("*"):
            if place.name not in self._kept:
                remove_tree(place)
        # The directory above stays: another driver, or its tasks, may be making their own in it at this moment.
        with suppress(OSError):
            self._folder.rmdir()


def epoch_of(folder: Path) -> int | None:
    """Return the epoch whose driver writes to a directory of partial sums; None if the driver has none."""
    return int(folder.name) if folder.name.isdecimal() else None


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
