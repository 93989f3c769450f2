"""Progress on standard error: one bar per pass, or plain lines when it is not a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn

from distmom.cli.terminal import plain, say
from distmom.engine import Event, GroupDone, GroupsFound, KernelsMissing, PassDone, PassStarted

#: seconds between two plain lines of one pass
PLAIN_INTERVAL_S = 10.0


class PassProgress:
    """An observer of the engine that shows each pass with its rate and remaining time.

    Parameters
    ----------
    quiet : bool, default False
        Show nothing.
    unit : str, default "documents"
        Name of the units that passes count, in the plural; an attribute, as the corpus may be opened later.
    """

    def __init__(self, *, quiet: bool = False, unit: str = "documents") -> None:
        self._quiet, self.unit = quiet, unit
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._started = self._printed = time.monotonic()
        self._total = self._done = 0

    def __enter__(self) -> PassProgress:
        if not self._quiet and self._console.is_terminal:
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=False,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Receive an event of the engine."""
        if self._quiet:
            return
        now = time.monotonic()
        if isinstance(event, PassStarted):
            self._started = self._printed = now
            self._total, self._done = event.n_documents, 0
            if self._bars is not None:
                self._task = self._bars.add_task(event.name, total=max(1, self._total), rate="")
        elif isinstance(event, KernelsMissing):
            self.line(f"{event.name}: compiling kernels")
        elif isinstance(event, GroupDone):
            self._done += event.n_documents
            rate = self._done / max(1e-9, now - self._started)
            if self._bars is not None and self._task is not None:
                self._bars.update(self._task, completed=self._done, rate=f"{rate:,.0f} {self.unit}/s")
            elif now - self._printed > PLAIN_INTERVAL_S:
                self._printed = now
                left = max(0.0, (self._total - self._done) / max(rate, 1e-9))
                self.line(
                    f"{event.name}: {self._done:,} of {self._total:,} {self.unit}, {rate:,.0f} {self.unit}/s, "
                    f"{left:.0f} s left"
                )
        elif isinstance(event, GroupsFound):
            self.line(f"{event.name}: {event.n_found} of {event.n_tasks} tasks found done")
        elif isinstance(event, PassDone):
            if self._bars is not None:
                if not event.resumed and self._task is not None:
                    self._bars.update(self._task, completed=max(1, self._total))
                    self._task = None
            else:
                how = (
                    "found committed"
                    if event.resumed
                    else f"{event.n_documents / max(event.seconds, 1e-9):,.0f} {self.unit}/s"
                )
                self.line(f"{event.name}: {event.n_documents:,} {self.unit} in {event.seconds:.1f} s, {how}")

    def line(self, text: str) -> None:
        """Write one line to standard error."""
        if self._quiet:
            return
        if self._bars is not None:
            self._bars.console.print(plain(text))
        else:
            say(text, err=True)

    def stage(self, name: str, done: int, total: int | None) -> None:
        """Receive the progress of an ingest."""
        if self._quiet:
            return
        now = time.monotonic()
        if self._bars is not None:
            if name != self._stage:
                self._stage, self._task = name, self._bars.add_task(name, total=total, rate="")
            assert self._task is not None
            self._bars.update(self._task, completed=done, total=total)
        elif now - self._printed > PLAIN_INTERVAL_S:
            self._printed = now
            self.line(f"{name}: {done:,}" + (f" of {total:,}" if total else ""))
