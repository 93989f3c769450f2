"""The comparison of searches for topics with decompositions, at a small size."""

import importlib
import json

import pytest

SIZES = "4,1500,200,60"


@pytest.fixture
def comparison():
    return importlib.import_module("benchmark_search")


def test_searches_of_planted_topics_are_as_good_as_all_topics(comparison, tmp_path, capsys):
    path, table = tmp_path / "found.json", tmp_path / "table.md"
    assert comparison.main([
        "--planted", SIZES, "--seeds", "2", "--labels", "drawn", "--json", str(path), "--markdown", str(table),
    ]) == 0  # fmt: skip
    rows = json.loads(path.read_text())
    assert {row["system"] for row in rows} == set(comparison.SEARCHES)
    assert all(row["n_targets"] == 4 for row in rows)
    means = {row["system"]: row for row in comparison.averages(rows)}
    assert len(means) == len(comparison.SEARCHES)
    assert means["tpm"]["gain"] == 0.0
    for name in ("whitening", "cancellation", "cancellation-norm"):
        assert means[name]["error_l2"] < 1.1 * means["tpm"]["error_l2"], name
        assert means[name]["n_wrong"] == 0.0, name
    # All topics are decomposed again for each single target.
    assert means["whitening"]["one_ms"] < means["tpm"]["one_ms"]
    assert table.read_text().count("\n") == 2 + len(means)
    said = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(f"{SIZES}: one search by whitening") for line in said) == 2


def test_gains_are_those_of_the_errors_of_each_target(comparison):
    rows = comparison.measure([3, 600, 80, 40], 0, "margin")
    by_name = {row["system"]: row for row in rows}
    assert by_name["tpm"]["gain"] == 0.0
    # The closed form and bisection find the same multiple of the side information.
    assert by_name["cancellation"]["gain"] == pytest.approx(by_name["whitening"]["gain"], abs=1e-6)
    assert by_name["cancellation-bisection"]["gain"] == pytest.approx(by_name["whitening"]["gain"], abs=1e-3)


def test_a_claim_holds_for_fast_searches_that_are_hardly_worse(comparison):
    def row(system, one_ms, error):
        return {"planted": "2,3,4,5", "system": system, "one_ms": one_ms, "all_ms": one_ms, "error_l2": error}

    means = [row("whitening", 1.0, 1.04), row("tpm", 10.0, 1.0), row("joint", 4.0, 2.0)]
    first, second = comparison.claims(means)
    assert first.endswith("of the time of tpm (all targets: 1/10.0), at 1.040 of its error: the claim holds")
    assert second.endswith("at 0.520 of its error: the claim does not hold")


@pytest.mark.parametrize("sizes", ["4,1500,200", "4,1500,200,x", "0,1,2,3"])
def test_sizes_that_are_not_four_numbers_are_refused(comparison, capsys, sizes):
    with pytest.raises(SystemExit):
        comparison.main(["--planted", sizes])
    assert f"--planted: expected K,N,D,L, got {sizes}" in capsys.readouterr().err
