"""Compare distmom with its peers on exactly the same features, in one table.

The features are the tf-idf rows of unit length that distmom computes from its own corpus. They are exported
once, and every system runs in a separate process. Labels without training rows are not given to the peers,
which could not learn them. Peers that are not installed, or need too much time or memory, are reported and
left out. ``pip install 'distmom[peers]'`` installs omikuji and napkinXC; PECOS requires older versions of
NumPy and SciPy, and therefore a separate interpreter::

    python -m venv pecos
    pecos/bin/pip install 'numpy<2' 'scipy<1.14' scikit-learn
    pecos/bin/pip install --no-deps libpecos

The time of a peer is that of its training and ranking calls only; the fit of distmom includes head selection and
reading of shards. Memory is that of the whole process, for distmom with its workers. AUC requires scores of
all labels and is blank for systems that rank only some of them.

DATA is a folder with Bibtex or yso-finna-en, the prefix of a pair of files such as ``labels/reuters`` for
``labels/reuters-train.jsonl.xz`` and ``labels/reuters-test.jsonl.xz`` (or ``.xmc.txt.xz``, with
``.features.txt.xz`` and ``.labels.txt.xz`` there) or of one file such as ``labels/newsgroups.jsonl.xz``, a random
fifth of which is the test, or ``planted:`` and the name of a preset of ``distmom synth``. The test rows of a
planted corpus are the same for every number of training rows.

Examples::

    python workflows/benchmark_peers.py bibtex -k 200 --pecos-python pecos/bin/python
    python workflows/benchmark_peers.py planted:wikilshtc --docs 177835 --heads auto posterior
    python workflows/benchmark_peers.py planted:wikilshtc --sizes 10000 30000 100000 --plots docs/images
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr
from common import directory_mb, machine, markdown_table, results
from label_corpora import ingest_folder
from plot_peers import draw, require_matplotlib
from run_peer import PEERS
from scipy.sparse import csr_array, save_npz, vstack
from watched import LeftOutError, run_watched

from distmom.corpus import Corpus
from distmom.engine import open_executor
from distmom.evaluate.metrics import RankingSums
from distmom.models.multilabel.effort import EFFORTS
from distmom.models.multilabel.variants import HEADS
from distmom.moments.features.tfidf import fit_idf, tfidf_rows
from distmom.ranking import inverse_propensity
from distmom.simulate import PRESETS, preset, synthesise

PLANTED = "planted:"
#: default maximum number of labels for one classifier per label, and for LEML
SVC_LABELS = 2000
#: default maximum number of pairs of test and training rows; beyond it, brute force takes hours
NEIGHBOR_PAIRS = 10**11
#: default memory limit of a system, as a share of the available memory
MEMORY_SHARE = 0.9
#: seconds between samples of the memory of distmom, which also samples its own memory
DISTMOM_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Data:
    """A training corpus and a test corpus.

    Attributes
    ----------
    name : str
    train, test : Corpus
    ingest_s : float or None
        Seconds of the ingest; None for simulated corpora.
    """

    name: str
    train: Corpus
    test: Corpus
    ingest_s: float | None


@dataclass(frozen=True)
class Exported:
    """Input of the peers, and the truth for evaluating their rankings.

    Attributes
    ----------
    name : str
        Name of the data.
    folder : Path
        Folder of the files read by `run_peer`.
    truth : csr_array of shape (n_test, n_labels)
    inverse : ndarray of shape (n_labels,)
        Inverse propensities.
    n_train : int
    used : ndarray of int
        Labels that are given to the peers.
    """

    name: str
    folder: Path
    truth: csr_array
    inverse: np.ndarray
    n_train: int
    used: np.ndarray


def prepare(options: argparse.Namespace, n_train: int | None, out: Path) -> Data:
    """Ingest a folder, or simulate ``n_train`` training rows and the test rows of a preset."""
    with open_executor(workers=options.threads) as executor:
        if not options.data.startswith(PLANTED):
            texts = {
                name: value
                for name, value in (("ngram_max", options.ngrams), ("min_df", options.min_df))
                if value is not None
            }
            train, test, ingest_s = ingest_folder(Path(options.data), out, executor, **texts)
            return Data(Path(options.data).resolve().name, train, test, ingest_s)
        name = options.data.removeprefix(PLANTED)
        model = preset(name, n_documents=n_train, seed=options.seed)
        # Test documents follow the training documents of all sizes.
        first = max(PRESETS[name].n_documents, *(options.sizes or [model.n_documents]))
        corpora = [
            synthesise(each, out / part, first=start, overwrite=True, map=executor.map)
            for part, start, each in (
                ("train", 0, model),
                ("test", first, preset(name, n_documents=options.test_docs, seed=options.seed)),
            )
        ]
        return Data(f"planted {name}", *corpora, None)


def export(data: Data, folder: Path) -> Exported:
    """Write the features for the peers."""
    folder.mkdir(parents=True, exist_ok=True)
    train = data.train
    idf = fit_idf(train)
    features, labels = _matrices(train, idf)
    used = np.flatnonzero(np.bincount(labels.indices, minlength=labels.shape[1]))
    labels = csr_array(labels[:, used])
    labels.sort_indices()
    save_npz(folder / "X_train.npz", features)
    save_npz(folder / "Y_train.npz", labels.astype(np.float32))
    with open(folder / "train.xmc.txt", "w", encoding="ascii") as out:
        kept = np.flatnonzero(np.diff(features.indptr))
        out.write(f"{len(kept)} {features.shape[1]} {labels.shape[1]}\n")
        for i in kept.tolist():
            span = slice(features.indptr[i], features.indptr[i + 1])
            pairs = zip(features.indices[span].tolist(), features.data[span].tolist(), strict=True)
            row = ",".join(map(str, labels.indices[labels.indptr[i] : labels.indptr[i + 1]].tolist()))
            # Nine digits identify a float32.
            out.write(row + "".join(f" {word}:{value:.9g}" for word, value in pairs) + "\n")
    features, truth = _matrices(data.test, idf)
    save_npz(folder / "X_test.npz", features)
    inverse = inverse_propensity(train.label_frequency, train.n_documents, n_labels=data.test.n_labels)
    return Exported(data.name, folder, truth, inverse, train.n_documents, used)


def _matrices(corpus: Corpus, idf: np.ndarray) -> tuple[csr_array, csr_array]:
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    features = vstack([tfidf_rows(block.words, idf, np.float32) for block in blocks], format="csr")
    features.sort_indices()
    return csr_array(features), csr_array(vstack([block.labels for block in blocks], format="csr"))


def run_distmom(head: str, data: Data, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run distmom with one head; LeftOutError if it fails."""
    place = out / f"distmom-{head}"
    command = [
        sys.executable, str(Path(__file__).with_name("run_distmom.py")),
        str(out / "train"), str(out / "test"), str(place),
        f"--head={head}", f"-k{options.n_components}", f"--workers={options.threads}", f"--seed={options.seed}",
        f"--effort={options.effort}",
    ]  # fmt: skip
    if options.auc_documents is not None:
        command.append(f"--auc-documents={options.auc_documents}")
    run_watched(
        command, place / "log.txt", timeout_s=options.timeout, memory_mb=1e3 * options.memory_gb,
        interval_s=DISTMOM_INTERVAL_S,
    )  # fmt: skip
    row: dict[str, Any] = json.loads((place / "row.json").read_text())
    if options.hits is not None:
        labels = _predicted(place / row["system"] / "predictions" / "predictions.zarr")
        store_hits(options.hits, data.name, row["system"], labels, _labels(data.test))
    return {**row, "ingest_s": data.ingest_s}


