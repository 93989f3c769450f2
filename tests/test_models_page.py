"""The pages of the models: each states what the model assumes, when it fails and how its diagnostics are read."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from distmom.corpus import RowCorpus
from distmom.models import ESTIMATORS, DiagonalMixture, SphericalMixture

DOCS = Path(__file__).parents[1] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not part of this copy")


def pages():
    """Return the page of every row of the table in docs/models.md, by the name of the model."""
    table = (DOCS / "models.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| \[`([\w-]+)`\]\((\w+\.md)\)", table, re.MULTILINE))


def test_every_model_of_the_command_line_is_in_the_table():
    assert set(pages()) == {listing.name for listing in ESTIMATORS if listing.command == "fit"}


@pytest.mark.parametrize("page", sorted(set(pages().values())))
def test_a_page_has_assumptions_failures_and_diagnostics(page):
    headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    for part in ("assume", "fails", "diagnostics|fit reports"):
        assert any(re.search(part, heading) for heading in headings), part


@pytest.mark.parametrize("model", [SphericalMixture, DiagonalMixture])
@pytest.mark.parametrize(("number", "n_columns"), [(0, 10), (1, 80)])
def test_the_passes_of_mixtures_of_rows_are_those_of_a_plan(model, number, n_columns):
    X = np.random.default_rng(0).normal(size=(50, n_columns))
    planned = Counter(each.name for each in model(2).plan(RowCorpus(X)).passes)
    rows = (DOCS / "models.md").read_text(encoding="utf-8").splitlines()
    row = next(line for line in rows if line.startswith("| [") and f"`{model.__name__}`" in line)
    n_passes, listed = re.findall(r"(\d+): ([^;|]+)", row.split("|")[4])[number]
    # Such as "sketch, 2 power, moments".
    steps = [each.strip().rpartition(" ") for each in listed.split(",")]
    assert Counter({name.lower(): int(times or 1) for times, _, name in steps}) == planned
    assert int(n_passes) == planned.total()
