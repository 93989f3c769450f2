"""The compiled pass over ``number:value`` lines and the plain parser find the same parts, or the same errors."""

import re
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distmom.corpus import ingest
from distmom.corpus.sources.readers import scan as scan_module
from distmom.corpus.sources.readers import source, sparse
from distmom.corpus.sources.readers.scan import (
    COUNTED,
    LABELLED,
    LABELLED_NOT_BLANK,
    PAIRS,
    Lines,
    Scan,
    scan,
)
from distmom.corpus.sources.readers.source import Chunk, LineReader, Tally
from distmom.corpus.sources.readers.spec import Spec
from distmom.errors import InputError


def scan_nothing(text, first_line, form, n_words, base=0):
    """Replace `scan` so that every line is left to the plain parser."""
    nothing = np.zeros(0, np.int64)
    rows = scan_module.Rows(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0), nothing, nothing)
    lines = source.split_lines(text)
    return Scan(
        Lines(nothing, rows, nothing, nothing), list(range(first_line, first_line + len(lines))), lines
    )


def outcome(encode, chunk, spec, by_plain_parser):
    """Return the complete result of an encoding, including types and bits, or its error."""
    with pytest.MonkeyPatch.context() as patch:
        if by_plain_parser:
            patch.setattr(sparse, "scan", scan_nothing)
        try:
            part = encode(chunk, spec)
        except InputError as error:
            return f"refused: {error}"
    arrays = (part.word_ptr, part.word_ids, part.values, part.label_ptr, part.label_ids, part.label_lines)
    return [(each.dtype.str, each.tolist(), each.tobytes()) for each in arrays], part.labels, part.warnings


FORMATS = {
    "xmc": (sparse.encode_xmc, LABELLED, Spec("x", n_words=12, n_labels=7)),
    "svmlight": (sparse.encode_svmlight, LABELLED_NOT_BLANK, Spec("x", zero_based=False)),
    "svmlight from 0": (sparse.encode_svmlight, LABELLED_NOT_BLANK, Spec("x", n_words=12, zero_based=True)),
    "ldac": (sparse.encode_ldac, COUNTED, Spec("x", n_words=12)),
    "pair": (sparse.encode_pair, PAIRS, Spec("x", label_path="y", n_words=12, n_labels=7)),
}


def check_same(name, text, other=b""):
    encode, _, spec = FORMATS[name]
    if name == "pair" and not other:
        other = b"\n" * text.count(b"\n")
    for strict in (False, True):
        chunk, own = Chunk(5, text, 3, other=other), replace(spec, strict=strict)
        expected = outcome(encode, chunk, own, by_plain_parser=True)
        assert outcome(encode, chunk, own, by_plain_parser=False) == expected


# -- generated lines -----------------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(0, 13).map(str),
    st.sampled_from(["007", "00", "2147483646", "2147483647", "4294967297", "9999999999", "12345678901"]),
)
ODD_VALUES = [
    "1e5", "1E-05", "1e+3", "1e0003", "1e00003", "1e", ".5", "5.", ".", "", "-1", "+1", "nan", "inf", "0.0",
    "0e0", "1e400", "1e-400", "1e22", "1e-22", "1e-23", "2147483647", "2147483648", "0x1", "1_0", "1,5",
    "9007199254740992e-7", "9007199254740993e-7", "0.021344100000000001", "000000000000000000001",
]  # fmt: skip
values = st.one_of(
    st.integers(0, 3).map(str),
    st.floats(0, 1e4).map(repr),
    st.floats(0, 1e4).map(lambda x: f"{x:.6g}"),
    st.sampled_from(ODD_VALUES),
)
clean_pairs = st.dictionaries(st.integers(1, 11), st.integers(1, 9), max_size=5).map(
    lambda row: [f"{word}:{value}" for word, value in sorted(row.items())]
)
odd_pairs = st.lists(st.tuples(numbers, values).map(":".join), max_size=4)
gaps = st.sampled_from([" ", " ", " ", " ", "  ", "\t", "", ", ", " ,"])


