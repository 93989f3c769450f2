"""Reports of models by their own pictures: every kind is drawn, text is escaped, other kinds are refused."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from distmom.corpus import MemoryCorpus
from distmom.errors import UsageError
from distmom.evaluate.charts import group_color, scatter_chart, series_chart
from distmom.evaluate.dispatch import write_report
from distmom.evaluate.picture_report import render_picture_report
from distmom.models import ProductMixture, SphericalMixture


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    centers = rng.uniform(0.05, 0.95, (3, 30))
    X = (rng.random((3000, 30)) < centers[rng.integers(0, 3, 3000)]).astype(int)
    names = [f"word{i}" for i in range(29)] + ["<script>alert(1)</script>"]
    return ProductMixture(3).fit_corpus(MemoryCorpus(X, vocabulary=names))


class Drawn(ProductMixture):
    """A model with given pictures."""

    def pictures(self):
        return self.given


def with_pictures(model, *pictures):
    other = Drawn(3)
    vars(other).update(vars(model))
    other.given = list(pictures)
    return other


def test_a_product_mixture_has_a_report(model, tmp_path):
    write_report(model, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "ProductMixture" in page
    assert page.count("Words of component") == 3
    assert "<script" not in page
    assert "coherence" in page
    HTMLParser().feed(page)
    with pytest.raises(UsageError, match="metrics: expected none for a model of class ProductMixture"):
        write_report(model, tmp_path / "m.html", metrics={"x": 1.0})
    assert not (tmp_path / "m.html").exists()


def test_names_and_short_lists_are_among_the_measures(model):
    other = with_pictures(model)
    other.diagnostics_ = {"features": "<b>", "clipped": [0.25, 1.0], "long": [0.125] * 13, "names": ["a"]}
    other.diagnostics_["disagreement"] = {"a b": 0.5, "<i>": 0.25}
    page = render_picture_report(other)
    assert re.search(r"features</t[dh]>\s*<td[^>]*>&lt;b&gt;<", page)
    assert "0.25, 1<" in page
    assert "a b 0.5, &lt;i&gt; 0.25<" in page
    assert "0.125" not in page
    assert ">names<" not in page


def test_every_kind_of_picture_is_drawn(model):
    text = {"title": "<b>title</b>", "caption": "What is seen."}
    page = render_picture_report(
        with_pictures(
            model,
            {"kind": "matrix", "values": [[0.5, -20.0]], "rows": ["r"], "columns": ["a", "<i>"], **text},
            {"kind": "lines", "x": [1, 2, 3], "ys": {"y & z": [1.0, np.nan, 3.0]}, **text},
            {"kind": "bars", "names": ["n1", "n2"], "values": [2.0, 1.0], **text},
            {
                "kind": "scatter", "x": [0.0, 1.0, np.inf], "y": [0.0, 2.0, 0.0], "group": [0, 1, 1],
                "labels": ["", "center", ""], **text,
            },
        )
    )  # fmt: skip
    assert page.count("<svg") == 3
    assert "<b>title" not in page
    assert "<i>" not in page
    # The largest magnitude has full strength, negative values the other colour.
    assert 'class="cell low"' in page
    assert 'fill-opacity="1.000"' in page
    assert 'fill-opacity="0.025"' in page
    assert "y &amp; z" in page
    assert len(re.findall(r'<circle class="(?:point|center)"', page)) == 2


def test_names_in_charts_cannot_reorder_or_hide_text(model):
    name = "a\u202eb\u200b\x07c"
    page = render_picture_report(
        with_pictures(
            model,
            {"kind": "matrix", "values": [[1.0]], "rows": [name], "columns": [name], "title": "t", "caption": ""},
            {"kind": "lines", "x": [1, 2], "ys": {name: [1.0, 2.0]}, "title": "t", "caption": ""},
            {
                "kind": "scatter", "x": [0.0, 1.0], "y": [0.0, 1.0], "group": [0, 1], "labels": ["", name],
                "title": "t", "caption": "",
            },
        )
    )  # fmt: skip
    assert not set(page) & set("\u202e\u200b\x07")
    assert page.count(">abc<") == 4
    assert "abc, abc: 1" in page


def test_what_is_no_picture_is_named(model):
    with pytest.raises(ValueError, match="picture: expected one of bars, lines, matrix, scatter, got 'pie'"):
        render_picture_report(with_pictures(model, {"kind": "pie", "title": "", "caption": ""}))


def test_charts_without_points_are_empty():
    assert scatter_chart([np.nan], [0.0], [0], [""], title="") == ""
    assert series_chart([], {"a": []}, title="") == ""
    assert len({group_color(i) for i in range(12)}) == 12


def test_a_report_of_rows_counts_units_and_has_no_empty_column():
    X = np.random.default_rng(0).normal(size=(300, 4)) + 5.0 * np.eye(2, 4).repeat(150, axis=0)
    page = render_picture_report(SphericalMixture(2).fit(X))
    assert "units per second" in page
    assert "documents per second" not in page
    assert "interpretation" not in page
