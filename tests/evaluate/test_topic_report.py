import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError
from test_report import HOSTILE, Page

from distmom.errors import UsageError
from distmom.evaluate.charts import disc_map
from distmom.evaluate.topic_report import plane, render_topic_report, write_topic_report
from distmom.models import AnchorTopics, SingleTopic, SpectralLDA
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
    for shown in ("12.5", "0.25", "SpectralLDA", "tensor-1", "anchors", "residual", "n_polish"):
        assert shown in text
    assert text.count('class="disc"') == 4
    # The start that was taken is marked.
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


def test_words_of_anybody_are_escaped_and_nothing_is_loaded(lda):
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


def test_a_report_is_written_whole_or_refused(lda, tmp_path):
    write_topic_report(lda, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text() == render_topic_report(lda)
    with pytest.raises(UsageError, match="there is no directory"):
        write_topic_report(lda, tmp_path / "none" / "r.html")
    with pytest.raises(UsageError, match="metrics: expected names with numbers"):
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