def store_hits(folder: Path, corpus: str, system: str, labels: np.ndarray, truth: csr_array) -> None:
    """Store the numbers of true labels among the first 1, 3 and 5 labels (n, 5) of every document, -1 for none."""
    folder.mkdir(parents=True, exist_ok=True)
    n, depth = labels.shape
    known = np.asarray(truth[np.repeat(np.arange(n), depth), np.maximum(labels, 0).ravel()]).reshape(n, depth)
    ends = np.cumsum((known > 0) & (labels >= 0), axis=1)
    hits = ends[:, [min(k, depth) - 1 for k in (1, 3, 5)]].astype(np.uint8)
    name = f"{corpus}-{system}".replace(" ", "-")
    np.savez_compressed(folder / f"{name}.npz", corpus=corpus, system=system, hits=hits)


def _predicted(path: Path) -> np.ndarray:
    """Return the predicted labels (n, 5) of every document by decreasing probability, -1 for none."""
    stored = zarr.open_group(path, mode="r")
    indptr, indices, values = (np.asarray(stored[name]) for name in ("indptr", "indices", "data"))
    labels = np.full((len(indptr) - 1, 5), -1, np.int64)
    owners = np.repeat(np.arange(len(labels)), np.diff(indptr))
    order = np.lexsort((indices, -values, owners))
    labels[owners, np.arange(len(owners)) - indptr[owners]] = indices[order]
    return labels


