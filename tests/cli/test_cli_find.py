"""The command that finds one component: its ways to give side information, and what it refuses."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers import gaussian_population
from numpy.testing import assert_allclose

from distmom.cli.main import main
from distmom.models import GaussianSearch


def test_the_command_line_finds_a_component_of_a_fitted_search(tmp_path, capsys):
    true = gaussian_population(6, 3, scale=4.0)
    means, rows = true.means, true.sample(800, 0)
    X, z = rows.X, rows.components
    np.save(tmp_path / "X.npy", np.c_[X, z == 1])
    np.save(tmp_path / "rows.npy", X[z == 1][:4])
    np.save(tmp_path / "v.npy", np.linalg.pinv(means - means.mean(axis=0))[:, 1])
    corpus, place = str(tmp_path / "c"), str(tmp_path / "m")
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--workers", "0"]) == 0
    options = ["--model", "gaussian-search", "-k", "3", "--n-targets", "1", "--workers", "0"]
    capsys.readouterr()
    assert main(["plan", corpus, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_scans"] == 3
    assert main(["fit", corpus, place, *options, "--quiet"]) == 0
    capsys.readouterr()
    for given in (
        ["--rows", str(tmp_path / "rows.npy")],
        ["--target", "0"],
        ["--along", str(tmp_path / "v.npy")],
        ["--along", str(tmp_path / "v.npy"), "--side", "project"],
    ):
        assert main(["find", place, *given, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert_allclose(found["mean"], means[1], atol=0.5)
        assert found["weight"] == pytest.approx(true.weights[1], abs=0.05)
    assert main(["find", place, "--target", "0", "--top", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown[-2:]] == [str(i) for i in np.argsort(-np.abs(means[1]))[:2]]
    preferences = {}
    for side in ("auto", "project", "whiten"):
        assert main(["find", place, "--rows", str(tmp_path / "rows.npy"), "--side", side, "--json"]) == 0
        preferences[side] = json.loads(capsys.readouterr().out)["preferences"]
    assert preferences["auto"] == preferences["whiten"] != preferences["project"]
    assert main(["find", place, "--target", "0", "--side", "x"]) == 2
    assert "side: expected one of auto, project, whiten, got 'x'" in capsys.readouterr().err
    assert main(["find", place]) == 2
    assert "give one of --rows, --along and --target" in capsys.readouterr().err
    assert main(["find", place, "--rows", corpus]) == 2
    assert "cannot be read as an .npy file" in capsys.readouterr().err
    for array, message in (
        (np.full((2, 3), np.nan), "value at [0, 0]: expected a finite number, got nan"),
        (np.ones(3), "shape: expected a matrix with a row for each labelled row, got (3,)"),
        (np.ones((2, 3), complex), "type of the values: expected real numbers, got complex128"),
    ):
        np.save(tmp_path / "wrong.npy", array)
        assert main(["find", place, "--rows", str(tmp_path / "wrong.npy")]) == 3
        assert f"wrong.npy: {message}" in capsys.readouterr().err
    (tmp_path / "text.npy").write_text("1,2,3\n")
    assert main(["find", place, "--rows", str(tmp_path / "text.npy")]) == 2
    assert (
        "text.npy: cannot be read as an .npy file: it does not begin as such files do"
        in capsys.readouterr().err
    )
    for command in (
        ["transform", place, corpus, str(tmp_path / "o")],
        ["predict", place, corpus, str(tmp_path / "o")],
    ):
        assert main(command) == 2
        assert (
            "got one of class GaussianSearch; use 'distmom find' with such models" in capsys.readouterr().err
        )
    assert not (tmp_path / "o").exists()
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    assert "Spectrum" in (tmp_path / "r.html").read_text()


def test_the_command_line_finds_side_information_whose_name_is_a_number(tmp_path, capsys):
    rows = gaussian_population(6, 3, scale=4.0).sample(800, 0)
    model = GaussianSearch(3).fit(rows.X, pd.Series(rows.components == 1, name="2019"))
    model.save(tmp_path / "m")
    found = []
    for target in ("2019", "0"):
        assert main(["find", str(tmp_path / "m"), "--target", target, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert main(["find", str(tmp_path / "m"), "--target", "1"]) == 2
    assert "target: expected a number below 1, or one of '2019', got '1'" in capsys.readouterr().err
