"""Rows for `mixtures`: planted mixtures of four kinds, and data with known classes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz, vstack
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from distmom.corpus import ingest
from distmom.simulate import planted
from distmom.simulate.views import MixedViewPopulation

HELD_OUT_SHARE = 0.2
#: least grey value, of 16, of a pixel that counts as set
SET_PIXEL = 8
#: views of the wines: columns in their order, of acids and minerals, phenols, and colour
WINE_WIDTHS = (5, 4, 4)
#: views of tumours: their sizes, surfaces and outlines
TUMOUR_VIEWS = (
    ("radius", "perimeter", "area"),
    ("texture", "smoothness", "symmetry"),
    ("compactness", "concavity", "concave points", "fractal dimension"),
)
#: views of digits: pixels of the first three, the next two, and the last three rows of eight
DIGIT_WIDTHS = (24, 16, 24)


@dataclass(frozen=True)
class Task:
    """Rows with known groups.

    Attributes
    ----------
    model : str
        Key of `run_mixture.SYSTEMS`.
    train, held_out : csr_matrix of shape (n_rows, d)
    groups : ndarray of shape (n_train,), int
        Planted components, or classes.
    k : int
        Number of groups.
    weights, components, variances : ndarray of shape (k,), (k, d) and (k, d), or None
        Planted parameters.
    views : tuple of str
        Kinds and widths of the views, as `run_mixture` takes them.
    """

    model: str
    train: csr_matrix
    held_out: csr_matrix
    groups: np.ndarray
    k: int
    weights: np.ndarray | None = None
    components: np.ndarray | None = None
    variances: np.ndarray | None = None
    views: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that are stored with every result."""
        n, d = self.train.shape
        return {"n_train": n, "d": d, "k": self.k}

    def store(self, folder: Path) -> None:
        """Write the rows for the systems."""
        save_npz(folder / "rows.npz", self.train)


def split(model: str, rows: Any, groups: np.ndarray, seed: int, **truth: Any) -> Task:
    """Return a task with a random fifth of the rows held out; groups get the numbers 0 to k - 1."""
    held = np.random.default_rng(seed).random(len(groups)) < HELD_OUT_SHARE
    rows, numbers = csr_matrix(rows), np.unique(groups, return_inverse=True)[1]
    return Task(model, rows[~held], rows[held], numbers[~held], int(numbers.max()) + 1, **truth)


# Presence of words


