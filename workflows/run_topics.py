"""Fit one topic model to counts, and store its topics, time and memory.

`benchmark_topics` runs this in a separate process, so that memory is measured for the system alone and other
systems can use another interpreter. It requires NumPy, SciPy and the system; distmom only for its own
systems. Only the fit is timed: imports, conversion of the counts to the format of the system, and compilation
of distmom's kernels come first. The exit code is 3 if the system is not installed.

Example::

    python run_topics.py --system tomotopy-300 --train train.npz -k 20 --seed 0 --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from run_peer import NOT_INSTALLED, die_first, installed
from scipy.sparse import csr_matrix, load_npz

T = TypeVar("T")
#: packages with versions to store with the results
PACKAGES = ("distmom", "gensim", "lda", "numba", "numpy", "scikit-learn", "scipy", "tomotopy")
#: number of documents averaged for a topic of a random initialisation
RANDOM_DOCUMENTS = 10
#: iterations of the package lda
LDA_ITERATIONS = 300
#: fits a model, and returns topics (k, d) and other values to store
Fit = Callable[[], tuple[np.ndarray, dict[str, Any]]]


@dataclass(frozen=True)
class Task:
    """Input of a system.

    Attributes
    ----------
    counts : csr_matrix of shape (n_documents, n_words), int32
    n_topics, seed : int
    alpha0 : float or None
        Sum of the Dirichlet parameters from which the documents were drawn; None if unknown.
    """

    counts: csr_matrix
    n_topics: int
    seed: int
    alpha0: float | None


def prepare_distmom(task: Task, name: str) -> Fit:
    """Prepare one of distmom's topic models."""
    from distmom.corpus import MemoryCorpus
    from distmom.models import AnchorTopics, IndependentTopics, SparseTopics, SpectralLDA

    all_words = {"min_df": 0.0, "max_df": 1.0}
    uncapped = {**all_words, "max_count": None}
    pure = {**uncapped, "n_refine": 0, "init": "tensor"}
    kind, options = {
        "distmom": (SpectralLDA, {}),
        "distmom-em": (SpectralLDA, {"refine": "em"}),
        "distmom-vb": (SpectralLDA, {"refine": "vb"}),
        "distmom-tensor": (SpectralLDA, {"init": "tensor", "alpha0": 1.0}),
        "distmom-background": (SpectralLDA, {"background": True}),
        "distmom-long": (SpectralLDA, {"background": True, "n_refine": 8}),
        "distmom-anchors": (AnchorTopics, {}),
        "distmom-anchors-moments": (AnchorTopics, {"n_refine": 0}),
        "distmom-anchors-divergence": (AnchorTopics, {"loss": "divergence"}),
        "distmom-anchors-divergence-moments": (AnchorTopics, {"loss": "divergence", "n_refine": 0}),
        "distmom-eca": (IndependentTopics, {}),
        "distmom-eca-moments": (IndependentTopics, {**all_words, "n_refine": 0}),
        "distmom-eca-fourth": (IndependentTopics, {**all_words, "n_refine": 0, "orders": "4"}),
        "distmom-eca-both": (IndependentTopics, {**all_words, "n_refine": 0, "orders": "both"}),
        "distmom-sparse": (SparseTopics, {"n_refine": 4}),
        "distmom-sparse-moments": (SparseTopics, uncapped),
        "distmom-sparse-uncapped": (SparseTopics, {**uncapped, "n_refine": 4}),
        "distmom-pure": (SpectralLDA, {**pure, "alpha0": task.alpha0}),
    }[name]
    corpus = MemoryCorpus(task.counts)
    kind(2, random_state=task.seed, **options).fit_corpus(MemoryCorpus(tiny_counts()))

    def fit() -> tuple[np.ndarray, dict[str, Any]]:
        model = kind(task.n_topics, random_state=task.seed, **options).fit_corpus(corpus)
        return model.components_, {"init": model.init_, "selection": model.selection_}

    return fit


