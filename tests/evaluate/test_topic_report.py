import json
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError
from test_label_report import HOSTILE, Page

from distmom.corpus import MemoryCorpus
from distmom.errors import StoreError, UsageError
from distmom.evaluate.charts import bar_chart, disc_map, heat_chart
from distmom.evaluate.topic_report import plane, render_topic_report, write_topic_report
from distmom.models import AnchorTopics, SingleTopic, SpectralLDA, TopicMoments
from distmom.predict import LabelShares, StoredShares, read_shares, transform_corpus
from distmom.simulate.topics import TopicPopulation


@pytest.fixture(scope="module")
def counts():
    topics = np.random.default_rng(0).dirichlet(np.full(60, 0.1), 4).T
    return TopicPopulation([0.2] * 4, topics).sample(800, 50, seed=1)[0]


@pytest.fixture(scope="module")
def lda(counts):
    return SpectralLDA(4, max_df=1.0).fit(counts)


def test_a_report_shows_topics_and_how_they_were_found(lda):
    text = render_topic_report(lda, metrics={"perplexity": 12.5, "NPMI": 0.25, "other": "x"})
    page = Page(text)
    assert page.tags.count("article") == 4
    assert {"metrics", "selection", "topics", "map", "spectrum", "fit", "timings"} <= set(page.ids)
    for shown in ("12.5", "0.25", "SpectralLDA", "tensor-1", "anchors", "residual", "n_refine"):
        assert shown in text
    assert text.count('class="disc"') == 4
    # The chosen initialisation is marked.
    assert text.count('class="chosen"') == 1
    for topic in lda.topics(5, "relevance"):
        for word, _ in topic["words"]:
            assert f">{word}<" in text


@pytest.mark.parametrize("kind", [SingleTopic, AnchorTopics])
def test_models_without_a_choice_are_reported_too(kind, counts):
    page = Page(render_topic_report(kind(4, max_df=1.0).fit(counts)))
    assert "selection" not in page.ids
    assert "metrics" not in page.ids
    assert page.tags.count("article") == 4


def test_words_are_escaped_and_nothing_is_loaded(lda):
    names = lda.vocabulary_
    try:
        lda.vocabulary_ = [f"{HOSTILE}{i}" for i in range(len(names))]
        text = render_topic_report(lda)
    finally:
        lda.vocabulary_ = names
    page = Page(text)
    assert HOSTILE not in text
    assert "script" not in page.tags
    assert not any(name in ("src", "onmouseover") for _, name, _ in page.attributes)
    assert all(value.startswith("#") for _, name, value in page.attributes if name == "href")


