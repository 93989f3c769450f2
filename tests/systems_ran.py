"""Check that the tests named in docs/systems.md have passed, by reports of pytest.

    python tests/systems_ran.py default.xml slow.xml

Each report is written by ``pytest --junit-xml``. Tests that need real data may be absent, and without
``--nightly`` those that are left to it. The exit code is 1 if another test has passed with none of its parameters.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]


def named(page: Path) -> set[str]:
    """Return the tests that a page names, as ``tests/FILE.py::NAME``."""
    return set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", page.read_text(encoding="utf-8")))


def passed(report: Path) -> set[str]:
    """Return the tests that have passed with some parameters, in the same form."""
    found = set()
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is None and case.find("error") is None and case.find("skipped") is None:
            file = case.get("classname", "").replace(".", "/")
            found.add(f"{file}.py::{case.get('name', '').partition('[')[0]}")
    return found


def is_marked(test: str, markers: tuple[str, ...]) -> bool:
    """Whether a test, or its whole file, has one of some markers."""
    file, _, name = test.partition("::")
    marks: list[ast.expr] = []
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            marks += node.decorator_list
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks.append(node.value)
    return any(f"mark.{marker}" in ast.unparse(each) for each in marks for marker in markers)


def main(arguments: list[str]) -> int:
    """Print the tests that have not passed; return the exit code."""
    reports = [Path(each) for each in arguments if each != "--nightly"]
    absent = ("realdata",) if "--nightly" in arguments else ("realdata", "nightly")
    expected = {test for test in named(ROOT / "docs" / "systems.md") if not is_marked(test, absent)}
    missing = sorted(expected - set().union(*map(passed, reports)))
    lines = [f"{test} has not passed" for test in missing]
    lines.append(f"{len(expected) - len(missing)} of {len(expected)} tests have passed")
    sys.stdout.writelines(f"docs/systems.md: {line}\n" for line in lines)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
