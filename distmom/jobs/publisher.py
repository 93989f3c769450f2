"""Publication of the records of a job: they are copied to an object store while its driver runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distmom.corpus.files.records import MAX_RECORD_BYTES, from_record
from distmom.corpus.files.storage import ConflictError, MissingError
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import LEASE, Beat
from distmom.errors import StoreError, UsageError
from distmom.jobs.places import OBJECTS_S, OUTPUT_BYTES, ObjectPlace, output_name

logger = logging.getLogger(__name__)


class Publisher:
    """Copies new records in the directory of a job to its URL, and requests to end the job from there.

    The directory decides who carries the job out. Several publishers of one job copy the same files: records of
    epochs are written once, and conditional requests let the beat and the output only grow.

    Parameters
    ----------
    run : Path
        Directory of the job.
    url : str
    """

    def __init__(self, run: Path, url: str) -> None:
        self.run, self.place = run, ObjectPlace(url)
        self._published: set[str] = set()
        self._beat = b""
        self._beat_tag: str | None = None
        self._part = self._n_part = 0
        self._part_tag: str | None = None

    def begin(self) -> None:
        """Take over a request to end the job, and check that the directory is that of the published job.

        Raises
        ------
        UsageError
            If the job has been carried out in another directory.
        StoreError
            If the store does not respond.
        """
        if self.place.is_cancelled():
            (self.run / "epochs").mkdir(exist_ok=True)
            epochs.request_cancel(self.run)
        else:
            epochs.forget_request(self.run)
        known, here = self.place.records().epoch, epochs.latest_epoch(self.run)
        if known > here:
            raise UsageError(
                f"{self.run}: expected the directory of {self.place.name} with {known} epochs, got {here}: does "
                "this host see the file system on which the job ran?"
            )

    def publish_start(self) -> None:
        """Copy the record of the process that was started last to begin the first epoch."""
        storage, name = self.place.storage, epochs.name_of(0)
        while True:
            try:
                tag = storage.read_tagged(name, MAX_RECORD_BYTES)[1]
            except MissingError:
                tag = None
            try:
                # Read after the tag, so that an earlier record never replaces a later one.
                storage.write_if(name, (self.run / name).read_bytes(), tag)
            except ConflictError:
                continue
            return

    def publish(self) -> None:
        """Copy new records; a UsageError if another directory of the job is published."""
        self._publish_output()
        for epoch in range(1, epochs.latest_epoch(self.run) + 1):
            if not self._is_put(epochs.name_of(epoch)):
                raise UsageError(f"{self.run}: the job {self.place.name} is carried out in another directory")
        self._publish_beat()
        for epoch in range(epochs.latest_epoch(self.run) + 1):
            # A process that found the driver lost may have recorded the end.
            self._is_put(epochs.name_of(epoch, ".end.json"))
        if self.place.is_cancelled():
            epochs.request_cancel(self.run)

    def _is_put(self, name: str) -> bool:
        """Create an object from a file if there is one; return False if the object exists with other content."""
        if name in self._published or not (self.run / name).exists():
            return True
        is_same = self.place.put_once(name, (self.run / name).read_bytes())
        self._published.add(name)
        return is_same

    def _publish_beat(self) -> None:
        place = self.run / "lease.json"
        content = place.read_bytes() if place.exists() else b""
        if content == self._beat:
            return
        try:
            self._beat_tag = self.place.storage.write_if("lease.json", content, self._beat_tag)
        except ConflictError:
            other, self._beat_tag = self.place.storage.read_tagged("lease.json", MAX_RECORD_BYTES)
            if _order(other) < _order(content):
                self._beat_tag = self.place.storage.write_if("lease.json", content, self._beat_tag)
        self._beat = content

    def _publish_output(self) -> None:
        storage = self.place.storage
        while True:
            name = output_name(self._part)
            content = self._printed(self._part * OUTPUT_BYTES)
            if len(content) > self._n_part:
                try:
                    self._part_tag = storage.write_if(name, content, self._part_tag)
                    self._n_part = len(content)
                except ConflictError:
                    # An earlier driver, or the process that has started it, has written the beginning.
                    other, self._part_tag = storage.read_tagged(name, OUTPUT_BYTES)
                    self._n_part = len(other)
                    continue
            if self._n_part < OUTPUT_BYTES:
                return
            self._part, self._n_part, self._part_tag = self._part + 1, 0, None

    def _printed(self, start: int) -> bytes:
        place = self.run / "out.txt"
        if not place.exists():
            return b""
        with open(place, "rb") as stream:
            stream.seek(start)
            return stream.read(OUTPUT_BYTES)


def _order(content: bytes) -> tuple[int, int]:
    """Return a key by which later beats are larger; the smallest one if the beat cannot be read."""
    try:
        beat = from_record(Beat, LEASE.parse("lease.json", content)[0], "lease.json")
    except StoreError:
        return 0, 0
    return beat.epoch, beat.count


def publish_rest(run: Path, url: str) -> None:
    """Publish the records that an ended driver may have left unpublished; errors are logged."""
    try:
        Publisher(run, url).publish()
    except (StoreError, UsageError, OSError) as error:
        logger.warning("%s: the end of the job was not published: %s", url, error)


@contextmanager
def publishing(run: Path, url: str, interrupt: Callable[[], None]) -> Iterator[None]:
    """Publish the records of a job as they change, and all of them on exit; a context manager.

    A store that fails is reported, and tried again; the job does not end for it.

    Parameters
    ----------
    run : Path
        Directory of the job.
    url : str
    interrupt : callable
        Called in another thread if the job is carried out in another directory at the same time.

    Raises
    ------
    UsageError, StoreError
        As `Publisher.begin`.
    """
    publisher, has_ended = Publisher(run, url), threading.Event()
    publisher.begin()

    def keep() -> None:
        is_failing = False
        while True:
            is_last = has_ended.wait(OBJECTS_S)
            try:
                publisher.publish()
                is_failing = False
            except UsageError as error:
                logger.error("%s", error)
                interrupt()
                return
            except (StoreError, OSError) as error:
                if not is_failing or is_last:
                    logger.warning("%s: the records of the job were not published: %s", url, error)
                is_failing = True
            if is_last:
                return

    thread = threading.Thread(target=keep, name="distmom-publisher")
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        while thread.is_alive():
            # A signal now would leave the end of the job unpublished.
            try:
                thread.join()
            except KeyboardInterrupt:
                continue
