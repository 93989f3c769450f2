"""Rows and sequences on the command line: ingest, plan, fit, transform, report, verify, and what is refused."""

import json
import re

import numpy as np
import pytest
import zarr
from helpers import matched

from distmom.engine.directory import epochs
from distmom.models import FactorialHMM, HiddenMarkov, LatentTree, SphericalMixture
from distmom.simulate.chains import FactorialChains

LOCAL = ("--workers", "0")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with rows of two clusters, and tagged sequences of two states."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    component = rng.integers(0, 2, 3000)
    np.save(folder / "x.npy", rng.standard_normal((3000, 6)) + 4.0 * component[:, None] * (np.arange(6) < 3))
    np.save(folder / "component.npy", component)
    lines = []
    for _ in range(400):
        state = np.cumsum(rng.random(12) < 0.2) % 2
        words = [f"{'ab'[s]}{rng.integers(0, 5)}/{'XY'[s]}" for s in state]
        lines.append(" ".join(words))
    (folder / "s.tagged").write_text("\n".join([*lines, ""]))
    return folder


def test_a_mixture_from_a_file_to_its_report(place, run, tmp_path):
    code, out, _ = run("ingest", place / "x.npy", tmp_path / "c", "--shard-rows", 1000, *LOCAL, "--json")
    assert code == 0
    described = json.loads(out)
    assert (described["n_units"], described["n_rows"], described["n_shards"]) == (3000, 3000, 3)
    code, out, _ = run("plan", tmp_path / "c", "--model", "gaussian", "-k", 2, "--json")
    assert code == 0
    n_planned = json.loads(out)["n_scans"]
    code, _, err = run("fit", tmp_path / "c", tmp_path / "m", "--model", "gaussian", "-k", 2, *LOCAL)
    assert code == 0
    assert re.search(r"^moments: 3,000 rows in \d+\.\d s, [\d,]+ rows/s$", err, re.MULTILINE)
    model = SphericalMixture.load(tmp_path / "m")
    assert len(model.timings_) == n_planned
    code, out, _ = run("transform", tmp_path / "m", tmp_path / "c", tmp_path / "out", *LOCAL, "--json")
    assert code == 0
    assert json.loads(out)["n_rows"] == 3000
    group = zarr.open_group(tmp_path / "out/components.zarr", mode="r")
    found, truth = group["components"][...], np.load(place / "component.npy")
    assert max(np.mean(found == truth), np.mean(found != truth)) > 0.99
    X = np.load(place / "x.npy")
    np.testing.assert_array_equal(found, model.predict(X))
    np.testing.assert_allclose(group["probabilities"][...], model.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "out/starts.npy"), np.arange(3001))
    assert run("verify", tmp_path / "out")[0] == 0
    assert json.loads(run("info", tmp_path / "out", "--json")[1])["kind"] == "components"
    assert run("report", tmp_path / "m", tmp_path / "r.html")[0] == 0
    page = (tmp_path / "r.html").read_text()
    assert "SphericalMixture" in page
    assert page.count("<svg") >= 1
    described = json.loads(run("info", tmp_path / "m", "--json")[1])
    assert described["model"] == "SphericalMixture"
    assert (described["n_features"], described["n_units"]) == (6, 3000)
    assert not {"n_words", "n_documents", "n_labels"} & described.keys()


def test_numbers_in_lists_are_shown_with_as_many_digits_as_others(place, run, tmp_path):
    run("ingest", place / "x.npy", tmp_path / "c", *LOCAL)
    fit = ("fit", tmp_path / "c", tmp_path / "m", "--model", "latent-tree", "-k", 2, *LOCAL)
    tree = ("--tree", "(1,2,3)", "--widths", "1,1,4", "--quiet", "--overwrite")
    code, out, _ = run(*fit, *tree)
    assert code == 0
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert re.fullmatch(r"0\.\d{4}|\d\.\de-\d\d", shown["conditioning"])
    assert re.fullmatch(r"\[0\.\d{4}, 0\.\d{4}\]", shown["weights"])
    found = json.loads(run(*fit, *tree, "--json")[1])
    assert found["conditioning"] == LatentTree.load(tmp_path / "m").diagnostics_["conditioning"]


