"""Multi-label models are stored, read again and resumed with the same bits, and damage is named."""

import json
import shutil

import numpy as np
import pytest
from helpers import bits
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from distmom.corpus import MemoryCorpus
from distmom.engine import PassDone
from distmom.errors import StoreError, UsageError
from distmom.models import MultiLabelMoM, load_model
from distmom.models.multilabel.variants import HEADS
from distmom.spectral.saved.artifact import MODEL


@pytest.mark.parametrize("head", HEADS)
def test_a_loaded_model_scores_with_the_same_bits(head, planted, fitted, tmp_path):
    model, X_new = fitted[head], planted[2]
    model.save(tmp_path / "m")
    loaded = MultiLabelMoM.load(tmp_path / "m")
    assert bits(loaded, X_new) == bits(model, X_new)
    assert loaded.get_params() == model.get_params()
    assert loaded.vocabulary_ == model.vocabulary_
    assert loaded.label_names_ == model.label_names_
    assert loaded.selection_ == model.selection_
    loaded.save(tmp_path / "again")
    assert bits(MultiLabelMoM.load(tmp_path / "again"), X_new) == bits(model, X_new)


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "m"
    fitted["auto"].save(path)
    return path


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "m")


def test_a_damaged_array_is_named(copy):
    folder = copy / "arrays.zarr" / "states" / "components" / "c"
    chunk = next(f for f in folder.rglob("*") if f.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(StoreError, match="states/components"):
        MultiLabelMoM.load(copy)


def test_a_truncated_array_is_named(copy):
    chunk = next(f for f in (copy / "arrays.zarr" / "idf").rglob("c/*") if f.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-7])
    with pytest.raises(StoreError, match="idf"):
        MultiLabelMoM.load(copy)


def test_a_missing_array_or_chunk_is_named(copy, tmp_path):
    other = shutil.copytree(copy, tmp_path / "other")
    shutil.rmtree(copy / "arrays.zarr" / "idf")
    with pytest.raises(StoreError, match="idf"):
        MultiLabelMoM.load(copy)
    next(f for f in (other / "arrays.zarr" / "idf").rglob("c/*") if f.is_file()).unlink()
    with pytest.raises(StoreError, match="idf"):
        MultiLabelMoM.load(other)


def test_large_arrays_are_mapped_and_checked(fitted, planted, tmp_path, monkeypatch):
    monkeypatch.setattr("distmom.spectral.saved.artifact.LARGE_BYTES", 500)
    model, X_new = fitted["posterior"], planted[2]
    model.save(tmp_path / "m")
    [words] = (tmp_path / "m").rglob("*states-components.npy")
    loaded = MultiLabelMoM.load(tmp_path / "m")
    assert bits(loaded, X_new) == bits(model, X_new)
    assert not loaded.components_.flags.owndata
    content = words.read_bytes()
    words.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StoreError, match=r"components\.npy: expected digest \w{12}, got \w{12}"):
        MultiLabelMoM.load(tmp_path / "m")
    words.write_bytes(content[:-40])
    with pytest.raises(StoreError, match=r"components\.npy: cannot be read"):
        MultiLabelMoM.load(tmp_path / "m")
    words.unlink()
    with pytest.raises(StoreError, match=r"components\.npy: there is no such file"):
        MultiLabelMoM.load(tmp_path / "m")


def test_a_large_array_of_a_run_becomes_that_of_the_model_without_a_copy(planted, tmp_path, monkeypatch):
    for name in ("spectral.saved.artifact.LARGE_BYTES", "spectral.steps.recovery.WHOLE_BYTES"):
        monkeypatch.setattr(f"distmom.{name}", 500)
    X, Y, X_new = planted[:3]
    corpus = MemoryCorpus(X, Y)
    model = MultiLabelMoM(4, head="posterior").fit_corpus(corpus, run=tmp_path / "run")
    model.save(tmp_path / "m")
    [words] = (tmp_path / "m").rglob("*states-components.npy")
    assert words.stat().st_nlink == 2
    expected = bits(model, X_new)
    shutil.rmtree(tmp_path / "run")
    assert bits(MultiLabelMoM.load(tmp_path / "m"), X_new) == expected


