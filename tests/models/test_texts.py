"""Texts and label names in memory: the same models as from an ingested source, and labels by name."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, issparse
from sklearn.compose import ColumnTransformer
from sklearn.utils.estimator_checks import check_dataframe_column_names_consistency
from subjects import WORDS, draw

from distmom.corpus import MemoryCorpus, ingest, ingest_rows, text_corpus
from distmom.errors import InputError, UsageError
from distmom.models import (
    AnchorTopics,
    IndependentTopics,
    MultiLabelMoM,
    ProductMixture,
    SingleTopic,
    SpectralLDA,
    SphericalMixture,
    TopicMoments,
    TopicSearch,
    load_model,
)
from distmom.spectral.capabilities import Capability


@pytest.fixture(scope="module")
def data():
    return draw()


@pytest.fixture(scope="module")
def ingested(data, tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    lines = [json.dumps({"text": t, "labels": names}) for t, names in zip(*data, strict=True)]
    (place / "docs.jsonl").write_text("\n".join([*lines, ""]))
    return ingest(place / "docs.jsonl", place / "corpus")


@pytest.fixture(scope="module")
def fitted(data):
    return MultiLabelMoM(3).fit(*data)


def test_texts_in_memory_are_the_corpus_that_ingest_makes(data, ingested):
    corpus = text_corpus(*data)
    assert corpus.vocabulary == ingested.vocabulary
    assert corpus.label_names == ingested.label_names == ["fish", "stars, suns", "trees"]
    assert corpus.settings["tokenizer"] == ingested.settings["tokenizer"]
    mine, stored = corpus.read_shard(0), ingested.read_shard(0)
    for name in ("words", "labels"):
        assert getattr(mine, name).dtype == getattr(stored, name).dtype
        assert (getattr(mine, name).toarray() == getattr(stored, name).toarray()).all()
    assert [len(s.id) for s in text_corpus(data[0], shard_documents=100).shards] == [6, 6, 6]
    options = {"stop_words": ["the"], "ngram_max": 2, "min_df": 5}
    assert "salmon herring" in text_corpus(data[0], **options).vocabulary
    assert "the" not in text_corpus(data[0], **options).vocabulary


def test_encoding_in_several_chunks_changes_nothing(data, monkeypatch):
    whole = text_corpus(*data)
    monkeypatch.setattr("distmom.corpus.sources.texts._CHUNK", 7)
    parts = text_corpus(*data)
    assert parts.digest == whole.digest
    assert (parts.vocabulary, parts.label_names) == (whole.vocabulary, whole.label_names)


def test_a_fit_to_texts_has_the_bits_of_a_fit_to_the_ingested_corpus(data, ingested, fitted):
    new = draw(20, seed=1)[0]
    of_corpus = MultiLabelMoM(3).fit_corpus(ingested)
    assert fitted.decision_function(new).tobytes() == of_corpus.decision_function(new).tobytes()
    assert of_corpus.predict(new) == fitted.predict(new)
    block = ingested.read_shard(0)
    of_arrays = MultiLabelMoM(3).fit_corpus(MemoryCorpus(block.words, block.labels))
    of_texts = fitted.predict(draw()[0][:1])[0]
    assert of_arrays.predict(block.words[:1]) == [[str(fitted.label_names_.index(name)) for name in of_texts]]


def test_predictions_are_lists_of_names(fitted):
    assert fitted.predict(["a salmon, some HERRING", "oak forest bark", "comet orbit", "zzz 12", ""]) == [
        ["fish"], ["trees"], ["stars, suns"], [], [],
    ]  # fmt: skip
    assert fitted.predict([]) == []
    assert fitted.classes_.tolist() == ["fish", "stars, suns", "trees"]
    assert fitted.predict(np.array(["oak leaf"])) == fitted.predict(pd.Series(["oak leaf"])) == [["trees"]]


def test_score_is_the_precision_of_the_first_label(fitted):
    texts, labels = draw(100, seed=2)
    best = fitted.classes_[fitted.predict_proba(texts).argmax(axis=1)]
    hits = [name in y for name, y in zip(best, labels, strict=True)]
    assert 0.9 < np.mean(hits) < 1.0
    assert fitted.score(texts, labels) == pytest.approx(np.mean(hits))
    matrix = np.array([[name in y for name in fitted.classes_] for y in labels])
    assert fitted.score(texts, matrix) == fitted.score(texts, csr_array(matrix)) == np.mean(hits)
    assert fitted.score(texts[:4], ["unknown"] * 4) == 0.0
    with pytest.raises(InputError, match="number of rows: expected 100 as in X, got 2"):
        fitted.score(texts, labels[:2])
    with pytest.raises(UsageError, match="y: expected 3 labels as in the fit, got 2"):
        fitted.score(texts, matrix[:, :2])
    with pytest.raises(InputError, match="number of documents: expected at least 1, got 0"):
        fitted.score([], [])


def test_one_name_per_document_gives_one_name_back(data):
    names = [y[0] if y else "fish" for y in data[1]]
    for given in (names, np.array(names), pd.Series(names)):
        model = MultiLabelMoM(3).fit(data[0], given)
        found = model.predict(["salmon roe", "oak leaf bark"])
        assert (found.shape, found.tolist()) == ((2,), ["fish", "trees"])
    # Without a known word it is that of the largest score.
    assert model.predict(["zzz"])[0] in WORDS
    assert model.score(data[0], names) > 0.6


@pytest.mark.parametrize("container", [np.asarray, csr_array])
def test_a_matrix_of_labels_gives_a_matrix_back(data, fitted, container):
    Y = container(np.array([[name in y for name in WORDS] for y in data[1]], np.int64))
    model = MultiLabelMoM(3).fit(data[0], Y)
    found = model.predict(["oak leaf bark", "zzz"])
    assert issparse(found) == issparse(Y)
    assert (found.toarray() if issparse(found) else found).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert model.classes_.tolist() == ["0", "1", "2"]
    assert model.score(data[0], Y) == fitted.score(*data)


def test_tables_name_words_and_labels(data):
    corpus = text_corpus(*data)
    X = pd.DataFrame(corpus.read_shard(0).words.toarray(), columns=corpus.vocabulary)
    Y = pd.DataFrame(corpus.read_shard(0).labels.toarray(), columns=corpus.label_names)
    model = MultiLabelMoM(3).fit(X, Y)
    assert model.feature_names_in_.tolist() == model.vocabulary_ == corpus.vocabulary
    assert model.classes_.tolist() == corpus.label_names
    by_lists = MultiLabelMoM(3).fit(X, data[1])
    found = [sorted(names) for names in by_lists.predict(X.iloc[:3])]
    assert found == [
        [corpus.label_names[i] for i in np.flatnonzero(row)] for row in model.predict(X.iloc[:3])
    ]
    with pytest.raises(UsageError, match="feature names should match"):
        model.predict(X[X.columns[::-1]])
    with pytest.warns(UserWarning, match="X does not have valid feature names, but MultiLabelMoM was fitted"):
        model.predict(X.to_numpy())
    with pytest.raises(
        InputError, match="Feature names are only supported if all input features have string"
    ):
        MultiLabelMoM(3).fit(X.rename(columns={"the": 1}), Y)
    model.fit(X.to_numpy(), Y)
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(
    "model",
    [MultiLabelMoM(2, head="ridge"), ProductMixture(1)],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("error")
def test_column_names_follow_scikit_learn(model):
    check_dataframe_column_names_consistency(type(model).__name__, model)


def test_a_saved_model_reads_texts_and_tables_alike(data, fitted, tmp_path):
    new = draw(20, seed=3)[0]
    fitted.save(tmp_path / "labels")
    loaded = MultiLabelMoM.load(tmp_path / "labels")
    assert loaded.predict(new) == fitted.predict(new)
    # A corpus may be read with other options, which the model keeps.
    model = SpectralLDA(2).fit_corpus(text_corpus(data[0], stop_words=["the"], lowercase=False))
    model.save(tmp_path / "topics")
    loaded = SpectralLDA.load(tmp_path / "topics")
    assert "the" in loaded.settings_["tokenizer"]["stop_words"]
    assert loaded.transform(new).tobytes() == model.transform(new).tobytes()
    np.testing.assert_array_equal(loaded.transform(["OAK oak"]), loaded.transform(["oak"]))
    frame = pd.DataFrame(np.random.default_rng(0).poisson(2.0, (40, 4)), columns=list("abcd"))
    SpectralLDA(2, init="tensor", alpha0=1.0, max_df=1.0).fit(frame).save(tmp_path / "table")
    loaded = SpectralLDA.load(tmp_path / "table")
    assert loaded.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(UsageError, match="Feature names must be in the same order"):
        loaded.transform(frame[list("bacd")])


@pytest.mark.parametrize("kind", [SpectralLDA, AnchorTopics, SingleTopic, IndependentTopics])
def test_topic_models_take_texts_and_name_their_topics(kind, data):
    model = kind(2, min_df=0.0, max_df=1.0).fit(data[0])
    shares = model.transform(["salmon herring", "oak oak"])
    assert shares.shape == (2, 2)
    name = kind.__name__.lower()
    assert model.get_feature_names_out().tolist() == [f"{name}0", f"{name}1"]
    frame = model.set_output(transform="pandas").transform(["salmon herring", "oak oak"])
    assert list(frame.columns) == [f"{name}0", f"{name}1"]
    np.testing.assert_array_equal(frame.to_numpy(), shares)


def test_other_models_of_words_take_texts(data):
    mixture = ProductMixture(2).fit(data[0])
    assert mixture.predict_proba(data[0][:3]).shape == (3, 2)
    kept = TopicMoments(2, max_df=1.0).fit(data[0])
    topics = SpectralLDA(2, alpha0=1.0, init="tensor", n_refine=0).fit_moments(kept)
    assert topics.transform(["oak leaf"]).shape == (1, 2)
    search = TopicSearch(2, max_df=1.0).fit(data[0])
    found = search.search(documents=["oak leaf bark pine"], force=True).topic
    assert found[search.vocabulary_.index("oak")] > found[search.vocabulary_.index("comet")]


def test_what_is_not_a_list_of_texts_or_labels_is_refused(data, fitted):
    texts, labels = data
    model = MultiLabelMoM(3)
    cases = [
        (("one text", labels), UsageError, "X: expected a list of texts, got a single text"),
        ((["a b", np.nan, "c"], labels), InputError, r"X:1: document: expected a text, got nan \(float\)"),
        (([None] * 240, labels), InputError, r"X:0: document: expected a text, got None \(NoneType\)"),
        ((np.full(240, np.nan), labels), InputError, r"X:0: document: expected a text, got nan \(float\)"),
        ((texts, [b"a", b"b"] * 120), InputError, "y: expected names or numbers, got others, such as b'a'"),
        ((texts, [None] * 240), InputError, "y: expected names or numbers, got others, such as None"),
        ((texts, labels[:5]), InputError, "number of rows: expected 240 as in X, got 5"),
        ((texts, [*labels[:-1], 3]), InputError, "y:239: labels: expected a name or a list of names, got 3"),
        ((texts, [*labels[:-1], [""]]), InputError, "y:239: label: expected a name that is not empty"),
        ((texts, [0.5] * 240), UsageError, r"expected names or whole numbers of labels, or a matrix .* \(240,\)"),
        ((texts, [[1], [1, 2]] * 120), InputError, "Unknown label type: y: expected names or a matrix"),
        ((texts, [[0, 1], [3, 0]] * 120), InputError, "y: value in row 1, column 0: expected 0 or 1 .*, got 3; "),
        ((texts, csr_array(np.full((240, 1), 0.5))), InputError, "row 0, column 0: expected 0 or 1 .*, got 0.5"),
        ((texts, np.array(["a"] * 240)[:, None]), UsageError, r"a table with a column of labels: use y\[:, 0\]"),
        (([text.split() for text in texts], labels), UsageError, "X: expected a list of texts, got lists of"),
        ((iter(texts), labels), UsageError, "X: expected a list of texts or a matrix, got a list_iterator: use a"),
        ((texts, (own for own in labels)), UsageError, "y: expected a list of labels or a matrix, got a gen"),
        ((texts, set(texts)), UsageError, "y: expected a list of labels or a matrix, got a set: use a list"),
        (([text.encode() for text in texts], labels), InputError, r"X:0: document: expected a text, .* \(bytes\)"),
        ((texts[:1], labels[:1]), InputError, "X: number of documents: expected at least 2, got 1"),
        ((["a b", "c d"], [["x"], ["y"]]), InputError, "texts: vocabulary: expected a word in at least 2"),
    ]  # fmt: skip
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            model.fit(*arguments)
    with pytest.raises(UsageError, match="was not fitted to texts and has no tokenizer"):
        MultiLabelMoM(2, head="ridge").fit(np.eye(9), np.eye(9)).predict(["a text"])
    with pytest.raises(UsageError, match="vocabulary: cannot be combined"):
        text_corpus(texts, like=MemoryCorpus(np.eye(3)), vocabulary=["a"])
    with pytest.raises(InputError, match="texts: type: expected a list of strings"):
        text_corpus(np.eye(3))
    assert text_corpus(text for text in texts).n_documents == 240


def test_columns_of_arrow_and_dask_are_lists_of_texts_and_labels(data):
    pa, dd = pytest.importorskip("pyarrow"), pytest.importorskip("dask.dataframe")
    texts, labels = data
    score = MultiLabelMoM(3, head="ridge").fit(texts, labels).score(texts, labels)
    arrow = pa.chunked_array([texts[:100], texts[100:]]), pa.array(labels)
    arrays = pd.Series([np.array(own, object) for own in labels])
    for X, y in (arrow, (dd.from_pandas(pd.Series(texts), npartitions=2), arrays)):
        model = MultiLabelMoM(3, head="ridge").fit(X, y)
        assert model.settings_["targets"] == "lists"
        assert model.score(X, y) == score
    with pytest.raises(UsageError, match=r"X: .* got a table with a column of texts: use X\['text'\]"):
        model.predict(pa.table({"text": texts}))
    names = MultiLabelMoM(3, head="ridge").fit(texts, pa.array([each[:9] for each in texts]))
    assert names.settings_["targets"] == "names"


def test_texts_are_one_column_of_a_column_transformer(data):
    texts, _ = data
    table = pd.DataFrame({"text": texts, "length": [len(text) for text in texts]})
    topics = ("topics", SpectralLDA(2, min_df=0.0, max_df=1.0), "text")
    both = ColumnTransformer([topics], remainder="passthrough").set_output(transform="pandas")
    names = ["topics__spectrallda0", "topics__spectrallda1", "remainder__length"]
    assert both.fit_transform(table).columns.tolist() == both.get_feature_names_out().tolist() == names


def test_documents_may_all_have_no_labels(data):
    texts, labels = data
    model = MultiLabelMoM(3, head="ridge", keep_sums=True).fit(texts, labels)
    assert model.score(texts[:3], [[], (), set()]) == 0.0
    frequency = model.label_frequency_.copy()
    assert model.partial_fit(texts[:2], [[], []]).n_documents_ == 242
    np.testing.assert_array_equal(model.label_frequency_, frequency)
    with pytest.raises(UsageError, match="the corpus has no labels"):
        MultiLabelMoM(3).fit(texts, [[]] * 240)


@pytest.mark.parametrize("kind", ["table", "array"])
def test_a_table_of_texts_is_refused_with_the_column_to_use(fitted, kind):
    texts = pd.DataFrame({"title": ["oak oak", "elm elm"]})
    X, column = (texts, r"X\['title'\]") if kind == "table" else (texts.to_numpy(), r"X\[:, 0\]")
    for use in (lambda: MultiLabelMoM(1).fit(X, ["a", "b"]), lambda: fitted.predict(X)):
        with pytest.raises(UsageError, match=f"got a table with a column of texts: use {column}"):
            use()


def test_a_search_in_kept_moments_takes_texts_too(data, tmp_path):
    kept = TopicMoments(2, n_parts=2, max_df=1.0).fit(data[0])
    search = TopicSearch(2).fit_moments(kept)
    fitted = TopicSearch(2, max_df=1.0).fit(data[0])
    text = ["oak leaf bark pine"]
    found, expected = (each.search(documents=text, force=True).topic for each in (search, fitted))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    with pytest.raises(UsageError, match="TopicSearch: cannot be saved; save the moments"):
        search.save(tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_a_second_fit_keeps_no_states_of_the_first(data, tmp_path):
    texts, labels = data
    model = MultiLabelMoM(2).fit(texts, labels)
    assert model.topics(states=True)
    model.set_params(effort="low").fit(texts[:200], labels[:200])
    assert not hasattr(model, "components_")
    assert not model.can(Capability.TOPICS)
    with pytest.raises(UsageError, match="the model has no latent states: effort='low' fits none"):
        model.topics()
    model.save(tmp_path / "model")
    assert not hasattr(load_model(tmp_path / "model"), "components_")


def test_sources_are_read_like_a_fitted_model(data, fitted, ingested, tmp_path):
    texts, labels = data
    source = tmp_path / "new.jsonl"
    lines = [json.dumps({"text": t, "labels": y}) for t, y in zip(texts[:50], labels[:50], strict=True)]
    source.write_text(
        "".join(f"{line}\n" for line in [*lines, json.dumps({"text": "a zebra", "labels": ["zoo"]})])
    )
    fitted.save(tmp_path / "model")
    expected = ingest(source, tmp_path / "corpus", like=ingested)
    for number, model in enumerate((fitted, load_model(tmp_path / "model"))):
        found = ingest(source, tmp_path / str(number), like=model)
        assert found.digest == expected.digest
        assert found.label_names == [*model.label_names_, "zoo"]
    in_memory = text_corpus(texts[:50], labels[:50], like=fitted)
    assert (in_memory.vocabulary, in_memory.label_names) == (fitted.vocabulary_, fitted.label_names_)
    for like in (MultiLabelMoM(3), "model"):
        with pytest.raises(
            UsageError, match=f"like: expected a corpus or a fitted model, got {type(like).__name__}"
        ):
            text_corpus(texts, like=like)


def test_tables_are_read_like_a_fitted_model(tmp_path):
    rows = np.random.default_rng(0).standard_normal((60, 3)) + np.repeat([0.0, 9.0], 30)[:, None]
    table = pd.DataFrame(rows, columns=["x", "y", "z"])
    model = SphericalMixture(2, random_state=0).fit(table)
    table[["z", "x", "y"]].to_csv(tmp_path / "x.csv", index=False)
    corpus = ingest_rows(tmp_path / "x.csv", tmp_path / "corpus", format="table", like=model)
    assert corpus.vocabulary == ["x", "y", "z"]
