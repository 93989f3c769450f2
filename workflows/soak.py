"""Disturb ingests, fits and predictions on clusters, resume them, and compare every bit with undisturbed ones.

    python workflows/soak.py --minutes 10 --seed 0 [--leg 3] [--place DIR] [--out soak.jsonl]

Every leg draws a small corpus and a model, fits and predicts in one process, and then again on a cluster of two
workers while a fault is injected at a random time. A fit that fails must end with a typed error and the command
that resumes it, which is then used; a second fault may follow. Other legs ingest texts, survive the loss of up to
three workers, and repeat the command if it was killed. Results must have the bits of undisturbed ones.
``--leg`` repeats one leg of a seed. The exit code is 1 if a result is wrong or a command hangs.

Full disks need the right to mount a tmpfs, and are left out without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import machine
from soak_files import may_mount, same, size_of, tmpfs
from soak_processes import MARK, Sampler, cluster, marked, workers_of

from distmom.cli.main import main as distmom

FAULTS = (
    "worker killed", "driver killed", "scheduler killed", "worker paused", "driver paused",
    "bit flipped in the run", "bit flipped in the corpus", "disk full", "prediction killed",
    "ingest killed", "workers of an ingest killed",
)  # fmt: skip
OUTCOMES = ("survived", "detected", "wrong", "hung", "too late")
#: seconds after which a command counts as hung; a cluster without workers is given up after five minutes
HANG_S = 420.0
#: seconds within which the processes of a command that was killed must end
END_S = 60.0
#: exit codes of errors with a resume command: the system's (a full disk), stores, clusters, interrupts
RESUMABLE = (1, 4, 5, 130)
MODELS = (
    ("-k", "4", "--head", "posterior"),
    ("-k", "6", "--head", "linear"),
    ("--model", "lda", "-k", "5", "--init", "tensor"),
    ("--model", "single-topic", "-k", "5"),
)


@dataclass
class Leg:
    """What a leg draws, and what becomes of it.

    Attributes
    ----------
    number : int
    fault : str
    separate : bool
        Whether scheduler and workers are processes of their own, beside the driver.
    outcome : str
        One of `OUTCOMES`.
    notes : list of str
        What is wrong, and faults beside the first one.
    peaks : dict
        Largest resident memory, in MiB, and number of descriptors of each role.
    """

    number: int
    fault: str
    separate: bool
    model: tuple[str, ...]
    outcome: str = ""
    notes: list[str] = field(default_factory=list)
    peaks: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0


class WrongError(Exception):
    """A promise that is not kept."""


class HungError(Exception):
    """A command that does not end."""


class Disturbed:
    """The commands of one leg.

    Parameters
    ----------
    place : Path
        Directory of the leg.
    leg : Leg
    rng : numpy.random.Generator
    """

    def __init__(self, place: Path, leg: Leg, rng: np.random.Generator) -> None:
        self.place, self.leg, self.rng = place, leg, rng
        self.environment = {**os.environ, MARK: str(place)}
        self.sampler = Sampler(str(place))
        self.log = place / "log.txt"
        #: pattern of files that exist as soon as the work of the command to be disturbed has begun
        self.begun = "run/run.json"

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a command of distmom, whose output is appended to the log."""
        line = [str(each) for each in arguments]
        with self.log.open("ab") as out:
            out.write(f"$ distmom {' '.join(line)}\n".encode())
            out.flush()
            return subprocess.Popen(
                [sys.executable, "-m", "distmom.cli.main", *line], stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, env=self.environment,
            )  # fmt: skip

    def ended(self, process: subprocess.Popen[bytes], timeout_s: float = HANG_S) -> int:
        """Wait for a command and return its exit code; a HungError if it does not end."""
        ends = time.monotonic() + timeout_s
        while process.poll() is None:
            if time.monotonic() > ends:
                process.kill()
                raise HungError(f"a command has not ended within {timeout_s:.0f} s")
            self.sampler.sample()
            time.sleep(0.25)
        return process.returncode

    def calm(self, *arguments: object) -> float:
        """Carry out a command undisturbed, in this process; return its seconds."""
        started, line = time.monotonic(), [str(each) for each in arguments]
        with self.log.open("a") as out, redirect_stdout(out), redirect_stderr(out):
            out.write(f"$ distmom {' '.join(line)}\n")
            code = distmom(line)
            if code == 130:
                # The command has turned Ctrl-C, which is meant for this script, into its exit code.
                raise KeyboardInterrupt
            if code != 0:
                raise WrongError(f"exit code {code} of an undisturbed {arguments[0]}")
        return time.monotonic() - started

    def inject(self, process: subprocess.Popen[bytes], fault: str, processes: list[Any], at_s: float) -> bool:
        """Disturb a command some seconds after its work has begun; return whether it was still running."""
        while not any(self.place.glob(self.begun)) and process.poll() is None:
            self.sampler.sample()
            time.sleep(0.05)
        ends = time.monotonic() + at_s
        while time.monotonic() < ends and process.poll() is None:
            self.sampler.sample()
            time.sleep(0.05)
        workers = workers_of(process.pid, str(self.place)) if fault.startswith("worker") else []
        if process.poll() is not None or (fault.startswith("worker") and not workers):
            return False
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if fault == "worker killed":
                workers[self.rng.integers(len(workers))].kill()
            elif fault == "scheduler killed":
                processes[0].kill()
            elif fault.endswith("paused"):
                one = psutil.Process(process.pid)
                if fault == "worker paused":
                    one = workers[self.rng.integers(len(workers))]
                one.suspend()
                time.sleep(float(self.rng.uniform(1.0, 6.0)))
                one.resume()
            elif fault != "disk full":
                process.send_signal(signal.SIGKILL)
        return True

    def check_error(self, code: int, fault: str) -> None:
        """Check that a command has ended with a typed error that names the command to resume."""
        text = self.log.read_text(errors="replace").rpartition("\n$ distmom")[2]
        if code == -signal.SIGKILL:
            return
        if code not in RESUMABLE or "Traceback" in text or "to resume: distmom resume" not in text:
            raise WrongError(f"{fault}: exit code {code} without a typed error and a resume command")

    def flip(self, root: Path) -> str:
        """Flip a random bit of a random file; return its path."""
        own = ("epochs", "partial", "lease.json", "cancel")
        files = [
            path
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.stat().st_size and not set(own) & set(path.relative_to(root).parts)
        ]
        if not files:
            return ""
        path = files[self.rng.integers(len(files))]
        content = bytearray(path.read_bytes())
        place = int(self.rng.integers(len(content)))
        content[place] ^= 1 << int(self.rng.integers(8))
        path.write_bytes(content)
        self.leg.notes.append(f"bit flipped in {path.relative_to(self.place)}")
        return str(path)

    def fit_and_predict(self) -> str:
        """Fit and predict, undisturbed and while the fault of the leg is injected; return the outcome."""
        place, leg, rng = self.place, self.leg, self.rng
        corpus = place / "corpus"
        self.calm(
            "synth", "bibtex", corpus, "--docs", int(rng.integers(1000, 4000)), "--words",
            int(rng.integers(200, 800)), "--states", 6, "--seed", int(rng.integers(1000)), "--shard-docs",
            int(rng.integers(200, 600)), "--workers", 0, "--quiet",
        )  # fmt: skip
        shutil.copytree(corpus, place / "corpus.kept")
        local = ("--workers", 0, "--quiet")
        seconds = self.calm("fit", corpus, place / "calm", *leg.model, "--run", place / "calm.run", *local)
        command = "transform" if "--model" in leg.model else "predict"
        answered = self.calm(command, place / "calm", corpus, place / "calm.answers", *local)
        outcome = self.fit(corpus, seconds)
        if not same(place / "calm", place / "disturbed"):
            raise WrongError("the model has other bits")
        if outcome == "survived" and leg.fault == "bit flipped in the corpus":
            leg.notes.append("the flipped file is not read by a fit")
        # A flip that the fit did not read remains.
        shutil.rmtree(corpus)
        shutil.move(place / "corpus.kept", corpus)
        found = self.predict(corpus, command, answered)
        if not same(place / "calm.answers", place / "answers"):
            raise WrongError(f"the output of {command} has other bits")
        self.calm("verify", place / "disturbed")
        self.calm("verify", place / "answers")
        return found if leg.fault == "prediction killed" else outcome

    def fit(self, corpus: Path, seconds: float) -> str:
        """Fit while the fault of the leg is injected, resume until the model exists; return the outcome."""
        fault, rng, model = self.leg.fault, self.rng, self.place / "disturbed"
        run = self.place / "run"
        with ExitStack() as stack:
            if fault == "disk full":
                stack.enter_context(tmpfs(run, int(rng.uniform(0.1, 0.9) * size_of(self.place / "calm.run"))))
            where, processes = stack.enter_context(self.executor())
            fit = ("fit", corpus, model, *self.leg.model, "--run", run, *where)
            flipped, kept = "", b""
            if fault == "bit flipped in the corpus":
                flipped = self.flip(corpus)
                kept = self.flipped_back(Path(flipped))
            process = self.start(*fit)
            when = float(rng.uniform(0.0, 0.8)) * seconds
            disturbs = fault not in ("bit flipped in the corpus", "prediction killed")
            injected = not disturbs or self.inject(process, fault, processes, when)
            code = self.ended(process)
            if code == 0:
                if fault == "disk full":
                    return "too late"
                return "survived" if injected else "too late"
            for attempt in range(4):
                if flipped and code == 4:
                    Path(flipped).write_bytes(kept)
                if not flipped:
                    self.check_error(code, fault)
                if fault == "disk full":
                    subprocess.run(["mount", "-o", "remount,size=2g", str(run)], check=True)
                if fault == "scheduler killed" and attempt == 0:
                    where, processes = stack.enter_context(self.executor())
                if fault == "bit flipped in the run" and attempt == 0 and run.exists():
                    self.flip(run)
                # A process that was killed before it wrote its record has nothing to resume.
                again = ("resume", run, *where) if (run / "run.json").exists() else fit
                process = self.start(*again)
                is_disturbed = attempt == 0 and rng.random() < 0.3
                if is_disturbed and self.inject(
                    process, "driver killed", processes, float(rng.uniform(0.0, seconds))
                ):
                    self.leg.notes.append("driver of the resumed run killed")
                code = self.ended(process)
                if code == 0:
                    return "detected"
                if code == 4 and fault == "bit flipped in the run" and run.exists():
                    # A damaged record of the run: the message says to begin anew.
                    shutil.rmtree(run)
                    fault = "driver killed"
                    process = self.start(*fit)
                    if (code := self.ended(process)) == 0:
                        return "detected"
            raise WrongError(f"exit code {code} of a resumed run that was not disturbed")

    def flipped_back(self, path: Path) -> bytes:
        """Return the content that a file had before the flip noted last; its one flip is found by its digest."""
        backup = self.place / "corpus.kept" / path.relative_to(self.place / "corpus")
        return backup.read_bytes()

    @contextmanager
    def executor(self) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        """Yield the options that say where a command runs, and the processes of the cluster."""
        if not self.leg.separate:
            yield ("--workers", "2"), []
            return
        with cluster(self.place, self.environment) as (address, processes):
            yield ("--scheduler", address), processes

    def predict(self, corpus: Path, command: str, seconds: float) -> str:
        """Predict or transform while the driver is killed, then again; return the outcome."""
        outcome = "survived"
        with self.executor() as (where, processes):
            arguments = (command, self.place / "disturbed", corpus, self.place / "answers", *where)
            self.begun = ".tmp-answers-*"
            process = self.start(*arguments)
            if self.leg.fault == "prediction killed":
                when = float(self.rng.uniform(0.0, 0.8)) * seconds
                outcome = "detected" if self.inject(process, "driver killed", processes, when) else "too late"
            if (code := self.ended(process)) == 0:
                return "too late" if outcome == "detected" else outcome
            if code != -signal.SIGKILL:
                raise WrongError(f"exit code {code} of {command}")
            if (self.place / "answers").exists():
                # It was killed after its output was committed, whose bits are compared like those of others.
                return "too late"
            self.calm(*arguments)
        return outcome

    def write_texts(self) -> Path:
        """Write labelled texts of random words; return their file."""
        words = ["".join(letters) for letters in self.rng.choice(list("abcdefgh"), (500, 5))]
        path = self.place / "texts.tsv"
        with path.open("w") as out:
            for _ in range(int(self.rng.integers(20_000, 60_000))):
                out.write(f"label{self.rng.integers(40)}\t{' '.join(self.rng.choice(words, 12))}\n")
        return path

    def ingest(self) -> str:
        """Ingest texts undisturbed and while the fault of the leg is injected; return the outcome."""
        fault, rng = self.leg.fault, self.rng
        ingest = ("ingest", "--shard-docs", int(rng.integers(200, 600)), self.write_texts())
        seconds = self.calm(*ingest, self.place / "calm", "--workers", 0, "--quiet")
        self.begun = "disturbed.partial/*/parts/p*"
        with self.executor() as (where, processes):
            arguments = (*ingest, self.place / "disturbed", *where)
            process = self.start(*arguments)
            n_kills = 1 if fault == "ingest killed" else int(rng.integers(1, 4))
            single = "driver killed" if fault == "ingest killed" else "worker killed"
            pauses = (float(rng.uniform(0.0, 0.8)) * seconds / n_kills for _ in range(n_kills))
            injected = [self.inject(process, single, processes, pause) for pause in pauses]
            code = self.ended(process)
            if code == -signal.SIGKILL and not (self.place / "disturbed").exists():
                self.calm(*arguments)
                outcome = "detected"
            elif code == 0 or code == -signal.SIGKILL:
                # A command may be killed after its corpus was committed.
                outcome = "survived" if any(injected) and code == 0 else "too late"
            else:
                raise WrongError(f"{fault}: exit code {code} of an ingest")
        self.calm("verify", self.place / "disturbed")
        if not same(self.place / "calm", self.place / "disturbed"):
            raise WrongError("the corpus has other bits")
        return outcome