def _labels(corpus: Corpus) -> csr_array:
    return csr_array(vstack([corpus.read_shard(i).labels for i in range(len(corpus.shards))], format="csr"))


def run_peer(name: str, exported: Exported, options: argparse.Namespace) -> dict[str, Any]:
    """Run one peer; LeftOutError if it is not installed, too large or fails."""
    n_pairs = exported.truth.shape[0] * exported.n_train
    if name in ("linear-svc", "logistic", "leml") and len(exported.used) > options.svc_labels:
        reason = f"{len(exported.used)} labels exceed the limit --svc-labels {options.svc_labels}"
        raise LeftOutError(reason, for_good=True)
    if name == "sklearn-neighbors" and n_pairs > options.neighbor_pairs:
        reason = f"{n_pairs:.1e} pairs of rows exceed the limit --neighbor-pairs {options.neighbor_pairs:.1e}"
        raise LeftOutError(reason, for_good=True)
    python = options.pecos_python if name.startswith("pecos") and options.pecos_python else sys.executable
    place = exported.folder / name
    script = Path(__file__).with_name("run_peer.py")
    peak_mb = run_watched(
        [
            python, str(script), name, str(exported.folder),
            f"--threads={options.threads}", f"--seed={options.seed}",
        ],
        place / "log.txt", timeout_s=options.timeout, memory_mb=1e3 * options.memory_gb,
    )  # fmt: skip
    times = json.loads((place / "times.json").read_text())
    with np.load(place / "ranked.npz", allow_pickle=False) as ranked:
        labels = np.where(ranked["labels"] >= 0, exported.used[ranked["labels"]], -1)
        sums = RankingSums.zero((1, 3, 5), inverse_propensity=exported.inverse)
        sums = sums.add_lists(labels, exported.truth, scores=ranked["scores"])
        if options.hits is not None:
            store_hits(options.hits, exported.name, name, labels, exported.truth)
        if ranked["dense"].size:
            scores = np.full(exported.truth.shape, -np.inf, np.float32)
            scores[:, exported.used] = ranked["dense"]
            sums = sums.add_scores(scores, exported.truth)
    model_mb = directory_mb(place / "model")
    return {"system": name, **sums.finish(), **times, "model_mb": model_mb, "peak_rss_mb": peak_mb}


