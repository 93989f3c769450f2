"""Passes over the presence of words in three groups, independent given the component of a document.

Source: Anandkumar, Ge, Hsu, Kakade, Telgarsky, "Tensor Decompositions for Learning Latent Variable Models",
section 3.3.1. With ``x_t`` the presence of the words of group t (zero at all others) and Q an orthonormal basis of
the range of ``sum_{s != t} E[x_t x_s']``, views are ``z_t = Q'x_t``. `GroupSketchPass` multiplies that matrix by a
test matrix or a basis, `GroupMomentsPass` adds up the moments of the views of orders one to three.

`PresenceEMPass` needs no groups: it makes one expectation-maximisation (EM) iteration with all words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.corpus import Block
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.moments.documents.labels import posteriors
from distmom.moments.kernels import gather, gather_columns, scatter
from distmom.moments.sketching import ProjectedPass, SketchPass, drawn_bytes
from distmom.moments.three_views import N_GROUPS, PAIRS
from distmom.moments.weighting import row_weights


@dataclass(frozen=True)
class GroupSketchPass(SketchPass):
    """Multiply the second moment of words in different groups by a test matrix or a basis.

    Attributes
    ----------
    groups : ndarray of shape (n_words,), uint8
        Group of every word.
    """

    groups: Any = None

    @property
    def mapped_bytes(self) -> int:
        return drawn_bytes(self)

    def working_bytes(self, n_rows: int) -> int:
        return 8 * (N_GROUPS + 2) * n_rows * self.n_columns

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, weights, matrix = block.words, row_weights(block), self.matrix()
        whole = gather(words.indptr, words.indices, np.ones(words.nnz), matrix)
        for t in range(N_GROUPS):
            own = np.asarray(self.groups[words.indices] == t, np.float64)
            others = whole - gather(words.indptr, words.indices, own, matrix)
            scatter(words.indptr, words.indices, own, others * weights[:, None], sums["sketch"].single, 0)
        sums["sketch"].settle()
        sums["mass"] += weights.sum()
        return None


@dataclass(frozen=True)
class GroupMomentsPass(ProjectedPass):
    """Add up the moments of the three views in a basis.

    Attributes
    ----------
    groups : ndarray of shape (n_words,), uint8
    basis : matrix of shape (n_words, r), float64
        Q; an array, or slabs of columns.
    rank : int
        r.

    Notes
    -----
    Sums: ``means`` (3, r), ``pairs`` (3, r, r) in the order of `PAIRS`, ``triples`` (r, r, r) and ``mass`` ().
    """

    groups: Any = None
    basis: Any = None
    rank: int = 0

    @property
    def name(self) -> str:
        return "moments"

    def working_bytes(self, n_rows: int) -> int:
        return 8 * (N_GROUPS + 2) * n_rows * self.rank

    @property
    def finish_bytes(self) -> int:
        return 8 * 3 * self.rank**3

    def specs(self) -> dict[str, SumSpec]:
        r = self.rank
        return {
            "means": SumSpec((N_GROUPS, r)),
            "pairs": SumSpec((len(PAIRS), r, r)),
            "triples": SumSpec((r, r, r)),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, weights = block.words, row_weights(block)
        views = [
            gather_columns(
                words.indptr,
                words.indices,
                np.asarray(self.groups[words.indices] == t, np.float64),
                self.basis,
            )
            for t in range(N_GROUPS)
        ]
        sums["mass"] += weights.sum()
        for t, view in enumerate(views):
            sums["means"][t] += weights @ view
        for i, (s, t) in enumerate(PAIRS):
            sums["pairs"][i] += views[s].T @ (views[t] * weights[:, None])
        first, second, third = views
        for c in range(self.rank):
            sums["triples"][:, :, c] += (first * (weights * third[:, c])[:, None]).T @ second
        return None


def presence_logs(
    probabilities: np.ndarray, weights: np.ndarray, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-odds of words, and the logarithms of the probabilities of empty documents.

    ``log(w_h p(x | h))`` is the sum of the log-odds of the words that are present, plus a constant of the
    component, so that absent words take no time.

    Parameters
    ----------
    probabilities : ndarray of shape (n_words, k)
        Probabilities of the presence of words, given the component.
    weights : ndarray of shape (k,)
    least : float
        Least distance of a probability from zero and from one, and least weight.

    Returns
    -------
    log_odds : ndarray of shape (n_words, k), float64
    constants : ndarray of shape (k,), float64
        ``log w_h + sum_v log(1 - p_vh)``.
    """
    kept = np.clip(np.asarray(probabilities, np.float64), least, 1.0 - least)
    absent = np.log1p(-kept)
    constants = absent.sum(axis=0) + np.log(np.maximum(np.asarray(weights, np.float64), least))
    log_odds = np.log(kept, out=kept)
    log_odds -= absent
    return log_odds, constants