def test_an_array_replaced_by_a_pickle_is_refused(copy):
    place = copy / "arrays.zarr" / "idf"
    shutil.rmtree(place)
    with place.open("wb") as stream:
        np.save(stream, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(StoreError, match="idf"):
        MultiLabelMoM.load(copy)


@pytest.mark.parametrize("name", ["vocabulary.txt", "labels.txt"])
def test_changed_names_are_named(copy, name):
    text = (copy / name).read_text()
    (copy / name).write_text(text + "more\n")
    with pytest.raises(StoreError, match=rf"{name}: expected \d+ bytes, got \d+"):
        MultiLabelMoM.load(copy)
    (copy / name).write_text(text.replace("1", "2"))
    with pytest.raises(StoreError, match=rf"{name}: expected sha256 \w+, got \w+"):
        MultiLabelMoM.load(copy)
    (copy / name).unlink()
    with pytest.raises(StoreError, match=rf"{name}: there is no such file"):
        MultiLabelMoM.load(copy)


@pytest.mark.parametrize("content", ["", "[1, 2]", "{}", '{"format": "distmom-model"}', "\x00\xff"])
def test_an_unreadable_description_is_named(copy, content):
    (copy / "model.json").write_text(content, encoding="latin-1")
    with pytest.raises(StoreError, match=r"model\.json"):
        MultiLabelMoM.load(copy)


@pytest.mark.parametrize("key", ["parameters", "state", "files", "settings", "n_documents"])
def test_a_description_with_a_part_missing_or_of_another_type_is_named(copy, key):
    record = MODEL.read(copy / "model.json")
    for changed in ({k: v for k, v in record.items() if k != key}, {**record, key: 17.5}):
        if changed.get(key) == 17.5 and key in ("settings", "n_documents"):
            continue
        MODEL.write(copy / "model.json", changed)
        with pytest.raises(StoreError, match=r"model\.json"):
            MultiLabelMoM.load(copy)


@pytest.mark.parametrize(
    ("version", "what"), [(99, "a newer distmom; update"), (2, "an older distmom; fit again")]
)
def test_a_model_of_another_version_is_refused(copy, version, what):
    record = json.loads((copy / "model.json").read_text())
    (copy / "model.json").write_text(json.dumps({**record, "format_version": version}))
    with pytest.raises(StoreError, match=f"expected 4, got {version}: written by {what}"):
        MultiLabelMoM.load(copy)


@pytest.mark.parametrize("fitted_with", [["smoothing"], {"smooth": 0.5}, 3])
def test_parameters_of_the_fit_that_are_damaged_are_named(fitted_with, copy):
    MODEL.write(copy / "model.json", {**MODEL.read(copy / "model.json"), "fitted_with": fitted_with})
    with pytest.raises(StoreError, match=r"model\.json"):
        MultiLabelMoM.load(copy)


@pytest.mark.parametrize(
    ("head", "other"),
    [("posterior", {"smoothing": 0.7}), ("linear", {"propensity": 2.0}), ("linear", {"head": "svm"})],
)
def test_a_fitted_model_does_not_depend_on_parameters_for_another_fit(head, other, planted, tmp_path):
    X, Y, X_new = planted[:3]
    model = MultiLabelMoM(4, head=head, n_topics=0, keep_sums=head == "linear").fit(X, Y)
    expected, states = bits(model, X_new), model.state_posteriors(X_new)
    model.set_params(**other).save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    loaded.save(tmp_path / "again")
    for one in (model, loaded, load_model(tmp_path / "again")):
        assert bits(one, X_new) == expected
        np.testing.assert_array_equal(one.state_posteriors(X_new), states)
        assert one.get_params() == model.get_params()
    if head == "linear":
        for one in (model, loaded):
            one.partial_fit(X[:20], Y[:20]).remove(X[:20], Y[:20])
            found = one.decision_function(X_new)
            np.testing.assert_allclose(
                found,
                clone(model).set_params(head=head, propensity=0.0).fit(X, Y).decision_function(X_new),
                atol=1e-5,
            )


def test_no_model_and_an_existing_one_are_usage_errors(saved, fitted, tmp_path):
    with pytest.raises(UsageError, match="not a model"):
        MultiLabelMoM.load(tmp_path)
    with pytest.raises(UsageError, match="exists"):
        fitted["ridge"].save(saved)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is not a model"):
        fitted["ridge"].save(tmp_path / "file", overwrite=True)
    fitted["ridge"].save(tmp_path / "new")
    fitted["moment"].save(tmp_path / "new", overwrite=True)
    assert MultiLabelMoM.load(tmp_path / "new").head == "moment"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "new"]


def test_a_resumed_fit_takes_committed_passes_and_gives_the_same_bits(planted, tmp_path):
    X, Y, X_new, _ = planted
    corpus = MemoryCorpus(X, Y, shard_documents=500)
    expected = MultiLabelMoM(6).fit_corpus(corpus)
    seen = []

    def stop(event):
        seen.append(event)
        if sum(isinstance(e, PassDone) for e in seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MultiLabelMoM(6).fit_corpus(corpus, run=tmp_path, observer=stop)
    events = []
    resumed = MultiLabelMoM(6).fit_corpus(corpus, run=tmp_path, observer=events.append)
    done = [event.resumed for event in events if isinstance(event, PassDone)]
    assert done[:5] == [True] * 5
    # The lists of documents of the words are the same for all folds.
    assert sum(done[5:]) <= 1
    assert len(done) == len(expected.timings_)
    assert bits(resumed, X_new) == bits(expected, X_new)


def test_clone_and_parameters_round_trip():
    model = MultiLabelMoM(7, head="ridge", propensity=0.5)
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert again is not model
    assert clone(again).set_params(n_components=3).get_params()["n_components"] == 3
    assert set(model.get_params()) == set(vars(model))


@parametrize_with_checks([MultiLabelMoM(2, head="ridge"), MultiLabelMoM(2, head="ridge", keep_sums=True)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_a_directory_that_does_not_exist_is_named_as_such(tmp_path):
    with pytest.raises(UsageError, match=r"not a model .there is no such directory"):
        MultiLabelMoM.load(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"not a model \(no model\.json\)"):
        MultiLabelMoM.load(tmp_path)