def run_systems(
    data: Data, out: Path, options: argparse.Namespace, gone: set[str], rows: list[dict[str, Any]]
) -> None:
    """Run all systems on one corpus and append their rows; systems that fail permanently are added to ``gone``."""
    exported: Exported | None = None
    names = [f"distmom {head}" for head in options.heads] if "distmom" in options.systems else []
    names += [name for name in options.systems if name in PEERS]
    for name in names:
        if name in gone:
            continue
        try:
            if name in PEERS:
                exported = exported or export(data, out / "peers")
                row = run_peer(name, exported, options)
            else:
                row = run_distmom(name.split()[1], data, out, options)
        except LeftOutError as reason:
            print(f"{data.train.n_documents} rows: {name}: left out: {reason}", file=sys.stderr, flush=True)
            if reason.for_good:
                gone.add(name)
            continue
        print(
            f"{data.train.n_documents} rows: {name}: trained in {row['fit_s']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        rows.append({**row, "data": data.name, "n_train": data.train.n_documents, "machine": machine()})


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    systems = ["distmom", *PEERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", metavar="DATA",
        help=f"folder, prefix of files, or {PLANTED}NAME with NAME one of {', '.join(_presets())}")  # fmt: skip
    add("--docs", type=int, help="training rows of a planted corpus [that of the preset]")
    add("--sizes", type=int, nargs="+", metavar="DOCS", help="run for each of these numbers instead")
    add("--test-docs", type=int, default=20_000, help="test rows of a planted corpus [%(default)s]")
    add("--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM",
        help=f"some of {', '.join(systems)} [all]")  # fmt: skip
    add("--heads", nargs="+", choices=HEADS, default=["auto"], metavar="HEAD",
        help=f"heads of distmom, one row each: some of {', '.join(HEADS)} [auto]")  # fmt: skip
    add("--effort", choices=EFFORTS, default="normal", help="effort of distmom [%(default)s]")
    add("-k", "--n-components", type=int, default=100, help="number of components of distmom [%(default)s]")
    add("--threads", type=int, default=2, help="threads of a peer, worker processes of distmom [%(default)s]")
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of a planted corpus and of all systems but omikuji, which takes none [%(default)s]",
    )
    add("--ngrams", type=int, metavar="MAX", help="longest run of words of a text that is a feature [1]")
    add("--min-df", type=int, metavar="N", help="fewest documents of a feature of a text [2]")
    add("--pecos-python", help="interpreter with libpecos [this one]")
    add("--auc-documents", type=int, help="measure distmom's AUC on about this many rows")
    add("--timeout", type=float, default=3600.0, help="maximum seconds per system [%(default)s]")
    add("--memory-gb", type=float, help="maximum memory per system [90 %% of the available memory]")
    add(
        "--svc-labels",
        type=int,
        default=SVC_LABELS,
        help="maximum number of labels for linear-svc, logistic and leml [%(default)s]",
    )
    add("--neighbor-pairs", type=float, default=NEIGHBOR_PAIRS,
        help="maximum number of test rows times training rows for sklearn-neighbors [%(default).0e]")  # fmt: skip
    add("--out", type=Path, help="directory for corpora, features and models [temporary]")
    add("--hits", type=Path, metavar="DIR", help="store the true labels found per document, for bootstrap.py")
    add("--json", type=Path, help="write the results to this file")
    add("--markdown", type=Path, help="write the table to this file")
    add(
        "--plots",
        type=Path,
        help="draw time-precision.svg, and with --sizes scale.svg, in this folder (extra plots)",
    )
    return parser


def _presets() -> list[str]:
    return [name for name, model in PRESETS.items() if model.n_labels]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = arguments_parser()
    options = parser.parse_args(arguments)
    is_planted = options.data.startswith(PLANTED)
    if is_planted and options.data.removeprefix(PLANTED) not in _presets():
        parser.error(f"{options.data}: expected one of {', '.join(PLANTED + name for name in _presets())}")
    if (options.sizes or options.docs) and not is_planted:
        parser.error(f"--docs and --sizes are for planted corpora, but {options.data} is a folder")
    if options.memory_gb is None:
        options.memory_gb = MEMORY_SHARE * psutil.virtual_memory().available / 1e9
    if options.plots is not None:
        require_matplotlib()

    # Systems run in separate sessions, which only the cleanup of this process ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    gone: set[str] = set()
    with (
        tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as temporary,
        results(options.json) as rows,
    ):
        for n_train in sorted(options.sizes or [options.docs], key=lambda n: n or 0):
            out = options.out or Path(temporary)
            if options.sizes:
                out /= str(n_train)
            run_systems(prepare(options, n_train, out), out, options, gone, rows)
            if options.sizes and options.out is None:
                shutil.rmtree(out)
    print(f"on {machine()}")
    for versions in {json.dumps(row["versions"]): row["versions"] for row in rows}.values():
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
    if options.markdown is not None:
        options.markdown.write_text(markdown_table(rows), encoding="utf-8")
    if options.plots is not None:
        draw(rows, options.plots)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