@dataclass(frozen=True)
class PosteriorPass(ProjectedPass):
    """Base class of passes that read the probabilities of the components of documents.

    Attributes
    ----------
    log_odds : matrix of shape (n_words, k), float64
        As returned by `presence_logs`; an array, or slabs of columns.
    constants : ndarray of shape (k,)
    n_components : int
        k.
    """

    log_odds: Any = None
    constants: Any = None
    n_components: int = 0

    @property
    def projector(self) -> tuple[Any, int]:
        return self.log_odds, self.n_components

    def working_bytes(self, n_rows: int) -> int:
        return 8 * 4 * n_rows * self.n_components


@dataclass(frozen=True)
class PresenceEMPass(PosteriorPass):
    """Add up the sums for one expectation-maximisation (EM) iteration; attributes as in `PosteriorPass`.

    Notes
    -----
    Sums over documents, with their posterior probabilities p: ``p`` (k,), ``px`` (n_words, k) over the documents
    that have the word; ``log_likelihood`` () and ``mass`` ().
    """

    @property
    def name(self) -> str:
        return "em"

    def specs(self) -> dict[str, SumSpec]:
        k = self.n_components
        return {
            "p": SumSpec((k,)),
            "px": SumSpec((self.n_features, k), by_feature=True),
            "log_likelihood": SumSpec(()),
            "mass": SumSpec(()),
        }

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        words, weights = block.words, row_weights(block)
        posterior, evidence = posteriors(block, self.log_odds, self.constants)
        posterior *= weights[:, None]
        scatter(words.indptr, words.indices, np.ones(words.nnz), posterior, sums["px"], self.slab.start)
        sums["p"] += posterior.sum(axis=0)
        sums["log_likelihood"] += evidence @ weights
        sums["mass"] += weights.sum()
        return None


@dataclass(frozen=True)
class PresenceAssignPass(PosteriorPass):
    """Store the most probable component of every document, and the probabilities of all.

    Attributes are as in `PosteriorPass`.

    Notes
    -----
    Rows: ``components`` (n,), int32, and ``probabilities`` (n, k), float32. Sums: ``log_likelihood`` () and
    ``mass`` ().
    """

    @property
    def name(self) -> str:
        return "assign"

    @property
    def row_bytes(self) -> int:
        return 4 + 4 * self.n_components

    def specs(self) -> dict[str, SumSpec]:
        return {"log_likelihood": SumSpec(()), "mass": SumSpec(())}

    def add(self, sums: Sums, block: Block, rows: Rows) -> Rows | None:
        weights = row_weights(block)
        posterior, evidence = posteriors(block, self.log_odds, self.constants)
        sums["log_likelihood"] += evidence @ weights
        sums["mass"] += weights.sum()
        return {
            "components": posterior.argmax(axis=1).astype(np.int32),
            "probabilities": posterior.astype(np.float32),
        }


def smoothed_rates(counts: np.ndarray, mass: float) -> np.ndarray:
    """Return the shares of documents that have each word, inside (0, 1).

    Half a document with the word and half a document without it are added, which is the mean of the posterior
    distribution with the prior of Jeffreys.
    """
    return np.asarray((np.asarray(counts, np.float64) + 0.5) / (mass + 1.0))


def maximised(sums: Sums, added: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the parameters after an iteration of EM.

    Some documents are added to each component, with every word as often as in all documents. Without them, a word
    that is in no document of a component, or in all of them, has the probability 0 or 1. EM never changes such a
    probability, and new documents may be impossible in all components. The added documents are a prior (a beta
    distribution for each word), so each iteration raises the likelihood times the density of this prior. They pull
    rare words to their overall frequency, at which a word does not distinguish components.

    Parameters
    ----------
    sums : Sums
        Sums of `PresenceEMPass`.
    added : float
        Number of documents added to each component.

    Returns
    -------
    probabilities : ndarray of shape (n_words, k)
    weights : ndarray of shape (k,)
    log_likelihood : float
        On average per document, of the parameters before.
    """
    p, px, mass = np.asarray(sums["p"]), np.asarray(sums["px"]), float(sums["mass"])
    rates = smoothed_rates(px.sum(axis=1), mass)
    probabilities = (px + added * rates[:, None]) / (p + added)
    return probabilities, p / p.sum(), float(sums["log_likelihood"]) / mass
