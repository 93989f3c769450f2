"""The pages of the models: each states what the model assumes, when it fails and how its diagnostics are read."""

import re
from pathlib import Path

import pytest

from distmom.models import ESTIMATORS

DOCS = Path(__file__).parents[1] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not part of this copy")


def pages():
    """Return the page of every row of the table in docs/models.md, by the name of the model."""
    table = (DOCS / "models.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| \[`([\w-]+)`\]\((\w+\.md)\)", table, re.MULTILINE))


def test_every_model_of_the_command_line_is_in_the_table():
    assert set(pages()) == {listing.name for listing in ESTIMATORS if listing.command == "fit"}


@pytest.mark.parametrize("page", sorted(set(pages().values())))
def test_a_page_has_assumptions_failures_and_diagnostics(page):
    headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    for part in ("assume", "fails", "diagnostics|fit reports"):
        assert any(re.search(part, heading) for heading in headings), part
