"""Commands whose process ends, or whose disk fails, at any step of theirs that changes files.

As a program, in a process without threads of its own: ``python steps.py SPEC`` with a `Spec` as JSON.
"""

import builtins
import errno
import io
import json
import os
import shutil
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

from distmom.cli.main import main
from distmom.corpus import lock, open_corpus
from distmom.engine import attempts
from distmom.errors import DistmomError, UsageError

#: what happens at a step: the process ends before it or after it; the host ends before it, and half of every file
#: that was not flushed is lost; the disk is full once; or it fails from then on
ACTS = ("ended before", "ended after", "power lost", "disk full", "disk failed")
#: exit codes of a process that was ended, and of one with an error that distmom does not report
ENDED, UNKNOWN = 9, 70


@dataclass(frozen=True)
class Spec:
    """A command that writes a corpus, and what is tried.

    Attributes
    ----------
    command : list of str
        Arguments of distmom.
    folder : str
        Directory that contains nothing but the corpus and what is beside it.
    corpus : str
        Name of the corpus.
    before : str
        Directory whose content the folder has at first; empty for none.
    every : int
        One of so many pairs of step and act is tried, from ``first`` on.
    first : int
    """

    command: list[str]
    folder: str
    corpus: str = "c"
    before: str = ""
    every: int = 1
    first: int = 0


class Steps:
    """Count the steps of this process that change a folder, and act at one of them."""

    def __init__(self, folder, at=-1, act=""):
        self.folder, self.at, self.act = f"{os.path.realpath(folder)}/", at, act
        self.names = []
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
            is_here, self.names = len(self.names) == self.at, [*self.names, name]
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
                if _identity(each) not in self.flushed:
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


def carried_out(spec, at=-1, act=""):
    """Run the command in a process of its own; return its exit code, its messages and the names of its steps."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code, printed = UNKNOWN, io.StringIO()
        steps = Steps(spec.folder, at, act)
        try:
            with redirect_stderr(printed), redirect_stdout(io.StringIO()):
                steps.install()
                code = main(spec.command)
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
    """The digest of the corpus, every byte of which is checked; None if there is no corpus."""
    try:
        corpus = open_corpus(Path(spec.folder) / spec.corpus)
    except UsageError:
        return None
    assert corpus.verify() == []
    return corpus.digest


def begin(spec):
    shutil.rmtree(spec.folder, ignore_errors=True)
    if spec.before:
        shutil.copytree(spec.before, spec.folder)
    else:
        os.mkdir(spec.folder)


def wrong(spec, at, act, old, new):
    """What is wrong after a fault and after the command was repeated; None if nothing is."""
    begin(spec)
    code, printed, _ = carried_out(spec, at, act)
    is_error = act.startswith("disk")
    if code != ENDED and not is_error:
        return f"exit code {code}: {printed}"
    if is_error and (code not in (0, 1) or "Traceback" in printed or (code and "error: " not in printed)):
        return f"exit code {code}: {printed}"
    seen = found(spec)
    if seen not in ((new,) if is_error and code == 0 else (old, new)):
        return f"{seen} was found after exit code {code}"
    again, printed, _ = carried_out(spec)
    # If nothing but the lock was left, it cannot be known that this command has written the corpus.
    if again != 0 and not (again == 2 and seen == new and "already exists" in printed):
        return f"exit code {again} of the repeated command: {printed}"
    if found(spec) != new:
        return "another corpus was found in the end"
    left = sorted(os.listdir(spec.folder))
    return None if left == [spec.corpus] else f"{left} were found in the end"


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
    failures = []
    for at, act in pairs:
        try:
            problem = wrong(spec, at, act, old, new)
        except (AssertionError, DistmomError, OSError):
            problem = traceback.format_exc()
        if problem is not None:
            failures.append(f"{act} {at} ({names[at]}): {problem}")
    return {"steps": names, "n_tried": len(pairs), "failures": failures}


if __name__ == "__main__":
    # So long, others wait for a sign of life of a process that has ended before it wrote its name.
    lock.LEASE_S = 0.1
    attempts.PAUSES_S = (0.0, 0.0)
    resource_tracker.ensure_running()
    sys.stdout.write(json.dumps(tried(Spec(**json.loads(sys.argv[1])))))
