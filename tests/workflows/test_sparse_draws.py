"""The table of searches on random draws, at a small size."""

import importlib

import numpy as np
import pytest


def test_the_table_has_the_averages_of_every_method(monkeypatch, tmp_path):
    draws = importlib.import_module("sparse_draws")
    monkeypatch.setattr(draws, "KINDS", ((40, 3, 0.2, 0.3, 2), (30, 2, 0.3, 0.3, 1)))
    path = tmp_path / "draws.md"
    assert draws.main(["--kinds", "1", "--methods", "programs", "search", "--markdown", str(path)]) == 0
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in path.read_text().splitlines()]
    assert lines[0][-4:] == ["method", "exact", "dist", "noisy dist"]
    assert [line[:6] for line in lines[2:]] == [
        ["40", "3", "0.2", "0.3", "2", method] for method in ("programs", "search")
    ]
    found = draws.distances(draws.KINDS[0], ("search",))["search"]
    exact, noisy = np.array(found).T
    assert (exact < 1e-12).all()
    # Columns of norm one, each moved by noise of 0.001 in its own rows, have a distance of about n 1e-6.
    assert 0.0 < noisy.max() < 40e-6
    assert lines[3][6:] == ["1.00", "0.0000", f"{noisy.mean():.4f}"]


def test_other_kinds_of_methods_are_refused():
    with pytest.raises(SystemExit):
        importlib.import_module("sparse_draws").main(["--methods", "nothing"])
