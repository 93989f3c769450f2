"""Data for `latents`: views of planted factors and patches of photographs, and trees of hidden variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_sample_images
from tree_em import Law, Shape

from distmom.models.trees.structure import Tree
from distmom.simulate.views import poisson_sentences

HELD_OUT_SHARE = 0.2
#: skewness of planted factors is that of gamma distributions of these shapes
FACTOR_SHAPES = (0.3, 2.0)
#: with noise that columns share: number of its directions, and their standard deviations
N_SHARED, SHARED_SPREAD = 5, 3.0
#: side of a patch, and patches on a side of a region, of photographs
PATCH, REGION = 4, 2
#: kinds of blocks of pixels
N_KINDS = 8
#: least probability that a hidden variable has the state of its parent, and the spread of its other states
LEAST_SAME, OTHERS = 0.6, 1.0


# Factors of views


@dataclass(frozen=True)
class ViewsTask:
    """Units with several views each.

    Attributes
    ----------
    train, held_out : ndarray of shape (n_units, n_views, d)
    k : int
        Number of factors.
    loadings : ndarray of shape (d, k) or None
        Planted directions of the factors; the held-out units are fitted too where there are none.
    """

    train: np.ndarray
    held_out: np.ndarray
    k: int
    loadings: np.ndarray | None = None
    model: str = "factors"

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that are stored with every result."""
        n, n_views, d = self.train.shape
        return {"n_train": n, "n_views": n_views, "d": d, "k": self.k}

    def store(self, folder: Path) -> None:
        """Write the units for the systems."""
        again = self.held_out if self.loadings is None else self.held_out[:0]
        np.savez(folder / "task.npz", views=self.train, again=again, k=self.k)


def split_units(units: np.ndarray, k: int, seed: int, loadings: np.ndarray | None = None) -> ViewsTask:
    """Hold out a random fifth of planted units, or half of the others."""
    share = 0.5 if loadings is None else HELD_OUT_SHARE
    held = np.random.default_rng(seed).random(len(units)) < share
    return ViewsTask(units[~held], units[held], k, loadings)


def skewed_views(k: int, d: int, n: int, n_views: int, noise: str, seed: int) -> ViewsTask:
    """Plant gamma distributed factors of variance one.

    Columns of ``noise`` are ``white``, have variances of their own (``uneven``), or share directions of much noise
    (``shared``). Loadings are normal; a factor with ``sparse`` in ``noise`` has a fifth of the columns.
    """
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(d, k)) / np.sqrt(k)
    if "sparse" in noise:
        loadings = loadings * (rng.random((d, k)) < 0.2) * np.sqrt(5.0)
    shapes = rng.uniform(*FACTOR_SHAPES, k)
    factors = (rng.gamma(shapes, size=(n, k)) - shapes) / np.sqrt(shapes)
    eta = rng.normal(size=(n, n_views, d))
    if "uneven" in noise:
        eta *= rng.uniform(0.3, 3.0, d)
    if "shared" in noise:
        directions = SHARED_SPREAD * rng.normal(size=(N_SHARED, d)) / np.sqrt(N_SHARED)
        eta += rng.normal(size=(n, n_views, N_SHARED)) @ directions
    return split_units((factors @ loadings.T)[:, None] + eta, k, seed, loadings)


def sentences(k: int, d: int, n: int, n_views: int, seed: int) -> ViewsTask:
    """Plant counts of words of sentences, with rates that are sums of gamma distributed factors."""
    rng = np.random.default_rng(seed)
    loadings, shapes = 0.5 * rng.gamma(0.3, size=(d, k)), rng.uniform(*FACTOR_SHAPES, k)
    views = poisson_sentences(loadings, shapes, n_groups=n, n_views=n_views, seed=seed)
    return split_units(views.X.reshape(n, n_views, d), k, seed, loadings)