def presence(k: int, d: int, n: int, separation: float, seed: int) -> Task:
    """Plant words whose log-odds differ between components by a standard deviation of ``separation``."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.5, 1.0, d) + separation * rng.normal(size=(k, d))
    components, weights = 1.0 / (1.0 + np.exp(-logits)), rng.dirichlet(np.full(k, 10.0))
    rows = MixedViewPopulation(components, weights, [("bits", d)]).sample(n, rng)
    return split(
        "product", rows.X.astype(np.int8), rows.components, seed, weights=weights, components=components
    )


def digit_bits(n_classes: int, seed: int) -> Task:
    """Return which pixels are set in images of the first digits."""
    X, y = load_digits(return_X_y=True)
    return split("product", (X >= SET_PIXEL)[y < n_classes].astype(np.int8), y[y < n_classes], seed)


def newsgroup_posts(path: Path, model: str, n_groups: int, seed: int, **options: Any) -> Task:
    """Return words of posts of the first newsgroups; posts of several groups, or without words, are left out."""
    with tempfile.TemporaryDirectory(prefix="mixtures-") as temporary:
        corpus = ingest(path, Path(temporary) / "corpus", **options)
        blocks = [corpus.read_shard(i) for i in range(len(corpus.shards))]
    words, labels = (csr_matrix(vstack([getattr(block, name) for block in blocks]))
                     for name in ("words", "labels"))  # fmt: skip
    label = np.asarray(labels.argmax(axis=1)).ravel()
    kept = (np.diff(labels.indptr) == 1) & (np.diff(words.indptr) > 0) & (label < n_groups)
    return split(model, words[kept].astype(np.int32), label[kept], seed)


# Views


def mixed_views(n: int, seed: int) -> Task:
    """Plant three groups in a view of yes-or-no columns and two views of values."""
    rng = np.random.default_rng(seed)
    weights = np.array([0.5, 0.3, 0.2])
    marks, values = rng.uniform(0.05, 0.6, (3, 40)), rng.normal(size=(3, 18))
    population = MixedViewPopulation(np.hstack([marks, values]), weights, [("bits", 40), ("values", 18)])
    rows = population.sample(n, rng)
    return split(
        "multiview", rows.X, rows.components, seed, weights=weights, components=population.means,
        views=("binary:40", "gaussian_diag:12", "gaussian_diag:6"),
    )  # fmt: skip


def gaussian_views(k: int, n: int, separation: float, correlated: bool, seed: int) -> Task:
    """Plant three views of ten values; columns of a view are independent, or correlated with each other."""
    rng = np.random.default_rng(seed)
    components, weights = separation * rng.normal(size=(k, 30)), rng.dirichlet(np.full(k, 10.0))
    groups = rng.choice(k, n, p=weights)
    noise = rng.normal(size=(n, 30))
    if correlated:
        mixing = rng.normal(size=(3, 10, 10)) / np.sqrt(10.0)
        noise = np.einsum("ntj,tij->nti", noise.reshape(n, 3, 10), mixing).reshape(n, 30)
    return split(
        "multiview", components[groups] + noise, groups, seed, weights=weights, components=components,
        views=("gaussian_diag:10",) * 3,
    )  # fmt: skip


def bit_views(k: int, n: int, correlated: bool, seed: int) -> Task:
    """Plant three views of 15 yes-or-no columns, which are independent, or depend on each other within a view."""
    rng = np.random.default_rng(seed)
    weights, components = rng.dirichlet(np.full(k, 10.0)), norm.cdf(rng.normal(-0.5, 0.6, (k, 45)))
    groups = rng.choice(k, n, p=weights)
    share = 0.6 if correlated else 0.0
    common, own = rng.normal(size=(n, 3, 1)), rng.normal(size=(n, 3, 15))
    latent = (np.sqrt(share) * common + np.sqrt(1.0 - share) * own).reshape(n, 45)
    return split(
        "multiview", (norm.cdf(latent) < components[groups]).astype(np.int8), groups, seed, weights=weights,
        components=components, views=("binary:15",) * 3,
    )  # fmt: skip


def class_views(name: str, seed: int) -> Task:
    """Return three views of the wines, tumours or digits of scikit-learn, columns in standard deviations."""
    data = {"wine": load_wine, "tumours": load_breast_cancer, "digits": load_digits}[name]()
    X, widths = data.data, WINE_WIDTHS if name == "wine" else DIGIT_WIDTHS
    if name == "tumours":
        named = [name.removeprefix("mean ").removeprefix("worst ").removesuffix(" error")
                 for name in data.feature_names]  # fmt: skip
        views = [[j for j, own in enumerate(named) if own in view] for view in TUMOUR_VIEWS]
        X, widths = X[:, np.concatenate(views)], tuple(map(len, views))
    return split("multiview", scaled(X), data.target, seed, views=tuple(f"gaussian_diag:{n}" for n in widths))


# Gaussians


def axis_aligned(k: int, d: int, n: int, separation: float, seed: int) -> Task:
    """Plant Gaussians whose means and standard deviations differ in every column, in differing units."""
    rng = np.random.default_rng(seed)
    means, deviations = separation * rng.normal(size=(k, d)), rng.uniform(0.5, 1.5, (k, d))
    weights, units = rng.dirichlet(np.full(k, 10.0)), 10.0 ** rng.uniform(-1.0, 1.0, d)
    groups = rng.choice(k, n, p=weights)
    rows = (means[groups] + deviations[groups] * rng.normal(size=(n, d))) * units
    return split(
        "diagonal", rows, groups, seed, weights=weights, components=means * units,
        variances=(deviations * units) ** 2, views=(f"gaussian_diag:{d}",),
    )  # fmt: skip


def class_rows(name: str, n_classes: int, seed: int) -> Task:
    """Return the first classes of the wines, tumours or digits of scikit-learn, columns in standard deviations."""
    data = {"wine": load_wine, "tumours": load_breast_cancer, "digits": load_digits}[name]()
    chosen = data.target < n_classes
    X = scaled(data.data[chosen])
    return split("diagonal", X, data.target[chosen], seed, views=(f"gaussian_diag:{X.shape[1]}",))


def scaled(X: np.ndarray) -> np.ndarray:
    """Return centred columns in their standard deviations; constant columns are zero."""
    spread = X.std(axis=0)
    return np.asarray((X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0))


# Counts of words


def topics(k: int, d: int, n: int, lengths: tuple[int, int], overlap: float, seed: int) -> Task:
    """Plant documents of a single topic each, topics sharing a part of their mass."""
    population = planted(d, k, k, overlap=overlap, random_state=seed)
    documents = population.sample(0, n, words_per_document=lengths, random_state=seed)
    assert documents.states is not None
    return split(
        "single-topic", documents.words.astype(np.int32), documents.states, seed,
        weights=population.pi, components=population.O.T,
    )  # fmt: skip


def tasks(data: Path) -> dict[str, Callable[[int], Task]]:
    """Return how to make each task with a seed; ``data`` is the folder of the newsgroups."""
    words, texts = data / "ng20-train.xmc.txt.xz", data / "newsgroups.jsonl.xz"
    bits = {"path": words, "format": "xmc"}
    posts = {"path": texts, "format": "jsonl", "min_df": 50, "stop_words": "english"}
    return {
        "3 groups, 30 words, 3,000 rows": partial(presence, 3, 30, 3_000, 2.0),
        "5 groups, 100 words, 20,000 rows": partial(presence, 5, 100, 20_000, 1.0),
        "10 groups, 300 words, 20,000 rows": partial(presence, 10, 300, 20_000, 0.7),
        "digits of 3 classes": partial(digit_bits, 3),
        "digits of 10 classes": partial(digit_bits, 10),
        "5 newsgroups, words": partial(newsgroup_posts, model="product", n_groups=5, **bits),
        "20 newsgroups, words": partial(newsgroup_posts, model="product", n_groups=20, **bits),
        "mixed views, 6,000 rows": partial(mixed_views, 6_000),
        "close views, 20,000 rows": partial(gaussian_views, 5, 20_000, 0.5, False),
        "correlated views, 20,000 rows": partial(gaussian_views, 5, 20_000, 1.0, True),
        "yes-or-no views, 20,000 rows": partial(bit_views, 4, 20_000, False),
        "correlated yes-or-no views, 20,000 rows": partial(bit_views, 4, 20_000, True),
        "wines": partial(class_views, "wine"),
        "tumours": partial(class_views, "tumours"),
        "digits by rows": partial(class_views, "digits"),
        "3 Gaussians, 20 columns, 3,000 rows": partial(axis_aligned, 3, 20, 3_000, 0.7),
        "5 Gaussians, 60 columns, 20,000 rows": partial(axis_aligned, 5, 60, 20_000, 0.4),
        "10 Gaussians, 200 columns, 20,000 rows": partial(axis_aligned, 10, 200, 20_000, 0.3),
        "wines, 13 columns": partial(class_rows, "wine", 3),
        "tumours, 30 columns": partial(class_rows, "tumours", 2),
        "grey values of 3 digits": partial(class_rows, "digits", 3),
        "grey values of 10 digits": partial(class_rows, "digits", 10),
        "5 topics, 300 words, 3,000 documents": partial(topics, 5, 300, 3_000, (20, 60), 0.3),
        "10 topics, 1,000 words, 5,000 documents": partial(topics, 10, 1_000, 5_000, (20, 60), 0.6),
        "10 topics, 10 words a document": partial(topics, 10, 1_000, 5_000, (5, 15), 0.6),
        "5 newsgroups, posts": partial(newsgroup_posts, model="single-topic", n_groups=5, **posts),
        "20 newsgroups, words as counts": partial(newsgroup_posts, model="single-topic", n_groups=20, **bits),
    }
