"""The scripts in workflows/ are imported from their folder, which a copy of the package alone lacks."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "workflows"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    if not FOLDER.is_dir():
        pytest.skip("the workflows are not part of this copy")
    monkeypatch.syspath_prepend(FOLDER)
