"""YSO subjects for all 653,478 library titles: split, ingest, fit, predict labels, and evaluate.

The first 90 % of the rows are training documents, the others are test documents. The time of the ingest
includes the split into two files.

Example::

    python workflows/yso.py yso-finna-en --workers 2 --json yso.json
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from common import results, run_model
from label_corpora import ingest_folder

from distmom.engine import open_executor
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.variants import HEADS


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with docs.tsv.xz and labels.tsv.xz")
    parser.add_argument("-k", "--n-components", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=["auto"], metavar="HEAD",
                        help=f"some of {', '.join(HEADS)} [auto]")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="worker processes, 0 for none [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument(
        "--auc-documents", type=int, help="measure AUC on about this many test documents [all]"
    )
    parser.add_argument(
        "--out", type=Path, help="directory for texts, corpora, models and predictions [temporary]"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)

    with (
        tempfile.TemporaryDirectory(prefix="yso-") as temporary,
        open_executor(workers=options.workers) as executor,
        results(options.json) as rows,
    ):
        out = options.out or Path(temporary)
        train, test, ingest_s = ingest_folder(options.data, out, executor)
        for head in options.heads:
            name = f"{head}-{options.n_components}"
            model = MultiLabelMoM(options.n_components, head=head, random_state=options.seed)
            row = run_model(name, model, train, test, out, executor, ingest_s, options.auc_documents)
            rows.append(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
