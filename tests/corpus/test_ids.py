"""Ids of documents, and sources of texts: labels, their separators, and texts without labels."""

import json
import shutil

import numpy as np
import pytest

from distmom.corpus import CorpusWriter, copy_corpus, ingest, open_corpus
from distmom.errors import InputError, StoreError, UsageError


def made(tmp_path, name, content, **options):
    (tmp_path / name).write_text(content)
    options = {"min_df": 1, "shard_documents": 2, **options}
    return ingest(tmp_path / name, tmp_path / f"{name}.corpus", overwrite=True, **options)


def ids(corpus):
    found = [corpus.read_ids(i) for i in range(len(corpus.shards))]
    return None if found[0] is None else [text for own in found for text in own]


def labels(corpus):
    """Label names of every document."""
    blocks = [corpus.read_shard(i).labels for i in range(len(corpus.shards))]
    return [{corpus.label_names[i] for i in row.indices} for block in blocks for row in block]


RECORDS = [{"id": 7, "text": "a bc"}, {"id": "x\ty", "text": "bc de"}, {"id": "ü", "text": "de bc"}]


def test_ids_of_json_lines_and_tables_are_stored_and_copied(tmp_path):
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    corpus = made(tmp_path, "x.jsonl", lines, id_column="id")
    assert corpus.has_ids
    assert ids(corpus) == ["7", "x\ty", "ü"]
    assert corpus.settings["id_column"] == "id"
    assert corpus.verify() == []
    table = made(tmp_path, "x.csv", 'key,text\nk1,bc\n"k\t2","a\nbc"\n\nk3,bc\n', id_column="key")
    assert ids(table) == ["k1", "k\t2", "k3"]
    again = copy_corpus(corpus.path, tmp_path / "copy")
    assert (again.digest, ids(again)) == (corpus.digest, ids(corpus))
    # Words and labels are those of a corpus without ids, of another digest.
    without = made(tmp_path, "y.jsonl", lines)
    assert (without.has_ids, ids(without)) == (False, None)
    assert without.digest != corpus.digest
    assert (without.read_shard(1).words.toarray() == corpus.read_shard(1).words.toarray()).all()


def test_rows_of_the_source_are_kept_where_lines_are_blank(tmp_path):
    texts = {
        "x.tsv": "a\tbc\n\n\nb\tbc\na\tde\n\n\nb\tde\n",
        "x.jsonl": '\n{"text": "bc"}\n\n{"text": "bc"}\n',
    }
    assert ids(made(tmp_path, "x.tsv", texts["x.tsv"])) == ["1", "4", "5", "8"]
    assert ids(made(tmp_path, "x.jsonl", texts["x.jsonl"])) == ["2", "4"]
    # Records of a table, of which one has two lines; the header is not counted.
    assert ids(made(tmp_path, "x.csv", 'text\n"bc\nde"\n\nde\nbc\n')) == ["1", "3", "4"]
    assert ids(made(tmp_path, "x.txt", "bc\n\nde\n", format="lines")) == ["1", "3"]
    numbers = "0 1:1\n# nothing\n\n1 2:1\n1 3:0.5 1:1\n"
    svm = made(tmp_path, "x.svm", numbers, zero_based=False, min_df=2)
    assert ids(svm) == ["1", "4", "5"]
    # Numbers that follow from positions are not stored, whether or not blank lines follow.
    for content in ("a\tbc\nb\tde\n", "a\tbc\nb\tde\n\n\n"):
        assert not made(tmp_path, "y.tsv", content).has_ids


def test_an_interrupted_ingest_keeps_its_ids(tmp_path):
    lines = "".join(json.dumps({"id": f"d{i}", "text": "bc de"}) + "\n" for i in range(7))
    whole = made(tmp_path, "x.jsonl", lines, id_column="id")

    def interrupt(stage, done, total):
        if stage == "write" and done >= 4:
            raise KeyboardInterrupt

    options = {"min_df": 1, "shard_documents": 2, "id_column": "id"}
    with pytest.raises(KeyboardInterrupt):
        ingest(tmp_path / "x.jsonl", tmp_path / "again", progress=interrupt, **options)
    again = ingest(tmp_path / "x.jsonl", tmp_path / "again", **options)
    assert again.digest == whole.digest
    assert ids(again) == [f"d{i}" for i in range(7)]


