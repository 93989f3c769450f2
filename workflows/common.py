"""Shared code of the workflows: fits of models, measuring time and memory, and tables of results.

Scripts that import this module report Ctrl-C by one line, and end with exit code 130.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple

import psutil

from distmom.corpus import Corpus
from distmom.engine import Executor, is_small, open_executor
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.models import MultiLabelMoM
from distmom.predict import predict_corpus

COLUMNS = (
    ("n_train", 0),
    ("k", 0),
    ("seed", 0),
    ("n_seeds", 0),
    ("n_topics", 0),
    ("P@1", 4),
    ("P@3", 4),
    ("P@5", 4),
    ("nDCG@5", 4),
    ("PSP@1", 4),
    ("PSP@3", 4),
    ("PSP@5", 4),
    ("AUC", 4),
    ("perplexity", 1),
    ("NPMI", 3),
    ("held_NPMI", 3),
    ("below_0", 2),
    ("diversity", 2),
    ("topics_l1", 3),
    ("error_l2", 5),
    ("error", 4),
    ("weights_error", 4),
    ("variances_error", 4),
    ("edges_error", 4),
    ("held_out", 2),
    ("halves", 3),
    ("apart", 3),
    ("ARI", 3),
    ("NMI", 3),
    ("gain", 1),
    ("n_targets", 0),
    ("n_best", 1),
    ("n_failed", 1),
    ("n_refused", 1),
    ("n_wrong", 1),
    ("n_misled", 1),
    ("one_ms", 2),
    ("all_ms", 1),
    ("one_s", 2),
    ("all_s", 2),
    ("ingest_s", 1),
    ("fit_s", 1),
    ("cpu_s", 1),
    ("predict_s", 1),
    ("documents_s", 0),
    ("documents_cpu_s", 0),
    ("transform_s", 2),
    ("shares_mb", 1),
    ("model_mb", 1),
    ("peak_rss_mb", 0),
)
#: headings of the columns in Markdown
HEADINGS = {
    "n_train": "documents",
    "n_seeds": "seeds",
    "n_topics": "topics",
    "held_NPMI": "held-out NPMI",
    "below_0": "below 0",
    "topics_l1": "topics L1",
    "error_l2": "error",
    "weights_error": "error of weights",
    "variances_error": "error of variances",
    "edges_error": "error of edges",
    "held_out": "held out",
    "gain": "gain %",
    "n_targets": "targets",
    "n_best": "best",
    "n_failed": "failed",
    "n_refused": "refused",
    "n_wrong": "wrong topic",
    "n_misled": "not refused",
    "one_ms": "one target ms",
    "all_ms": "all targets ms",
    "one_s": "one target s",
    "all_s": "all targets s",
    "ingest_s": "ingest s",
    "fit_s": "fit s",
    "cpu_s": "CPU s",
    "predict_s": "predict s",
    "documents_s": "documents / s",
    "documents_cpu_s": "documents / CPU s",
    "transform_s": "transform s",
    "shares_mb": "shares MB",
    "model_mb": "model MB",
    "peak_rss_mb": "peak MB",
}
SAMPLE_INTERVAL_S = 0.1
#: environment that limits the libraries of all systems to one thread
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an error that ends a script: an interruption without its traceback, others as Python does."""
    cause: BaseException | None = error
    # A compiled kernel turns an interruption into a SystemError.
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    if isinstance(cause, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        raise SystemExit(130)
    sys.__excepthook__(kind, error, trace)


# The scripts have no other code in common that is run before their ends.
sys.excepthook = _report


class Spread(NamedTuple):
    """Median, minimum and maximum of some values; one cell of a table."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of some values."""
        known = list(values)
        return cls(median(known), min(known), max(known))


class Stopwatch:
    """Measures the time since its creation."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since creation."""
        return time.monotonic() - self._started


class PeakMemory:
    """Samples the memory of a process and all its descendants; a context manager.

    Attributes
    ----------
    mb : float
        Largest sum of proportional set sizes so far, in units of 10^6 bytes; a page shared by n processes
        counts 1/n in each.
    process_mb : float
        Largest resident memory of a single descendant, including shared pages, as used for memory limits.
    """

    def __init__(self, pid: int | None = None, interval_s: float = SAMPLE_INTERVAL_S) -> None:
        self.mb = self.process_mb = 0.0
        self._highest = 0
        self._interval_s = interval_s
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(self._interval_s):
                return

    def _sample(self) -> None:
        """Measure the proportional set sizes where the sum of the resident sizes is higher than ever.

        They are read from the page tables, which holds up the process if it is done ten times a second.
        """
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        resident = 0
        for process in processes:
            with suppress(psutil.Error):
                size = process.memory_info().rss
                resident += size
                if process.pid != self._root.pid:
                    self.process_mb = max(self.process_mb, size / 1e6)
        if resident <= self._highest:
            return
        # Differences below half a percent are within the rounding of the tables.
        self._highest = resident + resident // 200
        total = 0
        for process in processes:
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        self.mb = max(self.mb, total / 1e6)


def directory_mb(path: Path) -> float:
    """Return the total size of all files below a directory, in units of 10^6 bytes."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 1e6


def run_model(
    name: str,
    model: MultiLabelMoM,
    train: Corpus,
    test: Corpus,
    out: Path,
    executor: Executor,
    ingest_s: float | None,
    auc_documents: int | None = None,
) -> dict[str, Any]:
    """Fit a model, save it, predict labels for the test documents, and measure.

    Returns
    -------
    dict
        A row of the table: metrics, ``ingest_s``, ``fit_s`` (including head selection), ``predict_s``
        (computing and writing the top 5 labels of all test documents), ``model_mb``, and ``peak_rss_mb`` of
        this process and all workers.
    """
    folder = out / name
    with PeakMemory() as peak:
        watch = Stopwatch()
        model.fit_corpus(train, client=executor)
        fit_s = watch.seconds
        model.save(folder / "model", overwrite=True)
        watch = Stopwatch()
        # Other systems, and the metrics, have labels for documents without a known word too.
        predict_corpus(model, test, folder / "predictions", top=5, fill=True, client=executor, overwrite=True)
        predict_s = watch.seconds
    metrics = evaluate_corpus(model, test, client=executor, auc_documents=auc_documents)
    return {
        "system": name,
        **metrics,
        "ingest_s": ingest_s,
        "fit_s": fit_s,
        "predict_s": predict_s,
        "model_mb": directory_mb(folder / "model"),
        "peak_rss_mb": peak.mb,
        "chosen": None if model.selection_ is None else model.selection_["weights"],
    }


def open_for(corpus: Corpus, workers: int) -> AbstractContextManager[Executor]:
    """Open the place in which `distmom fit` fits a corpus: threads here if it is small, else worker processes."""
    small = is_small(corpus)
    return open_executor(workers=0 if small else workers, threads=workers if small else 1)


def over_seeds(
    rows: list[dict[str, Any]], same: Sequence[str], ranges: Iterable[str], medians: Iterable[str]
) -> list[dict[str, Any]]:
    """Return one row per system, with medians and ranges over seeds.

    Seeds without a result, whose rows have ``left_out``, are ignored; ``n_seeds`` is the number of the others.

    Parameters
    ----------
    rows : list of dict
    same : sequence of str
        Columns that are equal in all rows of a system.
    ranges, medians : iterable of str
        Columns that get median and range, and the median only.

    Returns
    -------
    list of dict
    """
    n_seeds = len({row["seed"] for row in rows})
    found = []
    for key in dict.fromkeys(tuple(row.get(name) for name in same) for row in rows):
        own = [row for row in rows if tuple(row.get(name) for name in same) == key and "left_out" not in row]
        merged: dict[str, Any] = dict(zip(same, key, strict=True))
        if n_seeds > 1:
            merged["n_seeds"] = len(own)
        for names, has_range in ((ranges, n_seeds > 1), (medians, False)):
            for name in names:
                values = [row[name] for row in own if name in row]
                if values:
                    merged[name] = Spread.of(values) if has_range else median(values)
        found.append(merged)
    return found


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print results with one line per system; missing values are blank."""
    width = max([6, *(len(row["system"]) for row in rows)])
    columns = _columns(rows)
    print(f"{'system':<{width}}  " + "  ".join(f"{name:>11}" for name, _ in columns))
    for row in rows:
        cells = [_cell(row.get(name), digits) for name, digits in columns]
        print(f"{row['system']:<{width}}  " + "  ".join(f"{cell:>11}" for cell in cells), flush=True)


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table, with the largest value of every metric among rows of equal size in bold."""
    columns = _columns(rows)
    lines = [
        "| system | " + " | ".join(HEADINGS.get(name, name) for name, _ in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for row in rows:
        same = [other for other in rows if other.get("n_train") == row.get("n_train")]
        cells = []
        for name, digits in columns:
            cell = _cell(row.get(name), digits)
            is_metric = "@" in name or name == "AUC"
            best = max((_cell(other.get(name), digits) for other in same), default="")
            cells.append(f"**{cell}**" if cell and is_metric and len(same) > 1 and cell == best else cell)
        lines.append(f"| {row['system']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _columns(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the columns with a value in at least one row."""
    return [(name, digits) for name, digits in COLUMNS if any(_cell(row.get(name), digits) for row in rows)]


def machine() -> str:
    """Return a description of this machine."""
    model = platform.machine()
    with suppress(OSError):
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        model = names[0] if names else model
    n_cores, memory = os.cpu_count(), psutil.virtual_memory().total
    return f"{model}, {n_cores} cores, {memory / 1e9:.0f} GB of memory, {platform.system()}"


def _cell(value: Any, digits: int) -> str:
    if isinstance(value, Spread):
        return f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"
    if not isinstance(value, int | float) or math.isnan(value):
        return ""
    return f"{value:.{digits}f}"


@contextmanager
def results(path: Path | None) -> Iterator[list[dict[str, Any]]]:
    """Collect rows, and at the end, even after an error, print them and write them as JSON."""
    rows: list[dict[str, Any]] = []
    try:
        yield rows
    finally:
        if rows:
            print_table(rows)
            if path is not None:
                path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
