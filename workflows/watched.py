"""Run a command in a separate process with limits on time and memory."""

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
    """A system gives no result.

    Parameters
    ----------
    reason : str
    for_good : bool, default=False
        Whether it would not give a result for more documents either.
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
    """Run a command to its end, or kill it with all its descendants if it exceeds a limit.

    Parameters
    ----------
    command : list of str
    log : Path
        File for the output of the command.
    timeout_s : float
        Maximum time in seconds.
    memory_mb : float
        Maximum sum of proportional set sizes, in units of 10^6 bytes.
    interval_s : float, default=0.1
        Seconds between samples of the memory.

    Returns
    -------
    float
        Peak memory, in units of 10^6 bytes.

    Raises
    ------
    LeftOutError
        If the command fails or exceeds a limit.
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
            # Workers that outlive their parent are still in its session.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code == NOT_INSTALLED:
            raise LeftOutError("not installed", for_good=True)
        if code < 0:
            reason = f"killed by {signal.Signals(-code).name}: {_last_line(text)}"
            if -code == signal.SIGKILL:
                reason = "killed, probably for lack of memory"
            raise LeftOutError(reason, for_good=True)
        if code:
            raise LeftOutError(f"exit code {code}: {_last_line(text)}")
        return peak.mb


def _last_line(text: TextIO) -> str:
    text.seek(0)
    return (text.read().strip().splitlines() or [""])[-1]
