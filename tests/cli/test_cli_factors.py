"""Factors of views on the command line."""

import json
import os
from collections import Counter

import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from distmom.models import ECA, load_model
from distmom.simulate.views import poisson_sentences

LOCAL = ("--workers", "0")
FIT = ("--model", "factors", "-k", 3)
COLUMNS = np.random.default_rng(0).gamma(0.3, size=(15, 3)) * 3


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """A folder with views and their groups in files of each kind, rows in the order of the groups or not."""
    folder = tmp_path_factory.mktemp("views")
    found = poisson_sentences(COLUMNS, [1.0, 0.5, 2.0], n_groups=2000, n_views=5, seed=1)
    X, groups = found.X, np.array([f"g{i:04d}" for i in found.groups])
    order = np.random.default_rng(2).permutation(len(X))
    np.save(folder / "views.npy", X)
    np.save(folder / "groups.npy", groups)
    np.save(folder / "mixed.npy", X[order])
    np.save(folder / "mixed-groups.npy", groups[order])
    np.savez(folder / "views.npz", X)
    sparse.save_npz(folder / "sparse.npz", sparse.csr_array(X.astype(np.float64)))
    (folder / "text.npy").write_text("no numbers")
    np.savez(folder / "two.npz", X, groups)
    bad = X.astype(np.float64)
    bad[7, 2] = np.nan
    np.save(folder / "nan.npy", bad)
    return folder


@pytest.fixture(scope="module")
def fitted(views):
    """The model of all views, fitted in Python."""
    return ECA(3).fit(views / "views.npy", groups=views / "groups.npy")


def scanned(err):
    """How many passes of each name were reported, and how many of them were found committed."""
    lines = [line for line in err.splitlines() if " groups in " in line]
    return Counter(line.partition(":")[0] for line in lines), sum("found committed" in line for line in lines)


def test_a_fit_has_the_passes_of_its_plan_and_the_bits_of_the_library(views, fitted, run, tmp_path):
    source = (views / "views.npy", "--groups", views / "groups.npy", *FIT)
    code, out, _ = run("plan", *source, "--json")
    assert code == 0
    planned = Counter()
    for entry in json.loads(out)["passes"]:
        planned[entry["name"]] += entry["n_scans"]
    assert planned == {"mean": 1, "sketch": 1, "power": 2, "moments": 1}
    assert "third moment" not in run("plan", *source)[1]
    code, out, err = run("fit", source[0], tmp_path / "m", *source[1:], *LOCAL, "--json")
    assert code == 0, err
    assert scanned(err) == (planned, 0)
    shown = json.loads(out)
    assert (shown["n_groups"], shown["n_found"]) == (2000, 3)
    assert_allclose(shown["skewness"], fitted.skewness_, rtol=1e-5)
    model = load_model(tmp_path / "m")
    assert_array_equal(model.components_, fitted.components_)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m"]
    code, out, _ = run("info", tmp_path / "m", "--json")
    reported = json.loads(out)
    assert (reported["model"], reported["n_features"], reported["n_groups"]) == ("ECA", 15, 2000)
    assert run("verify", tmp_path / "m")[0] == 0


@pytest.mark.parametrize("name", ["views.npz", "sparse.npz"])
def test_archives_give_the_same_model(name, views, fitted, run, tmp_path):
    source = (views / name, tmp_path / "m", "--groups", views / "groups.npy")
    code, _, err = run("fit", *source, *FIT, *LOCAL, "--quiet")
    assert code == 0, err
    assert_allclose(load_model(tmp_path / "m").components_, fitted.components_, rtol=1e-9)


