"""The links of all pages lead to files and headings."""

from pathlib import Path

import pytest
from pages import anchors, links

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "distmom" / "data" / "README.md"])

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").exists(), reason="the documentation is not part of this copy"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for file, anchor in links(page):
        target = page.parent / file if file else page
        assert target.exists(), f"{page}: {file} does not exist"
        assert not anchor or anchor in anchors(target), f"{page}: {file} has no heading {anchor}"


def test_links_of_pages_are_found(tmp_path):
    (tmp_path / "a.md").write_text(
        "# One, two\n\n[x](b.md#three) `[y](c.md)` [z](#one-two) [w](https://d.e)\n"
    )
    assert links(tmp_path / "a.md") == [("b.md", "three"), ("", "one-two")]
    assert anchors(tmp_path / "a.md") == {"one-two"}
