"""Columns of a corpus: tokens, vocabularies, label names, those of a model, and those of a program."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import write
from sklearn.feature_extraction.text import CountVectorizer

from distmom.corpus import MemoryCorpus, ingest, open_corpus, text_corpus, write_corpus
from distmom.corpus.sources.tokenize import Tokenizer, choose_words
from distmom.errors import InputError, UsageError


def dense(corpus):
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    return (
        np.concatenate([b.words.toarray() for b in blocks]),
        np.concatenate([b.labels.toarray() for b in blocks]),
    )


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({}, "The cat's 3 cats_x, ÉTÉ e\u0301te\u0301 a", ["the", "cat", "cats", "été", "été"]),
        ({}, "हिन्दी में पढ़ें தமிழ் বাংলা", ["हिन्दी", "में", "पढ़ें", "தமிழ்", "বাংলা"]),
        ({}, "العربيّة لُغَةٌ ภาษาไทยที่ \u0301x\u0323y 3\u0301", ["العربيّة", "لُغَةٌ", "ภาษาไทยที่", "x\u0323y"]),
        ({}, "می\u200cخواهم\u200c کتاب", ["می\u200cخواهم", "کتاب"]),  # noqa: RUF001
        ({"min_word_length": 4}, "ไทย ที่นี่", ["ที่นี่"]),
        ({"token_pattern": r"[^\W\d_]+"}, "में ab", ["ab"]),
        ({"lowercase": False}, "The the", ["The", "the"]),
        ({"min_word_length": 1}, "a bc", ["a", "bc"]),
        ({"min_word_length": 3}, "a bc def", ["def"]),
        ({"stop_words": ("the",)}, "the cat The", ["cat"]),
        ({"ngram_max": 3}, "aa bb cc", ["aa", "bb", "cc", "aa bb", "bb cc", "aa bb cc"]),
        ({"ngram_max": 2, "stop_words": ("of",)}, "city of wood", ["city", "wood", "city wood"]),
        ({"ngram_min": 2, "ngram_max": 2}, "aa bb cc", ["aa bb", "bb cc"]),
        ({"token_pattern": r"\w+"}, "a1 b 22", ["a1", "22"]),
        ({"analyzer": "char", "ngram_max": 2}, "Ab \t c", ["a", "b", " ", "c", "ab", "b ", " c"]),
        (
            {"analyzer": "char_wb", "ngram_min": 3, "ngram_max": 4},
            "Abc\nd",
            [" ab", "abc", "bc ", " abc", "abc ", " d "],
        ),
        ({"analyzer": "char", "ngram_min": 3, "ngram_max": 3}, "ab", []),
        ({"analyzer": "char", "lowercase": False}, "E\u0301", ["\u00c9"]),
        ({}, "", []),
    ],
)
def test_a_tokenizer_splits_text_by_its_options(options, text, expected):
    tokenizer = Tokenizer(**options)
    assert list(tokenizer.words([text])) == [expected]
    assert Tokenizer.from_settings(tokenizer.settings()) == tokenizer


@pytest.mark.parametrize(
    ("texts", "warns"),
    [
        (
            [
                "今天天气很好我们去公园散步。他喜欢吃苹果和香蕉",
                "昨天下雨了我们没有出门。今天天气很好我们去公园散步",
            ],
            True,
        ),
        (["今天 天气 很好 我们 去 公园 散步", "昨天 下雨 了 我们 没有 出门 今天"], False),
        (["ภาษาไทยเป็นภาษาที่สวยงาม", "ภาษาไทยเป็นภาษาที่สวยงาม"], True),
        (["the cat sat with 今天天气很好我们去公园散步", "the cat sat"], False),
    ],
)
def test_texts_without_spaces_are_reported_with_what_to_do(texts, warns, caplog):
    text_corpus(texts, min_df=1)
    assert ("use pairs of characters (--analyzer char --ngrams 2)" in caplog.text) == warns
    caplog.clear()
    text_corpus(texts, min_df=1, analyzer="char", ngram_min=2, ngram_max=2)
    assert not caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"min_df": 0}, {"max_df": 0}, {"max_df": 1.5}, {"ngram_max": 0}, {"min_word_length": 0},
        {"ngram_min": 0}, {"ngram_min": 2}, {"analyzer": "chars"}, {"stop_words": ("the",), "analyzer": "char"},
        {"token_pattern": "("}, {"token_pattern": "(a)"}, {"token_pattern": "a*"},
    ],
)  # fmt: skip
def test_tokenizer_settings_are_checked(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        Tokenizer(**options)


@pytest.mark.parametrize("analyzer", ["char", "char_wb"])
@pytest.mark.parametrize("lengths", [(1, 1), (2, 4), (5, 7)])
def test_ngrams_of_characters_are_those_of_scikit_learn(analyzer, lengths):
    texts = ["The cat's 3 cats_x.", "a  bc   (def) ghi", "", "Straßenbahn"]
    peer = CountVectorizer(analyzer=analyzer, ngram_range=lengths).build_analyzer()
    tokenizer = Tokenizer(analyzer=analyzer, ngram_min=lengths[0], ngram_max=lengths[1])
    for text, found in zip(texts, tokenizer.words(texts), strict=True):
        assert sorted(found) == sorted(peer(text))


def test_a_corpus_of_ngrams_of_characters_reads_new_texts_alike(tmp_path):
    source = tmp_path / "texts.tsv"
    source.write_text("x\toak and pine\nx\tpine and oaks\ny\tanoraks\n", encoding="utf-8")
    corpus = ingest(source, tmp_path / "corpus", analyzer="char_wb", ngram_min=3, ngram_max=3)
    assert {" oa", "oak", " an", "and", "pin", "ne "} <= set(corpus.vocabulary)
    assert list(open_corpus(tmp_path / "corpus").vocabulary) == list(corpus.vocabulary)
    again = ingest(source, tmp_path / "again", like=corpus)
    np.testing.assert_array_equal(again.read_shard(0).words.toarray(), corpus.read_shard(0).words.toarray())
    held = text_corpus(
        ["oak and pine", "pine and oaks", "anoraks"], analyzer="char_wb", ngram_min=3, ngram_max=3
    )
    assert list(held.vocabulary) == list(corpus.vocabulary)


def test_vocabulary_is_ordered_and_bounded():
    counts = {"d": 2, "a": 3, "c": 2, "b": 1, "e": 4}
    assert choose_words(counts, 4, 2, 1.0) == ["e", "a", "c", "d"]
    assert choose_words(counts, 4, 1, 0.5) == ["c", "d", "b"]
    assert choose_words(counts, 4, 1, 3) == ["a", "c", "d", "b"]
    # 0.57 * 100 is rounded to less than 57.
    assert choose_words({"a": 57, "b": 58}, 100, 1, 0.57) == ["a"]


def test_stop_words_and_vocabulary_from_files(tmp_path):
    source = write(tmp_path / "x.tsv", "a\tthe red ape\nb\tred the bee\n")
    stop = write(tmp_path / "stop.txt", "red\n")
    assert ingest(source, tmp_path / "1", stop_words="english").vocabulary == ["red"]
    assert ingest(source, tmp_path / "2", stop_words=stop).vocabulary == ["the"]
    words = write(tmp_path / "words.txt", "bee\nzebra\nape\n")
    corpus = ingest(source, tmp_path / "3", vocabulary=words)
    assert corpus.vocabulary == ["bee", "zebra", "ape"]
    assert dense(corpus)[0].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert corpus.warnings == {"unknown_words": 4}


@pytest.mark.parametrize("analyzer", ["char", "char_wb"])
def test_a_vocabulary_of_characters_keeps_its_spaces(tmp_path, analyzer):
    source = write(tmp_path / "x.tsv", "a\tthe red ape\nb\tred the bee\n")
    options = {"analyzer": analyzer, "ngram_max": 2, "min_df": 1}
    first = ingest(source, tmp_path / "1", **options)
    assert {"e ", " a"} <= set(first.vocabulary)
    again = ingest(source, tmp_path / "2", **options, vocabulary=tmp_path / "1" / "vocabulary.txt")
    assert again.vocabulary == first.vocabulary
    assert again.shards == first.shards
    assert not again.warnings
    texts = ["the red ape", "red the bee"]
    memory = text_corpus(texts, **options, vocabulary=tmp_path / "1" / "vocabulary.txt")
    assert memory.vocabulary == first.vocabulary
    assert dense(memory)[0].tolist() == dense(first)[0].tolist()


def test_control_characters_are_white_space_among_characters():
    odd = "ab\x07\x00c \x85\ud800d\u2028"
    for analyzer in ("char", "char_wb"):
        tokenizer = Tokenizer(analyzer=analyzer, ngram_max=2)
        assert list(tokenizer.words([odd])) == list(tokenizer.words(["ab c d "]))
    corpus = text_corpus([odd, odd], analyzer="char", ngram_min=2, ngram_max=2)
    assert sorted(corpus.vocabulary) == [" c", " d", "ab", "b ", "c "]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_df": 0.5}, "min_df: expected a whole number, got 0.5"),
        ({"min_df": "2"}, "min_df: expected a whole number, got '2'"),
        ({"max_df": True}, "max_df: expected a whole number, got True"),
        ({"max_df": "0.5"}, "max_df: expected a whole number, got '0.5'"),
        ({"ngram_max": 2.5}, "ngram_max: expected a whole number, got 2.5"),
        ({"min_word_length": float("nan")}, "min_word_length: expected a whole number, got nan"),
        ({"lowercase": "no"}, "lowercase: expected True or False, got 'no'"),
    ],
)
def test_options_of_words_of_another_type_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Tokenizer(**options)


def test_options_of_words_may_be_numbers_of_numpy(tmp_path):
    source = write(tmp_path / "x.txt", "red pine\nred oak\npine\n")
    options = {"min_df": np.int64(2), "ngram_max": np.int32(1), "max_df": np.float32(0.75)}
    assert ingest(source, tmp_path / "c", **options).vocabulary == ["pine", "red"]
    assert open_corpus(tmp_path / "c").settings["tokenizer"]["min_df"] == 2
    assert text_corpus(["red pine", "red"], min_df=2.0, max_df=np.int64(2)).vocabulary == ["red"]


def test_what_cannot_be_labels_or_a_vocabulary_of_texts_is_refused(tmp_path):
    for labels in ([1, 2], np.array([1, 2]), [None, None]):
        with pytest.raises(
            InputError, match="labels: type: expected names or lists of names, or a matrix, got"
        ):
            text_corpus(["red", "red"], labels)
    empty = write(tmp_path / "empty.txt", "")
    for words in ([], empty):
        with pytest.raises(InputError, match="vocabulary: content: expected at least one word, got none"):
            text_corpus(["red", "red"], vocabulary=words)


def test_stop_words_are_converted_like_texts(tmp_path, caplog):
    texts = ["Der Caf\u00e9 und das", "der Cafe\u0301 und ein"]
    assert text_corpus(texts, stop_words=["Der", "CAFE\u0301"]).vocabulary == ["und"]
    assert text_corpus(texts, stop_words=["Der"], lowercase=False).vocabulary == ["Caf\u00e9", "und"]
    source = write(tmp_path / "x.txt", "\n".join(texts) + "\n")
    stop = write(tmp_path / "stop.txt", "UND\n")
    assert ingest(source, tmp_path / "c", stop_words=stop).vocabulary == ["caf\u00e9", "der"]
    text_corpus(texts, stop_words="english")
    assert not caplog.messages
    text_corpus(texts, stop_words=["don't", "new york", "x"])
    assert caplog.messages == [
        'stop words: parts of 2 of 3, such as "don\'t", remain in texts, because they are not single words'
    ]


def test_words_of_a_vocabulary_that_no_text_can_have_are_reported(tmp_path, caplog):
    source = write(tmp_path / "x.txt", "red pines in May\nred pines\n")
    words = write(tmp_path / "words.txt", "red\npines\nMay\ncafe\u0301\nred pines\nx\n")
    first = ingest(source, tmp_path / "1", vocabulary=words)
    (message,) = caplog.messages
    assert message.startswith(
        "vocabulary: no text can have 4 of its 6 words, such as 'May': texts are converted"
    )
    caplog.clear()
    ingest(source, tmp_path / "2", vocabulary=words, ngram_max=2)
    assert "no text can have 3 of its 6 words" in caplog.text
    caplog.clear()
    text_corpus(["red"], vocabulary=["red", "Red"], min_df=1)
    assert "no text can have 1 of its 2 words, such as 'Red'" in caplog.text
    caplog.clear()
    # The words of a model and of a corpus of column numbers are what they are.
    ingest(source, tmp_path / "3", like=first)
    write_corpus(tmp_path / "4", [(["May"], [])], vocabulary=["May"])
    assert not caplog.messages


def test_labels_are_line_numbers_only_if_all_are_numbers(tmp_path):
    labels = write(tmp_path / "labels.tsv", "u0\tape\nu1\tbee\nu2\tcow\n")
    numbers = write(tmp_path / "n.tsv", "2,0\tred\n\tred\n")
    corpus = ingest(numbers, tmp_path / "1", labels=labels, min_df=1)
    assert corpus.label_names == ["ape", "bee", "cow"]
    assert dense(corpus)[1].tolist() == [[1, 0, 1], [0, 0, 0]]
    mixed = write(tmp_path / "m.tsv", "2,bee\tred\n")
    corpus = ingest(mixed, tmp_path / "2", labels=labels, min_df=1)
    assert corpus.label_names == ["ape", "bee", "cow", "2"]
    assert corpus.warnings == {"unknown_labels": 1}
    with pytest.raises(InputError, match=r"m\.tsv:1: label: expected a name of the label file, got '2'"):
        ingest(mixed, tmp_path / "3", labels=labels, min_df=1, strict=True)
    beyond = write(tmp_path / "b.tsv", "0\tred\n3\tred\n")
    with pytest.raises(InputError, match=r"b\.tsv:2: label: expected a line number from 0 to 2, got 3"):
        ingest(beyond, tmp_path / "4", labels=labels)
    empty = write(tmp_path / "empty.txt", "")
    with pytest.raises(InputError, match=r"b\.tsv:1: label: expected names in the label file, got 0"):
        ingest(beyond, tmp_path / "5", labels=empty)


def test_ids_of_labels_that_are_other_numbers_than_the_lines_are_refused(tmp_path):
    numbers = write(tmp_path / "n.tsv", "0\tred\n1\tred\n")
    from_one = write(tmp_path / "one.tsv", "1\tape\n2\tbee\n")
    with pytest.raises(
        InputError, match=r"n\.tsv:1: label: expected a line number.* got 0, where the id is 1"
    ):
        ingest(numbers, tmp_path / "c", labels=from_one)
    from_zero = write(tmp_path / "zero.tsv", "00\tape\n01\tbee\n")
    assert ingest(numbers, tmp_path / "c", labels=from_zero).label_names == ["ape", "bee"]


def test_label_names_are_sorted(tmp_path):
    source = write(tmp_path / "x.tsv", "10,b\tred\n9,a\tred\n")
    assert ingest(source, tmp_path / "1").label_names == ["9", "10", "a", "b"]


def test_new_texts_are_read_with_the_models_columns(tmp_path):
    train = write(tmp_path / "x.tsv", "a,b\tThe Red ape\nb\tred bee the\n")
    model = ingest(train, tmp_path / "train", min_df=1, stop_words=["the"], ngram_max=2)
    new = write(
        tmp_path / "new.jsonl", '{"text": "the red red fox", "labels": ["z", "b"]}\n{"text": "ape"}\n'
    )
    corpus = ingest(new, tmp_path / "new", like=model)
    assert corpus.vocabulary == model.vocabulary
    assert corpus.label_names == ["a", "b", "z"]
    X, Y = dense(corpus)
    assert X[0, model.vocabulary.index("red")] == 2
    assert X.sum() == 3
    assert Y.tolist() == [[0, 1, 1], [0, 0, 0]]
    assert corpus.warnings == {"unknown_labels": 1, "unknown_words": 3}
    with pytest.raises(UsageError, match="which provides the vocabulary"):
        ingest(new, tmp_path / "again", like=model, vocabulary=["x"])


def test_new_columns_are_read_with_the_models_columns(tmp_path):
    like = SimpleNamespace(vocabulary=["p", "q", "r"], label_names=["x", "y"], settings={})
    source = write(tmp_path / "new.xmc.txt", "2 3 4\n0,3 0:1 2:1\n1 1:1\n")
    corpus = ingest(source, tmp_path / "1", like=like)
    assert (corpus.vocabulary, corpus.label_names) == (["p", "q", "r"], ["x", "y", "3"])
    assert dense(corpus)[1].tolist() == [[1, 0, 1], [0, 1, 0]]
    corpus = ingest(source, tmp_path / "2", like=like, vocabulary=["r", "new", "p"])
    assert dense(corpus)[0].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert corpus.warnings == {"unknown_labels": 1, "unknown_words": 1}
    labels = write(tmp_path / "l.txt", "y\nx\nv\nw\n")
    corpus = ingest(source, tmp_path / "3", like=like, labels=labels)
    assert corpus.label_names == ["x", "y", "w"]
    assert dense(corpus)[1].tolist() == [[0, 1, 1], [1, 0, 0]]
    with pytest.raises(InputError, match="number of words: expected 3 as in the model, got 4"):
        ingest(write(tmp_path / "w.xmc.txt", "1 4 2\n0 3:1\n"), tmp_path / "4", like=like)
    svm = write(tmp_path / "s.svm", "x 1:1\n".replace("x", "7") + "0 9:2\n")
    corpus = ingest(svm, tmp_path / "5", like=like, zero_based=True)
    assert dense(corpus)[0].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert corpus.warnings == {"unknown_labels": 2, "unknown_words": 2}


def test_documents_of_an_iterable_become_a_corpus(tmp_path):
    def documents():
        yield ["b", "a", "b"], ["x"]
        yield {"a": 2, "c": 0}, ["x", "y"]
        yield {}, []

    corpus = write_corpus(tmp_path / "c", documents(), shard_documents=2)
    assert (corpus.vocabulary, corpus.label_names) == (["a", "b"], ["x", "y"])
    assert dense(corpus)[0].tolist() == [[1, 2], [2, 0], [0, 0]]
    assert dense(corpus)[1].tolist() == [[1, 0], [1, 1], [0, 0]]
    memory = MemoryCorpus(*dense(corpus), corpus.vocabulary, corpus.label_names)
    assert memory.totals == corpus.totals
    fixed = write_corpus(
        tmp_path / "d", documents(), vocabulary=["b"], label_names=["y", "z"], shard_documents=1
    )
    assert (fixed.label_names, dense(fixed)[0].tolist()) == (["y", "z", "x"], [[2], [0], [0]])
    assert write_corpus(tmp_path / "w", [({"a": 0.5}, [])]).values == "weights"


@pytest.mark.parametrize(
    "document",
    [3, (["a"], ["x"], 1), ({"a": -1}, []), ({"a": np.nan}, []), ({"a\n": 1}, []), ([3], []), (["a"], "x"),
     ({"a": "1"}, []), (["a"], ["\n"]), ({"": 1}, [])],
)  # fmt: skip
def test_write_corpus_names_a_bad_document(tmp_path, document):
    with pytest.raises(InputError, match="documents:2: "):
        write_corpus(tmp_path / "c", [(["a"], []), (["b"], []), document], shard_documents=2)
    assert list(tmp_path.iterdir()) == []
