"""The pictures of the documentation are those that the examples beside them draw."""

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from numpy.testing import assert_allclose

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = r"-?\d+(?:\.\d+)?"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not part of this copy")


@pytest.fixture
def docs_pictures(scripts):
    return importlib.import_module("docs_pictures")


def test_every_page_of_a_model_has_a_picture(docs_pictures):
    table = (DOCS / "models.md").read_text(encoding="utf-8")
    pages = set(re.findall(r"^\| \[`[\w-]+`\]\((\w+)\.md\)", table, re.MULTILINE))
    assert pages == set(docs_pictures.CHARTS)
    for name in docs_pictures.CHARTS:
        assert f"](images/{name}.svg)" in (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_pictures_are_those_of_their_examples(docs_pictures, tmp_path):
    for name in docs_pictures.CHARTS:
        stored = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
        drawn = docs_pictures.draw(name, tmp_path).read_text(encoding="utf-8")
        assert ElementTree.fromstring(stored).tag == "{http://www.w3.org/2000/svg}svg"
        assert re.sub(NUMBER, "#", drawn) == re.sub(NUMBER, "#", stored), name
        # Another machine may round coordinates otherwise.
        found, expected = ([float(x) for x in re.findall(NUMBER, text)] for text in (drawn, stored))
        assert_allclose(found, expected, rtol=0.01, atol=1.0, err_msg=name)
