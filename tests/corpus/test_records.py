"""Records and the files listed in them: altered bytes are detected, and names cannot lead outside."""

import io
import json
import math
import os
from contextlib import suppress

import numpy as np
import pytest
import zarr
from scipy.sparse import random_array
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec
from zarr.core.buffer.cpu import Buffer
from zarr.storage import MemoryStore

from distmom.corpus.files.decoding import decode_array, files_below
from distmom.corpus.files.encoding import (
    create_array,
    encode_array,
    encode_group,
    encode_matrices,
    write_group,
)
from distmom.corpus.files.npy import map_npy, parse_npy, read_npy_header
from distmom.corpus.files.records import (
    RecordFormat,
    are_files,
    check_file,
    describe_files,
    dump_json,
    is_below,
    locate,
    read_file,
)
from distmom.errors import StoreError

FORMAT = RecordFormat("distmom-test", 3, "make it again")
CONTENT = {
    "text": "ä\u2028\udc80",
    "numbers": [1, -2.5, 1e300, 0.1, True, None],
    "nested": {"10": {}, "9": []},
    "long": list(range(20)),
}


def all_flips(content):
    for bit in range(8 * len(content)):
        yield content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def test_records_are_read_back_as_written(tmp_path):
    FORMAT.write(tmp_path / "r.json", CONTENT)
    assert FORMAT.read(tmp_path / "r.json") == {
        **CONTENT,
        "format": "distmom-test",
        "format_version": 3,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    # Numeric keys, tuples and NaN have a canonical form too.
    record, _ = FORMAT.parse("r", FORMAT.dump({"keys": {10: 1, 9: 2}, "pair": (1, 2), "nan": math.nan}))
    assert record["keys"] == {"10": 1, "9": 2}
    assert record["pair"] == [1, 2]
    assert math.isnan(record["nan"])


def test_every_flipped_bit_of_a_record_is_found():
    content = FORMAT.dump(CONTENT)
    for wrong in all_flips(content):
        with pytest.raises(StoreError, match=r"^place: "):
            FORMAT.parse("place", wrong)


def test_changes_without_effect_on_json_values_are_found():
    content = FORMAT.dump(CONTENT)
    record = json.loads(content)
    others = (
        json.dumps(record).encode(),
        content + b"\n",
        content.replace(b"-2.5", b"-2.50"),
        content.replace(b'"long"', b'"\\u006cong"'),
        content.replace(b'{\n "', b'{\n "format": "x",\n "', 1),
        dump_json({key: value for key, value in record.items() if key != "checksum"}),
        dump_json({**record, "checksum": 3}),
    )
    for wrong in others:
        assert wrong != content
        with pytest.raises(StoreError, match=r"checksum: expected .* the file was altered: restore it, or"):
            FORMAT.parse("place", wrong)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format": "other"}, "format: expected 'distmom-test', got 'other'$"),
        ({"format": None}, "format: .* got None: damaged, or written by an older distmom; make it again"),
        ({"format_version": 2}, "expected 3, got 2: written by an older distmom; make it again"),
        ({"format_version": None}, "expected 3, got None: written by an older distmom; make it again"),
        ({"format_version": 4}, "expected 3, got 4: written by a newer distmom; update distmom to read it"),
        ({"format_version": 3.0}, "expected 3, got 3.0"),
        ({"format_version": True}, "expected 3, got True"),
    ],
)
def test_other_formats_and_versions_are_named(entries, message):
    record = {**json.loads(FORMAT.dump(CONTENT)), **entries}
    with pytest.raises(StoreError, match=message):
        FORMAT.parse("place", dump_json(record))


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_record_nested_too_deeply_is_no_record(depth):
    start = b'{"checksum": "", "format": "distmom-test", "format_version": 3, "x": '
    with pytest.raises(StoreError, match=r"^place: "):
        FORMAT.parse("place", start + b"[" * depth + b"]" * depth + b"}")


def test_a_record_that_is_missing_or_too_large_is_not_read(tmp_path, monkeypatch):
    with pytest.raises(StoreError, match=r"r\.json: cannot be read: No such file"):
        FORMAT.read(tmp_path / "r.json")
    FORMAT.write(tmp_path / "r.json", CONTENT)
    monkeypatch.setattr("distmom.corpus.files.records.MAX_RECORD_BYTES", 100)
    with pytest.raises(StoreError, match=r"r\.json: size: expected at most 100 bytes, got \d+"):
        FORMAT.read(tmp_path / "r.json")


