"""Compare settings of topic models, and other systems, on clean and on messy texts, in one table.

DATA is a folder with the corpora kos, yso-finna-en and ungdc; its folder labels has the texts of reuters,
newsgroups and goemotions. ``--texts FOLDER`` has those of debian, as written by `debian_packages`, those of
foldoc, manuals and wordnet, as written by `debian_texts`, and mail and snippets, as written by `mood_texts`. A
fifth of the documents is held out, chosen by the seed. All topics are evaluated as in `benchmark_topics`:
perplexity of half of the tokens of held-out documents, NPMI of the top 10 words in held-out documents, and
diversity. Every configuration of `CONFIGURATIONS` is fitted to the same training documents, in this process;
seconds are those of the fit, without compilation. ``--peers`` adds collapsed Gibbs sampling (tomotopy) and
non-negative matrix factorisation (scikit-learn) with the settings of `run_topics`. Corpora are ingested once,
into OUT.

Example::

    python workflows/messy_topics.py data --out messy -k 20 --seeds 3 --configurations default
    python workflows/messy_topics.py data --out messy -k 20 50 --corpora kos newsgroups --peers
    python workflows/messy_topics.py data --texts texts --out messy --corpora debian foldoc --peers
"""

from __future__ import annotations

import argparse
import lzma
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from benchmark_topics import Judge
from common import Stopwatch, machine, results
from run_topics import PEERS, Task, distributions, tiny_counts
from scipy.sparse import csr_matrix
from topic_documents import Data, hold_out, read_corpus

from distmom.corpus import Corpus, MemoryCorpus, ingest, open_corpus
from distmom.models import SpectralLDA

#: number of titles of yso-finna-en, in the order of the file
N_TITLES = 100_000
#: smallest number of documents that a word of the texts occurs in
MIN_DF = 5
#: parameters of every configuration
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "em": {"refine": "em"},
    "refined-2": {"n_refine": 2},
    "refined-4": {"n_refine": 4},
    "refined-16": {"n_refine": 16},
    "refined-32": {"n_refine": 32},
    "document-16": {"weighting": "document", "max_count": 1, "n_refine": 16},
    "document-32": {"weighting": "document", "max_count": 1, "n_refine": 32},
    "background": {"background": True},
    "background-8": {"background": True, "n_refine": 8},
}
PEER_NAMES = ("tomotopy-300", "scikit-learn-nmf")


def _texts(sources: list[Path], destination: Path, n_rows: int | None = None) -> Path:
    """Write the first rows of compressed texts to one file."""
    with destination.open("wb") as out:
        for source in sources:
            with lzma.open(source, "rb") as rows:
                out.writelines(islice(rows, n_rows))
    return destination


def _ingested(name: str, folders: list[Path], out: Path) -> Corpus:
    """Ingest a corpus, unless it was ingested before."""
    place = out / name
    if place.is_dir():
        return open_corpus(place)
    data = folders[0]
    if name in ("kos", "ungdc"):
        return ingest(data / name / f"docword.{name}.txt.xz", place, format="uci")
    if name == "titles":
        text = _texts([data / "yso-finna-en" / "docs.tsv.xz"], out / "titles.tsv", N_TITLES)
        return ingest(text, place, stop_words="english", min_df=2)
    places = [data / "labels", *folders[1:]]
    sources = sorted(file for place in places for file in place.glob(f"{name}*.jsonl.xz"))
    if not sources:
        raise SystemExit(f"{', '.join(map(str, places))}: no {name}*.jsonl.xz")
    text = _texts(sources, out / f"{name}.jsonl")
    return ingest(text, place, stop_words="english", min_df=MIN_DF)


CORPORA = ("kos", "titles", "ungdc", "reuters", "newsgroups")
FURTHER = ("debian", "foldoc", "manuals", "wordnet", "goemotions", "mail", "snippets")


def load(name: str, folders: list[Path], out: Path, seed: int) -> Data:
    """Read a corpus, and hold out some documents."""
    return hold_out(name, *read_corpus(_ingested(name, folders, out)), seed=seed, min_df=2)


def measure(name: str, data: Data, judge: Judge, k: int, seed: int) -> dict[str, Any]:
    """Fit one configuration or system, and evaluate its topics."""
    row: dict[str, Any] = {"data": data.name, "k": k, "seed": seed, **data.sizes()}
    if name in PEERS:
        fit = PEERS[name](Task(csr_matrix(data.train), k, seed, None), name)
        watch, started = Stopwatch(), time.process_time()
        topics = distributions(fit()[0])
    else:
        model = SpectralLDA(k, random_state=seed, **CONFIGURATIONS[name])
        watch, started = Stopwatch(), time.process_time()
        model.fit_corpus(MemoryCorpus(csr_matrix(data.train)))
        topics = model.components_
        names = ("trial_passes", "trial_perplexity", "background")
        row |= {"selection": model.selection_, "start": {x: model.diagnostics_.get(x) for x in names}}
    row |= {"fit_s": watch.seconds, "cpu_s": time.process_time() - started}
    return row | judge.score(topics) | {"system": f"{data.name} {name}", "machine": machine()}


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", type=Path, metavar="DATA", help="folder of the corpora")
    add("--texts", type=Path, help="folder of further texts")
    add("--out", type=Path, required=True, help="folder for ingested corpora")
    add("-k", "--n-components", type=int, nargs="+", default=[20], help="numbers of topics [20]")
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="number of seeds, which are 0 to N - 1 [%(default)s]",
    )
    add("--corpora", nargs="+", choices=CORPORA + FURTHER, default=CORPORA, help=f"[{' '.join(CORPORA)}]")
    add("--configurations", nargs="*", choices=CONFIGURATIONS, default=list(CONFIGURATIONS), help="[all]")
    add("--peers", action="store_true", help="also run tomotopy and scikit-learn")
    add("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    folders = [options.data, *([options.texts] if options.texts else [])]
    SpectralLDA(2).fit(tiny_counts())
    names = [*options.configurations, *(PEER_NAMES if options.peers else ())]
    with results(options.json) as rows:
        for corpus in options.corpora:
            for seed in range(options.seeds):
                data = load(corpus, folders, options.out, seed)
                judge = Judge(data, seed)
                for k in options.n_components:
                    for name in names:
                        row = measure(name, data, judge, k, seed)
                        print(
                            f"{row['system']}, k = {k}, seed {seed}: perplexity {row['perplexity']:.1f}, "
                            f"NPMI {row['held_NPMI']:.3f}, diversity {row['diversity']:.2f}, {row['fit_s']:.1f} s",
                            file=sys.stderr, flush=True,
                        )  # fmt: skip
                        rows.append(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
