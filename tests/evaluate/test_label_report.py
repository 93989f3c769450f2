import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from distmom.errors import UsageError
from distmom.evaluate.charts import bar_chart, line_chart
from distmom.evaluate.label_report import render_label_report, write_label_report
from distmom.models import MultiLabelMoM

HOSTILE = '</script><b onmouseover="x()">&amp;'
METRICS = {"P@1": 0.5, "P@3": 0.4, "nDCG@3": 0.45, "AUC": 0.9, "PSP@1": float("nan"), "n_documents": 7}
VOID = {"meta", "line", "circle", "rect", "polyline"}


class Page(HTMLParser):
    """Collects elements and attributes, and checks that every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.ids = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def fitted(head="posterior", vocabulary=None, labels=None, k=3, n=400):
    rng = np.random.default_rng(0)
    topic = rng.integers(0, k, n)
    X = (rng.random((n, 24)) < np.where(np.arange(24) % k == topic[:, None], 0.5, 0.05)).astype(int)
    Y = (np.arange(k) == topic[:, None]).astype(int)
    model = MultiLabelMoM(k, head=head).fit(X, Y)
    if vocabulary is not None:
        model.vocabulary_ = [f"{vocabulary}{i}" for i in range(24)]
    if labels is not None:
        model.label_names_ = [f"{labels}{i}" for i in range(k)]
    return model


@pytest.fixture(scope="module")
def auto():
    return fitted("auto")


@pytest.fixture(scope="module")
def hostile():
    return fitted(vocabulary=HOSTILE, labels=HOSTILE)


def test_all_sections_are_there(auto):
    page = Page(render_label_report(auto, metrics=METRICS))
    assert page.ids == [
        "metrics", "selection", "reliability", "topics", "states", "spectrum", "fit", "timings", "configuration",
    ]  # fmt: skip
    assert page.tags.count("article") == len(auto.topics()) + len(auto.weights_)
    assert page.tags.count("svg") >= 3


def test_selection_and_scores_are_shown(auto):
    text = render_label_report(auto)
    for name, scores in auto.selection_["held_out"].items():
        assert name in text
        assert f"{scores['P@1']:.4f}" in text
    chosen = re.findall(r'<tr class="chosen"><td class="name">([^<]+)<', text)
    assert set(chosen) == {"auto", *auto.selection_["weights"]}


def test_metrics_are_shown_as_given():
    text = render_label_report(fitted(), metrics=METRICS)
    for shown in ("0.5000", "0.4000", "0.4500", "0.9000", "not defined"):
        assert shown in text


def test_a_metrics_file_may_hold_anything():
    metrics = {"P@1": "x", "P@9999999999999": 1.0, HOSTILE: 1, "AUC": True, "out": [1], "nDCG@2": 0.25}
    text = render_label_report(fitted(), metrics=metrics)
    assert "0.2500" in text
    assert HOSTILE not in text
    with pytest.raises(UsageError, match="expected a mapping of names to numbers, got a list"):
        write_label_report(fitted(), "report.html", metrics=[1])


def test_hostile_words_stay_text(hostile):
    text = render_label_report(hostile)
    page = Page(text)
    assert HOSTILE not in text
    assert "&lt;/script&gt;&lt;b onmouseover=" in text
    assert "script" not in page.tags
    assert not any(name.startswith("on") for _, name, _ in page.attributes)


def test_hostile_messages_and_settings_stay_text():
    model = fitted("linear")
    del model.components_
    model.diagnostics_ = {"states_error": HOSTILE}
    model.settings_ = {HOSTILE: {HOSTILE: [HOSTILE]}}
    text = render_label_report(model)
    assert "<b onmouseover" not in text
    assert "&lt;b onmouseover" in text


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x85", "\u202e", "\u2066", "\ud800", "\r"])
def test_control_characters_are_removed(character):
    model = fitted(vocabulary=f"wo{character}rd")
    text = render_label_report(model)
    assert character not in text
    assert "word0" in text
    text.encode()


def test_long_words_are_truncated():
    text = render_label_report(fitted(vocabulary="w" * 5000))
    assert "w" * 201 not in text
    assert "w" * 199 + "…" in text


def test_words_of_other_scripts_are_kept():
    assert "नमस्\u200dते" in render_label_report(fitted(vocabulary="नमस्\u200dते"))


def test_a_page_has_no_scripts_or_external_resources(auto):
    text = render_label_report(auto, metrics=METRICS)
    page = Page(text)
    assert not re.search(r"https?:|url\(|@import|javascript:", text)
    assert not {"script", "link", "iframe", "img", "form", "object", "embed", "base"} & set(page.tags)
    assert all(value.startswith("#") for _, name, value in page.attributes if name in ("href", "src"))
    policy = [value for tag, name, value in page.attributes if tag == "meta" and name == "content"]
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in policy


def test_a_model_without_states_is_reported_as_such():
    model = fitted("linear")
    for name in ("components_", "weights_", "spectrum_", "label_components_", "label_moments_"):
        delattr(model, name)
    model.diagnostics_ = {"states_error": "M2 has rank 0"}
    page = Page(text := render_label_report(model))
    assert "This model has no latent states: M2 has rank 0" in text
    assert page.ids == ["states", "timings", "configuration"]


def test_a_stored_model_gives_the_same_report(auto, tmp_path):
    auto.save(tmp_path / "model")
    loaded = MultiLabelMoM.load(tmp_path / "model")
    first, second = Page(render_label_report(auto)), Page(render_label_report(loaded))
    assert (first.tags, first.ids) == (second.tags, second.ids)


def test_parameters_for_another_fit_do_not_change_the_report():
    model = fitted("posterior")
    expected = render_label_report(model)
    assert render_label_report(model.set_params(head="linear", n_components=9)) == expected


def test_many_states_are_collapsed():
    page = Page(render_label_report(fitted(k=14, n=2000)))
    assert page.tags.count("article") == 14
    assert page.tags.count("details") == 1


def test_the_file_is_written_whole_and_replaced(auto, tmp_path):
    out = tmp_path / "report.html"
    out.write_text("old")
    write_label_report(auto, out, metrics=json.loads(json.dumps(METRICS)))
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(UsageError, match="there is no directory"):
        write_label_report(auto, tmp_path / "no" / "report.html")


def test_an_unfitted_model_is_refused(tmp_path):
    with pytest.raises(NotFittedError):
        write_label_report(MultiLabelMoM(), tmp_path / "report.html")


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [[], [1.0], [0.0, 0.0], [2.0, 2.0], [float("nan"), 1.0], [1e-300, 1e300], [-1.0, 3.0, 0.0], [5.0] * 2000],
)
def test_charts_draw_any_values(values, log):
    for chart in (
        line_chart(
            values, title="t", x_label="x", log=log, mark=1.5, mark_label="m", level=1.0, level_label="l"
        ),
        bar_chart(values, title="t", x_label="x"),
    ):
        Page(str(chart))
        assert not re.search(r"nan|inf", str(chart))


def test_the_mark_is_between_its_points():
    chart = str(line_chart([4.0, 3.0, 2.0, 1.0], title="t", x_label="x", mark=2.5, mark_label="k"))
    mark = float(re.search(r'class="mark" x1="([\d.]+)"', chart)[1])
    x = [float(v) for v in re.findall(r'cx="([\d.]+)"', chart)]
    assert x[1] < mark < x[2]


def test_chart_titles_are_escaped():
    assert HOSTILE not in line_chart([1.0, 2.0], title=HOSTILE, x_label=HOSTILE, mark=1, mark_label=HOSTILE)


# Reliability


def reliability(n=(50, 0, 0, 10, 0, 0, 0, 0, 0, 40)):
    n = np.array(n)
    p = n * (np.arange(10) + 0.5) / 10
    return {"n_pairs": n.tolist(), "probabilities": p.tolist(), "truths": (n // 2).tolist()}


def test_probabilities_of_test_documents_are_shown_beside_observed_shares(auto):
    page = render_label_report(auto, metrics={**METRICS, "F1_micro": 0.61, "reliability": reliability()})
    Page(page)
    section = page.partition('<section id="reliability">')[2].partition("</section>")[0]
    rows = [re.findall(r"<td[^>]*>([^<]*)", row) for row in section.split("<tr>")[2:]]
    assert rows == [
        ["0.0 to 0.1", "50", "0.0500", "0.5000", "0.0707"],
        ["0.3 to 0.4", "10", "0.3500", "0.5000", "0.1581"],
        ["0.9 to 1.0", "40", "0.9500", "0.5000", "0.0791"],
    ]
    assert "calibration error is 0.4200" in section
    assert "Measured on labelled" in section
    # Three observed shares, and as many points and two ends on the diagonal.
    # Points of both lines, and a dot before each of their names.
    assert section.count("<circle") == 3 + 5 + 2
    assert ">0.6100<" in page


def test_without_test_documents_those_held_out_are_shown(auto):
    for metrics in (None, METRICS):
        section = render_label_report(auto, metrics=metrics).partition('id="reliability">')[2]
        assert "that were held out" in section.partition("</section>")[0]
        n = sum(auto.selection_["reliability"]["n_pairs"])
        shown = re.findall(r'<td class="name">0.*?</td><td class="n">([\d,]+)</td>', section)
        assert sum(int(x.replace(",", "")) for x in shown) == n


def test_models_without_probabilities_have_no_diagram():
    assert 'id="reliability"' not in render_label_report(fitted("ridge"))
    assert 'id="reliability"' not in render_label_report(fitted("ridge"), metrics=METRICS)


@pytest.mark.parametrize(
    "damaged",
    [
        None, 3, {}, {**reliability(), "truths": [1]}, {**reliability(), "truths": [100] * 10},
        {**reliability(), "truths": [-1] * 10}, {**reliability(), "n_pairs": [-1] * 10},
    ],
)  # fmt: skip
def test_invalid_sums_are_refused(auto, damaged):
    with pytest.raises(UsageError, match="metrics: reliability: expected 10 numbers of pairs, sums of "):
        render_label_report(auto, metrics={**METRICS, "reliability": damaged})