def test_files_are_compared_with_size_and_digest(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"1234")
    (tmp_path / "b").write_bytes(b"")
    entries = describe_files(tmp_path)
    assert sorted(entries) == ["a/x", "b"]
    assert describe_files(tmp_path, "a") == {"a/x": entries["a/x"]}
    assert are_files(entries)
    for key, entry in entries.items():
        check_file(tmp_path, key, entry)
    assert read_file(tmp_path, "a/x", entries["a/x"]) == b"1234"
    for content, message in ((b"1235", "expected sha256"), (b"123", "expected 4 bytes, got 3")):
        (tmp_path / "a" / "x").write_bytes(content)
        for function in (check_file, read_file):
            with pytest.raises(StoreError, match=f"a/x: {message}"):
                function(tmp_path, "a/x", entries["a/x"])
    (tmp_path / "a" / "x").unlink()
    with pytest.raises(StoreError, match="a/x: there is no such file"):
        check_file(tmp_path, "a/x", entries["a/x"])


def test_names_cannot_lead_outside_the_directory(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("mine")
    (root / "inside").write_text("own")
    os.symlink("inside", root / "link")
    os.symlink("../outside", root / "way-out")
    os.symlink("..", root / "above")
    assert locate(root, "link") == root / "link"
    for key in ("", ".", "..", "../outside", "/etc/passwd", "a/../../outside", "a//b", "x\0y"):
        assert not is_below(key)
        assert not are_files({key: {"size": 1, "sha256": ""}})
    for key in ("../outside", str(tmp_path / "outside"), "way-out", "above/outside"):
        with pytest.raises(StoreError, match="got one outside"):
            locate(root, key)
    for wrong in ([], {"a": 3}, {"a": {"size": -1, "sha256": ""}}, {"a": {"size": True, "sha256": ""}}):
        assert not are_files(wrong)


# .npy files


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3.0),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.ones((2, 1, 2), bool),
        np.ones(7, np.uint8),
        np.zeros(0, np.float32),
        np.array(2.5),
    ],
)
def test_headers_are_read_as_numpy_writes_them_and_in_no_other_way(tmp_path, array):
    path = tmp_path / "a.npy"
    np.save(path, array)
    mapped = map_npy(path)
    assert mapped.dtype == array.dtype
    assert mapped.flags.f_contiguous == array.flags.f_contiguous
    np.testing.assert_array_equal(mapped, np.load(path))
    content = path.read_bytes()
    parsed = parse_npy(content, "a.npy")
    assert (parsed.dtype, parsed.shape, parsed.tobytes()) == (array.dtype, array.shape, array.tobytes())
    header = len(content) - array.nbytes
    for wrong in all_flips(content[:header]):
        with suppress(StoreError):
            # A different declared size does not match the size of the file.
            declared = read_npy_header(io.BytesIO(wrong + content[header:]), "a.npy")
            assert declared.n_bytes != len(content)
    for wrong in (b"", content[:5], content[:header][:-1], content + b"x", content[: header - 1]):
        path.write_bytes(wrong)
        with pytest.raises(StoreError, match=r"a\.npy: "):
            map_npy(path)
        with pytest.raises(StoreError, match=r"^a\.npy: "):
            parse_npy(wrong, "a.npy")


@pytest.mark.parametrize("array", [np.array([{}], object), np.array(["a"]), np.zeros(2, [("x", "f8")])])
def test_only_numbers_are_mapped(tmp_path, array):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(StoreError, match=r"expected an \.npy file of numbers"):
        map_npy(tmp_path / "a.npy")


# Zarr arrays


