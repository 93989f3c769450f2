"""The experiments on expansion at a small size: exact moments, errors of samples, and the table."""

import importlib
import json

import numpy as np
import pytest

ROWS = (4_000, 16_000, 64_000)


@pytest.fixture
def experiments():
    return importlib.import_module("benchmark_expansion")


def slope(rows, errors):
    return np.polyfit(np.log(rows), np.log(errors), 1)[0]


@pytest.mark.slow
def test_errors_of_a_hierarchy_fall_with_the_root_of_the_number_of_rows(experiments, monkeypatch):
    monkeypatch.setattr(experiments, "N_PARTITIONS", 10)
    methods = ("projections", "search", "both")
    # A draw whose observed level every method finds from exact moments.
    population = experiments.hierarchy(0.5, 1, (60, 6, 2))
    by_rows = dict(experiments.covariances(population, (0, *ROWS), 1))
    for method, values in experiments.run_hierarchy(population, by_rows[0], methods, 1).items():
        assert values["dist_A2"] < 1e-12, method
    found = [experiments.run_hierarchy(population, by_rows[n], methods, 1) for n in ROWS]
    for method in methods:
        errors = [values[method]["error_A2"] for values in found]
        assert -0.65 < slope(ROWS, errors) < -0.35, (method, errors)
        assert errors[-1] < 0.03


def test_exact_moments_give_both_levels_of_a_hierarchy(experiments, monkeypatch):
    monkeypatch.setattr(experiments, "N_PARTITIONS", 10)
    population = experiments.hierarchy(0.5, 11, (90, 12, 2))
    covariance = population.covariances()[0]
    for values in experiments.run_hierarchy(population, covariance, ("programs", "search"), 0).values():
        assert values["dist_A2"] < 1e-12
        assert values["dist_A1"] < 1e-12
        assert values["error_A1"] < 1e-6


def test_errors_of_noise_variances_fall_likewise(experiments, monkeypatch):
    monkeypatch.setattr(experiments, "N_PARTITIONS", 10)
    population = experiments.hierarchy(0.5, 1, (60, 6, 2))
    found = {
        n: experiments.run_decomposition(covariance, population.noises[0].variances, 6, 0)["noise variances"]
        for n, covariance in experiments.covariances(population, (0, *ROWS), 1)
    }
    for kind in ("one_random", "best_random", "find_split"):
        assert found[0][kind] < 1e-9
        assert -0.65 < slope(ROWS, [found[n][kind] for n in ROWS]) < -0.35


def test_an_exact_network_has_no_error_and_that_of_a_sample_is_small(experiments, monkeypatch):
    draw = experiments.network
    monkeypatch.setattr(experiments, "network", lambda gap, seed: draw(gap, seed, (60, 5)))
    monkeypatch.setattr(experiments, "N_PARTITIONS", 10)
    rows = list(experiments.run_seed("network", 0.5, (0, 20_000), ("search",), 1))
    assert [row["n_rows"] for row in rows] == [0, 20_000]
    assert rows[0]["dist_A"] < 1e-12
    assert rows[0]["dist_Lambda"] < 1e-12
    assert 1e-7 < rows[1]["dist_A"] < 0.01
    assert 1e-7 < rows[1]["dist_Lambda"] < 0.1


def test_covariances_are_those_of_the_first_rows_of_one_sample(experiments, monkeypatch):
    monkeypatch.setattr(experiments, "BLOCK_ROWS", 700)
    population = experiments.hierarchy(0.3, 0, (9, 3, 1))
    found = dict(experiments.covariances(population, (2_000, 500), 4))
    cuts = np.diff([0, 500, 700, 1_400, 2_000])
    sample = np.concatenate(list(population.blocks(cuts.tolist(), 4)))
    assert sorted(found) == [500, 2_000]
    for n, covariance in found.items():
        np.testing.assert_allclose(covariance, np.cov(sample[:n].T, bias=True), atol=1e-12)


@pytest.mark.slow
def test_the_table_has_averages_beside_the_numbers_of_the_paper(experiments, monkeypatch, tmp_path, capsys):
    draw = experiments.hierarchy
    monkeypatch.setattr(experiments, "hierarchy", lambda gap, seed: draw(gap, seed, (60, 6, 2)))
    monkeypatch.setattr(experiments, "N_PARTITIONS", 5)
    table, record = tmp_path / "table.md", tmp_path / "rows.json"
    command = ["hierarchy", "--gaps", "0.5", "--rows", "0", "25000", "--seeds", "2", "--methods", "search"]
    assert experiments.main([*command, "--json", str(record), "--markdown", str(table)]) == 0
    rows = json.loads(record.read_text())
    assert [(row["seed"], row["n_rows"]) for row in rows] == [(0, 0), (0, 25000), (1, 0), (1, 25000)]
    lines = table.read_text().splitlines()
    assert lines[0] == "| gap | rows | method | dist A2 | error A2 | precision A2 | recall A2 | dist A1 |"
    assert lines[2] == "| 0.5 | 25,000 | paper | 0.0731 |  |  |  | 0.5942 |"
    mean = np.mean([row["error_A2"] for row in rows if row["n_rows"]])
    assert f"| {mean:.4f} |" in lines[3]
    assert lines[4].startswith("| 0.5 | exact | search |")
    assert table.read_text() in capsys.readouterr().out
