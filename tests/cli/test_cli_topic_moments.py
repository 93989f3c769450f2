"""Topics by kept moments, of independent amounts and by the fourth moment on the command line, and plans."""

import json
from collections import Counter

import numpy as np
import pytest
from themes import LOCAL, WORDS, themed

from distmom.models import load_model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a corpus and a model of each kind."""
    return themed(tmp_path_factory.mktemp("topics"))


def test_moments_are_kept_added_and_fitted(place, run, tmp_path):
    lines = (place / "train.tsv").read_text().splitlines(keepends=True)
    for name, part in (("old", lines[:400]), ("new", lines[400:]), ("gone", lines[:50])):
        (tmp_path / f"{name}.tsv").write_text("".join(part))
        code, _, err = run(
            "ingest", tmp_path / f"{name}.tsv", tmp_path / name, "--like", place / "lda", *LOCAL
        )
        assert code == 0, err
    moments, options = tmp_path / "moments", ("-k", 3, "--max-df", 1, "--n-parts", 4)
    code, out, _ = run("moments", tmp_path / "old", moments, *options, "--json", *LOCAL)
    assert code == 0
    assert json.loads(out)["n_documents"] == 400
    for name in ("new", "gone"):
        like = ("--like", moments, *LOCAL)
        assert run("moments", tmp_path / name, tmp_path / f"{name}.moments", *like)[0] == 0
    arguments = ("--add", moments, "--add", tmp_path / "new.moments", "--subtract", tmp_path / "gone.moments")
    code, out, _ = run("combine", tmp_path / "all", *arguments, "--json")
    assert code == 0
    assert (json.loads(out)["n_documents"], json.loads(out)["n_corpora"]) == (550, 3)
    code, out, _ = run("fit", tmp_path / "all", tmp_path / "model", "-k", 3, "--model", "lda", "--json")
    assert code == 0
    assert json.loads(out)["n_topics"] == 3
    # Of shares near a third, by 550 documents of two themes each.
    assert 0.002 < json.loads(out)["weight_errors"] < 0.05
    code, out, _ = run("topics", tmp_path / "model", "--top", 5, "--json")
    found = [frozenset(word for word, _ in topic["words"]) for topic in json.loads(out)["topics"]]
    assert set(found) == {frozenset(words) for words in WORDS.values()}
    assert "±0.0" in run("topics", tmp_path / "model")[1]
    # As many topics as the moments were made for, and the parameters that they were made with.
    assert run("fit", tmp_path / "all", tmp_path / "same", "--model", "lda", "--json")[0] == 0
    assert load_model(tmp_path / "same").get_params()["max_df"] == 1.0
    assert json.loads(run("info", tmp_path / "all", "--json")[1])["kind"] == "moments"
    assert run("verify", tmp_path / "all")[0] == 0
    # What is wrong is said before anything is written.
    for wrong, message in (
        (("fit", moments, tmp_path / "m", "-k", 3), "holds moments of topics"),
        (
            ("fit", moments, tmp_path / "m", "-k", 3, "--model", "lda", "--n-refine", 2),
            "n_refine: expected 0",
        ),
        (("fit", moments, tmp_path / "m", "-k", 9, "--model", "lda"), "expected at most 3"),
        (
            ("fit", moments, tmp_path / "m", "--model", "lda", "--min-df", 0.1),
            "--min-df: expected none, as the moments",
        ),
        (("fit", moments, moments, "--model", "lda", "--overwrite"), "holds the moments themselves"),
        (
            ("fit", moments, tmp_path / "m", "--model", "lda", "--workers", 2),
            "--workers: expected none",
        ),
        (
            ("fit", moments, tmp_path / "m", "--model", "lda", "--memory-limit", "1GiB"),
            "--memory-limit: expected none with kept moments",
        ),
        (
            ("search", moments, "--word", "cat", "--memory-limit", "1GiB"),
            "--memory-limit: expected none with kept moments",
        ),
        (
            ("moments", tmp_path / "new", tmp_path / "m", "--like", moments, "--seed", 1),
            "--seed: expected none with",
        ),
        (("combine", tmp_path / "m", "--add", moments, "--add", moments), "are in both sums"),
        (("combine", tmp_path / "all", "--add", moments), "exists; choose another location"),
        (("topics", moments), "kept moments, not a model"),
    ):
        code, _, err = run(*wrong)
        assert code == 2, err
        assert message in err
    assert not (tmp_path / "m").exists()
    file = next(f for f in (moments / "arrays.zarr").rglob("c/*") if f.is_file())
    file.write_bytes(b"x" * file.stat().st_size)
    assert run("verify", moments)[0] == 4
    assert run("fit", moments, tmp_path / "m", "-k", 3, "--model", "lda")[0] == 4


def test_topics_of_independent_amounts(run, tmp_path):
    """Themes come in amounts of their own, so that lengths vary."""
    rng = np.random.default_rng(0)
    lines = []
    for amounts in rng.gamma(0.5, 16.0, (1500, 3)):
        words = [
            w
            for theme, n in zip(WORDS.values(), rng.poisson(amounts), strict=True)
            for w in rng.choice(theme, n)
        ]
        lines.append(f"x\t{' '.join(words)}\n")
    (tmp_path / "train.tsv").write_text("".join(lines))
    assert run("ingest", tmp_path / "train.tsv", tmp_path / "corpus", *LOCAL)[0] == 0
    options = ("-k", 3, "--model", "eca", "--max-df", 1)
    assert run("fit", tmp_path / "corpus", tmp_path / "model", *options, *LOCAL)[0] == 0
    code, out, _ = run("topics", tmp_path / "model", "--top", 5, "--json")
    found = {frozenset(word for word, _ in topic["words"]) for topic in json.loads(out)["topics"]}
    assert found == {frozenset(words) for words in WORDS.values()}
    code, out, _ = run("evaluate", tmp_path / "model", tmp_path / "corpus", "--json", *LOCAL)
    assert 5 < json.loads(out)["perplexity"] < 12
    options = (*options, "--orders", "both")
    code, out, _ = run("plan", tmp_path / "corpus", *options, "--json")
    assert n_scans(out)["fourth"] == 2
    assert run("fit", tmp_path / "corpus", tmp_path / "of-both", *options, *LOCAL)[0] == 0
    code, out, _ = run("topics", tmp_path / "of-both", "--top", 5, "--json")
    found = {frozenset(word for word, _ in topic["words"]) for topic in json.loads(out)["topics"]}
    assert found == {frozenset(words) for words in WORDS.values()}
    for option, value in (("--alpha0", 1), ("--max-count", 2), ("--weighting", "tokens")):
        code, _, err = run("fit", tmp_path / "corpus", tmp_path / "m", *options, option, value, *LOCAL)
        assert code == 2
        assert f"{option}: not an option of --model eca" in err


def test_topics_by_the_fourth_moment(place, run, tmp_path):
    options = ("-k", 3, "--model", "lda", "--max-df", 1, "--orders", "both", "--alpha0", 1)
    code, _, err = run("fit", place / "corpus", tmp_path / "model", *options, *LOCAL)
    assert code == 2
    assert (
        "orders='both' requires init='tensor' and a number for alpha0, got init='auto' and alpha0=1.0" in err
    )
    options = (*options, "--init", "tensor")
    code, out, _ = run("plan", place / "corpus", *options, "--json")
    assert n_scans(out)["fourth"] == 2
    assert run("fit", place / "corpus", tmp_path / "model", *options, *LOCAL)[0] == 0
    code, out, _ = run("topics", tmp_path / "model", "--top", 5, "--json")
    found = {frozenset(word for word, _ in topic["words"]) for topic in json.loads(out)["topics"]}
    assert found == {frozenset(words) for words in WORDS.values()}
    assert load_model(tmp_path / "model").diagnostics_["orders"] == "both"
    code, out, _ = run("evaluate", tmp_path / "model", place / "test.tsv", "--json", *LOCAL)
    assert 5 < json.loads(out)["perplexity"] < 14


def n_scans(out):
    """Return the scans of every kind of pass in a plan."""
    found = Counter()
    for p in json.loads(out)["passes"]:
        found[p["name"]] += p["n_scans"]
    return found


def test_a_plan_lists_the_passes_of_the_model(place, run):
    options = ("-k", 3, "--model", "lda", "--max-df", 1)
    fixed = ("--init", "tensor", "--alpha0", 1, "--json")
    code, out, _ = run("plan", place / "corpus", *options, "--refine", "vb", *fixed)
    assert code == 0
    passes = n_scans(out)
    # Variational Bayes finds the Dirichlet parameters itself.
    assert passes == {"sketch": 1, "power": 4, "moments": 1, "refine": 4}
    options = (*options, "--refine", "em")
    code, out, _ = run("plan", place / "corpus", *options, *fixed)
    assert code == 0
    # Two passes before and four over all documents; 22 more, and 16 with a background topic, are possible.
    assert n_scans(out) == {"sketch": 1, "power": 4, "moments": 2, "refine": 44, "completion": 6}
    code, out, _ = run("plan", place / "corpus", *options, "--n-refine", 4, *fixed)
    assert code == 0
    assert n_scans(out) == {"sketch": 1, "power": 4, "moments": 2, "refine": 6, "completion": 1}
    by_name = {p["name"]: p for p in json.loads(out)["passes"]}
    # Shares of 600 documents in 3 topics, in float32.
    assert by_name["refine"]["rows_bytes"] == 600 * 3 * 4
    assert json.loads(out)["disk_bytes"] > 4 * by_name["refine"]["rows_bytes"]
    assert "third moment" not in run("plan", place / "corpus", *options)[1]


def test_moments_and_search_have_the_passes_of_their_plans(place, run, tmp_path):
    def made(err):
        return Counter(line.partition(":")[0] for line in err.splitlines() if " documents in " in line)

    options = ("-k", 3, "--max-df", 1)
    plan = ("plan", place / "corpus", *options, "--json", "--model")
    code, out, _ = run(*plan, "moments", "--n-parts", 2)
    assert code == 0
    code, _, err = run(
        "moments", place / "corpus", tmp_path / "kept", *options, "--n-parts", 2, "--workers", 0
    )
    assert code == 0
    assert made(err) == n_scans(out) == {"sketch": 1, "power": 4, "moments": 2}
    code, out, _ = run(*plan, "search", "--n-power-iter", 1)
    search = ("search", place / "corpus", "--word", "cat", *options, "--n-power-iter", 1, "--workers", 0)
    code, _, err = run(*search)
    assert code == 0
    assert made(err) == n_scans(out) == {"sketch": 1, "power": 1, "moments": 2}
    code, _, err = run("search", tmp_path / "kept", "--word", "cat", "--n-power-iter", 1)
    assert code == 2
    assert "--n-power-iter: expected none, as the moments" in err
    # A method of search is no part of the moments.
    assert run("search", tmp_path / "kept", "--word", "cat", "--method", "joint", "--force")[0] == 0


def test_a_run_of_another_model_is_not_taken_up(place, run, tmp_path):
    from distmom.cli import run as runs
    from distmom.cli.options import Cluster

    corpus, model = str(place / "corpus"), str(tmp_path / "m")
    begun = runs.create(corpus, model, str(tmp_path / "r"), "lda", {"n_components": 3}, overwrite=False)
    with pytest.raises(KeyboardInterrupt), begun.carried_out(Cluster(workers=0)):
        raise KeyboardInterrupt
    assert runs.reopen(begun.path).model_name == "lda"
    (tmp_path / "r" / "passes" / "sketch-0").mkdir(parents=True)
    (tmp_path / "r" / "passes" / "sketch-0" / "DONE.json").write_text("{}")
    code, _, err = run("fit", corpus, model, "--run", tmp_path / "r", "-k", 3, "--model", "anchors", *LOCAL)
    assert code == 2
    assert "holds another run, which differs in model" in err