@st.composite
def lines(draw, name):
    """Draw a line of a format, often in regular form."""
    pairs = draw(st.one_of(clean_pairs, clean_pairs, odd_pairs))
    labels = draw(st.lists(st.one_of(st.integers(0, 6).map(str), numbers), max_size=3))
    head = {"ldac": str(len(pairs)), "pair": ""}.get(name, ",".join(labels))
    gap = draw(gaps) if draw(st.integers(0, 4)) == 0 else " "
    text = gap.join(([head] if name != "pair" else []) + pairs).encode()
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(text)))
        byte = draw(st.sampled_from([bytes([b]) for b in b" ,:.eE+-0179\t\r#\x00\x0b\xff\x80"]))
        text = text[:at] + byte + text[at + draw(st.integers(0, 1)) :]
    return text


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_generated_lines_scan_as_the_parser_reads_them(name, data):
    rows = data.draw(st.lists(lines(name), max_size=6))
    text = b"".join(line + b"\n" for line in rows)
    other = b""
    if name == "pair":
        of_labels = st.lists(st.one_of(lines("pair"), st.just(b"")), min_size=len(rows), max_size=len(rows))
        other = b"".join(line + b"\n" for line in data.draw(of_labels))
    check_same(name, text, other)


# -- lines written by hand -----------------------------------------------------------------------------------

ODD_LINES = [
    b"", b" ", b"  ", b"\t", b"0", b"0 ", b" 1:1", b"1:1", b"1:1 2:1", b"0,1 1:1", b"1,0 1:1", b"0,0 1:1",
    b"0, 1 1:1", b"0 ,1 1:1", b",0 1:1", b"0, 1:1", b"0,,1 1:1", b"6 1:1", b"7 1:1", b"007 1:1",
    b"9999999999 1:1", b"99999999999 1:1", b"0 1:1 2:1", b"0 1:1  2:1", b"0 1:1\t2:1", b"0 1:1 ", b"0\t1:1",
    b"0 2:1 1:1", b"0 1:1 1:2", b"0 1:2147483647 1:1", b"0 1:0", b"0 1:0.000", b"0 1:0 2:1", b"0 11:1",
    b"0 12:1", b"0 13:1", b"0 0:1", b"0 001:1", b"0 0000000001:1", b"0 00000000001:1", b"0 4294967297:1",
    b"0 2147483646:1", b"0 2147483647:1", b"0 1:1e5", b"0 1:1E+5", b"0 1:1e-5", b"0 1:.5", b"0 1:5.", b"0 1:.",
    b"0 1:5.e1", b"0 1:1e", b"0 1:1e+", b"0 1:1e00001", b"0 1:1e400", b"0 1:1e-400", b"0 1:-1", b"0 1:+1",
    b"0 1:nan", b"0 1:inf", b"0 1:1e9", b"0 1:3e9", b"0 1:2147483647.5", b"0 1:" + b"9" * 18,
    b"0 1:" + b"0" * 18 + b"1", b"0 1:0." + b"3" * 30, b"0 1:" + b"9" * 400, b"0 " + b"9" * 400 + b":1",
    b"0 1:18446744073709551617", b"0 18446744073709551617:1", b"18446744073709551617 1:1",
    b"0 1:1\x00", b"\x000 1:1", b"0 1:1\x00 2:1", "0 \u0661:1".encode(), "\u0661 1:1".encode(), b"0 1:\xff1",
    b"0 1:1\r", b"0 1:1\r2:1", b"0 1:1\x0b2:1", b"0 1:1 # c", b"0 1:1# c", b"#", b" # c", b"0#", b"0 1", b"0 1:",
    b"0 :1", b"0 1:1:1", b"0 qid:1 1:1", b"a 1:1", b"0 -1:1", b"0 1:1,2:1", b"1 1:1", b"01 1:1", b"2 1:1 2:1",
    b"02 1:1 2:1", b"00", b"3 1:1", b"1:1 ", b"2:1 1:1", b"1:1 1:1", b"1:0", b"6:1", b"7:1", b"12:1",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_odd_line_alone_and_among_usual_ones(name):
    usual = {"ldac": b"2 1:1 3:2\n", "pair": b"1:1 3:2\n"}.get(name, b"3,1 1:1 3:2\n")
    for line in ODD_LINES:
        for text in (line + b"\n", usual + line + b"\n" + usual, line + b"\n" + usual + line + b"\n"):
            check_same(name, text)
            if name == "pair":
                check_same(name, b"1:1\n" * text.count(b"\n"), text)


@pytest.mark.parametrize("name", FORMATS)
def test_of_two_errors_the_same_one_is_reported(name):
    """The plain parser checks all lines for one kind of error at a time, and reports the later line first."""
    odd = [b"0 12:1", b"0 1:3e9", b"0 1:x", b"7 1:1", b"0 2:1 1:1", b"0 1:0", b"0 1:1 1:1", b"0,0 1:1"]
    usual = {"ldac": b"1 3:2", "pair": b"3:2"}.get(name, b"1 3:2")
    for first in odd:
        for second in odd:
            check_same(name, b"\n".join([usual, first, usual, second, usual, b""]))


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (LABELLED, b"0,1 1:1 3:2.5"), (LABELLED, b"6,0,0,9999999999 0:1e-5"), (LABELLED, b" 1:.5 2:5."),
        (LABELLED, b"3"), (LABELLED, b""), (LABELLED, b"3 4:0.0213441 5:0.999999 11:12345.678"),
        (LABELLED_NOT_BLANK, b"0,1 1:1 3:2.5"), (COUNTED, b"2 1:1 3:2"), (COUNTED, b"0"),
        (COUNTED, b"10 " + b" ".join(b"%d:1" % i for i in range(1, 11))), (PAIRS, b"1:1 3:2.5"), (PAIRS, b""),
    ],
)  # fmt: skip
def test_usual_lines_are_not_left_to_the_plain_parser(form, line):
    assert scan(line + b"\n", 1, form, 12).lines == []
    assert scan(line + b"x\n", 1, form, 12).lines == [line + b"x"]