def prepare_random(task: Task, name: str) -> Fit:
    """Prepare refinement by distmom from random topics, half unigram and half the mean of a few documents."""
    from distmom.corpus import MemoryCorpus
    from distmom.engine import StoredColumns, open_engine
    from distmom.models import SpectralLDA
    from distmom.models.topics.refine import initial_topics, refine_topics
    from distmom.spectral.program.execute import execute
    from distmom.spectral.steps.recovery import to_columns

    def refined(counts: csr_matrix, corpus: MemoryCorpus, k: int) -> np.ndarray:
        rng = np.random.default_rng(task.seed)
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        full = np.flatnonzero(lengths)
        unigram = corpus.word_frequency / corpus.word_frequency.sum()
        start = np.empty((corpus.n_words, k), np.float32)
        for j in range(k):
            rows = rng.choice(full, min(RANDOM_DOCUMENTS, len(full)), replace=False)
            start[:, j] = 0.5 * unigram + 0.5 * (counts[rows].T @ (1.0 / lengths[rows])) / len(rows)
        with open_engine(corpus) as engine:
            stored = StoredColumns((engine.put(start),))
            topics = initial_topics(stored, np.full(k, 1.0 / k), n_folds)
            refine = partial(refine_topics, topics=topics, method=method, n_passes=n_passes)
            return np.array(to_columns(execute(refine, engine).matrix).T)

    corpus, tiny = MemoryCorpus(task.counts), tiny_counts()
    default = SpectralLDA(task.n_topics)
    method, n_passes = default.refine_method(corpus), default.n_refine_passes(corpus)
    n_folds = default.n_folds(corpus)
    refined(tiny, MemoryCorpus(tiny), 2)
    return lambda: (refined(task.counts, corpus, task.n_topics), {})


def tiny_counts() -> csr_matrix:
    """Return documents with two topics, for a fit that compiles or loads the kernels."""
    rng = np.random.default_rng(0)
    shares = rng.beta(0.3, 0.3, 300)
    # With many words, none is in most documents, so that the defaults do not leave any out.
    topics = np.repeat([[0.9, 0.1], [0.1, 0.9]], 200, axis=1) / 200
    words = np.outer(shares, topics[0]) + np.outer(1.0 - shares, topics[1])
    return csr_matrix(np.stack([rng.multinomial(40, row / row.sum()) for row in words]).astype(np.int32))


def prepare_tomotopy(task: Task, name: str) -> Fit:
    """Prepare Gibbs sampling by tomotopy, for ``ctm`` of correlated topics; the name ends with the iterations."""
    import tomotopy

    if "ctm" in name:
        model = tomotopy.CTModel(k=task.n_topics, smoothing_alpha=0.1, eta=0.01, seed=task.seed)
    else:
        model = tomotopy.LDAModel(k=task.n_topics, alpha=0.1, eta=0.01, seed=task.seed)
    model.burn_in = 30
    counts = task.counts
    for start, stop in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        if stop > start:
            words = np.repeat(counts.indices[start:stop], counts.data[start:stop])
            model.add_doc([str(word) for word in words.tolist()])

    def fit() -> tuple[np.ndarray, dict[str, Any]]:
        model.train(int(name.rsplit("-", 1)[1]), workers=1)
        topics = np.zeros((task.n_topics, counts.shape[1]))
        columns = [int(word) for word in model.used_vocabs]
        topics[:, columns] = [model.get_topic_word_dist(j) for j in range(task.n_topics)]
        return topics, {}

    return fit


def prepare_gensim(task: Task, name: str) -> Fit:
    """Prepare online variational Bayes by gensim, which fits both priors."""
    from gensim.matutils import Sparse2Corpus
    from gensim.models import LdaModel

    corpus = Sparse2Corpus(task.counts, documents_columns=False)
    names = {i: str(i) for i in range(task.counts.shape[1])}

    def fit() -> tuple[np.ndarray, dict[str, Any]]:
        model = LdaModel(
            corpus, num_topics=task.n_topics, id2word=names, alpha="auto", eta="auto", chunksize=500, passes=10,
            iterations=50, eval_every=None, random_state=task.seed,
        )  # fmt: skip
        return model.get_topics(), {}

    return fit


def prepare_lda(task: Task, name: str) -> Fit:
    """Prepare collapsed Gibbs sampling by the package lda."""
    import lda

    counts = task.counts
    # Suppress the progress messages.
    logging.getLogger("lda").setLevel(logging.WARNING)
    model = lda.LDA(
        n_topics=task.n_topics,
        n_iter=LDA_ITERATIONS,
        alpha=0.1,
        eta=0.01,
        random_state=task.seed,
        refresh=LDA_ITERATIONS + 1,
    )
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    positions = tuple(np.repeat(x, counts.data).astype(np.intc) for x in (counts.indices, rows))
    # The same lists, which the package builds slowly, entry by entry.
    lda.utils.matrix_to_lists = lambda doc_word: positions
    return lambda: (model.fit(counts).topic_word_, {})


def prepare_scikit_learn(task: Task, name: str) -> Fit:
    """Prepare online variational Bayes by scikit-learn."""
    from sklearn.decomposition import LatentDirichletAllocation

    counts = task.counts.astype(np.float64)
    model = LatentDirichletAllocation(
        task.n_topics, learning_method="online", batch_size=256, max_iter=20, topic_word_prior=0.01,
        doc_topic_prior=1.0 / task.n_topics, n_jobs=1, random_state=task.seed,
    )  # fmt: skip
    return lambda: (model.fit(counts).components_, {})


