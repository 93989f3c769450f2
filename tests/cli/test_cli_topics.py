"""Topic models on the command line: topics, shares, and topics that words or documents select."""

import json

import numpy as np
import pytest
import zarr
from themes import LOCAL, WORDS, texts, themed

from distmom.models import ECA, load_model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a corpus and a model of each kind."""
    return themed(tmp_path_factory.mktemp("topics"))


@pytest.mark.parametrize("kind", ["lda", "single-topic", "anchors"])
def test_themes_are_found_and_reported(place, run, tmp_path, kind):
    code, out, _ = run("topics", place / kind, "--top", 5, "--json")
    assert code == 0
    found = {frozenset(word for word, _ in topic["words"]) for topic in json.loads(out)["topics"]}
    assert found == {frozenset(words) for words in WORDS.values()}
    assert run("topics", place / kind, "--top", 2)[1].count("\n") == 3
    assert run("topics", place / kind, "--by", "lift")[0] == 0
    code, out, _ = run("evaluate", place / kind, place / "test.tsv", "--json", *LOCAL)
    metrics = json.loads(out)
    assert code == 0
    assert 5 < metrics["perplexity"] < 14
    assert metrics["n_documents"] == 81
    assert all(isinstance(metrics[name], int) for name in ("n_documents", "n_tokens"))
    assert metrics["diversity"] == pytest.approx(15 / 30)
    assert (
        json.loads(run("info", place / kind, "--json")[1])["model"] == type(load_model(place / kind)).__name__
    )
    assert run("verify", place / kind)[0] == 0
    (tmp_path / "metrics.json").write_text(out)
    options = ("--metrics", tmp_path / "metrics.json")
    assert run("report", place / kind, tmp_path / "r.html", *options)[0] == 0
    assert "perplexity" in (tmp_path / "r.html").read_text()


def test_a_measure_that_is_not_defined_is_null_in_json(place, run, tmp_path):
    # No half of a document predicts another one.
    (tmp_path / "short.tsv").write_text("\tcat\n\tbank\n")
    code, out, _ = run("evaluate", place / "lda", tmp_path / "short.tsv", "--json", *LOCAL)
    assert code == 0

    def refuse(name):
        raise AssertionError(name)

    metrics = json.loads(out, parse_constant=refuse)
    assert (metrics["perplexity"], metrics["n_tokens"]) == (None, 0)
    (tmp_path / "metrics.json").write_text(out)
    options = ("--metrics", tmp_path / "metrics.json")
    assert run("report", place / "lda", tmp_path / "r.html", *options)[0] == 0


@pytest.mark.parametrize("method", ["vb", "fast"])
def test_shares_are_written_in_order_and_whole(place, run, tmp_path, method):
    arguments = ("transform", place / "lda", place / "test.tsv", tmp_path / "out", "--method", method)
    code, out, _ = run(*arguments, "--json", *LOCAL)
    reported = json.loads(out)
    assert code == 0
    assert (reported["n_documents"], reported["n_empty"], reported["n_unknown_words"]) == (81, 1, 2)
    shares = np.asarray(zarr.open_array(tmp_path / "out" / "shares.zarr", mode="r")[...])
    assert shares.shape == (81, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(reported["mean_shares"], shares.mean(axis=0), atol=1e-5)
    summary = json.loads((tmp_path / "out" / "topics.json").read_text())
    np.testing.assert_allclose(summary["mean_shares"], shares.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(summary["correlation"], np.corrcoef(shares.T), atol=1e-3)
    for topic, best in enumerate(summary["representatives"]):
        column = shares[:, topic]
        order = np.lexsort((np.arange(81), -column))[:10]
        assert [entry["document"] for entry in best] == order.tolist()
        assert [entry["share"] for entry in best] == pytest.approx(column[order])
    [line] = (tmp_path / "out" / "labels.tsv").read_text().splitlines()
    name, count, *means = line.split("\t")
    assert (name, count) == ("x", "81")
    np.testing.assert_allclose([float(x) for x in means], shares.mean(axis=0), atol=1e-5)
    model = load_model(place / "lda")
    themes = [
        max(WORDS, key=lambda t: sum(row[model.vocabulary_.index(w)] for w in WORDS[t]))
        for row in model.components_
    ]
    most = [max(WORDS, key=lambda t: sum(line.count(w) for w in WORDS[t])) for line in texts(80, 1)]
    assert [themes[i] for i in shares[:80].argmax(axis=1)] == most
    # The source is not read, and need not be there.
    code, _, err = run("transform", place / "lda", tmp_path / "none", tmp_path / "out", *LOCAL)
    assert code == 2
    assert "already exists; choose another location or overwrite it (overwrite=True, or --overwrite)" in err
    assert run(*arguments, "--overwrite", *LOCAL)[0] == 0
    report = ("report", place / "lda", tmp_path / "r.html", "--shares")
    assert run(*report, tmp_path / "out")[0] == 0
    page = (tmp_path / "r.html").read_text()
    for best in summary["representatives"]:
        assert f"<b>{best[0]['document']}</b> ({best[0]['share']:.2f})" in page
    assert "x (81 documents)" in page
    for wrong in (tmp_path / "none", place / "corpus"):
        code, _, err = run(*report, wrong, "--overwrite")
        assert code == 2
        assert "expected a directory written by 'distmom transform'" in err
    (tmp_path / "out" / "topics.json").write_text("{}")
    assert run(*report, tmp_path / "out", "--overwrite")[0] == 4
    assert (tmp_path / "r.html").read_text() == page


def test_bounds_of_states_are_printed_and_those_that_few_documents_do_not_have_are_named(
    place, run, tmp_path
):
    fit = ("fit", place / "corpus", tmp_path / "labels", "-k", 2, "--head", "moment", *LOCAL)
    code, out, _ = run(*fit)
    assert code == 0
    assert "theorem_1_bounds_95%" in out
    assert "none (too few documents)" in out
    assert run("report", tmp_path / "labels", tmp_path / "r.html")[0] == 0
    page = (tmp_path / "r.html").read_text()
    assert "Bounds of Theorem 1" in page
    assert "labels and pairs" in page


def test_shares_of_other_models_are_not_reported(place, run, tmp_path):
    fit = ("fit", place / "corpus", tmp_path / "two", "-k", 2, "--model", "anchors", "--max-df", 1, *LOCAL)
    assert run(*fit)[0] == 0
    assert run("transform", tmp_path / "two", place / "test.tsv", tmp_path / "out", *LOCAL)[0] == 0
    report = (tmp_path / "r.html", "--shares", tmp_path / "out")
    code, _, err = run("report", place / "lda", *report)
    assert code == 2
    assert "expected shares of the 3 topics of the model, got 2" in err
    assert run("fit", place / "corpus", tmp_path / "labels", "-k", 2, "--head", "moment", *LOCAL)[0] == 0
    code, _, err = run("report", tmp_path / "labels", *report)
    assert code == 2
    assert "--shares: expected a model that infers shares of topics, got one of class MultiLabelMoM" in err
    assert not (tmp_path / "r.html").exists()


def test_what_a_model_does_not_have_is_refused_by_name(place, run, tmp_path):
    fit = ("fit", place / "corpus", tmp_path / "m", "-k", 3)
    for option, value, kind in (
        ("--head", "posterior", "lda"),
        ("--alpha0", "1", "anchors"),
        ("--refine", "vb", "single-topic"),
        ("--n-refine", "2", "multilabel"),
    ):
        code, _, err = run(*fit, "--model", kind, option, value, *LOCAL)
        assert code == 2
        assert f"{option}: not an option of --model {kind}" in err
        assert not (tmp_path / "m").exists()
    for option, value, message in (
        ("--alpha0", "much", "--alpha0: expected a number, or 'auto', got 'much'"),
        ("--min-df", "few", "--min-df: expected a number, or 'auto', got 'few'"),
        ("--n-refine", "some", "--n-refine: expected a whole number, or 'auto', got 'some'"),
        ("--n-refine", "-1", "--n-refine: expected at least 0, or 'auto', got -1"),
    ):
        code, _, err = run(*fit, "--model", "lda", option, value, *LOCAL)
        assert code == 2
        assert message in err
    code, _, err = run("predict", place / "lda", place / "test.tsv", tmp_path / "out", *LOCAL)
    assert code == 2
    assert "expected a model that ranks labels, got one of class SpectralLDA" in err
    code, _, err = run(*fit, "--model", "lda", "--min-df", "0.99", "--max-df", "1", *LOCAL)
    assert code == 2
    assert "change min_df or max_df" in err
    assert not (tmp_path / "m.run").exists()


def test_words_that_most_documents_have_are_told_of_and_get_a_topic(run, tmp_path):
    common = " the the the the of of of and and in\n"
    (tmp_path / "train.tsv").write_text("".join(line.rstrip() + common for line in texts(300, 2)))
    assert run("ingest", tmp_path / "train.tsv", tmp_path / "corpus", *LOCAL)[0] == 0
    fit = ("fit", tmp_path / "corpus", tmp_path / "m", "-k", 4, "--model", "lda", "--max-df", 0.9)
    code, _, err = run(*fit, "--workers", 0)
    assert code == 0
    assert "more than 90% of the documents make up 29% of the text" in err
    assert "--background gives them a topic of their own" in err
    fit = (*fit, "--background", "--max-count", 0, "--overwrite")
    code, _, err = run(*fit, "--workers", 0)
    assert code == 0
    assert "of their own" not in err
    model = load_model(tmp_path / "m")
    assert model.background
    assert model.max_count is None
    found = {frozenset(word for word, _ in topic["words"][:4]) for topic in model.topics(4)}
    assert frozenset(["the", "of", "and", "in"]) in found
    assert not any(words & {"the", "of", "and", "in"} for words in found if "the" not in words)


def test_the_number_of_topics_may_be_found(place, run, tmp_path):
    code, _, _ = run(
        "fit", place / "corpus", tmp_path / "m", "-k", "auto", "--model", "lda", "--max-df", 1, *LOCAL
    )
    assert code == 0
    assert load_model(tmp_path / "m").n_components_ == 3
    code, _, err = run("fit", place / "corpus", tmp_path / "n", "-k", "auto", *LOCAL)
    assert code == 2
    assert "--n-components: expected a whole number, got 'auto'" in err
    code, _, err = run("fit", place / "corpus", tmp_path / "n", "-k", "some", "--model", "lda", *LOCAL)
    assert code == 2
    assert "--n-components: expected a whole number, or 'auto', got 'some'" in err


def test_one_topic_is_found_by_a_word_or_by_documents(place, run, tmp_path):
    common = ("-k", 3, "--max-df", 1, "--alpha0", 0.5, "--json", *LOCAL)
    code, out, _ = run("search", place / "corpus", "--word", "cat", "--word", "dog", *common)
    assert code == 0
    found = json.loads(out)
    assert {word for word, _ in found["words"][:5]} == set(WORDS["animals"])
    assert found["gap"] > found["noise"] > 0
    assert 0 < found["n_documents_needed"] <= 600
    assert found["share"] == pytest.approx(1 / 3, abs=0.15)
    (tmp_path / "about.tsv").write_text("x\tship road car bus unknown\nx\ttrain train road\n")
    code, out, _ = run("search", place / "corpus", "--documents", tmp_path / "about.tsv", *common)
    assert code == 0
    assert {word for word, _ in json.loads(out)["words"][:5]} == set(WORDS["transport"])
    # In moments that were kept the same is found, and no pass is made.
    kept = ("moments", place / "corpus", tmp_path / "kept", "-k", 5, "--max-df", 1, "--n-parts", 2, *LOCAL)
    assert run(*kept)[0] == 0
    search = ("search", tmp_path / "kept", "--alpha0", 0.5, "--json")
    code, out, err = run(*search, "-k", 3, "--word", "cat", "--word", "dog")
    assert code == 0
    assert "pass" not in err
    assert json.loads(out)["words"][:5] == found["words"][:5]
    code, out, _ = run(*search, "-k", 3, "--documents", tmp_path / "about.tsv")
    assert {word for word, _ in json.loads(out)["words"][:5]} == set(WORDS["transport"])
    for arguments, message in (
        (("-k", 6), "n_components: expected at most 5, for which the moments were made, got 6"),
        (("--min-df", 0.1), "--min-df: expected none, as the moments"),
        (("--seed", 0), "--seed: expected none, as the moments"),
    ):
        code, _, err = run(*search, "--word", "cat", *arguments)
        assert code == 2
        assert message in err
    for arguments, message in (
        ((), "give --word, once or more, or --documents, or --targets"),
        (("--word", "cat", "--documents", "x"), "give --word, once or more, or --documents"),
        (("--word", "cat", "--targets", "x"), "give --word, once or more, or --documents"),
        (("--targets", tmp_path / "none"), "cannot be read as text"),
        (("--word", "zebra"), "search: 'zebra' is not in the vocabulary"),
        (("--documents", tmp_path / "none.tsv"), "none.tsv: there is no such file"),
    ):
        progress = ("-k", 3, "--workers", 0)
        code, _, err = run("search", place / "corpus", *arguments, *progress)
        assert code == 2
        assert message in err
        # Nothing is added up before.
        assert "sketch" not in err


def test_a_topic_is_found_for_every_line_of_a_file(place, run, tmp_path):
    common = ("-k", 3, "--max-df", 1, "--alpha0", 0.5, *LOCAL)
    targets = tmp_path / "targets.txt"
    targets.write_text("cat dog\n\nbank\n ship\troad\n", encoding="utf-8-sig")
    code, out, _ = run("search", place / "corpus", "--targets", targets, "--json", *common)
    assert code == 0
    topics = json.loads(out)["topics"]
    assert [topic["target"] for topic in topics] == [["cat", "dog"], ["bank"], ["ship", "road"]]
    assert [{word for word, _ in topic["words"][:5]} for topic in topics] == [set(w) for w in WORDS.values()]
    one = json.loads(run("search", place / "corpus", "--word", "bank", "--json", *common)[1])
    assert {"target": ["bank"], **one} == topics[1]
    code, out, _ = run("search", place / "corpus", "--targets", targets, "--top", 2, *common)
    assert code == 0
    assert out.count("\n") == 3 * (6 + 2)
    # Every theme has one of these words, and says the same of each.
    targets.write_text("cat\ncat bank train\n")
    code, _, err = run("search", place / "corpus", "--targets", targets, *common)
    assert code == 3
    assert f"{targets}:2: the side information does not determine" in err
    assert run("search", place / "corpus", "--targets", targets, "--force", *common)[0] == 0
    targets.write_text("cat\n\nzebra\n")
    code, _, err = run("search", place / "corpus", "--targets", targets, *common)
    assert code == 2
    assert f"{targets}:3: search: 'zebra' is not in the vocabulary" in err
    assert "sketch" not in run("search", place / "corpus", "--targets", targets, "-k", 3, "--workers", 0)[2]
    targets.write_text("\n")
    assert run("search", place / "corpus", "--targets", targets, *common)[0] == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [("--head", "posterior"), ("--auc-documents", "10"), ("--propensity-a", "0.5"), ("--propensity-b", "0.4")],
)  # fmt: skip
def test_options_of_labels_are_refused_for_topics(place, run, option, value):
    code, _, err = run("evaluate", place / "lda", place / "test.tsv", option, value, *LOCAL)
    assert code == 2
    assert f"{option}: expected a model that ranks labels, got one of class SpectralLDA" in err


def test_planted_topics_are_compared_with_their_truth(run, tmp_path):
    small = ("--docs", 3000, "--words", 500, "--states", 5)
    assert run("synth", "lda", tmp_path / "c", *small, *LOCAL)[0] == 0
    assert run("fit", tmp_path / "c", tmp_path / "m", "-k", 5, "--model", "lda", *LOCAL)[0] == 0
    options = ("--truth", tmp_path / "c.truth", "--json", *LOCAL)
    code, out, _ = run("evaluate", tmp_path / "m", tmp_path / "c", *options)
    metrics = json.loads(out)
    assert code == 0
    assert (metrics["n_planted"], metrics["n_recovered"]) == (5, 5)
    assert metrics["words_l1"] < 0.3
    assert "labels_l1" not in metrics


def test_a_model_of_other_data_is_described_and_refused(place, run, tmp_path):
    rows = np.random.default_rng(0).gamma(1.0, size=(400, 1)).repeat(4, axis=0) * [[1.0, 2.0]]
    ECA(1).fit(rows + np.random.default_rng(1).normal(size=(1600, 2)), groups=np.arange(1600) // 4).save(
        tmp_path / "m"
    )
    code, out, _ = run("info", tmp_path / "m", "--json")
    assert (code, json.loads(out)["model"]) == (0, "ECA")
    assert run("verify", tmp_path / "m")[0] == 0
    code, _, err = run("topics", tmp_path / "m")
    assert code == 2
    assert f"{tmp_path / 'm'}: expected a model that has topics or latent states, got one of class ECA" in err
