import click
import pytest

from distmom.cli import places
from distmom.cli.options import Bytes
from distmom.predict.output import OUTPUTS


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("500MB", 500_000_000),
        (" 1.5 kib ", 1536),
        ("3k", 3000),
        ("4T", 4 * 10**12),
        ("100", 100),
        (7, 7),
    ],
)
def test_sizes_have_binary_and_decimal_units(text, size):
    assert Bytes().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["3x", "GiB", "-1GiB", "", "nan", "inf", "1.2.3GB", "1e999GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected a size such as 2GiB or 500MB, got "):
        Bytes().convert(text, None, None)


def test_places_know_all_kinds_of_outputs():
    assert set(places._OUTPUTS) == set(OUTPUTS)
