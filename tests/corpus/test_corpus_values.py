"""Values, names and structures of shards that no corpus may have are refused."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from distmom.corpus import MemoryCorpus, from_arrays
from distmom.corpus.files.encoding import encode_matrices
from distmom.corpus.files.records import dump_json
from distmom.corpus.files.storage import LocalStorage
from distmom.corpus.stored.shard import describe
from distmom.corpus.stored.words import read_block
from distmom.errors import InputError, StoreError


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 2.0**31])
def test_values_are_validated(tmp_path, value):
    X = np.ones((3, 2))
    X[1, 1] = value
    for make in (lambda: MemoryCorpus(X), lambda: from_arrays(tmp_path / "x", X)):
        with pytest.raises(InputError, match="row 1, column 1"):
            make()
    assert not (tmp_path / "x").exists()


def test_masked_values_are_refused():
    X = np.ma.masked_greater(np.eye(2), 0.5)
    for make, name in ((lambda: MemoryCorpus(X), "X"), (lambda: MemoryCorpus(np.eye(2), X), "Y")):
        with pytest.raises(InputError, match=f"{name}: values: expected no masked ones, got 2"):
            make()
    assert MemoryCorpus(pd.DataFrame({"a": [0, 1], "_mask": [1, 1]})).n_words == 2


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">f2", "f2", ">i8", ">u2"])
def test_every_byte_order_and_precision_gives_the_same_corpus(dtype):
    X, Y = np.random.default_rng(0).poisson(1.0, (20, 5)), np.eye(20)
    if dtype.endswith(("f8", "f4", "f2")):
        X = X / 4.0
    found, expected = MemoryCorpus(X.astype(dtype), Y.astype(dtype)), MemoryCorpus(X, Y)
    assert found.digest == expected.digest
    assert (found.read_shard(0).words != expected.read_shard(0).words).nnz == 0


@pytest.mark.parametrize("names", [["a", "a"], ["a", "b\n"], ["a", ""], ["a"], ["a", "\ud800"], ["a", 3]])
def test_names_are_validated(tmp_path, names):
    with pytest.raises(InputError):
        from_arrays(tmp_path / "x", np.ones((3, 2)), vocabulary=names)
    assert list(tmp_path.iterdir()) == []


def csr(data, indices, indptr, shape):
    matrix = sparse.csr_array(shape, dtype=np.asarray(data).dtype)
    matrix.data, matrix.indices, matrix.indptr = (
        np.asarray(data),
        np.asarray(indices, np.int32),
        np.asarray(indptr, np.int64),
    )
    return matrix


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (csr(np.ones(2, "i4"), [0, 1], [1, 1, 2], (2, 3)), "start at 0"),
        (csr(np.ones(2, "i4"), [0, 1], [0, 2, 1], (2, 3)), "do not decrease"),
        (csr(np.ones(2, "i4"), [0, 1], [0, 1, 3], (2, 3)), "last offset"),
        (csr(np.ones(2, "i4"), [0, 3], [0, 1, 2], (2, 3)), "columns from 0 to 2"),
        (csr(np.ones(2, "i4"), [0, -1], [0, 1, 2], (2, 3)), "columns from 0 to 2"),
        (csr(np.ones(2, "i4"), [1, 1], [0, 2, 2], (2, 3)), "row 0: expected increasing"),
        (csr(np.ones(2, "i4"), [2, 1], [0, 0, 2], (2, 3)), "row 1: expected increasing"),
        (csr(-np.ones(2, "i4"), [0, 1], [0, 1, 2], (2, 3)), "non-negative"),
        (csr(np.array([1, np.nan], "f4"), [0, 1], [0, 1, 2], (2, 3)), "type: expected int32"),
        (csr(np.ones(2, "i4"), [0, 1], [0, 2], (1, 3)), "shape: expected"),
    ],
)
def test_structure_of_a_shard_is_checked(tmp_path, words, message):
    """The digests of the files match, but their content is not a CSR matrix."""
    labels = sparse.csr_array((2, 1), dtype=np.uint8)
    files = encode_matrices({"words": words, "labels": labels})
    record = {"n_documents": 2, "nnz_words": 2, "nnz_labels": 0, "files": describe(files)}
    content = dump_json(record)
    place = tmp_path / "shards" / "s00000"
    for key, value in {**files, "shard.json": content}.items():
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_bytes(value)
    from distmom.corpus import ShardInfo

    info = ShardInfo("s00000", 0, 2, 2, 0, describe({"x": content})["x"]["sha256"])
    with pytest.raises(StoreError, match=message):
        read_block(LocalStorage(str(tmp_path)), info, (3, 1), "counts")


def test_nan_weights_are_refused_on_reading(tmp_path):
    from distmom.corpus.files.decoding import decode_matrix

    files = encode_matrices({"words": csr(np.array([1, np.nan], "f4"), [0, 1], [0, 1, 2], (2, 3))})
    with pytest.raises(StoreError, match="finite"):
        decode_matrix("place", files, "words", (2, 3), "float32")
    del files["words/data/c/0"]
    with pytest.raises(StoreError, match="expected a chunk"):
        decode_matrix("place", files, "words", (2, 3), "float32")
