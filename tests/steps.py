"""Commands whose process ends, or whose disk fails, at any step of theirs that changes files.

As a program, in a process without threads of its own: ``python steps.py SPEC`` with a `Spec` as JSON.
"""

import builtins
import errno
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from multiprocessing import resource_tracker
from pathlib import Path

from distmom.cli.main import main
from distmom.corpus import open_corpus
from distmom.corpus.files import commit, lock
from distmom.corpus.files.commit import sha256_file
from distmom.engine.directory import epochs
from distmom.engine.executors import attempts
from distmom.errors import DistmomError
from distmom.models import TopicMoments, load_model
from distmom.predict import output
from distmom.simulate import load_truth
from distmom.spectral.saved.artifact import load_record

#: what happens at a step: the process ends before it or after it; the host ends before it, and half of every file
#: that was not flushed is lost; the disk is full once; or it fails from then on
ACTS = ("ended before", "ended after", "power lost", "disk full", "disk failed")
#: exit codes of a process that was ended, and of one with an error that distmom does not report
ENDED, UNKNOWN = 9, 70
#: before the command that resumes, in messages
RESUME = "to resume: distmom "
#: entries of the records of models that differ from fit to fit
TIMES = ("timings", "spent", "fit_seconds", "checksum")


@dataclass(frozen=True)
class Spec:
    """A command that writes corpora, models or outputs, and what is tried.

    Attributes
    ----------
    command : list of str
        Arguments of distmom.
    folder : str
        Directory that contains nothing but the results and what is beside them.
    names : list of str
        Names of the results.
    before : str
        Directory whose content the folder has at first; empty for none.
    every : int
        Every how many pairs of step and act one is tried, beginning with number ``first``.
    first : int
    """

    command: list[str]
    folder: str
    names: list[str]
    before: str = ""
    every: int = 1
    first: int = 0


class Steps:
    """Count the steps of this process that change a folder, and act at one of them."""

    def __init__(self, folder, at=-1, act=""):
        self.folder, self.at, self.act = f"{os.path.realpath(folder)}/", at, act
        self.names = []
        # Passes are committed by a thread of their own, which waits while this one acts.
        self._lock = threading.Lock()
        self.flushed = {_identity(path) for path in _files(folder)}

    def install(self):
        for name in ("mkdir", "rmdir", "rename", "replace", "link", "unlink", "remove", "fsync"):
            # No disk is waited for: nothing is lost but what `_fail` cuts.
            function = getattr(os, name) if name != "fsync" else lambda descriptor: None
            setattr(os, name, self._step(name, function))
        os.open = self._step("create", os.open, lambda flags, *mode: flags & os.O_CREAT)
        builtins.open = io.open = self._step(
            "write", io.open, lambda mode="r", *rest: set(mode) & set("wxa+")
        )

    def _step(self, name, function, applies=lambda *arguments: True):
        def step(*arguments, dir_fd=None, **named):
            given = dict(named) if dir_fd is None else {**named, "dir_fd": dir_fd}
            mode = (named["mode"],) if name == "write" and "mode" in named else ()
            path = _path(arguments[-1 if name in ("rename", "replace", "link") else 0], dir_fd)
            if not path.startswith(self.folder) or not applies(*arguments[1:], *mode):
                return function(*arguments, **given)
            with self._lock:
                is_here = len(self.names) == self.at
                self.names.append(name)
                self._fail(path, is_here)
            try:
                result = function(*arguments, **given)
            finally:
                if is_here and self.act == "ended after":
                    os._exit(ENDED)
            if name == "fsync":
                self.flushed.add(_identity(path))
            elif name == "write":
                self.flushed.discard(_identity(path))
            return result

        return step

    def _fail(self, path, is_here):
        if is_here and self.act == "disk full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.act == "disk failed" and 0 <= self.at < len(self.names):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if is_here and self.act == "power lost":
            for each in _files(self.folder):
                # A file may have several names, and a step of another thread may be removing it.
                with suppress(FileNotFoundError):
                    if (identity := _identity(each)) not in self.flushed:
                        self.flushed.add(identity)
                        os.truncate(each, os.stat(each).st_size // 2)
        if is_here and self.act in ("ended before", "power lost"):
            os._exit(ENDED)


def _path(argument, dir_fd):
    """The path that a function of `os` is given, also as a descriptor, or relative to one."""
    if isinstance(argument, int):
        return os.readlink(f"/proc/self/fd/{argument}")
    path = os.fspath(argument)
    return os.path.join("" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}"), path)


def _files(folder):
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]


def _identity(path):
    found = os.stat(path)
    return found.st_dev, found.st_ino


