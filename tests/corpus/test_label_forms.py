"""Labels that differ only in their Unicode normal form are one label."""

import json
import unicodedata

import numpy as np
import pytest
from helpers import write

from distmom.corpus import from_arrays, ingest, text_corpus, write_corpus
from distmom.corpus.names import NumberedNames
from distmom.errors import InputError, UsageError
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.heads.chosen_labels import label_numbers
from distmom.predict import predict_corpus
from distmom.spectral.inputs.aligned import align

COMPOSED = "Fischerei, Küste"
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)
OTHER = "trees"


def column(corpus):
    return corpus.read_shard(0).labels.toarray().tolist()


def as_lines(labels):
    return "".join(json.dumps({"text": "one two", "labels": each}) + "\n" for each in labels)


def test_both_forms_are_one_label_of_form_c(tmp_path):
    assert COMPOSED != DECOMPOSED
    lists = [[DECOMPOSED], [OTHER, COMPOSED], [COMPOSED, DECOMPOSED]]
    path = write(tmp_path / "x.jsonl", as_lines(lists))
    corpora = [
        ingest(path, tmp_path / "ingested"),
        text_corpus(["one two"] * 3, lists),
        write_corpus(tmp_path / "written", [(["one"], labels) for labels in lists]),
    ]
    for corpus in corpora:
        assert list(corpus.label_names) == [COMPOSED, OTHER]
        assert column(corpus) == [[1, 0], [1, 1], [1, 0]]
        assert corpus.warnings == {"duplicate_labels": 1}
    with pytest.raises(InputError, match=r"x\.jsonl:3: duplicate labels"):
        ingest(path, tmp_path / "strict", strict=True)


def test_a_file_of_labels_may_have_any_form(tmp_path):
    names = write(tmp_path / "names.txt", f"{OTHER}\n{DECOMPOSED}\n")
    named = write(tmp_path / "named.jsonl", as_lines([[COMPOSED], [DECOMPOSED]]))
    numbered = write(tmp_path / "numbered.jsonl", as_lines([["1"], ["1"]]))
    for source in (named, numbered):
        corpus = ingest(source, tmp_path / source.stem, labels=names, strict=True)
        assert list(corpus.label_names) == [OTHER, COMPOSED]
        assert column(corpus) == [[0, 1], [0, 1]]
    write(names, f"{COMPOSED}\n{DECOMPOSED}\n")
    with pytest.raises(InputError, match=r"names\.txt:2: name: expected a unique name"):
        ingest(named, tmp_path / "c", labels=names)


@pytest.mark.parametrize("known", [[OTHER, DECOMPOSED], [DECOMPOSED, OTHER, COMPOSED]])
def test_labels_of_a_model_in_another_form_are_known(tmp_path, known):
    like = from_arrays(tmp_path / "old", np.eye(3), np.eye(len(known))[[0, 1, 1]], list("abc"), known)
    number = known.index(COMPOSED if COMPOSED in known else DECOMPOSED)
    source = write(tmp_path / "x.jsonl", as_lines([[COMPOSED], [DECOMPOSED], ["new"]]))
    corpus = ingest(source, tmp_path / "c", like=like)
    assert list(corpus.label_names) == [*known, "new"]
    assert [row.index(1) for row in column(corpus)] == [number, number, len(known)]
    assert corpus.warnings["unknown_labels"] == 1


@pytest.mark.parametrize(
    ("known", "own", "numbers"),
    [
        ([OTHER, DECOMPOSED], [COMPOSED, "new"], [1, 2]),
        ([OTHER, COMPOSED], [DECOMPOSED, "new"], [1, 2]),
        # Two labels of a corpus of an earlier version remain two.
        ([OTHER, DECOMPOSED], [COMPOSED, DECOMPOSED], [2, 1]),
        ([OTHER, COMPOSED], [COMPOSED, DECOMPOSED], [1, 2]),
        ([DECOMPOSED, COMPOSED], [COMPOSED, DECOMPOSED], [1, 0]),
    ],
)
def test_labels_of_a_corpus_in_another_form_are_those_of_the_model(tmp_path, known, own, numbers):
    corpus = from_arrays(tmp_path / "c", np.eye(2), np.eye(2), ["a", "b"], own)
    aligned = align(corpus, ["a"], known)
    assert [row.index(1) for row in column(aligned)] == numbers
    assert aligned.n_unknown_labels == sum(number >= len(known) for number in numbers)
    assert len(aligned.label_names) == aligned.n_labels


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    words = (["herring", "boat", "net", "sea"], ["oak", "leaf", "root", "bark"])
    kinds = rng.integers(0, 2, 120)
    return [" ".join(rng.choice(words[kind], 8)) for kind in kinds], kinds


def test_names_given_to_a_model_may_have_any_form(tmp_path, data, caplog):
    texts, kinds = data
    names = np.array([DECOMPOSED, OTHER])
    model = MultiLabelMoM(3, head="ridge").fit(texts, names[kinds])
    assert model.classes_.tolist() == [COMPOSED, OTHER]
    assert "converted to Unicode normal form C, as in" in caplog.text
    assert model.score(texts, names[kinds].tolist()) == model.score(texts, np.array([COMPOSED, OTHER])[kinds])
    partial = MultiLabelMoM(3, head="ridge").partial_fit(texts, names[kinds], classes=names.tolist())
    assert partial.classes_.tolist() == [COMPOSED, OTHER]
    assert label_numbers([OTHER, DECOMPOSED], [COMPOSED, OTHER]).tolist() == [1, 0]
    with pytest.raises(UsageError, match="is given twice"):
        label_numbers([COMPOSED, DECOMPOSED], [COMPOSED, OTHER])
    source = write(tmp_path / "x.txt", f"{texts[0]}\n")
    corpus = ingest(source, tmp_path / "c", like=model)
    predict_corpus(model, corpus, tmp_path / "out", labels=[DECOMPOSED])
    assert COMPOSED in (tmp_path / "out" / "predictions.tsv").read_text(encoding="utf-8")


def test_exact_names_come_before_other_forms():
    both = NumberedNames([DECOMPOSED, COMPOSED])
    assert (both.find(DECOMPOSED), both.find(COMPOSED), both.find("x")) == (0, 1, None)
    one = NumberedNames([DECOMPOSED])
    assert (one.find(DECOMPOSED), one.find(COMPOSED)) == (0, 0)
