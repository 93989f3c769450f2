"""Models with valid digests whose arrays, names or sizes would lead compiled loops out of their bounds."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from crafted import edit_arrays, edit_record, sign_files
from helpers import lda_corpus, planted_matrices

from distmom.cli.main import main
from distmom.corpus import MemoryCorpus
from distmom.corpus.files.decoding import check_csr
from distmom.engine import Csr
from distmom.errors import NumericalError, StoreError
from distmom.models import ECA, MultiLabelMoM, SpectralLDA, TopicMoments, load_model
from distmom.models.multilabel.heads.neighbor_heads import SketchNeighbors, unit_rows
from distmom.models.multilabel.heads.scorer import sum_of
from distmom.simulate.views import poisson_sentences


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models with every kind of head, a topic model, kept moments and factors of views."""
    folder = tmp_path_factory.mktemp("crafted")
    X, Y = planted_matrices()
    names = {"vocabulary": [f"w{i}" for i in range(120)], "label_names": [f"l{i}" for i in range(12)]}
    corpus = MemoryCorpus(X[:400], Y[:400], **names)
    for head in ("ridge", "linear", "neighbors", "posterior"):
        MultiLabelMoM(4, head=head).fit_corpus(corpus).save(folder / head)
    topics = lda_corpus(400, 60, 3)[2]
    SpectralLDA(3, alpha0=1.0, init="tensor", n_refine=1, max_df=1.0).fit_corpus(topics).save(folder / "lda")
    TopicMoments(3, n_parts=2, max_df=0.8, min_df=0.05).fit_corpus(topics).save(folder / "moments")
    views = poisson_sentences(np.random.default_rng(0).gamma(0.3, size=(15, 3)), [1.0, 0.5, 2.0], 2000, 5)
    ECA(3).fit(views.X, groups=views.groups).save(folder / "eca")
    return folder


