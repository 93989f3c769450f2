"""The page on reliability names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_page_names_exists():
    page = (HERE.parent / "docs" / "reliability.md").read_text()
    named = re.findall(r"`((?:\w+/)?test_\w+)(\.\.\.)?`", page)
    files = {
        str(path.relative_to(HERE).with_suffix("")): path.read_text() for path in HERE.rglob("test_*.py")
    }
    tests = "".join(files.values())
    missing = []
    for name, is_cut in named:
        known = f"def {name}" in tests if is_cut else f"def {name}(" in tests or name in files
        if not known:
            missing.append(name)
    assert missing == []
    assert len(named) > 60
