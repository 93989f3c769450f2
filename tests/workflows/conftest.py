"""The scripts in workflows/ are imported from their folder."""

import pytest


@pytest.fixture(autouse=True)
def scripts(workflow):
    """Let tests import the scripts."""
