"""Names of labels as documents: zero-shot labels, and names that say nothing."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from distmom.corpus import ingest
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.heads.names import name_sums

TEXTS = [
    "salmon and herring",
    "herring nets",
    "oak and pine",
    "oak leaves",
    "a pine forest",
    "forest leaves",
] * 10
SUBJECTS = [["fish"], ["fish"], ["trees"], ["trees"], ["trees"], ["trees", "Pine_wood"]] * 10


def test_a_name_is_a_row_of_its_words():
    idf = np.array([1.0, 2.0, 3.0, 1.0])
    found = name_sums(
        ["Beta_alpha (beta)", "7", "gamma", "none", ""], ["alpha", "beta", "7", "gamma"], idf
    ).toarray()
    assert found.shape == (5, 5)
    expected = np.zeros((5, 5))
    expected[[0, 1], 0] = np.array([1.0, 2.0]) / np.sqrt(5.0)
    expected[3, 2] = 1.0
    assert_allclose(found, expected, atol=1e-6)


def test_a_label_with_one_document_is_found_by_its_name():
    # The 61st document is the only one of "salmon": too few to learn that the label goes with the word.
    model = MultiLabelMoM(2, head="linear").fit([*TEXTS, "nothing in common"], [*SUBJECTS, ["salmon"]])
    found = model.decision_function(["smoked salmon"])[0]
    names = list(model.classes_)
    assert found[names.index("salmon")] > found[names.index("trees")]
    unnamed = [["x" if label == "salmon" else label for label in own] for own in [*SUBJECTS, ["salmon"]]]
    other = MultiLabelMoM(2, head="linear").fit([*TEXTS, "nothing in common"], unnamed)
    assert (
        found[names.index("salmon")]
        > 2 * other.decision_function(["smoked salmon"])[0][list(other.classes_).index("x")]
    )


def test_a_label_without_documents_is_found_by_its_name(tmp_path):
    names = ["trees", "fish", "squid"]
    rows = [("oak pine forest", "trees"), ("herring net", "fish")] * 30 + [("squid net", "fish")] * 2
    (tmp_path / "rows.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in rows))
    (tmp_path / "names.txt").write_text("\n".join(names))
    corpus = ingest(tmp_path / "rows.tsv", tmp_path / "corpus", labels=tmp_path / "names.txt")
    assert dict(zip(names, corpus.label_frequency, strict=True)) == {"trees": 30, "fish": 32, "squid": 0}
    scores = MultiLabelMoM(2, head="linear").fit_corpus(corpus).decision_function(["squid", "herring"])
    assert scores[0].argmax() == 2
    assert scores[1].argmax() == 1


def test_numbers_are_no_names():
    subjects = [[str(len(label)) for label in own] for own in SUBJECTS]
    texts = [f"{text} 4 5" for text in TEXTS]
    model = MultiLabelMoM(2, head="linear").fit(texts, subjects)
    letters = [[{"4": "p", "5": "q", "9": "r"}[label] for label in own] for own in subjects]
    other = MultiLabelMoM(2, head="linear").fit(texts, letters)
    assert_allclose(model.decision_function(texts), other.decision_function(texts))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["oak and pine", "herring"], None),
        (["oak and pine and leaves and forest and oak", "herring and nets and whales"], None),
        (["smoked salmon"], "50 % of the words of the texts (1 of 2)"),
        (["nothing known"], "100 % of the words of the texts (2 of 2)"),
        ([], None),
    ],
)
def test_unknown_words_of_texts_are_reported(caplog, texts, message):
    model = MultiLabelMoM(2, head="linear").fit(TEXTS, SUBJECTS)
    model.predict(texts)
    assert [record.getMessage() for record in caplog.records] == (
        [] if message is None else [f"the model does not know {message}; they are left out"]
    )
