"""What tests of predictions share."""

import pytest
from helpers import planted_matrices

from distmom.models import MultiLabelMoM


@pytest.fixture(scope="module")
def planted():
    """Words and labels of a small planted corpus."""
    return planted_matrices()


@pytest.fixture(scope="module")
def model(planted):
    """A model of them."""
    return MultiLabelMoM(4).fit(*planted)
