"""Measure the size of multi-label models against their precision, for limits on the number of weights.

Every setting is fitted to the training documents, saved, and evaluated on the test documents. Neighbours are found
in an index of the training documents, which the limits do not make smaller.

    python workflows/model_size.py bibtex labels/reuters labels/stackex_cs -k 200 --json size.json
    python workflows/model_size.py bibtex labels/reuters --head svm --effort low
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import directory_mb, results
from label_corpora import ingest_folder

from distmom.engine import Executor, open_executor
from distmom.evaluate.evaluation import evaluate_corpus
from distmom.models import MultiLabelMoM

SETTINGS = ("default", "words=100", "words=30", "words=10", "labels=300", "labels=100", "labels=30")
#: name of a limit on the command line, and the parameter that it stands for
LIMITS = {"words": "weights_per_word", "labels": "weights_per_label"}


def parameters_of(setting: str) -> dict[str, int]:
    """Return the parameters of a setting such as ``words=30,labels=100``; none for ``default``."""
    if setting == "default":
        return {}
    pairs = [part.partition("=") for part in setting.split(",")]
    return {LIMITS[name]: int(value) for name, _, value in pairs}


def measure(data: Path, out: Path, executor: Executor, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per setting for the corpus in a folder."""
    train, test, _ = ingest_folder(data, out, executor)
    rows = []
    for setting in options.settings:
        model = MultiLabelMoM(
            options.n_components, head=options.head, effort=options.effort, n_topics=0, random_state=options.seed,
            **parameters_of(setting),
        )  # fmt: skip
        model.fit_corpus(train, client=executor)
        model.save(out / "model", overwrite=True)
        metrics = evaluate_corpus(model, test, client=executor, auc_documents=1)
        rows.append(
            {
                "system": f"{data.name} {setting}",
                "n_train": train.n_documents,
                **{name: metrics[name] for name in ("P@1", "P@3", "P@5")},
                "model_mb": directory_mb(out / "model"),
                "heads": [name for name, _ in model.scorer_.heads],
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+", help="folders, or prefixes of -train and -test files")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), metavar="SETTING",
                        help=f"[{' '.join(SETTINGS)}]")  # fmt: skip
    parser.add_argument("--head", default="auto", help="[%(default)s]")
    parser.add_argument("--effort", default="normal", help="low stores no latent states [%(default)s]")
    parser.add_argument("-k", "--n-components", type=int, default=200, help="[%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, 0 for none [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    for setting in options.settings:
        try:
            parameters_of(setting)
        except (KeyError, ValueError):
            parser.error(f"--settings: expected default, words=N or labels=N, got {setting!r}")
    with (
        tempfile.TemporaryDirectory(prefix="size-") as temporary,
        open_executor(workers=options.workers) as executor,
        results(options.json) as rows,
    ):
        for data in options.data:
            rows += measure(data, Path(temporary) / data.name, executor, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
