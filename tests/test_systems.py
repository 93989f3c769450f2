"""The tables of docs/systems.md: every test, name and section in them exists, and the counts are right."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import systems_ran
from pages import anchors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "systems.md"
#: for each section with systems, the number of the last one
LAST = {
    "Multi-label learning": 17,
    "Tensor decompositions": 24,
    "Excess correlation analysis": 22,
    "The search problem": 19,
    "Expansion": 21,
}
STATES = ("shown", "partial", "not yet")

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not part of this copy")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables():
    """Return the rows of every table under its heading, without the header and the rule."""
    found, heading = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:].strip()
        elif line.startswith("|"):
            found.setdefault(heading, []).append(cells(line))
    return {heading: rows[2:] for heading, rows in found.items()}


def systems():
    return [(heading, row) for heading, rows in tables().items() if heading in LAST for row in rows]


def state_of(shown):
    """Return the state of a system, by the cell that names its tests."""
    if shown == "not yet":
        return "not yet"
    return "partial" if "partial: " in shown else "shown"


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


@cache
def definitions(path):
    """Return the names that a Python file defines at the top level, and those of methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (
                child for child in node.body if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            )
            found.update(f"{node.name}.{method.name}" for method in methods)
    return frozenset(found)


def is_defined(name):
    """Return whether a name relative to distmom is a module, or something that a module defines."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        path = (ROOT / "distmom").joinpath(*parts[:n])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            return n == len(parts) or ".".join(parts[n:]) in definitions(file)
    return False


def test_no_system_is_left_out():
    for heading, last in LAST.items():
        numbers = [row[0] for row in tables()[heading]]
        assert len(set(numbers)) == len(numbers), heading
        assert all(re.fullmatch(r"\d+[a-z]?", number) for number in numbers), heading
        found = [int(re.match(r"\d+", number)[0]) for number in numbers]
        assert found == sorted(found), heading
        assert set(found) == set(range(1, last + 1)), heading


def test_tests_of_systems_exist():
    for heading, (number, _, _, shown, _) in systems():
        place = f"{heading}, {number}"
        if state_of(shown) == "not yet":
            continue
        tests = [name for name in quoted(shown) if name.startswith("tests/")]
        assert tests or state_of(shown) == "partial", f"{place}: neither a test nor what is missing"
        for test in tests:
            file, *names = test.split("::")
            assert names, f"{place}: {test} names no test"
            assert (ROOT / file).is_file(), f"{place}: {file} does not exist"
            assert ".".join(names) in definitions(ROOT / file), f"{place}: {test} does not exist"
            assert names[-1].startswith("test_"), f"{place}: {test} is no test"


def test_states_say_what_is_missing():
    for heading, (number, _, code, shown, _) in systems():
        place, rest = f"{heading}, {number}", re.sub(r"`[^`]+`", "", shown)
        if state_of(shown) == "partial":
            assert re.fullmatch(r"[,; ]*partial: [^;]+", rest), f"{place}: {shown}"
        elif state_of(shown) == "shown":
            assert not rest.strip(", "), f"{place}: {shown}"
        # What has no code is not there, and what is not there has none.
        assert bool(quoted(code)) == (state_of(shown) != "not yet"), f"{place}: {code}"


def test_code_of_systems_exists():
    for heading, (number, _, code, _, _) in systems():
        for name in quoted(code):
            exists = (ROOT / name).is_file() if name.endswith(".py") else is_defined(name)
            assert exists, f"{heading}, {number}: {name} does not exist"


def test_measurements_of_systems_exist():
    for heading, (number, _, _, _, measured) in systems():
        links = re.findall(r"\]\(([^)#]+)#([^)]+)\)", measured)
        assert links or measured == "", f"{heading}, {number}: {measured}"
        for page, anchor in links:
            assert anchor in anchors(PAGE.parent / page), (
                f"{heading}, {number}: {page} has no section {anchor}"
            )


def test_counts_are_those_of_the_tables():
    expected = []
    for heading in LAST:
        states = [state_of(row[3]) for row in tables()[heading]]
        expected.append([heading, *(states.count(state) for state in STATES), len(states)])
    expected.append(["All", *(sum(row[i] for row in expected) for i in range(1, 5))])
    found = [[name, *map(int, numbers)] for name, *numbers in tables()["Counts"]]
    assert found == expected


def test_names_that_do_not_exist_are_noticed():
    assert is_defined("linalg.whiten.whiten")
    assert is_defined("models.topics.search.TopicSearch.search_all")
    assert is_defined("linalg")
    assert not is_defined("linalg.whiten.nothing")
    assert not is_defined("nothing.whiten")
    assert "test_names_that_do_not_exist_are_noticed" in definitions(Path(__file__))
    assert "state_of.nothing" not in definitions(Path(__file__))


def test_tests_of_systems_that_have_not_passed_are_listed(tmp_path, capsys):
    absent = ("realdata", "nightly")
    expected = {test for test in systems_ran.named(PAGE) if not systems_ran.is_marked(test, absent)}
    assert expected > {"tests/models/test_network.py::test_an_observed_network_is_that_of_the_columns"}

    def report(name, tests, result=""):
        cases = (test.replace(".py", "").replace("/", ".").split("::") for test in tests)
        lines = [f'<testcase classname="{file}" name="{test}[1]">{result}</testcase>' for file, test in cases]
        (tmp_path / name).write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>")
        return str(tmp_path / name)

    first, *others = sorted(expected)
    some, skipped = report("some.xml", others), report("skipped.xml", [first], "<skipped/>")
    assert systems_ran.main([some, report("rest.xml", [first])]) == 0
    assert systems_ran.main([some, skipped]) == 1
    assert f"{first} has not passed" in capsys.readouterr().out
