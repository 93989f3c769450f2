"""Fit distmom to one corpus, rank labels for another, and store the row of the table.

`benchmark_peers` runs this in a separate process, so that memory is measured for distmom alone and a limit
can end it with all its workers.

Example::

    python run_distmom.py TRAIN TEST OUT --head posterior -k 100 --workers 2
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from common import open_for, run_model
from run_peer import die_first, installed

from distmom.corpus import open_corpus
from distmom.errors import DistmomError
from distmom.models import MultiLabelMoM

PACKAGES = ("dask", "distmom", "numba", "numpy", "scikit-learn", "scipy", "zarr")


def main(arguments: list[str] | None = None) -> int:
    """Fit, rank and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("out", type=Path, help="directory for row.json, model and predictions")
    parser.add_argument("--head", default="auto", help="[%(default)s]")
    parser.add_argument("--effort", default="normal", help="[%(default)s]")
    parser.add_argument("-k", "--n-components", type=int, default=100, help="[%(default)s]")
    parser.add_argument(
        "--workers", type=int, default=2, help="worker processes, none if TRAIN is small [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--auc-documents", type=int, help="measure AUC on about this many documents")
    options = parser.parse_args(arguments)
    die_first()
    train, test = open_corpus(options.train), open_corpus(options.test)
    model = MultiLabelMoM(
        options.n_components, head=options.head, effort=options.effort, random_state=options.seed
    )
    try:
        with open_for(train, options.workers) as executor:
            row = run_model(
                f"distmom {options.head}",
                model,
                train,
                test,
                options.out,
                executor,
                None,
                options.auc_documents,
            )
    except DistmomError as error:
        print(error, file=sys.stderr)
        return 1
    (options.out / "row.json").write_text(json.dumps({**row, "versions": installed(PACKAGES)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
