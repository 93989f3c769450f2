"""Commands for planted corpora and for what a fit costs."""

import errno
import json
import re

import pytest

LOCAL = ("--workers", "0", "--quiet")


@pytest.mark.slow
def test_a_planted_corpus_is_fitted_and_scored_against_its_truth(run, tmp_path):
    train, test = tmp_path / "train", tmp_path / "test"
    sizes = ("bibtex", train, "--docs", 6000, "--states", 5, "--seed", 1, *LOCAL)
    code, out, err = run("synth", *sizes, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["n_documents"] == 6000
    code, out, err = run("synth", *sizes)
    assert (code, out) == (2, "")
    assert "already exists" in err
    code, _, _ = run(
        "synth", "bibtex", test, "--first", 6000, "--docs", 500, "--states", 5, "--seed", 1, *LOCAL
    )
    assert code == 0
    fit = ("fit", train, tmp_path / "m", "-k", 5, "--head", "posterior", "--moments", "distinct", *LOCAL)
    assert run(*fit)[0] == 0
    code, out, _ = run(
        "evaluate", tmp_path / "m", test, "--truth", f"{test}.truth", "--auc-documents", 100, *LOCAL, "--json"
    )
    score = json.loads(out)
    assert code == 0
    assert score["n_recovered"] == score["n_planted"] == 5
    assert score["words_l1"] < 0.4
    assert score["AUC"] > 0.85
    assert score["n_documents"] == 500 > score["n_auc"] > 50
    code, out, _ = run(*fit, "--third-moment", "slices", "--overwrite", "--json")
    assert code == 0
    assert json.loads(out)["third_moment"] == "slices"
    code, out, _ = run(
        "evaluate", tmp_path / "m", test, "--truth", f"{test}.truth", "--auc-documents", 100, *LOCAL, "--json"
    )
    sliced = json.loads(out)
    assert sliced["n_recovered"] == 5
    # So few states have as many slices, which are the whole tensor.
    assert sliced["words_l1"] == pytest.approx(score["words_l1"], rel=1e-3)
    code, _, err = run("evaluate", tmp_path / "m", test, "--truth", tmp_path, *LOCAL)
    assert code == 2
    assert "is not the truth of a planted corpus" in err


def test_the_floor_is_the_sum_of_its_kernels(run, tmp_path):
    assert run("synth", "bibtex", tmp_path / "c", "--docs", 2000, "--shard-docs", 500, *LOCAL)[0] == 0
    code, out, _ = run("bench", "floor", tmp_path / "c", "-k", 10, *LOCAL, "--json")
    assert code == 0
    seconds = json.loads(out)
    names = ("sketch", "power", "projection", "third_moment", "labels", "decomposition")
    assert seconds["floor_s"] == pytest.approx(sum(seconds[f"{name}_s"] for name in names), abs=0.01)
    assert all(seconds[f"{name}_s"] >= 0 for name in names)
    none = json.loads(
        run("bench", "floor", tmp_path / "c", "-k", 10, "--n-power-iter", 0, *LOCAL, "--json")[1]
    )
    assert none["power_s"] == 0


def test_a_fit_says_how_much_disk_it_may_need_and_warns_where_less_is_free(run, tmp_path, monkeypatch):
    options = ("--docs", 200, "--words", 300, "--states", 2, "--workers", 0, "--quiet")
    assert run("synth", "lda", tmp_path / "corpus", *options)[0] == 0
    fit = ("fit", tmp_path / "corpus", tmp_path / "model", "-k", 2, "--model", "lda", "--workers", 0)
    code, _, err = run(*fit)
    assert code == 0
    assert re.search(r"at most [\d,]+ MiB per worker, [\d,]+ MiB of disk", err)
    assert "are free" not in err
    monkeypatch.setattr("distmom.cli.fits.find_usage", lambda path: (0, 10**9))
    code, _, err = run(*fit, "--quiet", "--overwrite")
    assert code == 0
    expected = rf"^warning: {tmp_path}: the fit may need \d+ MiB of disk, but only 0 MiB are free$"
    assert re.search(expected, err, re.M)


def test_what_a_resumed_run_holds_is_not_needed_once_more(run, tmp_path, monkeypatch):
    options = ("--docs", 200, "--words", 300, "--states", 2, "--workers", 0, "--quiet")
    assert run("synth", "lda", tmp_path / "corpus", *options)[0] == 0
    fit = (
        "fit",
        tmp_path / "corpus",
        tmp_path / "model",
        "-k",
        2,
        "--model",
        "lda",
        "--workers",
        0,
        "--quiet",
    )
    with monkeypatch.context() as patched:
        patched.setattr("distmom.cli.run.Run.save", _refuse_to_save)
        assert run(*fit)[0] != 0
    held = sum(file.stat().st_size for file in (tmp_path / "model.run").rglob("*") if file.is_file())
    needed = json.loads(run("plan", *fit[1:2], *fit[3:7], "--json")[1])["disk_bytes"]
    assert held > 1000
    monkeypatch.setattr("distmom.cli.fits.find_usage", lambda path: (needed - 1000, 10**9))
    code, _, err = run("resume", tmp_path / "model.run", "--workers", 0)
    assert code == 0
    assert "are free" not in err


def _refuse_to_save(*arguments):
    raise OSError(errno.EIO, "Input/output error")