def test_a_run_whose_data_do_not_suit_the_model_is_in_the_way_of_no_other(place, run, tmp_path, monkeypatch):
    run("ingest", place / "x.npy", tmp_path / "c", *LOCAL)
    fit = ("fit", tmp_path / "c", tmp_path / "m", "--model", "gaussian", *LOCAL, "--quiet")
    code, _, err = run(*fit, "-k", 5)
    assert (code, "carries fewer than 5 components" in err) == (3, True)
    assert run(*fit, "-k", 5)[0] == 3
    assert (tmp_path / "m.run").exists()
    # The process of the test has carried out the run, and has not ended.
    assert "holds another run" in run(*fit, "-k", 2)[2]
    monkeypatch.setattr(epochs.Owner, "is_gone", True)
    assert run(*fit, "-k", 2)[0] == 0
    assert not (tmp_path / "m.run").exists()
    chosen = (*fit, "--run", tmp_path / "r", "--overwrite")
    assert run(*chosen, "-k", 5)[0] == 3
    assert "holds another run, which differs in n_components" in run(*chosen, "-k", 2)[2]


def test_a_hidden_markov_model_of_tagged_texts(place, run, tmp_path):
    assert run("ingest", place / "s.tagged", tmp_path / "c", *LOCAL, "--json")[0] == 0
    code, out, _ = run("info", tmp_path / "c", "--json")
    assert code == 0
    assert len(json.loads(out)["layers"]) == 2
    fit = ("--model", "hmm", "-k", 2, "--layer", "rows")
    code, out, err = run("fit", tmp_path / "c", tmp_path / "m", *fit, *LOCAL)
    assert code == 0
    assert re.search(r"^clipped +\d", out, re.MULTILINE)
    assert re.search(r"^\w+: 400 units in \d+\.\d s, [\d,]+ units/s$", err, re.MULTILINE)
    model = HiddenMarkov.load(tmp_path / "m")
    new = tmp_path / "new.seq"
    new.write_text("a0 a1 a0 b3 b2 b1\nb0 b1 a2 a1\n")
    for like in ("c", "m"):
        assert run("ingest", new, tmp_path / "new", "--like", tmp_path / like, "--overwrite", *LOCAL)[0] == 0
    assert run("transform", tmp_path / "m", tmp_path / "new", tmp_path / "out", *LOCAL)[0] == 0
    group = zarr.open_group(tmp_path / "out/components.zarr", mode="r")
    states = group["states"][...]
    a, b = states[0], states[5]
    assert a != b
    np.testing.assert_array_equal(states, [a, a, a, b, b, b, b, b, a, a])
    np.testing.assert_array_equal(np.load(tmp_path / "out/starts.npy"), [0, 6, 10])
    assert (tmp_path / "out/ids.txt").read_text().split() == ["1", "2"]
    assert run("report", tmp_path / "m", tmp_path / "r.html")[0] == 0
    assert "Transition matrix" in (tmp_path / "r.html").read_text()
    # Without the symbols of the model the numbers would mean other words.
    assert run("ingest", new, tmp_path / "other", *LOCAL)[0] == 0
    code, _, err = run("transform", tmp_path / "m", tmp_path / "other", tmp_path / "no", *LOCAL)
    assert code == 2
    assert "expected the 10 features of HiddenMarkov, got 7" in err
    assert not (tmp_path / "no").exists()
    assert model.n_features_in_ == 10