def prepare_nmf(task: Task, name: str) -> Fit:
    """Prepare non-negative matrix factorisation by scikit-learn with the Kullback-Leibler divergence."""
    from sklearn.decomposition import NMF

    counts = task.counts.astype(np.float64)
    model = NMF(
        task.n_topics, solver="mu", beta_loss="kullback-leibler", init="nndsvda", max_iter=100,
        random_state=task.seed,
    )  # fmt: skip
    return lambda: (model.fit(counts).components_, {"n_iter": int(model.n_iter_)})


OWN_MODELS = (
    "distmom",
    "distmom-em",
    "distmom-vb",
    "distmom-tensor",
    "distmom-background",
    "distmom-long",
    "distmom-anchors",
)
#: variants, and systems for documents of other assumptions than those of `SpectralLDA`, which run only if they are
#: named
SPECIAL = {
    "distmom-anchors-moments": prepare_distmom,
    "distmom-anchors-divergence": prepare_distmom,
    "distmom-anchors-divergence-moments": prepare_distmom,
    "distmom-eca": prepare_distmom,
    "distmom-eca-moments": prepare_distmom,
    "distmom-eca-fourth": prepare_distmom,
    "distmom-eca-both": prepare_distmom,
    "distmom-sparse": prepare_distmom,
    "distmom-sparse-moments": prepare_distmom,
    "distmom-sparse-uncapped": prepare_distmom,
    "tomotopy-ctm-1000": prepare_tomotopy,
}
#: systems of distmom
OWN = {
    **dict.fromkeys(OWN_MODELS, prepare_distmom),
    **{name: prepare for name, prepare in SPECIAL.items() if name.startswith("distmom")},
    "distmom-pure": prepare_distmom,
    "random": prepare_random,
}
PEERS = {
    "tomotopy-300": prepare_tomotopy,
    "tomotopy-1000": prepare_tomotopy,
    "lda": prepare_lda,
    "gensim": prepare_gensim,
    "scikit-learn": prepare_scikit_learn,
    "scikit-learn-nmf": prepare_nmf,
}
SYSTEMS = OWN | PEERS | SPECIAL


def distributions(topics: np.ndarray) -> np.ndarray:
    """Normalise rows to distributions; zero rows become uniform."""
    topics = np.asarray(topics, np.float64)
    totals = topics.sum(axis=1, keepdims=True)
    return np.where(totals > 0.0, topics / np.where(totals > 0.0, totals, 1.0), 1.0 / topics.shape[1])


def peak_rss_mb() -> float:
    """Return the largest resident memory of this process so far, in units of 10^6 bytes."""
    # The value of getrusage may include the memory of the parent process.
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes / 1e6


def timed(fit: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """Call a fit; return what it returns, its seconds, those of the processor, and the peak memory so far."""
    started, cpu_started = time.monotonic(), time.process_time()
    found = fit()
    return found, {
        "fit_s": time.monotonic() - started,
        "cpu_s": time.process_time() - cpu_started,
        "peak_rss_mb": peak_rss_mb(),
    }


def main(arguments: list[str] | None = None) -> int:
    """Fit one system."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--system", choices=SYSTEMS, required=True)
    add("--train", type=Path, required=True, help="counts of the documents, an .npz file of scipy.sparse")
    add("-k", "--n-components", type=int, required=True)
    add("--seed", type=int, default=0, help="[%(default)s]")
    add("--alpha0", type=float, help="sum of the true Dirichlet parameters, for distmom-pure")
    add("--out", type=Path, required=True, help="directory for phi.npy and fit.json")
    options = parser.parse_args(arguments)
    if options.system == "distmom-pure" and options.alpha0 is None:
        parser.error("distmom-pure: needs --alpha0")
    die_first()
    options.out.mkdir(parents=True, exist_ok=True)
    counts = csr_matrix(load_npz(options.train))
    task = Task(counts, options.n_components, options.seed, options.alpha0)
    try:
        fit = SYSTEMS[options.system](task, options.system)
    except ImportError as error:
        print(f"{options.system}: not installed: {error}", file=sys.stderr)
        return NOT_INSTALLED
    (topics, details), cost = timed(fit)
    record = {**cost, **details, "versions": installed(PACKAGES)}
    np.save(options.out / "phi.npy", distributions(topics))
    (options.out / "fit.json").write_text(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
