"""distmom beside its peers on exactly the same features, one table.

The features are the tf-idf rows of unit length that distmom computes from its own corpus. They are exported
once; every peer trains on them in a process of its own. Peers that are not installed are named and left out:
``pip install 'distmom[peers]'`` brings omikuji and napkinXC; PECOS needs older NumPy and SciPy, and so an
interpreter of its own::

    python -m venv pecos
    pecos/bin/pip install 'numpy<2' 'scipy<1.14' scikit-learn
    pecos/bin/pip install --no-deps libpecos

The seconds of a peer are those of its training and ranking calls alone, as is its memory; distmom's fit also
chooses its heads and reads its shards. AUC needs the scores of all labels and is left blank for systems that
rank only some.

Example::

    python workflows/benchmark_peers.py bibtex -k 200 --pecos-python pecos/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import PeakMemory, directory_mb, ingest_folder, results, run_model
from run_peer import NOT_INSTALLED, PEERS
from scipy.sparse import csr_array, save_npz, vstack

from distmom.corpus import Corpus
from distmom.engine import open_executor
from distmom.evaluate.metrics import RankingSums, inverse_propensity
from distmom.models import MultiLabelMoM
from distmom.moments.features import inverse_document_frequency, tfidf_rows

#: one machine a label is out of the question beyond
LINEAR_SVC_LABELS = 2000


def export(train: Corpus, test: Corpus, folder: Path) -> csr_array:
    """Write the features for the peers and return the labels of the test rows."""
    folder.mkdir(parents=True, exist_ok=True)
    idf = inverse_document_frequency(np.asarray(train.document_frequency), train.n_documents)
    features, labels = _matrices(train, idf)
    save_npz(folder / "X_train.npz", features)
    save_npz(folder / "Y_train.npz", labels.astype(np.float32))
    with open(folder / "train.xmc.txt", "w", encoding="ascii") as out:
        kept = np.flatnonzero(np.diff(features.indptr))
        out.write(f"{len(kept)} {features.shape[1]} {labels.shape[1]}\n")
        for i in kept.tolist():
            span = slice(features.indptr[i], features.indptr[i + 1])
            pairs = zip(features.indices[span].tolist(), features.data[span].tolist(), strict=True)
            row = ",".join(map(str, labels.indices[labels.indptr[i] : labels.indptr[i + 1]].tolist()))
            # Nine digits give back the same float32.
            out.write(row + "".join(f" {word}:{value:.9g}" for word, value in pairs) + "\n")
    features, labels = _matrices(test, idf)
    save_npz(folder / "X_test.npz", features)
    return labels


def _matrices(corpus: Corpus, idf: np.ndarray) -> tuple[csr_array, csr_array]:
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    features = vstack([tfidf_rows(block.words, idf, np.float32) for block in blocks], format="csr")
    features.sort_indices()
    return csr_array(features), csr_array(vstack([block.labels for block in blocks], format="csr"))


def run_peer(
    name: str, python: str, folder: Path, threads: int, truth: csr_array, inverse: np.ndarray
) -> dict[str, Any] | None:
    """Run one peer in a process of its own; None if it is not installed or fails, which is told."""
    place = folder / name
    place.mkdir(exist_ok=True)
    script = Path(__file__).with_name("run_peer.py")
    command = [python, str(script), name, str(folder), "--threads", str(threads)]
    with open(place / "log.txt", "w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        except OSError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            return None
        with PeakMemory(process.pid) as peak:
            code = process.wait()
        if code:
            log.seek(0)
            last = (log.read().strip().splitlines() or [""])[-1]
            reason = "not installed" if code == NOT_INSTALLED else f"exit code {code}: {last}"
            print(f"{name}: left out: {reason}", file=sys.stderr)
            return None
    times = json.loads((place / "times.json").read_text())
    with np.load(place / "ranked.npz", allow_pickle=False) as ranked:
        sums = RankingSums.zero((1, 3, 5), inverse_propensity=inverse)
        sums = sums.add_lists(ranked["labels"], truth, scores=ranked["scores"])
        if ranked["dense"].size:
            sums = sums.add_scores(ranked["dense"], truth)
    model_mb = directory_mb(place / "model")
    return {"system": name, **sums.finish(), **times, "model_mb": model_mb, "peak_rss_mb": peak.mb}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    systems = ["distmom", *PEERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of Bibtex or of yso-finna-en")
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM",
                        help=f"some of {', '.join(systems)} [all]")  # fmt: skip
    parser.add_argument("-k", "--n-components", type=int, default=100, help="of distmom [%(default)s]")
    parser.add_argument("--threads", type=int, default=2,
                        help="threads of a peer, worker processes of distmom [%(default)s]")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of distmom [%(default)s]")
    parser.add_argument("--pecos-python", help="interpreter that has libpecos [this one]")
    parser.add_argument("--auc-documents", type=int, help="measure distmom's AUC on about this many rows")
    parser.add_argument("--out", type=Path, help="keep corpora, features and models here")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory(prefix="peers-") as temporary, results(options.json) as rows:
        out = options.out or Path(temporary)
        with open_executor(workers=options.threads) as executor:
            train, test, ingest_s = ingest_folder(options.data, out, executor)
            if "distmom" in options.systems:
                model = MultiLabelMoM(options.n_components, random_state=options.seed)
                rows.append(
                    run_model("distmom", model, train, test, out, executor, ingest_s, options.auc_documents)
                )
        peers = [name for name in options.systems if name in PEERS]
        if not peers:
            return 0
        truth = export(train, test, out / "peers")
        inverse = inverse_propensity(train.label_frequency, train.n_documents, n_labels=test.n_labels)
        for name in peers:
            if name == "linear-svc" and train.n_labels > LINEAR_SVC_LABELS:
                print(f"{name}: left out: {train.n_labels} labels are too many", file=sys.stderr)
                continue
            own = options.pecos_python if name.startswith("pecos") else None
            row = run_peer(name, own or sys.executable, out / "peers", options.threads, truth, inverse)
            if row is not None:
                rows.append(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