def test_a_factorial_hidden_markov_model_of_a_file(run, tmp_path):
    rng = np.random.default_rng(3)
    fall, rise = np.array([[0.3, 0.4], [0.1, 0.15]])
    chains = FactorialChains(rng.standard_normal((2, 5)), np.ones(5), np.array([0.2, 0.3]), fall, rise)
    drawn = chains.sample(8000, 3, noise=0.4, seed=1)
    np.save(tmp_path / "x.npy", drawn.X)
    np.save(tmp_path / "l.npy", drawn.lengths)
    ingest = ("ingest", tmp_path / "x.npy", tmp_path / "c", "--lengths", tmp_path / "l.npy")
    assert run(*ingest, "--shard-rows", 5000, *LOCAL)[0] == 0
    fit = ("--model", "factorial-hmm", "-k", 2, "--n-em-iter", 2)
    code, out, _ = run("plan", tmp_path / "c", *fit, "--json")
    assert code == 0
    assert run("fit", tmp_path / "c", tmp_path / "m", *fit, *LOCAL, "--quiet")[0] == 0
    model = FactorialHMM.load(tmp_path / "m")
    assert len(model.timings_) == json.loads(out)["n_scans"]
    assert matched(model.components_, chains.components)[0] < 0.1
    assert run("transform", tmp_path / "m", tmp_path / "c", tmp_path / "out", *LOCAL)[0] == 0
    group = zarr.open_group(tmp_path / "out/components.zarr", mode="r")
    np.testing.assert_allclose(group["means"][...], model.transform(drawn.X, drawn.lengths), atol=1e-6)
    np.testing.assert_array_equal(group["states"][...], model.predict(drawn.X, drawn.lengths))
    assert run("verify", tmp_path / "out")[0] == 0
    assert run("report", tmp_path / "m", tmp_path / "r.html")[0] == 0
    assert "FactorialHMM" in (tmp_path / "r.html").read_text()
    code, _, err = run("fit", tmp_path / "c", tmp_path / "n", "--model", "factorial-hmm", "-k", 6, *LOCAL)
    assert code == 2
    assert "n_components: expected at most 5, the number of values of a step, got 6" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("ingest", "x.npy", "c", "--min-df", 3),
            "--min-df: is for documents only, and npy is a format of rows",
        ),
        (("ingest", "x.csv", "c", "--lengths", "l.npy"), "--lengths: is for rows and sequences only"),
        (
            ("ingest", "t.tsv", "c", "--views", "sentences", "--min-count", 2),
            "--min-count: is for rows and seq",
        ),
        (
            ("ingest", "t.tsv", "c", "--views", "sentences", "--ngrams", 2),
            "--ngrams: cannot be combined with --views",
        ),
        (("ingest", "x.npy", "c", "--group-column", "g"), "group_column: does not apply to npy"),
        (("ingest", "x.npy", "c", "--n-symbols", 3), "n_symbols: expected a vector of symbols, got a matrix"),
        (("ingest", "s.seq", "c", "--vocab", "t.tsv"), "--vocab: does not apply to the format sequences"),
        (("ingest", "x.npy", "c", "--like", "titles"), "titles: expected a corpus of layers"),
        (("ingest", "t.tsv", "c", "--like", "corpus"), "corpus: expected a corpus of words, got one of rows"),
        (
            ("fit", "corpus", "m"),
            "MultiLabelMoM: expected a corpus of words, got one of rows (dense along rows)",
        ),
        (
            ("fit", "corpus", "m", "--model", "product"),
            "ingest a matrix of counts, or of 0 and 1, as a sparse one: a file .npz, written by scipy.sparse",
        ),
        (("fit", "corpus", "m", "--model", "hmm", "--layer", "x"), "expected a layer 'x' along rows"),
        (("fit", "titles", "m", "--model", "gaussian"), "SphericalMixture: expected a layer along rows"),
        (("predict", "m", "corpus", "out"), "m: not a model"),
        (("ingest", "x.npy", "c", "--format", "npy", "--lengths", "missing.npy"), "missing.npy"),
    ],
)
def test_what_does_not_go_together_is_refused(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((20, 2)))
    (tmp_path / "x.csv").write_text("text,labels\nhello world,a\n")
    (tmp_path / "s.seq").write_text("a b\n")
    (tmp_path / "t.tsv").write_text("a\thello world\nb\thello there\n")
    assert run("ingest", "x.npy", "corpus", *LOCAL)[0] == 0
    assert run("ingest", "t.tsv", "titles", "--min-df", 1, *LOCAL)[0] == 0
    code, _, err = run(*arguments, *LOCAL)
    assert code in (2, 3)
    assert message in err
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "m").exists()
