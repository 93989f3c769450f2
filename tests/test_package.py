"""What ``import distmom`` offers, and when it is imported."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import distmom
import distmom.models
from distmom.corpus import MemoryCorpus
from distmom.errors import UsageError

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_those_listed():
    assert distmom.__all__ == [
        "AnchorTopics",
        "DiagonalMixture",
        "ECA",
        "FactorialHMM",
        "GaussianSearch",
        "HiddenMarkov",
        "ICA",
        "IndependentTopics",
        "LatentNetwork",
        "LatentTree",
        "MultiLabelMoM",
        "MultiView",
        "ProductMixture",
        "RegressionSearch",
        "SingleTopic",
        "SparseTopics",
        "SpectralLDA",
        "SphericalMixture",
        "SubspaceSearch",
        "TopicMoments",
        "TopicSearch",
        "evaluate",
        "ingest",
        "load_model",
        "open_corpus",
        "submit",
        "write_report",
    ]
    assert set(distmom.__all__) <= set(dir(distmom))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        distmom.nothing  # noqa: B018


def imported_for_checkers(module):
    """Return the names that a module imports for type checkers alone."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return {name.asname: (line.module, name.name) for line in node.body for name in line.names}
    return {}


@pytest.mark.parametrize("module", [distmom, distmom.models], ids=["distmom", "models"])
def test_type_checkers_see_what_is_imported_on_first_access(module):
    found = imported_for_checkers(module)
    names = distmom.__all__ if module is distmom else [each.estimator for each in module.ESTIMATORS]
    assert sorted(found) == sorted(names)
    for name, (place, original) in found.items():
        assert original == name
        # The package of metrics can itself be called, and does what this function does.
        if name != "evaluate":
            assert getattr(import_module(place), name) is getattr(module, name)


def loaded(code):
    """Return the modules that a new process has imported after some code."""
    code = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_imports_nothing_that_takes_long():
    assert not loaded("import distmom; dir(distmom)") & {"sklearn", "numba", "dask", "numpy", "scipy", "zarr"}


def test_every_name_is_there_on_first_access():
    code = "import distmom\nfor name in distmom.__all__: assert callable(getattr(distmom, name)), name"
    assert {"sklearn", "numba", "dask"} <= loaded(code)


def test_models_are_evaluated_and_reported_by_what_they_can_do(tmp_path):
    rng = np.random.default_rng(0)
    topic = rng.integers(0, 2, 400)
    X = (rng.random((400, 20)) < np.where(np.arange(20) % 2 == topic[:, None], 0.5, 0.05)).astype(int)
    labelled = MemoryCorpus(X, np.stack([topic == 0, topic == 1], axis=1).astype(int))
    labels = distmom.MultiLabelMoM(2, head="posterior").fit_corpus(labelled)
    topics = distmom.AnchorTopics(2, max_df=1.0).fit_corpus(labelled)
    factors = distmom.ECA(1).fit(rng.gamma(1.0, size=(1600, 2)) + np.repeat(topic, 4)[:, None],
                                 groups=np.arange(1600) // 4)  # fmt: skip
    assert distmom.evaluate(labels, labelled, auc_documents=100)["P@1"] > 0.9
    assert distmom.evaluate(topics, labelled, n_top=3)["perplexity"] > 1.0
    with pytest.raises(
        UsageError, match="expected a model that infers shares of topics, got one of class ECA"
    ):
        distmom.evaluate(factors, labelled)
    for model, title in ((labels, "Multi-label model"), (topics, "Topics"), (factors, "Factors of views")):
        distmom.write_report(model, tmp_path / "r.html")
        assert f"<h1>{title}</h1>" in (tmp_path / "r.html").read_text()
    for model in (labels, factors):
        with pytest.raises(UsageError, match="shares: expected a model that infers shares of topics"):
            distmom.write_report(model, tmp_path / "r.html", shares=tmp_path)
    with pytest.raises(UsageError, match="metrics: expected none"):
        distmom.write_report(factors, tmp_path / "r.html", metrics={})


def test_the_package_of_metrics_can_be_called_whatever_was_imported_before():
    code = "import distmom.evaluate.metrics, distmom; assert callable(distmom.evaluate)"
    assert "distmom.evaluate.metrics" in loaded(code)


@pytest.mark.skipif(not (ROOT / "SECURITY.md").exists(), reason="needs the files of the repository")
def test_tests_that_security_names_exist():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|deploy)/[\w./]+)`", text)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_package_runs_as_the_command():
    found = subprocess.run(
        [sys.executable, "-m", "distmom", "--help"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("Usage: distmom [OPTIONS] COMMAND")