@pytest.fixture
def crafted(saved, tmp_path, monkeypatch):
    """Copies of the models, which need not survive a power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return lambda name: shutil.copytree(saved / name, tmp_path / name)


def load(path):
    return (TopicMoments.load if path.name == "moments" else load_model)(path)


def changed(name, change):
    """Return an edit of one array."""

    def edit(arrays, names):
        array = arrays[name].copy()
        result = change(array)
        arrays[name] = array if result is None else result

    return edit


def put(index, value):
    def change(array):
        array[index] = value

    return change


LISTS, LABELS, SPARSE = "heads/neighbors/lists", "heads/neighbors/labels", "heads/sparse/weights/sparse"

CASES = {
    "row of a list out of range": ("neighbors", f"{LISTS}/indices", put(5, 2**30), "columns from 0 to 399"),
    "row of a list below zero": ("neighbors", f"{LISTS}/indices", put(5, -1), "columns from 0 to 399"),
    "rows of a list not rising": (
        "neighbors", f"{LISTS}/indices", lambda x: x[::-1].copy(), "expected increasing columns",
    ),
    "label out of range": ("neighbors", f"{LABELS}/indices", put(0, 12), "expected columns from 0 to 11"),
    "offsets not monotone": ("neighbors", f"{LISTS}/indptr", put(3, 10**6), "do not decrease"),
    "offsets not from zero": ("neighbors", f"{LISTS}/indptr", put(0, 1), "start at 0"),
    "offsets beyond the elements": ("neighbors", f"{LISTS}/indptr", put(-1, 10**9), "last offset"),
    "too few offsets": ("neighbors", f"{LISTS}/indptr", lambda x: x[:-1], r"shape: expected \[d\+1 = 121\], got"),
    "fewer values than columns": ("neighbors", f"{LISTS}/data", lambda x: x[:-1], r"array .*lists/data: shape"),
    "rows of other numbers": (
        "neighbors", "heads/neighbors/alive", lambda x: x[:-1], r"alive: shape: expected \[n = 400\]",
    ),
    "no rows at all": (
        "neighbors", "heads/neighbors/alive", lambda x: x[:0], r"alive: shape: expected \[n = 400\]",
    ),
    "similarities that are not finite": ("neighbors", f"{LISTS}/data", put(7, np.nan), "expected finite numbers"),
    "columns of another type": (
        "neighbors", f"{LISTS}/indices", lambda x: x.astype(np.int64), "type: expected <i4, got '<i8'",
    ),
    "dense row out of range": (
        "linear", "heads/sparse/weights/dense_row", put(0, 10**6), "expected numbers below",
    ),
    "dense row below zero": ("linear", "heads/sparse/weights/dense_row", put(0, -2), "numbers of at least -1"),
    "dense rows of other labels": (
        "linear", "heads/sparse/weights/dense", lambda x: x[:, 1:], r"dense: shape: expected \[.*m = 12\]",
    ),
    "weights of another type": ("linear", f"{SPARSE}/data", lambda x: x.astype(np.float64), "type: expected <f4"),
    "coefficients of other labels": ("ridge", "heads/ridge/coefficients", lambda x: x[:, 1:], "m = 12"),
    "coefficients of another basis": ("ridge", "heads/ridge/coefficients", lambda x: x[1:], r"\[r = 4, m = 12\]"),
    "a basis of other words": ("ridge", "basis", lambda x: x[1:], r"basis: shape: expected \[d = 120, r"),
    "an intercept that is infinite": ("ridge", "heads/ridge/intercept", put(0, np.inf), "expected finite numbers"),
    "frequencies of other words": ("ridge", "document_frequency", lambda x: x[1:], "d = 120"),
    "negative frequencies": ("ridge", "label_frequency", put(0, -1), "expected numbers of at least 0"),
    "words of a state missing": ("posterior", "states/components", lambda x: x[1:], r"expected \[d = 120, k"),
    "states of labels missing": ("posterior", "states/label_components", lambda x: x[:, 1:], r"\[m = 12, k = 4\]"),
    "a state that is not a number": ("posterior", "states/components", put((3, 1), np.nan), "expected finite"),
    "words of a topic missing": ("lda", "topics", lambda x: x[1:], r"topics: shape: expected \[d = 60, k\]"),
    "topics without shares": ("lda", "alpha", lambda x: x[1:], r"alpha: shape: expected \[k = 3\]"),
    "a topic of objects": ("lda", "topics", lambda x: x.astype(np.int32), "type: expected <f4 or <f8, got '<i4'"),
    "a word beyond the basis": ("moments", "numbers", put(10, 10**6), "array numbers: expected numbers below"),
    "words out of order": ("moments", "numbers", lambda x: x[::-1].copy(), "in ascending order"),
    "a basis without a word": ("moments", "basis", lambda x: x[1:], r"scale: shape"),
    "moments in another basis": ("moments", "sources/0/1/m2", lambda x: x[1:], r"sources/0/1/m2: shape: expected"),
    "moments that are not numbers": ("moments", "sources/0/1/m3", put((0, 0, 0), np.nan), "expected finite"),
    "factors of other features": ("eca", "unmixing", lambda x: x[:, 1:], r"unmixing: shape: expected \[k = 3, d"),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_arrays_that_do_not_fit_are_refused(crafted, what):
    name, array, change, message = CASES[what]
    path = crafted(name)
    load(path)
    edit_arrays(path, changed(array, change))
    with pytest.raises(StoreError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("neighbors", lambda arrays, names: names["vocabulary"].pop(), r"shape: expected \[d"),
        ("neighbors", lambda arrays, names: names["labels"].pop(), r"shape: expected \[m"),
        ("ridge", lambda arrays, names: names["labels"].append("more"), r"shape: expected \[m = 13\]"),
        ("lda", lambda arrays, names: names["vocabulary"].pop(), r"shape: expected \[d = 59"),
        ("moments", lambda arrays, names: names["vocabulary"].pop(), r"shape: expected \[d = 59"),
        ("ridge", lambda arrays, names: arrays.pop("basis"), "expected a basis of the sketch, got none"),
        ("lda", lambda arrays, names: arrays.pop("alpha"), "array alpha: missing"),
        (
            "ridge",
            lambda arrays, names: arrays.pop("states/weights"),
            "states/weights: missing",
        ),
        (
            "lda",
            lambda arrays, names: arrays.update(more=np.ones(3)),
            "array 'more': not an array of this class",
        ),
    ],
)
def test_names_and_arrays_are_as_many_as_they_should_be(crafted, name, edit, message):
    path = crafted(name)
    edit_arrays(path, edit)
    with pytest.raises(StoreError, match=message):
        load(path)


@pytest.mark.parametrize("key", ["../../secret", "/etc/passwd", "a/../../secret", "", "a//b", "."])
def test_names_of_a_record_may_not_leave_the_directory(crafted, tmp_path, key):
    (tmp_path / "secret").write_text("mine")
    path = crafted("lda")
    edit_record(path, lambda record: record["files"].update({key: {"size": 4, "sha256": "0" * 64}}))
    with pytest.raises(StoreError, match=r"model\.json: files: expected sizes and digests of files in this"):
        load(path)
    path = shutil.copytree(path, tmp_path / "other", dirs_exist_ok=True)
    edit_record(
        path,
        lambda record: (record["files"].pop(key), record["arrays"].update({key: record["arrays"]["alpha"]})),
    )
    with pytest.raises(StoreError, match=r"model\.json: arrays: expected names, shapes and types"):
        load(path)


@pytest.mark.parametrize("part", ["vocabulary.txt", "arrays.zarr", "arrays/topics.npy"])
def test_links_may_not_lead_out_of_the_directory(crafted, tmp_path, monkeypatch, part):
    monkeypatch.setattr("distmom.spectral.saved.artifact.LARGE_BYTES", 500)
    path = crafted("lda")
    edit_arrays(path, lambda arrays, names: None)
    load(path)
    os.rename(path / part, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path / part)
    with pytest.raises(StoreError, match="expected the name of a file in this directory, got one outside"):
        load(path)


def test_a_pipe_is_no_file(crafted):
    path = crafted("lda")
    (path / "vocabulary.txt").unlink()
    os.mkfifo(path / "vocabulary.txt")
    with pytest.raises(StoreError, match=r"vocabulary\.txt: there is no such file"):
        load(path)


@pytest.mark.parametrize("size", [2**38, 2**62])
def test_declared_sizes_are_those_of_the_files(crafted, monkeypatch, size):
    """Nothing of such a size is ever allocated, or the test would end here."""
    path = crafted("lda")
    edit_record(path, lambda record: record["arrays"]["weights"].update(shape=[size]))
    with pytest.raises(StoreError, match=r"array alpha: shape: expected \[k = |array weights: shape"):
        load(path)
    # All arrays that share the size agree.
    for array in ("weights", "alpha", "topics", "unigram"):
        shape = {"topics": [60, size], "unigram": [60]}.get(array, [size])
        edit_record(path, lambda record, a=array, s=shape: record["arrays"][a].update(shape=s))
    with pytest.raises(StoreError, match=r"expected at most \d+ bytes in memory, got"):
        load(path)
    monkeypatch.setattr("distmom.spectral.saved.artifact._MAX_PACKED_BYTES", 2**80)
    with pytest.raises(StoreError, match=r"zarr\.json: shape: expected"):
        load(path)
    for array in ("weights", "alpha", "topics"):
        file = path / "arrays.zarr" / array / "zarr.json"
        metadata = json.loads(file.read_text())
        metadata["shape"][-1] = size
        file.write_text(json.dumps(metadata))
    sign_files(path)
    with pytest.raises(StoreError, match="expected a chunk in each of"):
        load(path)
    for array in ("weights", "alpha", "topics"):
        file = path / "arrays.zarr" / array / "zarr.json"
        metadata = json.loads(file.read_text())
        metadata["chunk_grid"]["configuration"]["chunk_shape"][-1] = size
        file.write_text(json.dumps(metadata))
    sign_files(path)
    with pytest.raises(StoreError, match=r"zarr\.json: chunks: expected at most"):
        load(path)


def test_a_large_array_that_declares_more_than_its_file_holds_is_refused(crafted, monkeypatch):
    monkeypatch.setattr("distmom.spectral.saved.artifact.LARGE_BYTES", 500)
    path = crafted("lda")
    edit_arrays(path, lambda arrays, names: None)
    file = path / "arrays" / "topics.npy"
    content = file.read_bytes()
    for shape in (b"(60, 274877906944), }", b"(60, 2), }           ", b"(-60, 3), }          "):
        file.write_bytes(content.replace(b"(60, 3), }           ", shape, 1))
        assert file.stat().st_size == len(content)
        with pytest.raises(StoreError, match=r"topics\.npy"):
            load(path)


def test_a_chunk_that_declares_more_than_it_should_is_refused(crafted):
    """A frame declares 64 GiB but has no content."""
    path = crafted("lda")
    [chunk] = (path / "arrays.zarr" / "weights" / "c").iterdir()
    # Magic, a header with a content size of eight bytes, the size, and what follows of the old frame.
    chunk.write_bytes(b"\x28\xb5\x2f\xfd\xe0" + (2**36).to_bytes(8, "little") + chunk.read_bytes()[6:])
    sign_files(path)
    with pytest.raises(StoreError, match="size: expected a chunk of 24 bytes, got 68719476736"):
        load(path)


def stack_of(name, floor=1e-6, curve=1.0):
    """Return a stack with one input."""
    given = {"name": name, "signed": False, "floor": floor, "linear": 1.0, "curve": curve}
    return {"inputs": [given], "intercept": 0.0}


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("neighbors", lambda r: r["state"]["heads"][0]["fields"].update(n_neighbors=0)),
        ("neighbors", lambda r: r["state"]["heads"][0]["fields"].update(n_neighbors="75")),
        ("neighbors", lambda r: r["state"]["heads"][0]["fields"].update(factor=float("nan"))),
        ("neighbors", lambda r: r["state"]["heads"][0]["fields"]["lists"].update(n_columns=-1)),
        ("neighbors", lambda r: r["state"].update(head_weights=[])),
        ("neighbors", lambda r: r["state"].update(head_weights=[float("inf")])),
        ("neighbors", lambda r: r["state"].update(heads=[], head_weights=[])),
        ("neighbors", lambda r: r["state"]["heads"][0].update(kind="Unknown")),
        ("neighbors", lambda r: r["state"].update(stack=stack_of("linear"))),
        ("neighbors", lambda r: r["state"].update(stack=stack_of("neighbors-x-3"))),
        ("neighbors", lambda r: r["state"].update(stack=stack_of("neighbors-0-3"))),
        ("neighbors", lambda r: r["state"].update(stack=stack_of("neighbors-75-nan"))),
        ("neighbors", lambda r: r["state"].update(stack=stack_of("neighbors-75-3", floor=0.0))),
        ("neighbors", lambda r: r["state"].update(stack=stack_of("neighbors-75-3", curve=float("inf")))),
        ("ridge", lambda r: r["state"]["heads"][0].update(kind="StateHead")),
        ("moments", lambda r: r["sources"][0].update(n_parts=10**9)),
        ("moments", lambda r: r.update(sources=[{}])),
        ("moments", lambda r: r["parameters"].update(weighting="unknown")),
        ("lda", lambda r: r["arrays"].update(weights=3)),
        ("lda", lambda r: r["arrays"]["weights"].update(shape=[-3])),
        ("lda", lambda r: r["arrays"]["weights"].update(shape=[3.0])),
        ("lda", lambda r: r["arrays"]["weights"].update(dtype="|O")),
        ("lda", lambda r: r["arrays"]["weights"].update(digest="0" * 64)),
        ("lda", lambda r: r["files"].pop("vocabulary.txt")),
        ("lda", lambda r: r["files"].pop("arrays.zarr/weights/c/0")),
        ("lda", lambda r: r["files"].pop("arrays.zarr/weights/zarr.json")),
    ],
)
def test_other_entries_that_no_model_has_are_refused(crafted, name, edit):
    path = crafted(name)
    edit_record(path, edit)
    with pytest.raises(StoreError, match=str(path)):
        load(path)


def test_neighbours_in_a_sketch_are_checked_too(crafted, tmp_path):
    """A blend that was chosen may have them; no head of its own does."""
    X, Y = (matrix[:400] for matrix in planted_matrices())
    model = load(crafted("ridge"))
    rows = unit_rows(model.scorer_.query(MemoryCorpus(X).read_shard(0)).sketch)
    head = SketchNeighbors(
        rows, Csr.of(MemoryCorpus(X, Y).read_shard(0).labels, np.uint8), np.ones(400, np.uint8)
    )
    scorer = replace(model.scorer_, heads=(("sketch-neighbors", head),))
    model.scorer_ = replace(scorer, blend=sum_of(scorer, (1.0,)))
    model.save(tmp_path / "sketch")
    loaded = load(tmp_path / "sketch")
    for found, expected in zip(loaded.predict_top(X[:50]), model.predict_top(X[:50]), strict=True):
        np.testing.assert_array_equal(found, expected)
    edit_arrays(tmp_path / "sketch", changed("heads/sketch-neighbors/labels/indices", put(3, 12)))
    with pytest.raises(StoreError, match="labels/indices: expected columns from 0 to 11"):
        load(tmp_path / "sketch")
    edit_arrays(tmp_path / "sketch", changed("heads/sketch-neighbors/labels/indices", put(3, 11)))
    edit_arrays(tmp_path / "sketch", lambda arrays, names: arrays.pop("basis"))
    with pytest.raises(StoreError, match="expected a basis of the sketch, got none"):
        load(tmp_path / "sketch")


@pytest.mark.parametrize("head", ["neighbors", "ridge"])
def test_a_head_of_an_earlier_version_is_multiplied_by_its_weight(crafted, tmp_path, head):
    path = crafted(head)
    X, expected = planted_matrices()[0][:50], load(path)
    edit_record(path, lambda r: r["state"].update(head_weights=[0.5]))
    model = load(path)
    np.testing.assert_array_equal(model.decision_function(X), 0.5 * expected.decision_function(X))
    np.testing.assert_array_equal(model.predict_top(X)[1], 0.5 * expected.predict_top(X)[1])
    assert not model.scorer_.has_probabilities
    model.save(tmp_path / "again")
    assert load(tmp_path / "again").head_weights_ == [0.5]


def test_scores_that_are_no_numbers_name_no_labels(crafted):
    """Each weight is a finite number, and their sum is none."""
    path = crafted("ridge")
    edit_arrays(path, changed("heads/ridge/coefficients", lambda x: np.sign(x) * np.finfo(np.float32).max))
    edit_arrays(path, changed("basis", lambda x: np.sign(x) * np.finfo(np.float32).max))
    X = planted_matrices()[0][:50]
    with np.errstate(all="ignore"), pytest.raises(NumericalError, match="scores of labels are NaN"):
        load(path).predict_top(X)


def test_a_crafted_model_ends_the_command_with_one_line(crafted, capsys):
    path = crafted("neighbors")
    edit_arrays(path, changed(f"{LISTS}/indices", put(5, 2**30)))
    for command in (
        ("verify", path),
        ("info", path),
        ("predict", path, path.parent / "x.tsv", path.parent / "o"),
    ):
        capsys.readouterr()
        assert main([str(argument) for argument in command]) == 4
        out, err = capsys.readouterr()
        [line] = (out + err).splitlines()
        assert f"{path}: array heads/neighbors/lists/indices: expected columns from 0 to 399, got " in line


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_the_structure_of_a_matrix_is_checked_piece_by_piece_as_in_one(monkeypatch, step):
    """Compared with the definition, on matrices some of whose entries have been moved."""
    monkeypatch.setattr("distmom.corpus.files.decoding._CHECKED_ELEMENTS", step)
    rng, n_bad = np.random.default_rng(step), 0
    for _ in range(300):
        n_rows, n_columns = rng.integers(1, 9, 2)
        rows = [np.flatnonzero(rng.random(n_columns) < rng.random()) for _ in range(n_rows)]
        indptr, indices = np.cumsum([0, *map(len, rows)]), np.concatenate(rows).astype(np.int32)
        if len(indices) and rng.random() < 0.6:
            indices[rng.integers(len(indices))] += rng.integers(-2, 3)
        parts = np.split(indices, indptr[1:-1])
        good = all((np.diff(part) > 0).all() and ((part >= 0) & (part < n_columns)).all() for part in parts)
        n_bad += not good
        try:
            check_csr("m", np.ones(len(indices)), indices, indptr, n_columns)
            found = True
        except StoreError:
            found = False
        assert found == good
    assert 30 < n_bad < 270
