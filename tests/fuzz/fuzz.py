"""Fuzz readers and loaders with Atheris (``pip install atheris``): only a DistmomError may escape them.

    python tests/fuzz/fuzz.py --seconds 60 [TARGET ...]

All targets of ``targets.py`` are fuzzed by default, each in a process of its own, from the cases in
``tests/fuzz/corpus``. What escapes is written to ``--found`` and reported; the exit code is then 1. A case that
was mended is kept in ``tests/fuzz/corpus/TARGET``, where ``test_kept_cases.py`` reads it.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
#: limits of one call: seconds, and MiB of the process
CALL_S, MEMORY_MIB = 20, 2048


def kernels() -> list[str]:
    """Return the modules that Numba may compile, from bytecode that must be their own."""
    spec = importlib.util.find_spec("distmom")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    found = [
        path
        for path, text in texts.items()
        if "compiled" in text or "corpus" not in path.relative_to(root).parts
    ]
    return [".".join(path.relative_to(root.parent).with_suffix("").parts) for path in found]


def fuzz_one(target: str, seconds: int, found: Path) -> None:
    """Fuzz one target in this process, which libFuzzer ends."""
    import atheris

    sys.path[:0] = [str(HERE), str(HERE.parent)]
    with atheris.instrument_imports(include=["distmom.corpus"], exclude=kernels()):
        from targets import TARGETS

    from distmom.errors import DistmomError

    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))

    def call(data: bytes) -> None:
        folder = place / "call"
        folder.mkdir()
        try:
            with suppress(DistmomError):
                TARGETS[target](data, folder)
        finally:
            shutil.rmtree(folder)

    kept = CORPUS / target
    cases = tempfile.mkdtemp(prefix="cases-", dir=place)
    limits = [f"-max_total_time={seconds}", f"-timeout={CALL_S}", f"-rss_limit_mb={MEMORY_MIB}"]
    folders = [cases, *([str(kept)] if kept.is_dir() else [])]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={found}/{target}-", *folders], call)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="directory for what escapes")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fuzz_one(options.targets[0], options.seconds, options.found)
        return 0
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    from targets import TARGETS

    if unknown := [target for target in options.targets if target not in TARGETS]:
        parser.error(f"TARGET: expected one of {', '.join(TARGETS)}, got {', '.join(unknown)}")
    options.found.mkdir(parents=True, exist_ok=True)
    failed = []
    for target in options.targets or TARGETS:
        command = [sys.executable, __file__, target, "--here", "--found", str(options.found)]
        done = subprocess.run(
            [*command, "--seconds", str(options.seconds)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        ran = next((line for line in reversed(lines) if line.startswith("Done")), "")
        sys.stdout.write(f"{target}: {ran or 'failed'}\n")
        sys.stdout.flush()
        if done.returncode != 0:
            failed.append(target)
            sys.stdout.write("\n".join([*lines[-40:], ""]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
