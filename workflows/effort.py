"""Compare the efforts of a multi-label model: seconds of fit and predict, and precision.

python workflows/effort.py bibtex labels/reuters labels/goemotions yso-finna-en -k 200 --json effort.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from common import open_for, results, run_model
from label_corpora import ingest_folder

from distmom.engine import open_executor
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.effort import EFFORTS


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+", help="folders, or prefixes of -train and -test files")
    parser.add_argument("--efforts", nargs="+", choices=EFFORTS, default=list(EFFORTS), metavar="EFFORT",
                        help=f"some of {', '.join(EFFORTS)} [all]")  # fmt: skip
    parser.add_argument("-k", "--n-components", type=int, default=200, help="[%(default)s]")
    parser.add_argument(
        "--workers", type=int, default=2, help="worker processes; a small corpus uses none [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="effort-") as temporary,
        results(options.json) as rows,
    ):
        for data in options.data:
            out = Path(temporary) / data.name
            with open_executor(workers=options.workers) as executor:
                train, test, _ = ingest_folder(data, out, executor)
            with open_for(train, options.workers) as executor:
                for effort in options.efforts:
                    model = MultiLabelMoM(options.n_components, effort=effort, random_state=options.seed)
                    row = run_model(effort, model, train, test, out, executor, None, auc_documents=1000)
                    rows.append({**row, "system": f"{data.name} {effort}", "n_train": train.n_documents})
    return 0


if __name__ == "__main__":
    sys.exit(main())