def test_damaged_ids_are_found(tmp_path):
    corpus = made(tmp_path, "x.jsonl", "".join(json.dumps(r) + "\n" for r in RECORDS), id_column="id")
    file = tmp_path / "x.jsonl.corpus" / "shards" / "s00001" / "ids.txt"
    file.write_text("v\n")
    with pytest.raises(StoreError, match=r"s00001/ids\.txt"):
        corpus.read_ids(1)
    assert len(corpus.verify()) == 1
    # Words need no ids.
    assert corpus.read_shard(1).n_documents == 1
    file.unlink()
    assert len(open_corpus(corpus.path).verify()) == 1
    with pytest.raises(StoreError, match=r"ids\.txt"):
        copy_corpus(corpus.path, tmp_path / "copy")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"id": 1, "text": "bc"}\n{"text": "bc"}\n', r":2: field 'id': expected an id.*got none"),
        (
            "x.jsonl",
            '{"id": 1.5, "text": "bc"}\n',
            r":1: field 'id': expected an id: text on one line.*got 1\.5",
        ),
        ("x.jsonl", '{"id": "a\\nb", "text": "bc"}\n', r":1: field 'id': expected an id"),
        ("x.csv", "id,text\n1,bc\n,bc\n", r":3: field 'id': expected an id.*got ''"),
        ("x.csv", "key,text\n1,bc\n", r":1: header: expected a field 'id' \(--id-column\), got"),
    ],
)
def test_missing_ids_are_refused(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        made(tmp_path, name, content, id_column="id")


def test_a_field_of_labels_that_is_named_is_not_missing(tmp_path):
    content = "text,subjects\nbc bc,one\nbc,two\n"
    with pytest.raises(InputError, match=r":1: header: expected a field 'topics' \(--labels-field\), got"):
        made(tmp_path, "x.csv", content, labels_field="topics")
    assert made(tmp_path, "x.csv", content, labels_field="subjects").n_labels == 2
    assert made(tmp_path, "y.csv", content).n_labels == 0


def test_a_field_of_labels_that_no_json_line_has_is_refused(tmp_path):
    lines = ['{"id": 1, "text": "bc bc"}', "", '{"id": 2, "text": "bc", "subject": ["one"]}']
    for shard_documents in (1, 10):
        options = {"shard_documents": shard_documents, "id_column": "id"}
        with pytest.raises(
            InputError,
            match=r"x\.jsonl:1: line: expected a field 'topics' \(--labels-field\) here or in another line, "
            r"got fields \['id', 'text'\]",
        ):
            made(tmp_path, "x.jsonl", "\n".join([*lines, ""]), labels_field="topics", **options)
        assert (
            made(tmp_path, "x.jsonl", "\n".join([*lines, ""]), labels_field="subject", **options).n_labels
            == 1
        )
    # Documents may be without labels, but not without the field.
    empty = '{"text": "bc", "topics": []}\n{"text": "bc", "topics": null}\n'
    assert made(tmp_path, "y.jsonl", empty, labels_field="topics").n_labels == 0


def test_a_field_that_may_contain_the_labels_is_reported(tmp_path, caplog):
    texts = '{"id": 1, "text": "bc", "year": 1999}\n{"id": 2, "text": "bc"}\n'
    assert made(tmp_path, "x.jsonl", texts, id_column="id").n_labels == 0
    labelled = '{"text": "bc", "subject": "one"}\n{"text": "bc", "label": "two"}\n'
    assert made(tmp_path, "y.jsonl", labelled, shard_documents=1).n_labels == 1
    assert not caplog.messages
    first = made(tmp_path, "z.jsonl", labelled.replace("label", "subject"))
    (message,) = caplog.messages
    assert message.startswith(
        f"{tmp_path / 'z.jsonl'}: no line has a field 'labels' or 'label', so the documents"
    )
    assert message.endswith("if another field contains them (subject), use --labels-field")
    # New documents have no labels.
    made(tmp_path, "new.jsonl", '{"text": "bc", "subject": "one"}\n', like=first)
    assert len(caplog.messages) == 1


def test_a_field_of_a_table_that_may_contain_the_labels_is_reported(tmp_path, caplog):
    assert made(tmp_path, "x.csv", "text,year,id\nbc,1999,a\nbc,2000,b\n", id_column="id").n_labels == 0
    assert made(tmp_path, "y.csv", "text,label,subject\nbc,one,two\n").n_labels == 1
    assert not caplog.messages
    first = made(tmp_path, "z.csv", "text, labels,Label\nbc,one,two\nbc,one,two\n")
    (message,) = caplog.messages
    assert "no line has a field 'labels' or 'label', so the documents have no labels" in message
    assert "contains them ( labels, Label)" in message
    made(tmp_path, "new.csv", "text,subject\nbc,one\n", like=first)
    assert len(caplog.messages) == 1


def test_id_columns_are_for_sources_with_named_fields(tmp_path):
    with pytest.raises(
        UsageError,
        match="id_column: expected none with format tsv, as only jsonl, csv, parquet and arrow have",
    ):
        made(tmp_path, "x.tsv", "a\tbc\n", id_column="id")
    with pytest.raises(UsageError, match="id_column: expected a field without text or labels, got 'text'"):
        made(tmp_path, "x.csv", "text\nbc\n", id_column="text")


def write_two_shards(path, X, shard_ids):
    with CorpusWriter(path) as writer:
        writer.write_shard(0, X, None, ["a", "b"])
        writer.write_shard(1, X, None, shard_ids)
        writer.finalise()


def test_writers_take_ids_of_all_documents_or_none(tmp_path):
    X = np.ones((2, 3), int)
    with CorpusWriter(tmp_path / "c") as writer:
        writer.write_shard(0, X, None, ["a", "b"])
        assert ids(writer.finalise()) == ["a", "b"]
    for shard_ids, message in (
        (["a"], "number of ids in shard 1: expected 2, got 1"),
        (["a", ""], "id: expected text on one line without control characters, got ''"),
        (None, "ids: expected ids of all documents, or of none, got some"),
    ):
        with pytest.raises(InputError, match=message):
            write_two_shards(tmp_path / "d", X, shard_ids)
        shutil.rmtree(tmp_path / "d.partial", ignore_errors=True)


# Sources


def test_labels_of_json_lines_may_be_scalar(tmp_path):
    lines = ['{"text": "bc", "label": "a, b"}', '{"text": "bc", "label": 3}', '{"text": "bc", "label": null}']
    assert labels(made(tmp_path, "x.jsonl", "\n".join([*lines, ""]))) == [{"a, b"}, {"3"}, set()]
    both = '{"text": "bc", "labels": "x", "label": "y"}\n{"text": "bc", "topic": ["z"]}\n'
    assert labels(made(tmp_path, "x.jsonl", both)) == [{"x"}, set()]
    assert labels(made(tmp_path, "x.jsonl", both, labels_field="topic")) == [set(), {"z"}]
    assert labels(made(tmp_path, "x.csv", "label,text\nu,bc\n")) == [{"u"}]
    assert labels(made(tmp_path, "x.csv", "label,text\nu,bc\n", id_column="label")) == [set()]


def test_labels_may_contain_commas_if_another_separator_is_given(tmp_path):
    content = "Smith, J.; Wu, L.\tbc\nWu, L.\tbc\n"
    corpus = made(tmp_path, "x.tsv", content, label_separator=";")
    assert labels(corpus) == [{"Smith, J.", "Wu, L."}, {"Wu, L."}]
    assert corpus.settings["label_separator"] == ";"
    assert labels(made(tmp_path, "y.tsv", content, label_separator="")) == [{"Smith, J.; Wu, L."}, {"Wu, L."}]
    assert labels(made(tmp_path, "x.csv", 'labels,text\n"a, b||c",bc\n', label_separator="||")) == [
        {"a, b", "c"}
    ]
    with pytest.raises(UsageError, match="label_separator: expected no tab and no line break"):
        made(tmp_path, "z.tsv", content, label_separator="\t")


def test_texts_without_labels_are_a_source(tmp_path):
    corpus = made(tmp_path, "x.txt", "bc, de\tde\nbc\n", format="lines")
    assert (corpus.n_labels, corpus.vocabulary) == (0, ["bc", "de"])
    assert corpus.read_shard(0).words.toarray().tolist() == [[1, 2], [1, 0]]
    with pytest.raises(InputError, match=r"x\.tsv:2: line: .* no tab in 'bc'; use the format lines"):
        made(tmp_path, "x.tsv", "a\tbc\nbc\n")
    with pytest.raises(InputError, match=r"x\.txt:2: blank lines: expected no blank line"):
        made(tmp_path, "x.txt", "bc\n\nde\n", format="lines", strict=True)


def test_labels_that_occur_once_give_a_warning(tmp_path, caplog):
    swapped = "".join(f"text number {'ab'[i % 2] * (i + 1)}\tcat{i % 2}x\n" for i in range(30))
    made(tmp_path, "x.tsv", swapped)
    [record] = caplog.records
    assert "x.tsv: 30 of 30 labels occur once, such as 'text number" in record.getMessage()
    caplog.clear()
    made(tmp_path, "y.tsv", "".join(f"l{i % 25}\tbc\n" for i in range(60)))
    made(tmp_path, "z.tsv", "".join(f"l{i}\tbc\n" for i in range(19)))
    corpus = made(tmp_path, "x.tsv", swapped, format="lines")
    made(tmp_path, "z.tsv", swapped, like=corpus)
    assert not caplog.records
