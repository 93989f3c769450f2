"""Corpora, populations and passes that several tests share."""

import random
import threading
import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array, random_array, vstack

from distmom.corpus import MemoryCorpus, RowCorpus, ViewCorpus, ingest, open_corpus
from distmom.engine import Pass, SumSpec, open_engine
from distmom.models import MultiLabelMoM
from distmom.spectral.program.execute import execute

#: words of documents of every label
SUBJECTS = {
    "animals": ["cat", "dog", "bird", "fish", "horse"],
    "finance": ["stock", "bank", "money", "price", "trade"],
    "transport": ["train", "bus", "car", "road", "ship"],
}


def labelled_lines(n, seed):
    """Lines of a file of documents with a label each, whose words are of that subject."""
    draw = random.Random(seed)
    for _ in range(n):
        label = draw.choice(list(SUBJECTS))
        yield f"{label}\t{' '.join(draw.choices(SUBJECTS[label], k=8))}\n"


class WeightedCorpus(MemoryCorpus):
    """A corpus in memory whose documents count as often as given: an enumerated population."""

    def __init__(self, X, Y, weights, **options):
        super().__init__(X, Y, **options)
        self.row_weights = np.asarray(weights, float)

    def read_shard(self, i):
        block = super().read_shard(i)
        return replace(block, weights=self.row_weights[block.first : block.first + block.n_documents])


def random_corpus(n=300, d=40, n_labels=12, seed=0, shard_documents=37, density=0.2):
    """Counts and labels without structure."""
    rng = np.random.default_rng(seed)
    X = csr_array(
        random_array((n, d), density=density, rng=rng, data_sampler=lambda size: rng.integers(1, 4, size))
    )
    Y = csr_array(random_array((n, n_labels), density=0.15, rng=rng, data_sampler=lambda size: np.ones(size)))
    return MemoryCorpus(X.astype(int), Y.astype(int), shard_documents=shard_documents)


def planted_corpus(n=3000, d=300, n_labels=30, k=6, seed=0, shard_documents=500, length=(15, 30)):
    """Documents of the paper's model with known states."""
    from distmom.simulate.multilabel import planted

    population = planted(d, n_labels, k, random_state=seed)
    documents = population.sample(
        0, n, words_per_document=length, labels_per_document=(1, 3), random_state=seed
    )
    X, Y = csr_array(documents.words).astype(int), csr_array(documents.labels)
    return population, documents, MemoryCorpus(X, (Y > 0).astype(int), shard_documents=shard_documents)


def matrices(corpus):
    """Words and labels of all documents of a corpus."""
    blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    return vstack([b.words for b in blocks]), vstack([b.labels for b in blocks])


def planted_matrices():
    """Words and labels of a small planted corpus."""
    return matrices(planted_corpus(1500, d=120, n_labels=12, k=4, shard_documents=300)[2])


class WeightedViews(ViewCorpus):
    """Groups of views that count as often as given: an enumerated population of `distmom.simulate.views`."""

    def __init__(self, views, **options):
        super().__init__(views.X, views.groups, **options)
        self.group_weights = np.asarray(views.weights, float)

    def read_shard(self, i):
        block = super().read_shard(i)
        return replace(block, weights=self.group_weights[block.first : block.first + block.n_documents])


def matched(found, true, *, signed=True):
    """Match rows one to one; return the largest distance relative to the true row, and the true row of each."""
    distance = np.linalg.norm(found[:, None] - true[None], axis=2)
    if not signed:
        distance = np.minimum(distance, np.linalg.norm(found[:, None] + true[None], axis=2))
    distance = distance / np.linalg.norm(true, axis=1)
    rows, columns = linear_sum_assignment(distance)
    return distance[rows, columns].max(), columns


def matched_topics(found, truth):
    """Mean L1 distance of the best matching of rows, and the order of the rows of ``found``."""
    cost = np.abs(truth[:, None, :] - found[None, :, :]).sum(axis=2)
    rows, columns = linear_sum_assignment(cost)
    return cost[rows, columns].mean(), columns


def lda_corpus(n=2000, d=200, k=5, length=60, seed=0, shard_documents=300):
    """Documents of a Dirichlet law over known topics, and their shares."""
    from distmom.simulate.topics import TopicPopulation

    rng = np.random.default_rng(seed)
    population = TopicPopulation(np.full(k, 0.2), rng.dirichlet(np.full(d, 0.1), k).T)
    counts, shares = population.sample(n, length, seed=seed + 1)
    return population, shares, MemoryCorpus(counts, shard_documents=shard_documents)


def carried_out(engine, function, *arguments, **options):
    """Return what a program gives that is carried out by an engine, its plan compared."""
    return execute(lambda run: function(run, *arguments, **options), engine)


def assigned(model, corpus):
    """Return the arrays that a model assigns to the rows of a corpus, by name."""
    with open_engine(corpus) as engine:
        stored = carried_out(engine, model.assign)
        assert all(rows.axis == "rows" for rows in stored.values())
        return {
            name: np.concatenate([rows.read(i) for i in range(len(corpus.shards))])
            for name, rows in stored.items()
        }


class WeightedRows(RowCorpus):
    """Rows or sequences in memory that count as often as given: an enumerated population."""

    def __init__(self, X, weights, lengths=None, **options):
        super().__init__(X, lengths, **options)
        self.unit_weights = np.asarray(weights, float)

    def read_shard(self, index):
        block = super().read_shard(index)
        return replace(block, weights=self.unit_weights[block.first : block.first + block.n_documents])


