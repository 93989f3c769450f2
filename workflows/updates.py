"""Compare updates of a model with a fit to all documents: seconds, and precision on test documents.

A model is fitted to all training documents but the last share of a random order, updated with these, and compared
with a fit to all of them.

    python workflows/updates.py bibtex labels/reuters data/depends -k 100 --json updates.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import Stopwatch, results
from label_corpora import ingest_folder
from scipy.sparse import csr_array, vstack

from distmom.corpus import Corpus
from distmom.engine import open_executor
from distmom.models import MultiLabelMoM


def matrices(corpus: Corpus) -> tuple[csr_array, csr_array]:
    """Return the counts of words and the labels of all documents."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    words, labels = ([getattr(block, name) for block in blocks] for name in ("words", "labels"))
    return csr_array(vstack(words, format="csr")), csr_array(vstack(labels, format="csr"))


def precision(model: MultiLabelMoM, X: csr_array, Y: csr_array) -> dict[str, float]:
    """Return P@1 and P@5 of the ranking of a model."""
    labels, _ = model.predict_top(X, 5)
    rows = np.repeat(np.arange(len(labels)), labels.shape[1])
    known = (np.asarray(Y[rows, np.maximum(labels, 0).ravel()]).reshape(labels.shape) > 0) & (labels >= 0)
    return {"P@1": float(known[:, 0].mean()), "P@5": float(known.mean())}


def compare(
    name: str, train: Corpus, test: Corpus, share: float, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield rows of the first fit, of the update, and of a fit to all documents."""
    (X, Y), new = matrices(train), matrices(test)
    order = np.random.default_rng(options.seed).permutation(X.shape[0])
    n_added = round(share * X.shape[0])
    first, added = order[:-n_added], order[-n_added:]
    parameters = {"n_components": options.n_components, "random_state": options.seed, "keep_sums": True}
    model = MultiLabelMoM(**parameters)
    for step, change, used in (
        ("first fit", model.fit, first),
        ("update", model.partial_fit, added),
        ("fit to all", MultiLabelMoM(**parameters).fit, order),
    ):
        watch = Stopwatch()
        fitted = change(X[used], Y[used])
        seconds = watch.seconds
        yield {
            "system": f"{name}, {share:.0%}: {step}",
            "n_train": len(used),
            **precision(fitted, *new),
            "fit_s": seconds,
        }


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+", help="folders, or prefixes of -train and -test files")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.2, 0.01], metavar="SHARE",
                        help="shares of the training documents that are added [0.2 0.01]")  # fmt: skip
    parser.add_argument("-k", "--n-components", type=int, default=200, help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="updates-") as temporary,
        open_executor(workers=2) as executor,
        results(options.json) as rows,
    ):
        for data in options.data:
            train, test, _ = ingest_folder(data, Path(temporary) / data.name, executor)
            for share in options.shares:
                rows.extend(compare(data.name, train, test, share, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
