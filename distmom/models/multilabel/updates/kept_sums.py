"""The sums from which the heads of a model are made, kept so that documents can be added and removed later.

With the idf weights, the basis of the sketch and the stages of the linear head fixed, every head is a function of
sums over documents, or of the documents themselves. A `Content` holds these of some documents; contents are added
and subtracted, and a model stores its content as `KeptSums`, without the parts that its heads hold anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from distmom.engine import Csr, Engine, Pruning, Sums, Term
from distmom.engine.passes import transform_fields
from distmom.errors import UsageError
from distmom.models.multilabel.assembly import FittedHeads, Parts, opened_array
from distmom.models.multilabel.heads.columns import PIECE_ENTRIES
from distmom.models.multilabel.heads.documents import (
    document_keys,
    find_keys,
    join_documents,
    with_columns,
)
from distmom.models.multilabel.heads.heads import Head
from distmom.models.multilabel.heads.linear import KeptStage, LinearFit
from distmom.models.multilabel.heads.neighbor_heads import NeighborsHead, SketchNeighbors
from distmom.models.multilabel.recipe import Recipe
from distmom.models.multilabel.updates.sums import CrossSum, KeptSums, LinearSum, RidgeSum
from distmom.models.multilabel.variants import INDEX, SKETCH_NEIGHBORS

#: share of a sum by which its remainder may be negative because of rounding
REMAINDER_ROUNDING = 1e-6


@dataclass(frozen=True)
class Content:
    """The sums of some documents, and the documents themselves where heads need them; None where no head does.

    Attributes
    ----------
    n_documents : int
    label_counts : ndarray of shape (m,), int64
    sums : KeptSums
        The sums, always with the documents that heads need.
    rows : ndarray of shape (n_documents, r), float32, or None
        Rows of the sketch, for the head ``sketch-neighbors``.
    """

    n_documents: int
    label_counts: np.ndarray
    sums: KeptSums
    rows: np.ndarray | None = None

    @property
    def keys(self) -> np.ndarray:
        """Hashes of the documents (see `document_keys`)."""
        assert self.sums.documents is not None
        return document_keys(opened(self.sums.documents))

    def with_labels(self, columns: np.ndarray, n_labels: int) -> Content:
        """Return the content with its labels renumbered among more labels."""
        sums, index = self.sums, self.sums.documents

        def spread(own: np.ndarray) -> np.ndarray:
            out = np.zeros((n_labels, *own.shape[1:]), own.dtype)
            out[columns] = own
            return out

        cross, linear, ridge = sums.cross, sums.linear, sums.ridge
        if cross is not None:
            cross = CrossSum(with_columns(cross.matrix, columns, n_labels))
        if linear is not None:
            stages = tuple(
                (name, replace(stage, weights=with_columns(stage.weights, columns, n_labels)))
                for name, stage in linear.stages
            )
            linear = LinearSum(with_columns(linear.weights, columns, n_labels), stages, linear.share)
        if ridge is not None:
            ridge = replace(ridge, zy=spread(ridge.zy))
        if index is not None:
            index = replace(index, labels=with_columns(index.labels, columns, n_labels))
        sums = replace(sums, cross=cross, linear=linear, ridge=ridge, documents=index)
        return replace(self, label_counts=spread(self.label_counts), sums=sums)


def kept_sums(engine: Engine, fitted: FittedHeads, parts: Parts, recipe: Recipe) -> FittedHeads:
    """Return fitted heads with the sums that their recipe needs."""
    features = parts.features
    assert features is not None
    cross = linear = ridge = None
    if recipe.needs("features"):
        cross = CrossSum(features.whole_cross(engine))
    if recipe.needs("linear") and parts.linear is not None:
        diagonal = 1.0 / parts.linear.inverse
        terms = [
            replace(term, rows=diagonal * (1.0 if term.rows is None else term.rows))
            for term in parts.linear.terms
        ]
        stages = tuple(
            (str(i), KeptStage(stage.weights, float(stage.scale), float(stage.step)))
            for i, stage in enumerate(parts.linear.stages, 1)
        )
        linear = LinearSum(engine.maps.combine(terms), stages, _share(parts.linear))
    if recipe.needs("ridge") and parts.ridge is not None:
        ridge = ridge_sum(parts.ridge[1].sums)
    documents = parts.index if recipe.needs("index", "margins") and INDEX not in fitted.heads else None
    kept = KeptSums(features.squares, cross, linear, ridge, documents, [[engine.corpus.digest, 1]])
    return replace(fitted, sums=opened(kept))


def _share(fit: LinearFit) -> float:
    """Return the share of the first weights in the last ones."""
    if not fit.stages:
        return 1.0
    first, last = fit.stages[0].weights.opened().data, fit.terms[0].matrix
    assert isinstance(last, Csr)
    product = square = 0.0
    for start in range(0, len(first), PIECE_ENTRIES):
        part = slice(start, start + PIECE_ENTRIES)
        own = np.asarray(first[part], np.float64)
        product += float(own @ np.asarray(last.opened().data[part], np.float64))
        square += float(own @ own)
    return product / square if square else 1.0


def ridge_sum(sums: Sums) -> RidgeSum:
    """Return the ridge sums that are kept, in memory."""
    return RidgeSum(*(np.array(sums[f.name]) for f in fields(RidgeSum)))


def opened(kept: Any) -> Any:
    """Return sums with their stored arrays opened."""
    return transform_fields(kept, opened_array)


def content_of(
    heads: dict[str, Head], sums: KeptSums, n_documents: int, label_frequency: np.ndarray
) -> Content:
    """Return the content of a model, given its heads and kept sums."""
    index, near = heads.get(INDEX), heads.get(SKETCH_NEIGHBORS)
    if isinstance(index, NeighborsHead):
        documents = NeighborsHead(index.lists, index.labels, index.alive, skipped=index.skipped)
        sums = replace(sums, documents=documents)
    rows = near.rows if isinstance(near, SketchNeighbors) else None
    return Content(n_documents, label_frequency, sums, rows)


class MissingDocumentError(UsageError):
    """Some documents to be removed are not in the model.

    Parameters
    ----------
    position : int
        Position of the first such document among those to be removed, counted from 0.
    """

    def __init__(self, position: int) -> None:
        super().__init__(
            f"document {position} (counted from 0) is not in the model with these words and labels"
        )
        self.position = position


def join(
    engine: Engine, added: Sequence[Content], taken: Sequence[Content], label_names: Sequence[str]
) -> Content:
    """Add contents, and subtract others.

    Parameters
    ----------
    engine : Engine
    added : sequence of Content
        At least one; the stages of the first are those of the result.
    taken : sequence of Content
    label_names : sequence of str
        Names of the labels, which are those of all contents.

    Returns
    -------
    Content
        Its matrices and documents are stored arrays.

    Raises
    ------
    MissingDocumentError
        If a document to be subtracted is not in the added contents.
    UsageError
        If a corpus would be counted twice, no document would remain, or the number of documents of a label or the
        sum of squares of a word would be negative.
    """
    signed = [(1.0, each) for each in added] + [(-1.0, each) for each in taken]
    n_documents = sum(int(sign) * each.n_documents for sign, each in signed)
    counts = np.sum([int(sign) * each.label_counts for sign, each in signed], axis=0)
    documents, rows = _joined_documents(engine, added, taken, len(label_names))
    # Where contents have documents, all that are to be removed have been found by now.
    corpora = net_corpora(
        [(sign, each.sums.corpora) for sign, each in signed], least=-1 if documents is None else None
    )
    if n_documents < 1:
        raise UsageError(f"expected at least 1 remaining document, got {n_documents}")
    if counts.min(initial=0) < 0:
        label = int(np.argmin(counts))
        raise UsageError(
            f"documents are removed that are not in the model: the label {label_names[label]!r} would remain in "
            f"{counts[label]} documents"
        )
    squares = np.sum([sign * each.sums.squares for sign, each in signed], axis=0)
    largest = np.sum([each.sums.squares for each in added], axis=0)
    if (squares < -REMAINDER_ROUNDING * np.maximum(largest, 1.0)).any():
        raise UsageError(
            f"documents are removed that are not in the model: the squares of word {int(np.argmin(squares))} "
            f"(counted from 0) would add up to {squares.min():g}"
        )

    def combined(matrices: Sequence[Csr]) -> Csr:
        terms = [Term(matrix, sign) for matrix, (sign, _) in zip(matrices, signed, strict=True)]
        # Entries that cancel leave rounding errors.
        return engine.maps.combine(terms, Pruning(share=REMAINDER_ROUNDING) if taken else None)

    first = added[0].sums
    cross = linear = ridge = None
    if first.cross is not None:
        cross = CrossSum(combined([each.sums.cross.matrix for _, each in signed if each.sums.cross]))
    if first.linear is not None:
        weights = combined([each.sums.linear.weights for _, each in signed if each.sums.linear])
        linear = LinearSum(weights, first.linear.stages, first.linear.share)
    if first.ridge is not None:
        ridges = [(sign, each.sums.ridge) for sign, each in signed if each.sums.ridge is not None]
        ridge = RidgeSum(
            *(np.sum([sign * getattr(r, f.name) for sign, r in ridges], axis=0) for f in fields(RidgeSum))
        )
    sums = KeptSums(np.maximum(squares, 0.0), cross, linear, ridge, documents, corpora)
    return Content(n_documents, counts, sums, rows)


def net_corpora(signed: Iterable[tuple[float, list[list[Any]]]], least: int | None) -> list[list[Any]]:
    """Return the corpora that remain when corpora are added (1) or subtracted (-1).

    Raises
    ------
    UsageError
        If one would be counted twice, or less than ``least`` times; None for no limit.
    """
    net: dict[str, int] = {}
    for sign, corpora in signed:
        for name, own in corpora:
            net[name] = net.get(name, 0) + int(sign) * own
    for name, count in net.items():
        if count > 1:
            raise UsageError(
                f"the documents of the corpus with digest {name[:12]} would be counted {count} times: they were "
                "added before, or models share them, and the model of these documents has to be subtracted"
            )
        if least is not None and count < least:
            raise UsageError(f"the documents of the corpus with digest {name[:12]} were removed before")
    return [[name, count] for name, count in net.items() if count]


def _joined_documents(
    engine: Engine, added: Sequence[Content], taken: Sequence[Content], n_labels: int
) -> tuple[NeighborsHead | None, np.ndarray | None]:
    """Return the documents of a sum of contents, and their rows of the sketch."""
    indexes = [opened(each.sums.documents) for each in added if each.sums.documents is not None]
    if not indexes:
        return None, None
    alive = np.concatenate([np.asarray(index.alive) > 0 for index in indexes])
    if taken:
        keys = np.concatenate([each.keys for each in added])
        # A document that does not vote has been removed.
        there = np.flatnonzero(alive)
        at = find_keys(keys[there], np.concatenate([each.keys for each in taken]))
        if (at < 0).any():
            raise MissingDocumentError(int(np.argmax(at < 0)))
        alive[there[at]] = False
    ends = np.cumsum([len(index.alive) for index in indexes])
    parts = list(zip(indexes, np.split(alive, ends[:-1]), strict=True))
    rows = None
    if added[0].rows is not None:
        rows = np.concatenate([np.asarray(each.rows) for each in added])[alive]
    return join_documents(engine, parts, n_labels), rows