def patches(k: int, seed: int) -> ViewsTask:
    """Return colours of the patches of regions of two photographs; views are the patches of a region."""
    units = []
    side = PATCH * REGION
    for image in load_sample_images().images:
        rows, columns = (size // side for size in image.shape[:2])
        cut = image[: rows * side, : columns * side].astype(np.float64) / 255.0
        cut = cut.reshape(rows, REGION, PATCH, columns, REGION, PATCH, 3)
        units.append(cut.transpose(0, 3, 1, 4, 2, 5, 6).reshape(rows * columns, REGION**2, -1))
    return split_units(np.concatenate(units), k, seed)


# Trees


@dataclass(frozen=True)
class TreeTask:
    """Rows of the leaves of a tree.

    Attributes
    ----------
    train, held_out : ndarray of shape (n_rows, n_leaves), int
        Categories.
    text : str
        The tree, as `LatentTree` takes it.
    shape : Shape
    law : Law or None
        Planted probabilities.
    """

    train: np.ndarray
    held_out: np.ndarray
    text: str
    shape: Shape
    law: Law | None = None
    model: str = "latent-tree"

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that are stored with every result."""
        return {"n_train": len(self.train), "d": sum(self.shape.levels), "k": self.shape.k}

    def store(self, folder: Path) -> None:
        """Write the rows and the tree for the systems."""
        shape = self.shape
        np.savez(
            folder / "task.npz", rows=self.train, tree=self.text, k=shape.k, parents=shape.parents,
            of_leaves=shape.of_leaves, levels=shape.levels,
        )  # fmt: skip


def split_rows(rows: np.ndarray, text: str, shape: Shape, seed: int, law: Law | None = None) -> TreeTask:
    """Hold out a random fifth of the rows."""
    held = np.random.default_rng(seed).random(len(rows)) < HELD_OUT_SHARE
    return TreeTask(rows[~held], rows[held], text, shape, law)


def planted_tree(text: str, k: int, n_levels: int, n: int, sharpness: float, seed: int) -> TreeTask:
    """Plant a tree.

    A leaf has the category of the state above it with more probability the larger ``sharpness`` is.
    """
    rng, tree = np.random.default_rng(seed), Tree.parse(text)
    shape = Shape(tree.parents, tree.of_leaves, (n_levels,) * len(tree.of_leaves), k)
    edges = []
    for _ in tree.parents[1:]:
        same = rng.uniform(LEAST_SAME, 1.0, (k, 1))
        edges.append(same * np.eye(k) + (1.0 - same) * rng.dirichlet(np.full(k, OTHERS), k))
    leaves = []
    for _ in tree.of_leaves:
        chosen = np.eye(n_levels)[rng.permutation(n_levels)[:k]]
        leaves.append(np.stack([rng.dirichlet(1.0 + sharpness * own) for own in chosen]))
    law = Law(rng.dirichlet(np.full(k, 8.0)), edges, leaves)
    return split_rows(law.sample(shape, n, rng), text, shape, seed, law)


def digit_rows(k: int, seed: int) -> TreeTask:
    """Return kinds of blocks of digits, by k-means, in a tree of pairs of rows.

    A leaf is a block of two rows and four columns of pixels; two blocks make up the rows that they share.
    """
    images = load_digits().data.reshape(-1, 4, 2, 2, 4).transpose(0, 1, 3, 2, 4).reshape(-1, 8, 8)
    means = KMeans(N_KINDS, n_init=3, random_state=0)
    rows = np.stack([means.fit_predict(images[:, block]) for block in range(8)], axis=1)
    text = "((1,2),(3,4),(5,6),(7,8))"
    tree = Tree.parse(text)
    return split_rows(rows, text, Shape(tree.parents, tree.of_leaves, (N_KINDS,) * 8, k), seed)


def tasks() -> dict[str, Callable[..., Any]]:
    """Return how to make each task with a seed."""
    star, ancestry = "((1,2,3),(4,5,6),(7,8,9))", "(((1,2),(3,4)),((5,6),(7,8)),((9,10),(11,12)))"
    return {
        "white noise, 2,000 units": partial(skewed_views, 5, 40, 2_000, 4, "white"),
        "white noise, 20,000 units": partial(skewed_views, 5, 40, 20_000, 4, "white"),
        "white noise, sparse loadings": partial(skewed_views, 5, 40, 20_000, 4, "white sparse"),
        "uneven noise": partial(skewed_views, 5, 40, 20_000, 4, "uneven"),
        "shared noise, 2,000 units": partial(skewed_views, 5, 40, 2_000, 4, "shared"),
        "shared noise, 20,000 units": partial(skewed_views, 5, 40, 20_000, 4, "shared"),
        "words of sentences": partial(sentences, 5, 100, 20_000, 5),
        "patches of photographs": partial(patches, 3),
        "4 leaves, 2 states, 2,000 rows": partial(planted_tree, "((1,2),3,4)", 2, 3, 2_500, 5.0),
        "9 leaves, 3 states, 2,000 rows": partial(planted_tree, star, 3, 5, 2_500, 5.0),
        "9 leaves, 3 states, 20,000 rows": partial(planted_tree, star, 3, 5, 25_000, 5.0),
        "12 leaves, 4 states, 20,000 rows": partial(planted_tree, ancestry, 4, 4, 25_000, 20.0),
        "9 leaves, 8 states, 20,000 rows": partial(planted_tree, star, 8, 12, 25_000, 20.0),
        "rows of digits, 2 states": partial(digit_rows, 2),
        "rows of digits, 3 states": partial(digit_rows, 3),
    }
