"""Passes that note which groups they fold and can be interrupted at one, and what damages a file."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from distmom.engine import Pass, SumSpec

#: shards of the corpus, each a group
N_GROUPS = 9


@dataclass(frozen=True)
class NotedPass(Pass):
    """Notes every group that is folded, and fails at one of them while a file says so."""

    place: str = ""

    def note(self, block):
        group, columns = block.first // 37, self.columns or self.features or slice(0, 0)
        stop = Path(self.place, "stop")
        if stop.exists() and group == int(stop.read_text()):
            raise RuntimeError("interrupted")
        with Path(self.place, "folded").open("a") as stream:
            stream.write(f"{group} {columns.start}\n")


@dataclass(frozen=True)
class SmallPass(NotedPass):
    """Sums of several shapes and types, and stored rows."""

    def specs(self):
        return {
            "odd": SumSpec((3,), "float32"),
            "words": SumSpec((self.n_features, 64), by_feature=True),
            "total": SumSpec(()),
            "none": SumSpec((0, 2)),
            "n": SumSpec((), "int64"),
        }

    def add(self, sums, block, rows):
        self.note(block)
        values = np.sqrt(np.asarray(block.words[:, self.slab].sum(axis=0)).ravel() + 0.1)
        sums["odd"] += values[:3].astype(np.float32)
        sums["words"] += values[:, None] * np.arange(64)
        sums["total"] += values.sum() if self.features is None else block.first / 3
        sums["n"] += block.n_documents
        return {"first": block.words.toarray()[:, :2] / 3}


@dataclass(frozen=True)
class TallPass(NotedPass):
    """A tall and a small sum, and stored rows."""

    separable: bool = False

    def specs(self):
        return {
            "tall": SumSpec((self.n_features, 6), "float32", tall="features", separable=self.separable),
            "n": SumSpec(()),
        }

    def add(self, sums, block, rows):
        self.note(block)
        columns = self.columns or slice(0, 6)
        factors = np.sqrt(np.asarray(block.words.sum(axis=1)).reshape(-1, 1) + np.arange(6))[:, columns]
        sums["tall"].single[...] += block.words.T @ factors
        sums["tall"].settle()
        sums["n"] += np.sqrt(block.n_documents)
        return None if self.separable else {"first": factors}


@dataclass(frozen=True)
class SparsePass(NotedPass):
    """A sparse sum."""

    def specs(self):
        return {"sparse": SumSpec((self.n_features, 4), n_bytes=1 << 10, sparse=True, tall="features")}

    def add(self, sums, block, rows):
        self.note(block)
        sums["sparse"].add(csr_array(block.words.T @ np.sqrt(block.words[:, :4].toarray() + 0.1)))


PASSES = {
    "small": lambda d, place: SmallPass(d, place=place),
    "tall": lambda d, place: TallPass(d, place=place),
    "separable": lambda d, place: TallPass(d, place=place, separable=True),
    "sparse": lambda d, place: SparsePass(d, place=place),
}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path):
    os.truncate(path, path.stat().st_size - 1)