def test_a_report_is_written_atomically_or_refused(lda, tmp_path):
    write_topic_report(lda, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == render_topic_report(lda)
    with pytest.raises(UsageError, match="there is no directory"):
        write_topic_report(lda, tmp_path / "none" / "r.html")
    with pytest.raises(UsageError, match="metrics: expected a mapping of names to numbers"):
        write_topic_report(lda, tmp_path / "r.html", metrics=[1])
    with pytest.raises(NotFittedError):
        write_topic_report(SpectralLDA(), tmp_path / "r.html")


def test_points_of_the_plane_have_the_distances_of_planar_topics():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((6, 2)) * 0.2
    distances = np.linalg.norm(truth[:, None] - truth[None, :], axis=2)
    points, explained = plane(1.0 - distances**2)
    assert explained == pytest.approx(1.0)
    assert_allclose(np.linalg.norm(points[:, None] - points[None, :], axis=2), distances, atol=1e-12)
    assert plane(np.ones((1, 1)))[0].shape == (1, 2)
    assert plane(np.eye(8))[1] == pytest.approx(2 / 7)


def test_discs_have_areas_of_their_sizes_and_lie_inside():
    assert disc_map([], [], [], title="none") == ""
    text = str(
        disc_map([(0.0, 0.0), (1.0, 3.0), (-2.0, 1.0)], [4.0, 1.0, 0.25], ["a", "<b", "c"], title="three")
    )
    page = Page(text)
    assert "&lt;b" in text
    circles = {}
    for tag, name, value in page.attributes:
        if tag == "circle" and name != "class":
            circles.setdefault(name, []).append(float(value))
    assert_allclose(np.square(circles["r"]) / circles["r"][0] ** 2, [1.0, 0.25, 0.0625], atol=0.01)
    for x, y, r in zip(circles["cx"], circles["cy"], circles["r"], strict=True):
        assert r <= x <= 640 - r
        assert r <= y <= 440 - r


YEARS = ["2001", "1999", "2000"]


@pytest.fixture(scope="module")
def stored(lda, counts, tmp_path_factory):
    """Shares of documents with labels for three years, the last of which has no documents."""
    out = tmp_path_factory.mktemp("shares") / "out"
    labels = np.zeros((800, 3), int)
    labels[:500, 0], labels[500:, 1] = 1, 1
    transform_corpus(lda, MemoryCorpus(counts, labels, label_names=YEARS), out)
    return out


def test_stored_shares_are_read_back(lda, counts, stored):
    read, shares = read_shares(stored), lda.transform(counts).astype(np.float64)
    assert read.n_documents == 800
    assert_allclose(read.mean_shares, shares.mean(axis=0), atol=1e-6)
    assert_allclose(read.correlation, np.corrcoef(shares.T), atol=1e-5)
    for topic, best in enumerate(read.representatives):
        assert [share for _, share in best] == pytest.approx([shares[i, topic] for i, _ in best], abs=1e-6)
        assert best[0][1] == pytest.approx(shares[:, topic].max(), abs=1e-6)
    assert [(label.name, label.n_documents) for label in read.labels] == [
        ("2001", 500),
        ("1999", 300),
        ("2000", 0),
    ]
    assert_allclose(read.labels[0].shares, shares[:500].mean(axis=0), atol=1e-5)
    assert_allclose(read.labels[1].shares, shares[500:].mean(axis=0), atol=1e-5)


def test_documents_and_labels_of_topics_are_reported(lda, stored):
    read = read_shares(stored)
    text = render_topic_report(lda, stored=read)
    page = Page(text)
    assert {"documents", "labels"} <= set(page.ids)
    cards = text.split("<article>")[1:]
    for card, topic in zip(cards, lda.topics(1), strict=True):
        shown = re.findall(r"<b>(\d+)</b> \(([\d.]+)\)", card)
        best = read.representatives[topic["state"]][:5]
        assert shown == [(str(document), f"{share:.2f}") for document, share in best]
        assert f"{read.mean_shares[topic['state']]:.3f} on average" in card
    # Correlations of four topics, and their shares in two years: one has no documents.
    assert text.count('class="cell') == 4 * 4 + 4 * 2
    assert text.index("1999 (300 documents)") < text.index("2001 (500 documents)")
    assert "2000 (" not in text
    section = text[text.index('id="labels"') :]
    darkest = re.findall(r'<title>topic (\d), (\d+) [^<]*</title><rect [^>]*fill-opacity="1.000"', section)
    means = np.array([label.shares for label in read.labels[:2]])
    assert {int(topic): year for topic, year in darkest} == {
        topic: YEARS[means[:, topic].argmax()] for topic in range(4)
    }
    # The strongest correlation has the darkest cell.
    between = text[text.index('aria-label="Correlations') : text.index('id="labels"')]
    a, b = re.search(
        r'<title>topics (\d), (\d): [^<]*</title><rect [^>]*fill-opacity="1.000"', between
    ).groups()
    off = np.abs(read.correlation - np.eye(4))
    assert off[int(a), int(b)] == off.max()
    assert not {"documents", "labels"} & set(Page(render_topic_report(lda)).ids)


@pytest.mark.parametrize(
    ("names", "shown", "order"),
    [
        # Label i has i + 1 documents.
        (
            [f"a{i}" for i in range(60)],
            [f"a{i}" for i in range(59, 19, -1)],
            "by decreasing number of documents",
        ),
        ([str(-i) for i in range(60)], [str(-i) for i in range(59, -1, -1)], "by value"),
        (
            [str(-i) for i in range(120)],
            [str(-i) for i in range(119, 19, -1)],
            "those with the most documents, by value",
        ),
        (["1", "nan", "2"], ["2", "nan", "1"], "by decreasing number of documents"),
    ],
)
def test_labels_are_shown_in_order_as_far_as_there_is_room(lda, names, shown, order):
    labels = [LabelShares(name, i + 1, np.full(4, 0.25)) for i, name in enumerate(names)]
    stored = StoredShares(9, np.full(4, 0.25), np.eye(4), [[(0, 1.0)]] * 4, labels)
    text = render_topic_report(lda, stored=stored)
    assert re.findall(r"<title>topic 0, (\S+) \(", text) == shown
    assert f"{len(shown)} of {len(names)} labels, {order};" in text


def test_standard_errors_are_reported_where_there_are_some(lda, counts):
    assert "±" not in render_topic_report(lda)
    moments = TopicMoments(4, min_df=0.0, max_df=1.0).fit_corpus(MemoryCorpus(counts))
    model = SpectralLDA(4, alpha0=0.8, init="tensor", n_refine=0).fit_moments(moments)
    text = render_topic_report(model)
    Page(text)
    for topic in model.topics(1):
        measured = re.search(rf"Topic {topic['state']}</h3><span>([\d.]+) ±([\d.]+)</span>", text)
        assert float(measured[2]) == pytest.approx(topic["weight_error"], rel=0.05)
        assert float(measured[1]) == pytest.approx(topic["weight"], abs=0.05 * topic["weight_error"])
    assert text.count('class="spread"') == 4
    # A bar and its error line have the same scale; the line ends at value + error.
    row = model.topics(16, "relevance")[0]
    values, errors = (np.array(x) for x in ([p for _, p in row["words"]], row["word_errors"]))
    ends = re.findall(r'<u style="left:([\d.]+)%;right:([\d.]+)%">', text.split("<article>")[1])
    top = (values + errors).max()
    assert_allclose(np.array(ends, float)[:, 1], 100 * (1 - (values + errors) / top), atol=0.06)
    assert_allclose(np.array(ends, float)[:, 0], 100 * np.maximum(values - errors, 0) / top, atol=0.06)
    model.components_error_[:] = model.weights_error_[:] = np.nan
    text = render_topic_report(model)
    assert "±nan" not in text
    assert 'class="spread"' not in text


def test_names_of_labels_are_escaped(lda, tmp_path):
    labels = np.ones((50, 1), int)
    words = np.eye(60, dtype=int)[np.arange(50)]
    transform_corpus(lda, MemoryCorpus(words, labels, label_names=[HOSTILE]), tmp_path / "out")
    text = render_topic_report(lda, stored=read_shares(tmp_path / "out"))
    assert HOSTILE[:20] not in text
    assert "onmouseover" not in {name for _, name, _ in Page(text).attributes}


def test_invalid_shares_are_refused(lda, stored, counts, tmp_path):
    with pytest.raises(UsageError, match="expected a directory written by 'distmom transform'"):
        write_topic_report(lda, tmp_path / "r.html", shares=tmp_path)
    with pytest.raises(UsageError, match="expected shares of the 3 topics of the model, got 4"):
        write_topic_report(SingleTopic(3, max_df=1.0).fit(counts), tmp_path / "r.html", shares=stored)
    assert not (tmp_path / "r.html").exists()


def test_damaged_shares_are_reported_with_their_file(lda, counts, tmp_path):
    labels = np.ones((800, 1), int)
    transform_corpus(lda, MemoryCorpus(counts, labels, label_names=["a\u00a0b"]), tmp_path / "out")
    summary, lines = tmp_path / "out" / "topics.json", tmp_path / "out" / "labels.tsv"
    good, text = summary.read_text(), lines.read_bytes()
    assert read_shares(tmp_path / "out").labels[0].name == "a\u00a0b"
    for wrong in (text[:-1], text[:-4] + b"\n0", b"x" + text[8:].replace(b"\t", b" ", 1), text + b"a\tb\n"):
        lines.write_bytes(wrong)
        with pytest.raises(StoreError, match=r"labels\.tsv"):
            read_shares(tmp_path / "out")
    lines.write_bytes(text)
    for wrong in (good[:-5], "[]", json.dumps({**json.loads(good), "mean_shares": [1.0]})):
        summary.write_text(wrong)
        with pytest.raises(StoreError, match=r"topics\.json"):
            read_shares(tmp_path / "out")


def test_cells_are_as_dark_as_their_values_and_lie_inside():
    values = [[1.0, -0.5, 0.0], [0.25, float("nan"), 2.0]]
    notes = [["a", "b", "c"], ["d", "<e", "f"]]
    text = str(heat_chart(values, ["1", "2"], ["one", "<two", "a" * 40], title="t", notes=notes))
    page = Page(text)
    of = {
        name: [value for tag, key, value in page.attributes if tag == "rect" and key == name]
        for name in ("fill-opacity", "class", "x", "y", "width", "height")
    }
    assert of["fill-opacity"] == ["1.000", "0.500", "0.000", "0.250", "0.000", "1.000"]
    assert of["class"] == ["cell", "cell low", "cell", "cell", "cell", "cell"]
    assert "&lt;two" in text
    assert "&lt;e" in text
    assert "a" * 25 not in text
    height = float(re.search(r'viewBox="0 0 640 (\d+)"', text)[1])
    for x, y, w, h in zip(of["x"], of["y"], of["width"], of["height"], strict=True):
        assert 0 <= float(x) <= float(x) + float(w) <= 640
        assert 0 <= float(y) <= float(y) + float(h) <= height
    assert heat_chart([], [], ["a"], title="t", notes=[]) == ""


def test_names_of_rows_have_room_beside_the_cells():
    rows = ["component 12", "b" * 300]
    text = str(heat_chart([[1.0], [0.5]], rows, ["one"], title="t", notes=[["a"], ["b"]]))
    shown = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]+)<', text)
    assert [name for _, name in shown] == ["component 12", "b" * 23 + "…"]
    # At this size, a letter of a wide font has 6.8 pixels on average.
    assert all(float(x) >= 6.8 * len(name) for x, name in shown)
    assert all(float(x) > float(shown[0][0]) for x in re.findall(r'<rect class="cell" x="([\d.]+)"', text))


def test_error_bars_are_as_long_as_the_errors():
    text = str(bar_chart([0.5, 0.25, 0.2], title="t", x_label="x", errors=[0.1, 0.5, float("nan")]))
    lines = re.findall(r'<line class="spread" x1="[\d.]+" y1="([\d.]+)" x2="[\d.]+" y2="([\d.]+)"', text)
    bars = re.findall(r'<rect class="bar" [^>]*height="([\d.]+)"', text)
    unit = float(bars[0]) / 0.5
    assert len(lines) == 2
    assert float(lines[0][0]) - float(lines[0][1]) == pytest.approx(0.2 * unit, abs=0.2)
    # The second is cut off at zero, the base of the bars.
    assert float(lines[1][0]) - float(lines[1][1]) == pytest.approx(0.75 * unit, abs=0.2)
