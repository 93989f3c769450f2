"""Cases kept from fuzzing end in a DistmomError, or in nothing."""

from contextlib import suppress
from pathlib import Path

import pytest
from targets import TARGETS

from distmom.errors import DistmomError

CASES = sorted((Path(__file__).parent / "corpus").glob("*/*"))


def test_cases_belong_to_targets():
    assert {path.parent.name for path in CASES} <= set(TARGETS)
    assert len(CASES) >= len(TARGETS)


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_only_own_errors_escape(path, tmp_path):
    with suppress(DistmomError):
        TARGETS[path.parent.name](path.read_bytes(), tmp_path)