@pytest.mark.parametrize("law", ["independent", "dirichlet"])
def test_all_of_the_models_options_and_a_report(law, views, run, tmp_path):
    options = ("--orders", "both", "--prior", law, "--alpha0", 2, "--n-oversamples", 5)
    source = (views / "views.npy", tmp_path / "m", "--groups", views / "groups.npy")
    code, _, err = run("fit", *source, *FIT, *options, *LOCAL)
    assert code == 0, err
    assert scanned(err)[0]["fourth"] == 1
    assert load_model(tmp_path / "m").get_params()["orders"] == "both"
    assert run("report", tmp_path / "m", tmp_path / "r.html") == (0, f"{tmp_path / 'r.html'}\n", "")
    page = (tmp_path / "r.html").read_text()
    model = load_model(tmp_path / "m")
    largest = int(np.abs(model.components_[0]).argmax())
    for text in ("excess kurtosis", "Eigenvalues of the second moment", f"feature {largest}", "Timings"):
        assert text in page
    assert ("Proportions" in page) == (law == "dirichlet")
    assert page.count("<article>") == len(model.components_)


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.cluster)])
@pytest.mark.slow
def test_an_interrupted_fit_resumes_with_the_same_bits(workers, views, fitted, run, tmp_path, monkeypatch):
    source = ("mixed.npy", tmp_path / "m", "--groups", "mixed-groups.npy")
    monkeypatch.chdir(views)

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(ECA, "save", stop)
        code, _, err = run("fit", *source, *FIT, "--workers", workers)
    assert code == 130
    assert f"distmom resume {tmp_path / 'm.run'} --workers {workers}" in err
    assert run("verify", tmp_path / "m.run")[0] == 0
    reported = json.loads(run("info", tmp_path / "m.run", "--json")[1])
    assert (reported["corpus"], reported["groups"]) == (
        str(views / "mixed.npy"),
        str(views / "mixed-groups.npy"),
    )
    # Paths of a run do not depend on the place that it was begun from.
    monkeypatch.chdir(tmp_path)
    code, _, err = run("resume", tmp_path / "m.run", "--workers", workers)
    assert code == 0, err
    passes, n_committed = scanned(err)
    assert n_committed == passes.total() == 5
    model = load_model(tmp_path / "m")
    mixed = ECA(3).fit(views / "mixed.npy", groups=views / "mixed-groups.npy")
    assert_array_equal(model.components_, mixed.components_)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m"]


def test_a_changed_file_is_noticed_when_a_run_resumes(views, run, tmp_path, monkeypatch):
    np.save(tmp_path / "v.npy", np.load(views / "views.npy"))
    source = (tmp_path / "v.npy", tmp_path / "m", "--groups", views / "groups.npy")

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(ECA, "save", stop)
        assert run("fit", *source, *FIT, *LOCAL)[0] == 130
    os.utime(tmp_path / "v.npy", ns=(1, 1))
    code, _, err = run("resume", tmp_path / "m.run", *LOCAL)
    assert code == 2
    assert f"{tmp_path / 'v.npy'}: changed since the run began" in err
    (tmp_path / "v.npy").unlink()
    code, _, err = run("resume", tmp_path / "m.run", *LOCAL)
    assert code == 4
    assert f"{tmp_path / 'v.npy'}: expected an .npy or .npz file, got none" in err


def test_factors_of_groups_are_written_in_order_and_whole(views, fitted, run, tmp_path):
    fitted.save(tmp_path / "m")
    arguments = ("transform", tmp_path / "m", views / "mixed.npy", tmp_path / "out")
    groups = ("--groups", views / "mixed-groups.npy")
    code, out, _ = run(*arguments, *groups, *LOCAL, "--json")
    assert code == 0
    reported = json.loads(out)
    assert (reported["n_groups"], reported["n_factors"]) == (2000, 3)
    factors = np.asarray(zarr.open_array(tmp_path / "out" / "factors.zarr", mode="r")[...])
    assert_array_equal(factors, fitted.transform(views / "mixed.npy", views / "mixed-groups.npy"))
    assert_allclose(reported["mean_factors"], factors.mean(axis=0), atol=1e-6)
    names = np.load(tmp_path / "out" / "groups.npy")
    labels = np.load(views / "mixed-groups.npy")
    assert names.tolist() == list(dict.fromkeys(labels.tolist()))
    assert json.loads(run("info", tmp_path / "out", "--json")[1])["kind"] == "factors"
    assert run("verify", tmp_path / "out")[0] == 0
    code, _, err = run(*arguments, *groups, *LOCAL)
    assert code == 2
    assert "already exists; choose another location or overwrite it (overwrite=True, or --overwrite)" in err
    assert run(*arguments, *groups, *LOCAL, "--overwrite")[0] == 0
    (tmp_path / "out" / "groups.npy").write_bytes(b"x")
    assert run("verify", tmp_path / "out")[0] == 4