def test_long_rows_and_many_lines():
    rng = np.random.default_rng(0)
    rows = []
    for i in range(400):
        columns = np.sort(rng.choice(10**6, rng.integers(0, 200), replace=False))
        labels = rng.choice(10**5, rng.integers(0, 9), replace=False)
        pairs = "".join(f" {column}:{rng.random():.{rng.integers(1, 17)}g}" for column in columns)
        rows.append(f"{','.join(map(str, labels))}{pairs}".encode() + b" " * (i % 50 == 0))
    chunk = Chunk(2, source.join_lines(rows))
    spec = Spec("x", n_words=10**6, n_labels=10**5)
    expected = outcome(sparse.encode_xmc, chunk, spec, by_plain_parser=True)
    assert outcome(sparse.encode_xmc, chunk, spec, by_plain_parser=False) == expected
    assert expected[2] == {"extra_spaces": 8}
    assert len(scan(chunk.text, 2, LABELLED, 10**6).lines) < 400


# -- values --------------------------------------------------------------------------------------------------

decimals = st.from_regex(
    r"(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,4})?", fullmatch=True
).filter(str.isascii)


def check_value(text, must_be_read=False):
    found = scan(f"0 1:{text}\n".encode(), 1, LABELLED, 12).usual.words.values
    assert len(found) or not must_be_read
    if len(found):
        assert found[0].tobytes() == np.float64(text).tobytes()


@given(decimals)
def test_values_have_the_bits_of_the_nearest_float(text):
    check_value(text)


@given(st.integers(1, 10**15), st.integers(-22, 6))
def test_values_of_fifteen_digits_are_read(mantissa, exponent):
    if mantissa * 10.0**exponent < 2**31 - 1:
        check_value(f"{mantissa}e{exponent}", must_be_read=True)


@given(st.floats(1e-9, 1e8))
def test_shortened_floats_are_read(value):
    for text in (f"{value:.6g}", f"{value:.7f}", f"{value:.12g}"):
        check_value(text, must_be_read=float(text) > 0)


@given(st.floats(1e-4, 1e8))
def test_floats_in_full_are_read(value):
    check_value(repr(value), must_be_read=True)
    check_value(f"{value:.17g}", must_be_read=True)


@given(st.floats(1e-3, 1e8), st.integers(-2, 2))
def test_values_between_two_floats(value, step):
    """Decimals of 18 digits near the midpoint of two floats are read exactly, or left to the plain parser."""
    middle = (Decimal(value) + Decimal(float(np.nextafter(value, np.inf)))) / 2
    digits, exponent = f"{middle:.17e}".split("e")
    check_value(f"{int(digits.replace('.', '')) + step}e{int(exponent) - 17}")


@given(st.integers(10**15, 10**18 - 1), st.integers(9, 22))
def test_long_mantissas_are_read_to_the_nearest_number(mantissa, exponent):
    check_value(f"{mantissa}e-{exponent}")