def exact_rows(population, side=None, **options):
    """Return the exact population of a mixture, with responses and columns of side information, as a corpus.

    ``side`` has the expectation of every column in every component, (k, q).
    """
    rows = population.exact()
    columns = [rows.X, rows.responses, None if side is None else side[rows.components]]
    return WeightedRows(
        np.column_stack([each for each in columns if each is not None]), rows.weights, **options
    )


def widened(X, variance, d, seed=1):
    """Return rows in d dimensions with further columns, rotated, and the rotation.

    Further columns have the variance ``variance`` and are independent of the given ones; every row becomes two for
    each of them.
    """
    n = d - X.shape[1]
    axes = np.sqrt(variance * n) * np.vstack([np.eye(n), -np.eye(n)])
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]
    return np.hstack([np.repeat(X, 2 * n, axis=0), np.tile(axes, (len(X), 1))]) @ rotation.T, rotation


def gaussian_population(d, k, seed=0, scale=2.0):
    """A mixture of spherical Gaussians with random parameters."""
    from distmom.simulate.mixtures import GaussianPopulation

    rng = np.random.default_rng(seed)
    return GaussianPopulation(
        scale * rng.normal(size=(k, d)), rng.dirichlet(np.full(k, 5.0)), rng.uniform(0.5, 2.0, k)
    )


def content(model):
    """Return the bytes of every file of a saved model, but for its record, which has times."""
    files = [path for path in sorted(model.rglob("*")) if path.is_file() and path.name != "model.json"]
    return {path.relative_to(model): path.read_bytes() for path in files}


def scores(model, corpus):
    """Return the bits of the scores of a saved model for the first documents of a corpus."""
    block = open_corpus(corpus).read_shard(0)
    return MultiLabelMoM.load(model).decision_function(block.words[:300]).tobytes()


@contextmanager
def meanwhile(work, every_s=0.0):
    """Call a function again and again in another thread; its first error is raised at the end of the block."""
    ended, errors = threading.Event(), []

    def repeat():
        try:
            while not ended.wait(every_s):
                work()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def peak_bytes(call, enough):
    """Peak memory of a call of Python and NumPy: the first that is less than ``enough``, or the least of five.

    The first call may import or compile something, and threads of earlier tests may allocate for a while.
    """
    peaks = []
    while len(peaks) < 5 and not (peaks and peaks[-1] < enough):
        time.sleep(0.05)
        tracemalloc.start()
        call()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


def hold_out_one_fold(monkeypatch):
    """Let blends be chosen on a fifth of the documents of small corpora too."""
    from distmom.models.multilabel import program

    monkeypatch.setattr(program, "folds_of", lambda *given: [program.held_out(*given)])


def rank_few_labels_exhaustively(monkeypatch):
    """Let a corpus with more than 20 labels be fitted as one with more than 1,000."""
    from distmom.models.multilabel import trials
    from distmom.models.multilabel.classifiers import gate, margin
    from distmom.models.multilabel.heads import candidates

    for module, name in (
        (candidates, "ALL_LABELS"), (trials, "ALL_LABELS"), (margin, "MAX_LABELS"), (gate, "MAX_LABELS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 20)
    monkeypatch.setattr(candidates, "PER_HEAD", 5)


def scored_of(names, rows, frequency=None):
    """Return arrays of scores by heads of given names, by default of one fold and without covariates."""
    from distmom.models.multilabel.blend.scored import Scored

    n = len(rows["labels"])
    rest = {"covariates": np.zeros((n, 2), np.float32), "fold": np.zeros(n, int)}
    return Scored(tuple(names), **{**rest, **rows}, frequency=frequency)


def not_reranked(scorer):
    """Return a scorer whose best labels are not ranked again."""
    return replace(scorer, blend=getattr(scorer.blend, "first", scorer.blend))


def population_corpus(population, lengths=(2, 3, 4)):
    """All documents of some lengths, each length as often as the others, with their probabilities."""
    parts = [population.enumerate(n) for n in lengths]
    weights = np.concatenate([w for _, w in parts]) / len(parts)
    return WeightedCorpus(vstack([c for c, _ in parts]).astype(int), None, weights, shard_documents=40)


@dataclass(frozen=True)
class CountPass(Pass):
    """Counts words; sums of irrational multiples show the order of additions."""

    factor: float = 1.0
    wide: int = 0

    def specs(self):
        return {
            "words": SumSpec((self.n_features,), by_feature=True),
            "total": SumSpec(()),
            "wide": SumSpec((self.wide,)),
        }

    def add(self, sums, block, rows):
        lo, hi = self.slab.start, self.slab.stop
        sums["words"] += np.asarray(block.words[:, lo:hi].sum(axis=0)).ravel() * self.factor
        sums["total"] += np.sqrt(block.words.sum() + 0.1) * self.factor
        stored = {"length": np.asarray(block.words.sum(axis=1)).ravel().astype(float)}
        if "length" in rows:
            stored["twice"] = rows["length"] * 2
        return stored


def count(corpus, **options):
    """A pass that counts the words of a corpus."""
    return CountPass(corpus.n_words, **options)


def bits(model, X):
    """Scores of all labels, to the last bit."""
    return model.decision_function(X).tobytes()


def write(path, text):
    """Write a text to a file; return its path."""
    path.write_text(text)
    return path


def lines(out):
    """Labels and probabilities of every document of written predictions."""
    header, *rest = (out / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "id\tlabel\tprobability"
    found = {text: [] for text in (out / "ids.txt").read_text(encoding="utf-8").splitlines()}
    for line in rest:
        text, label, score = line.split("\t")
        found[text].append((label, float(score)))
    return list(found.values())


def make(tmp_path, content, name="data.xmc.txt", **options):
    """Ingest a file of some content; return the corpus."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ingest(path, tmp_path / "corpus", overwrite=True, **options)