@pytest.mark.parametrize(
    ("views_file", "groups_file", "code", "message"),
    [
        ("none.npy", "groups.npy", 2, "none.npy: expected an .npy or .npz file, got none"),
        ("views.npy", "none.npy", 2, "none.npy: expected an .npy or .npz file, got none"),
        (".", "groups.npy", 2, ": expected an .npy or .npz file, got something else"),
        ("views.npy", None, 2, "views.npy: views need --groups"),
        ("text.npy", "groups.npy", 3, "text.npy: not an .npy or .npz file of numbers"),
        ("two.npz", "groups.npy", 3, "two.npz: arrays: expected one, or a sparse matrix of"),
        (
            "groups.npy",
            "groups.npy",
            3,
            "groups.npy: shape: expected a matrix of rows and features, got (10000,)",
        ),
        ("views.npy", "views.npy", 3, "views.npy: shape: expected one group for every row, got (10000, 15)"),
        ("nan.npy", "groups.npy", 3, "nan.npy: value in row 7, column 2: expected a finite number, got nan"),
    ],
)
def test_bad_input_is_one_clear_sentence(views, run, tmp_path, views_file, groups_file, code, message):
    groups = () if groups_file is None else ("--groups", views / groups_file)
    found, out, err = run("fit", views / views_file, tmp_path / "m", *groups, *FIT, *LOCAL, "--quiet")
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_short_file_of_groups_is_named_with_that_of_the_rows(views, run, tmp_path):
    np.save(tmp_path / "g.npy", np.arange(3))
    code, _, err = run("plan", views / "views.npy", "--groups", tmp_path / "g.npy", *FIT)
    assert code == 3
    assert f"{tmp_path / 'g.npy'}: number of rows: expected 10000 as in {views / 'views.npy'}, got 3" in err


def test_what_factors_do_not_have_is_refused(views, fitted, run, tmp_path):
    fitted.save(tmp_path / "m")
    source = (views / "views.npy", tmp_path / "out")
    (tmp_path / "metrics.json").write_text("{}")
    for arguments, message in (
        (
            ("topics", tmp_path / "m"),
            "expected a model that has topics or latent states, got one of class ECA",
        ),
        (("predict", tmp_path / "m", *source), "expected a model that ranks labels, got one of class ECA"),
        (("evaluate", tmp_path / "m", source[0]), "expected a model that is fitted to documents, got one"),
        (
            ("ingest", source[0], tmp_path / "c", "--format", "tsv", "--like", tmp_path / "m", *LOCAL),
            "fitted to documents",
        ),
        (("transform", tmp_path / "m", *source), "views need --groups"),
        (
            ("transform", tmp_path / "m", *source, "--groups", views / "groups.npy", "--method", "fast"),
            "--method: not an option with",
        ),
        (
            ("transform", tmp_path / "m", *source, "--groups", views / "groups.npy", "--strict"),
            "--strict: not an option with",
        ),
        (
            ("report", tmp_path / "m", tmp_path / "r.html", "--shares", tmp_path),
            "--shares: expected a model that",
        ),
        (
            ("report", tmp_path / "m", tmp_path / "r.html", "--metrics", tmp_path / "metrics.json"),
            "--metrics: ",
        ),
        (("fit", source[0], tmp_path / "n", "--model", "lda"), "is not a corpus"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), err
        assert message in err
    np.save(tmp_path / "narrow.npy", np.load(views / "views.npy")[:, :3])
    narrow = (tmp_path / "narrow.npy", tmp_path / "out", "--groups", views / "groups.npy")
    code, _, err = run("transform", tmp_path / "m", *narrow, *LOCAL)
    assert code == 2
    assert "expected the 15 features of ECA, got 3" in err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m", "metrics.json", "narrow.npy"]
