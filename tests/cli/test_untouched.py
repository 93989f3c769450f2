"""Commands change nothing but their output: sources, home, temporary and current directory stay as they were."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import labelled_lines

#: the directory in which Dask keeps the locks of worker processes, empty files, for later ones
DASK = ("dask-scratch-space", "dask-scratch-space/global.lock", "dask-scratch-space/purge.lock")


def tree(root):
    """Return type, mode, time of change and content of everything below a directory, but for the locks of Dask."""
    found = {}
    for path in sorted(root.rglob("*")):
        about, name = path.lstat(), str(path.relative_to(root))
        content = path.read_bytes() if path.is_file() else None
        if name not in DASK or content:
            found[name] = (about.st_mode, about.st_mtime_ns, content)
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_promise_p10_nothing_is_written_but_the_output(tmp_path, workers):
    places = {name: tmp_path / name for name in ("home", "tmp", "here", "sources", "out")}
    for place in places.values():
        place.mkdir()
    (places["home"] / ".profile").write_text("mine")
    (places["sources"] / "texts.tsv").write_text("".join(labelled_lines(200, seed=0)))
    environment = {
        **os.environ,
        "HOME": str(places["home"]),
        "TMPDIR": str(places["tmp"]),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]),
    }
    for name in [name for name in environment if name.startswith("XDG_")]:
        del environment[name]
    source, out = places["sources"] / "texts.tsv", places["out"]
    before = {name: tree(place) for name, place in places.items() if name != "out"}
    written = []
    for command in (
        ("ingest", source, out / "corpus", "--min-df", "1"),
        ("fit", out / "corpus", out / "model", "-k", "3"),
        ("predict", out / "model", source, out / "answers"),
        ("evaluate", out / "model", out / "corpus"),
    ):
        line = [sys.executable, "-m", "distmom.cli.main", *map(str, command), "--workers", workers, "--quiet"]
        done = subprocess.run(
            line,
            env=environment,
            cwd=places["here"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert {name: tree(places[name]) for name in before} == before
        written.append(sorted(path.name for path in out.iterdir()))
    answers = ["answers", "corpus", "model"]
    assert written == [["corpus"], ["corpus", "model"], answers, answers]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(places)