def carried_out(spec, at=-1, act="", command=None):
    """Run a command in a process of its own; return its exit code, its messages and the names of its steps."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code, printed = UNKNOWN, io.StringIO()
        steps = Steps(spec.folder, at, act)
        try:
            with redirect_stderr(printed), redirect_stdout(io.StringIO()):
                steps.install()
                code = main(spec.command if command is None else command)
        finally:
            if code == UNKNOWN:
                printed.write(traceback.format_exc())
            with os.fdopen(writing, "w") as stream:
                json.dump([printed.getvalue(), steps.names], stream)
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        content = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, *(json.loads(content) if content else ("", []))


def found(spec):
    """The digests of the results, every byte of which is checked; None for one that is not there."""
    return [digest_of(Path(spec.folder, name)) for name in spec.names]


def digest_of(place):
    if not os.path.lexists(place):
        return None
    if (place / "manifest.json").exists():
        corpus = open_corpus(place)
        assert corpus.verify() == []
        return corpus.digest
    if (place / "model.json").exists():
        record = load_record(place)
        (TopicMoments.load if record["model"] == TopicMoments.__name__ else load_model)(place)
        shown = {name: entry for name, entry in record.items() if name not in TIMES}
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
    if (place / "truth.json").exists():
        load_truth(place)
        return sha256_file(place / "truth.json")
    kind = output.output_kind(place)
    assert output.verify_output(place, kind) == []
    return sha256_file(place / f"{kind}.json")


def is_aside(spec, name):
    """Whether a result that was being replaced has another name, from which the next command restores it."""
    return any(left.startswith(f"{name}.replaced-") for left in os.listdir(spec.folder))


def begin(spec):
    shutil.rmtree(spec.folder, ignore_errors=True)
    if spec.before:
        shutil.copytree(spec.before, spec.folder)
    else:
        os.mkdir(spec.folder)


def next_command(spec, printed, at):
    """The command that continues: the one that was printed, or by turns the same one and one that resumes."""
    for line in printed.splitlines():
        if line.startswith(RESUME):
            return [*shlex.split(line.removeprefix(RESUME)), "--quiet"]
    record = run_of(spec)
    is_resumed = at % 2 == 1 and record.exists()
    return ["resume", str(record.parent), "--workers", "0", "--quiet"] if is_resumed else spec.command


def run_of(spec):
    """The record of the run, which is there while the run can be resumed."""
    return Path(spec.folder, f"{spec.names[0]}.run", "run.json")


def wrong(spec, at, act, old, new):
    """What is wrong after a fault, or after the next command; None if nothing is, "" if the fault was too late."""
    begin(spec)
    code, printed, names = carried_out(spec, at, act)
    is_error = act.startswith("disk")
    if code == 0 and len(names) <= at:
        return ""
    if code != ENDED and not is_error:
        return f"exit code {code}: {printed}"
    if is_error and (code not in (0, 1, 4) or "Traceback" in printed or (code and "error: " not in printed)):
        return f"exit code {code}: {printed}"
    if is_error and code and run_of(spec).exists() and RESUME not in printed:
        return f"exit code {code} without the command that resumes: {printed}"
    seen = found(spec)
    for name, was, is_now, will_be in zip(spec.names, old, seen, new, strict=True):
        allowed = [will_be] if is_error and code == 0 else [was, will_be]
        if is_now not in allowed and not (is_now is None and is_aside(spec, name)):
            return f"{is_now} was found as {name} after exit code {code}: {printed}"
    command = next_command(spec, printed, at)
    again, printed, _ = carried_out(spec, command=command)
    # If nothing of the command but its results was left, it cannot be known that it has written them.
    if again != 0 and not (again == 2 and seen == new and "exists" in printed):
        return f"exit code {again} of {command[0]} afterwards: {printed}"
    if found(spec) != new:
        return f"other results were found after {command[0]}"
    left = sorted(os.listdir(spec.folder))
    return None if left == sorted(spec.names) else f"{left} were found after {command[0]}: {printed}"


def tried(spec):
    """Try pairs of step and act; return the names of the steps, the number of pairs and what went wrong."""
    begin(spec)
    old = found(spec)
    # Here, so that later processes find everything imported.
    with redirect_stdout(io.StringIO()):
        assert main(spec.command) == 0
    new = found(spec)
    begin(spec)
    code, printed, names = carried_out(spec)
    assert (code, found(spec)) == (0, new), printed
    pairs = [(at, act) for at in range(len(names)) for act in ACTS][spec.first :: spec.every]
    failures, n_late = [], 0
    for at, act in pairs:
        try:
            problem = wrong(spec, at, act, old, new)
        except (AssertionError, DistmomError, OSError):
            problem = traceback.format_exc()
        if problem == "":
            n_late += 1
        elif problem is not None:
            failures.append(f"{act} {at} ({names[at]}): {problem}")
    return {"steps": names, "n_tried": len(pairs) - n_late, "failures": failures}


def tried_apart(spec):
    """As `tried`, in a process without threads of its own."""
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(asdict(spec))], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


if __name__ == "__main__":
    # So long, others wait for a sign of life of a process that has ended before it wrote its name.
    lock.LEASE_S = epochs.LEASE_S = 0.1
    attempts.PAUSES_S, commit._SETTLE_S = (0.0, 0.0), 0.0
    resource_tracker.ensure_running()
    sys.stdout.write(json.dumps(tried(Spec(**json.loads(sys.argv[1])))))
