"""Run a command in a process of its own, at most so long and in at most so much memory."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from common import SAMPLE_INTERVAL_S, PeakMemory, Stopwatch
from run_peer import NOT_INSTALLED


class LeftOutError(Exception):
    """A system gives no result, and why.

    Parameters
    ----------
    reason : str
    for_good : bool
        It would not give one for more documents either.
    """

    def __init__(self, reason: str, *, for_good: bool = False) -> None:
        super().__init__(reason)
        self.for_good = for_good


def run_watched(
    command: list[str],
    log: Path,
    *,
    timeout_s: float,
    memory_mb: float,
    interval_s: float = SAMPLE_INTERVAL_S,
) -> float:
    """Run a command to its end, and kill it with all processes below it where it goes beyond a limit.

    Parameters
    ----------
    command : list of str
    log : Path
        Receives what the command prints.
    timeout_s : float
    memory_mb : float
        Most of the sum of the proportional set sizes, in units of 10^6 bytes.
    interval_s : float
        Time between two samples of the memory.

    Returns
    -------
    float
        Peak memory, in units of 10^6 bytes.

    Raises
    ------
    LeftOutError
        If the command did not succeed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w+", encoding="utf-8", errors="replace") as text,
        tempfile.TemporaryDirectory(prefix="watched-", ignore_cleanup_errors=True) as temporary,
    ):
        environment = {**os.environ, "TMPDIR": temporary}
        try:
            process = subprocess.Popen(
                command, stdout=text, stderr=text, env=environment, start_new_session=True
            )
        except OSError as error:
            raise LeftOutError(str(error), for_good=True) from error
        try:
            with PeakMemory(process.pid, interval_s) as peak:
                watch = Stopwatch()
                while True:
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(timeout=interval_s)
                        break
                    if watch.seconds > timeout_s:
                        raise LeftOutError(f"longer than {timeout_s:.0f} s", for_good=True)
                    if peak.mb > memory_mb:
                        raise LeftOutError(f"more than {memory_mb / 1e3:.1f} GB of memory", for_good=True)
        finally:
            # Workers that outlive their parent belong to its session too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code == NOT_INSTALLED:
            raise LeftOutError("not installed", for_good=True)
        if code < 0:
            reason = f"killed by {signal.Signals(-code).name}: {_last_line(text)}"
            if -code == signal.SIGKILL:
                reason = "killed, most likely for want of memory"
            raise LeftOutError(reason, for_good=True)
        if code:
            raise LeftOutError(f"exit code {code}: {_last_line(text)}")
        return peak.mb


def _last_line(text: TextIO) -> str:
    text.seek(0)
    return (text.read().strip().splitlines() or [""])[-1]
