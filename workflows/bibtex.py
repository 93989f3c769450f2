"""Bibtex from text to metrics: ingest, fit every head, predict labels for the test documents, and evaluate.

Example::

    python workflows/bibtex.py bibtex --workers 2 --json bibtex.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import open_for, results, run_model
from label_corpora import ingest_folder

from distmom.engine import open_executor
from distmom.models import MultiLabelMoM

SYSTEMS: dict[str, dict[str, Any]] = {
    "moment-50": {"n_components": 50, "head": "moment", "moments": "paper"},
    "posterior-50": {"n_components": 50, "head": "posterior"},
    "ridge-200": {"n_components": 200, "head": "ridge"},
    "auto-200": {"n_components": 200, "head": "auto"},
}


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with bibtex-train.xmc.txt.xz and the other files")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM",
                        help=f"some of {', '.join(SYSTEMS)} [all]")  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=2, help="worker processes; a small corpus uses none [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--out", type=Path, help="directory for corpora, models and predictions [temporary]")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)

    with (
        tempfile.TemporaryDirectory(prefix="bibtex-") as temporary,
        results(options.json) as rows,
    ):
        out = options.out or Path(temporary)
        with open_executor(workers=options.workers) as executor:
            train, test, ingest_s = ingest_folder(options.data, out, executor)
        with open_for(train, options.workers) as executor:
            for name in options.systems:
                model = MultiLabelMoM(**SYSTEMS[name], random_state=options.seed)
                rows.append(run_model(name, model, train, test, out, executor, ingest_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