def test_damaged_metadata_of_an_array_ends_in_one_kind_of_error():
    """The result may be a different array, which its digest reveals; only StoreError is raised."""
    files = files_below(encode_group({"x": np.arange(50.0)}), "x")
    assert decode_array("place", files).tolist() == list(range(50))
    found = []
    for wrong in all_flips(files["zarr.json"]):
        with suppress(StoreError):
            found.append(decode_array("place", {**files, "zarr.json": wrong}))
    assert 0 < len(found) < 0.1 * 8 * len(files["zarr.json"])
    assert all(array.nbytes <= 8 * 50 for array in found)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"shape": [2**40]}, "expected a chunk in each of"),
        ({"shape": [2**62, 2**62]}, "place"),
        ({"shape": [49]}, "chunks: expected at most the shape"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2**40]}}}, "chunks: expected"),
        ({"data_type": "uint8", "fill_value": 0}, "size: expected a chunk of 50 bytes, got 400"),
        ({"data_type": "string"}, "place"),
        (
            {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
            "codecs: expected bytes, zstd",
        ),
    ],
)
def test_arrays_that_declare_more_than_there_is_are_refused(edit, message):
    files = files_below(encode_group({"x": np.arange(50.0)}), "x")
    metadata = {**json.loads(files["zarr.json"]), **edit}
    with pytest.raises(StoreError, match=message):
        decode_array("place", {**files, "zarr.json": json.dumps(metadata).encode()})


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    ("shape", "chunks"), [((7,), (3,)), ((7, 5), (3, 2)), ((4, 3, 2), (4, 1, 2)), ((2, 0), (1, 1))]
)
def test_arrays_are_decoded_as_by_zarr(shape, chunks, endian, dtype):
    files = {}
    stored = zarr.create_array(
        MemoryStore(files), shape=shape, chunks=chunks, dtype=dtype, serializer=BytesCodec(endian=endian),
        compressors=[ZstdCodec(level=1), Crc32cCodec()], config={"write_empty_chunks": True},
    )  # fmt: skip
    if stored.size:
        stored[...] = np.random.default_rng(0).integers(0, 100, shape)
    found = decode_array("a", {key: value.to_bytes() for key, value in files.items()}, dtype, shape)
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    assert found.flags.writeable
    np.testing.assert_array_equal(found, stored[...])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", ">f4", ">i8"]
)
@pytest.mark.parametrize("shape", [(7,), (7, 5), (3, 2, 4), (0,), (2, 0)])
def test_zarr_reads_arrays_and_groups_as_they_were_written(tmp_path, shape, dtype):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    arrays = {"a": array, "b/c": array[::2], "b/d/e": np.swapaxes(array, 0, -1)}
    write_group(tmp_path / "g", arrays)
    root = zarr.open_group(tmp_path / "g", mode="r")
    assert sorted(name for name, _ in root.members(max_depth=None)) == ["a", "b", "b/c", "b/d", "b/d/e"]
    for name, expected in arrays.items():
        np.testing.assert_array_equal(root[name][...], expected)
        assert root[name].dtype == expected.dtype.newbyteorder("=")
    chunked = {key: Buffer.from_bytes(value) for key, value in encode_array(array, chunk_rows=2)}
    np.testing.assert_array_equal(zarr.open_array(MemoryStore(chunked), mode="r")[...], array)


def test_zarr_reads_matrices_as_they_were_encoded():
    matrix = random_array((30, 9), density=0.2, format="csr", rng=np.random.default_rng(0))
    files = {key: Buffer.from_bytes(value) for key, value in encode_matrices({"words": matrix}).items()}
    group = zarr.open_group(MemoryStore(files), mode="r")["words"]
    assert dict(group.attrs) == {
        "encoding-type": "csr_matrix",
        "encoding-version": "0.1.0",
        "shape": [30, 9],
    }
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(group[part][...], getattr(matrix, part))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda files: files.pop("zarr.json"),
            "a/zarr.json: expected the metadata of a Zarr array, got no such",
        ),
        (lambda files: files.update({"zarr.json": b"{"}), "a/zarr.json: is not JSON"),
        (
            lambda files: files.update({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}),
            "a/zarr.json: expected format 3 and array, got 3 and group",
        ),
        (lambda files: files.pop("c/0"), "a/c/0: expected a chunk, got no such file"),
        (
            lambda files: files.update({"c/0": files["c/0"][:-1] + bytes([files["c/0"][-1] ^ 1])}),
            "a/c/0: the checksum of the chunk differs",
        ),
    ],
)
def test_a_file_of_an_array_that_is_wrong_is_named(edit, message):
    files = files_below(encode_group({"x": np.arange(50.0)}), "x")
    edit(files)
    with pytest.raises(StoreError, match=message):
        decode_array("a", files)


@pytest.mark.parametrize(
    ("shape", "dtype", "chunk_rows", "chunks"),
    [
        ((300_000, 4), "float32", None, (262_144, 4)),
        ((10, 4), "float32", None, (10, 4)),
        ((5, 1 << 20), "float64", None, (1, 1 << 20)),
        ((0, 3), "int64", None, (1, 3)),
        ((3, 0), "float64", None, (3, 1)),
        ((7,), "uint8", 3, (3,)),
    ],
)
def test_arrays_are_stored_by_rows_with_a_checksum_in_every_chunk(tmp_path, shape, dtype, chunk_rows, chunks):
    stored = create_array(tmp_path / "a", shape, dtype, chunk_rows=chunk_rows)
    assert stored.chunks == chunks
    # Zeros, of which Zarr by itself writes no chunk.
    if stored.size:
        stored[...] = 0
    files = {
        p.relative_to(tmp_path / "a").as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    }
    assert len(files) == 1 + (-(-shape[0] // chunks[0]) if stored.size else 0)
    encoded = dict(encode_array(np.zeros(shape, dtype), chunk_rows=chunk_rows))
    assert encoded.keys() == files.keys()
    assert encoded["zarr.json"] == files["zarr.json"]
    found = decode_array("a", files, dtype, shape)
    assert found.shape == shape
    assert not found.any()
    for key, content in files.items():
        if key != "zarr.json":
            with pytest.raises(StoreError):
                decode_array("a", files | {key: content[:-1] + bytes([content[-1] ^ 1])}, dtype, shape)
