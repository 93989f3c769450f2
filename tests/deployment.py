"""What tests of deploy/ share."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import planted_corpus

from distmom.cli.main import main
from distmom.corpus import from_arrays

DEPLOY = Path(__file__).parents[1] / "deploy"
#: mark of tests that read the files
needs_deploy = pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the files of deploy/")
#: where programs are found, also those of the environment of the tests and of the system's administrator
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])


def needs(*programs, script="tests/packages.sh"):
    """Return a mark of tests that run programs which a script installs."""
    missing = [name for name in programs if shutil.which(name, path=PATH) is None]
    reason = f"needs {', '.join(missing)}: run {script}"
    return pytest.mark.skipif(bool(missing), reason=reason)


def needs_extra(*programs):
    """Return a mark of tests that run programs of the extra ``dev``."""
    missing = [name for name in programs if shutil.which(name, path=PATH) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: pip install -e '.[dev]'")


def run(*command, timeout=60, **options):
    """Run a program that must succeed, and return what it has printed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout, check=False,
        **{"env": {**os.environ, "PATH": PATH}, **options},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def same_models(found, expected):
    """Whether two models have the same bits; their records hold times."""
    files = [path.relative_to(expected) for path in expected.rglob("*") if path.is_file()]
    assert len(files) > 5
    return all(
        (found / name).read_bytes() == (expected / name).read_bytes()
        for name in files
        if name.name != "model.json"
    )


@contextmanager
def started(log, *command, **options):
    """Run a program in a session of its own until the block ends; what it prints is added to a file."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=out, stderr=out, start_new_session=True,
            **{"env": {**os.environ, "PATH": PATH}, "cwd": log.parent, **options},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


def certificates(directory):
    """Create the certificates of a cluster, as the recipes do."""
    run(sys.executable, DEPLOY / "certificates.py", directory)
    return directory


def planted(folder):
    """Write a corpus and a model of it that was fitted in this process; return the options of the model."""
    block = planted_corpus(800, d=300, n_labels=12, k=3, shard_documents=800)[2].read_shard(0)
    from_arrays(folder / "corpus", block.words, block.labels, shard_documents=40)
    model = ("-k", "3", "--head", "posterior")
    assert (
        main(["fit", str(folder / "corpus"), str(folder / "local"), *model, "--workers", "0", "--quiet"]) == 0
    )
    return model