def test_values_at_the_bounds():
    check_value("123456789012345678e-10", must_be_read=True)
    check_value("0.000000000000000000123456789012345678e18", must_be_read=False)
    for text in ("2147483647", "9007199254740992e-7", "1e-22", "0.1", "9007199254740993e-7"):
        check_value(text)
    for text in ("1e-23", "0", "2147483647.5", "1234567890123456789e-10", "1234567890123456789.5e-10"):
        assert scan(f"0 1:{text}\n".encode(), 1, LABELLED, 12).lines == [f"0 1:{text}".encode()]


# -- lines of a file -----------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([b"a", b"bb\n", b"\n", b"\r\n", b"\r", b"c" * 9, b"\xef\xbb\xbf"]), max_size=30),
    st.integers(1, 12),
    st.lists(st.sampled_from([1, 2, 3, 80]), min_size=1, max_size=20),
)
def test_lines_do_not_depend_on_how_they_are_read(tmp_path_factory, pieces, block, sizes):
    path = tmp_path_factory.mktemp("lines") / "x"
    content = b"".join(pieces)
    body = content.removeprefix(b"\xef\xbb\xbf")
    assume(body or not content)
    path.write_bytes(content)
    expected = body.split(b"\n")
    last = expected.pop()
    expected += [last] if last else []
    repairs = {
        "byte_order_mark": int(body != content),
        "no_final_newline": int(bool(last)),
        "carriage_returns": sum(line.endswith(b"\r") for line in expected),
    }
    tally = Tally("x")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_BLOCK_BYTES", block)
        reader = LineReader(str(path), tally)
        for size in sizes * 60:
            text, n = reader.take_text(size)
            assert text.count(b"\n") == n <= size
            found += source.split_lines(text)
    assert found == [line.removesuffix(b"\r") for line in expected]
    assert reader.next_line == len(expected) + 1
    assert tally.counts == {kind: n for kind, n in repairs.items() if n}


def test_strict_refuses_what_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_LINE_BYTES", 10)
    path = tmp_path / "x"
    for content, message in {
        b"a\nb\r\nc\r\n": "x:2: carriage returns",
        b"a\nb\r\n" + b"c" * 11 + b"\n": "x:2: carriage returns",
        b"a\n" + b"c" * 11 + b"\nb\r\n": "x:2: length of the line",
        b"a\n" + b"c" * 11: "x:2: length of the line",
        b"a\nb\r": "x:2: carriage returns",
        b"a\nb": "x:2: no final newline",
        b"\xef\xbb\xbfa\r\n": "x:1: byte order mark",
    }.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(message)):
            LineReader(str(path), Tally(str(path), strict=True)).take_text(100)


# -- whole corpora -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.xmc", "5 9 4\r\n0,1 1:1 3:1\r\n2,1 4:0.5  2:1\r\n\r\n 1:2\r\n3 0:1e-3 1:0 2:.5 2:.25", {}),
        ("a.xmc", "\ufeff3 9 4\n0,1 1:1 3:1\n0 4:2\n 1:2\n\n", {}),
        ("a.svm", "0,1 1:1 3:1\n\n# c\n12,1 4:5 2:1 # c\n 1:2\n", {"zero_based": False}),
        ("a.ldac", "2 1:1 3:1\n1  4:2\n0\n", {}),
        ("a.xmc", "3 9 4\n0,1 1:1 3:1\n0 4:2\n", {}),
        ("a.xmc", "2 9 4\n0,1 1:1 3:1\n0 4:2\n0 1:1\n", {}),
        ("a.xmc", "2 9 4\n0,1 1:1 3:1\n0 9:2\n", {}),
    ],
)
def test_corpora_are_the_same(tmp_path, monkeypatch, name, content, options):
    path = tmp_path / name
    path.write_bytes(content.encode())

    def read(place):
        found = []
        for size in (1, 2, 100):
            try:
                corpus = ingest(path, tmp_path / place, shard_documents=size, overwrite=True, **options)
                found.append((corpus.digest, corpus.warnings))
            except InputError as error:
                found.append(str(error))
        return found

    scanned = read("scanned")
    monkeypatch.setattr(sparse, "scan", scan_nothing)
    assert read("plain") == scanned