def carried_out(place: Path, seed: int, number: int, faults: list[str]) -> Leg:
    """Carry one leg out."""
    rng = np.random.default_rng([seed, number])
    # Every fault comes once before any comes again.
    order = np.random.default_rng([seed, number // len(faults), 1]).permutation(len(faults))
    fault = faults[order[number % len(faults)]]
    separate = fault == "scheduler killed" or bool(rng.random() < 0.5)
    leg = Leg(number, fault, separate, MODELS[rng.integers(len(MODELS))])
    started = time.monotonic()
    place.mkdir()
    work = Disturbed(place, leg, rng)
    try:
        leg.outcome = work.ingest() if "ingest" in fault else work.fit_and_predict()
        if left := [path.name for path in place.glob(".tmp-*")]:
            raise WrongError(f"files are left: {', '.join(left)}")
        ends = time.monotonic() + END_S
        while (left := marked(str(place))) and time.monotonic() < ends:
            time.sleep(0.5)
        if left:
            raise WrongError(f"processes are left: {left}")
    except WrongError as error:
        leg.outcome = "wrong"
        leg.notes.append(str(error))
    except HungError as error:
        leg.outcome = "hung"
        leg.notes.append(str(error))
    finally:
        for pid in marked(str(place)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    leg.peaks, leg.seconds = work.sampler.peaks, time.monotonic() - started
    return leg


def table(legs: list[Leg]) -> str:
    """Return numbers of outcomes by fault as a Markdown table."""
    counts = Counter((leg.fault, leg.outcome) for leg in legs)
    lines = ["| fault | injected | " + " | ".join(OUTCOMES) + " |", "|---|" + "---:|" * (len(OUTCOMES) + 1)]
    for fault in FAULTS:
        row = [counts[fault, outcome] for outcome in OUTCOMES]
        lines.append(f"| {fault} | {sum(row) - row[-1]} | " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="no leg begins later (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leg", type=int, help="carry out this leg alone")
    parser.add_argument("--place", type=Path, help="directory for the legs; those that are wrong are kept")
    parser.add_argument("--out", type=Path, help="file for one JSON object per leg")
    options = parser.parse_args()
    place = options.place or Path(tempfile.mkdtemp(prefix="soak-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        return soak(place, options)
    finally:
        if options.place is None:
            # Legs that are wrong are kept.
            with suppress(OSError):
                place.rmdir()


def soak(place: Path, options: argparse.Namespace) -> int:
    """Carry out legs in a directory, report them, and return the exit code."""
    faults = list(FAULTS)
    if not may_mount(place):
        print("a tmpfs cannot be mounted here: full disks are left out")
        faults.remove("disk full")
    legs: list[Leg] = []
    ends = time.monotonic() + 60.0 * options.minutes
    number = options.leg or 0
    while not legs or (options.leg is None and time.monotonic() < ends):
        try:
            leg = carried_out(place / f"leg-{number}", options.seed, number, faults)
        except KeyboardInterrupt:
            shutil.rmtree(place / f"leg-{number}", ignore_errors=True)
            raise
        legs.append(leg)
        print(
            f"leg {number}: {leg.fault}: {leg.outcome} ({leg.seconds:.0f} s) {'; '.join(leg.notes)}",
            flush=True,
        )
        if options.out is not None:
            with options.out.open("a") as stream:
                stream.write(json.dumps(asdict(leg)) + "\n")
        if leg.outcome not in ("wrong", "hung"):
            shutil.rmtree(place / f"leg-{number}", ignore_errors=True)
        number += 1
    print(f"\n{machine()}; seed {options.seed}, {len(legs)} legs\n\n{table(legs)}\n")
    for role in sorted({role for leg in legs for role in leg.peaks}):
        peaks = np.array([leg.peaks[role] for leg in legs if role in leg.peaks])
        first, last = peaks[: len(peaks) // 2 + 1], peaks[len(peaks) // 2 :]
        print(
            f"{role}: peak {first[:, 0].max():.0f} MiB and {first[:, 1].max():.0f} descriptors in the first half "
            f"of the legs, {last[:, 0].max():.0f} MiB and {last[:, 1].max():.0f} in the second"
        )
    bad = [leg for leg in legs if leg.outcome in ("wrong", "hung")]
    for leg in bad:
        print(
            f"to repeat: python workflows/soak.py --seed {options.seed} --leg {leg.number}; kept in {place}"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
