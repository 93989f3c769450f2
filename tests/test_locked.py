"""The locked dependencies are those of the package, each with its hashes."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def locked():
    """Return the pinned requirements, each with its number of hashes."""
    text = (ROOT / "deploy" / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [
        (Requirement(line.partition("--hash")[0]), len(re.findall(r"--hash=sha256:[0-9a-f]{64}(?!\S)", line)))
        for line in lines
    ]


def test_every_dependency_is_pinned_with_hashes():
    found = locked()
    assert all(n_hashes for _, n_hashes in found)
    assert all(re.fullmatch(r"==[\w.]+", str(pinned.specifier)) for pinned, _ in found)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for dependency in map(Requirement, declared):
        own = [
            pinned
            for pinned, _ in found
            if canonicalize_name(pinned.name) == canonicalize_name(dependency.name)
        ]
        assert own, f"{dependency.name} is not in deploy/requirements.txt"
        for pinned in own:
            version = str(pinned.specifier).removeprefix("==")
            assert dependency.specifier.contains(version), f"{pinned} is not {dependency}"
