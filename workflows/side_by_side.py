"""Run several systems on the same tasks, each in a process of its own, and make tables of what they found.

`mixtures` and `latents` state their systems, their tasks and their measures; the rest is here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from common import ONE_THREAD, machine, markdown_table, over_seeds
from watched import LeftOutError


class Task(Protocol):
    """What a system is given."""

    @property
    def model(self) -> str:
        """Key of the systems that are compared on it."""

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that are stored with every result."""

    def store(self, folder: Path) -> None:
        """Write the input of the systems."""


@dataclass(frozen=True)
class Comparison:
    """Systems, and what is measured.

    Attributes
    ----------
    systems : mapping of str to iterable of str
        Names of the systems by model.
    run_system : callable
        Runs a system by its name, the task, the seed, a folder and the options; returns measures, time and memory.
    ranges, medians : tuple of str
        Columns of the tables: medians with ranges, and medians only.
    suits : callable, optional
        Whether a system, by its name, is run on a task [all are].
    """

    systems: Mapping[str, Iterable[str]]
    run_system: Callable[[str, Any, int, Path, argparse.Namespace], dict[str, Any]]
    ranges: tuple[str, ...]
    medians: tuple[str, ...]
    suits: Callable[[str, Any], bool] = lambda name, task: True

    def run_task(
        self, name: str, task: Task, seed: int, options: argparse.Namespace, gone: dict[str, str]
    ) -> list[dict[str, Any]]:
        """Run all systems on one task and return their rows.

        Those that fail for good are added to ``gone``, with the reason, and are not run again.
        """
        rows = []
        same = {"task": name, "model": task.model, "seed": seed, **task.sizes}
        with tempfile.TemporaryDirectory(prefix="side-", ignore_cleanup_errors=True) as temporary:
            task.store(Path(temporary))
            for system in self.systems[task.model]:
                if not self.suits(system, task):
                    continue
                row: dict[str, Any] = {"system": system, **same}
                try:
                    if system in gone:
                        raise LeftOutError(gone[system])
                    row |= self.run_system(system, task, seed, Path(temporary), options)
                except LeftOutError as reason:
                    if reason.for_good:
                        gone[system] = str(reason)
                    row["left_out"] = str(reason)
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
        return rows

    def report(self, rows: list[dict[str, Any]]) -> str:
        """Return a table in Markdown for each model, with notes on the systems that were left out."""
        parts = []
        for model in dict.fromkeys(row["model"] for row in rows):
            own = [row for row in rows if row["model"] == model]
            merged = over_seeds(own, ("task", "system"), self.ranges, self.medians)
            names = [row["task"] for row in merged]
            for i, row in enumerate(merged):
                if names[i] not in names[:i]:
                    row["system"] = f"{row['task']}: {row['system']}"
            notes = [
                f"\n{row['task']}: {row['system']}, seed {row['seed']}: {row['left_out']}.\n"
                for row in own
                if "left_out" in row
            ]
            parts.append(f"{model}\n\n{markdown_table(merged)}{''.join(notes)}")
        return "\n".join(parts)

    def arguments_parser(self, description: str | None) -> argparse.ArgumentParser:
        """Return the parser of the command line."""
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add = parser.add_argument
        add("--models", nargs="+", choices=self.systems, default=list(self.systems), metavar="MODEL",
            help=f"some of {', '.join(self.systems)} [all]")  # fmt: skip
        add("--tasks", nargs="+", metavar="TEXT", help="tasks whose names contain one of these [all]")
        add("--seeds", type=int, default=3, help="number of seeds, which are 0 to N - 1 [%(default)s]")
        add(
            "--iterations",
            type=int,
            default=200,
            help="of EM for every start of a peer, at most [%(default)s]",
        )
        add("--peers-python", help="interpreter with the other systems [this one]")
        add("--timeout", type=float, default=1800.0, help="maximum seconds per fit [%(default)s]")
        add("--memory-gb", type=float, default=8.0, help="maximum memory per fit [%(default)s]")
        add("--json", type=Path, help="write the results to this file")
        add("--markdown", type=Path, help="write the tables to this file")
        return parser

    def run(self, tasks: Mapping[str, Callable[..., Task]], options: argparse.Namespace) -> int:
        """Run the comparison, print the tables, and return the exit code."""
        # Systems run in separate sessions, which only the cleanup of this process ends.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        os.environ.update(ONE_THREAD)
        rows: list[dict[str, Any]] = []
        for name, make in tasks.items():
            if options.tasks is not None and not any(text in name for text in options.tasks):
                continue
            gone: dict[str, str] = {}
            for seed in range(options.seeds):
                task = make(seed=seed)
                if task.model not in options.models:
                    break
                rows += self.run_task(name, task, seed, options, gone)
                if options.json is not None:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        text = self.report(rows)
        if options.markdown is not None:
            options.markdown.write_text(text, encoding="utf-8")
        print(f"{text}\n{machine()}")
        for versions in {json.dumps(row["versions"]) for row in rows if "versions" in row}:
            print(", ".join(f"{name} {version}" for name, version in json.loads(versions).items()))
        return 0 if any("fit_s" in row for row in rows) else 1
