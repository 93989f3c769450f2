"""Options that are made from the parameters of estimators."""

import json
import subprocess
import sys

import pytest

from distmom.cli.generate import declared_table
from distmom.cli.parameters import TABLE, flag, parameters, table
from distmom.models import ESTIMATORS, estimator

FITTED = [listing.name for listing in ESTIMATORS if listing.command == "fit"]


def options(out, title):
    """The options of a section of a help text."""
    section = out.partition(f"{title}:\n")[2].partition("\n\n")[0]
    words = [line.replace(",", " ").split() for line in section.splitlines() if line.startswith("  -")]
    return {word for line in words for word in line if word.startswith("--")}


def test_the_table_is_what_the_estimators_declare():
    reported = "outdated; run 'python -m distmom.cli.generate'"
    assert json.loads(TABLE.read_text(encoding="utf-8")) == declared_table(), reported


@pytest.mark.parametrize("name", FITTED)
def test_help_lists_the_options_of_the_model_alone(name, run):
    for command in ("fit", "plan"):
        code, out, _ = run(command, "--help", "--model", name)
        assert code == 0
        own = {f"--{p.replace('_', '-')}" for p in estimator(name).parameters()} - {"--random-state"}
        negated = {word for word in options(out, f"Options of --model {name}") if word.startswith("--no-")}
        source = {"--groups"} if name == "factors" else set()
        assert options(out, f"Options of --model {name}") - negated == own | {"--seed"} | source
        assert {"--model", "--memory-limit"} <= options(out, "Options")
        assert all(f"  {other} " in out for other in FITTED)


def test_help_without_a_model_is_that_of_the_default(run):
    assert run("fit", "--help") == run("fit", "--model=multilabel", "--help")
    # The last one counts, as everywhere, and what follows -- is no option.
    assert run("fit", "--model", "lda", "--model", "anchors", "--help") == run(
        "fit", "--model", "anchors", "-h"
    )


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (
            ("fit", "--model", "lda"),
            ("[default: auto; at least 0]", "0: no limit. [default: 2;", "no-background"),
        ),
        (("fit", "--model", "factors"), ("Number of factors. [default: 10; at least 1]", "[3|4|both]")),
        (("fit",), ("[default: 0.1; at least 0; below 1]", "2, or 6 with distinct positions; at least 0")),
        (("moments",), ("[default: 8; at least 1]", "Largest number of topics of later fits.")),
        (
            ("search",),
            ("|cancellation-pair|fast-tpm|tpm|joint|random]", "Approximate number of topics of the corpus"),
        ),
    ],
)
def test_help_has_defaults_bounds_and_meaning(arguments, texts, run):
    _, out, _ = run(*arguments, "--help")
    for text in texts:
        assert text in " ".join(out.split())


def test_every_parameter_has_an_option_and_every_option_a_parameter():
    for name in table():
        assert parameters(name, {}) == estimator(name)().get_params()
    assert flag("random_state") == "--seed"
    given = {"max_count": 0, "n_components": 3, "scale_words": False, "groups": "g.npy", "init": None}
    chosen = parameters("lda", given)
    assert chosen == {**parameters("lda", {}), "max_count": None, "n_components": 3, "scale_words": False}


def test_an_option_of_another_model_is_named_with_its_owners(run):
    for option, model, owners in (
        (("--head", "auto"), "lda", "multilabel"),
        (("--no-background",), "anchors", "lda"),
        (("--groups", "g"), "eca", "factors"),
        (("--orders", "3"), "multilabel", "lda, eca, factors"),
        (("--orders", "4"), "anchors", "lda, eca, factors"),
    ):
        code, out, err = run("fit", "a", "b", "--model", model, *option)
        assert (code, out) == (2, "")
        assert err == f"error: {option[0]}: not an option of --model {model}, but of {owners}\n"


@pytest.mark.parametrize(
    "arguments", [("fit", "--help"), ("plan", "--model", "lda", "--help"), ("search", "-h")]
)
def test_help_imports_no_estimator(arguments):
    code = (
        "import sys\nfrom distmom.cli.main import main\n"
        f"assert main({list(arguments)!r}) == 0\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stderr.split())
    assert "distmom.cli.app" in loaded
    assert "sklearn" not in loaded
    assert {name for name in loaded if name.startswith("distmom.models")} == {"distmom.models"}


def test_help_has_a_short_option_after_a_command_was_submitted(run, tmp_path):
    # Refused at once, without TLS.
    assert run("submit", "fit", tmp_path, tmp_path / "m", "--scheduler", "tcp://192.0.2.1:1")[0] == 2
    assert run("fit", "-h")[0] == 0
