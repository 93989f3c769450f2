"""Labels given by name or as a matrix, and the labels that a fitted model assigns to documents in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Block
from distmom.corpus.block import label_matrix
from distmom.corpus.texts import as_label_lists, label_columns_of
from distmom.errors import InputError, UsageError

if TYPE_CHECKING:
    from distmom.models.multilabel.heads import Scorer

#: setting of a model that was fitted in memory: the form of its labels, which is that of its predictions
TARGETS = "targets"


def checked_targets(y: Any) -> tuple[Any, str]:
    """Check labels given to ``fit``.

    Parameters
    ----------
    y : list of str, list of lists of str, or array, sparse matrix or table of shape (n_documents, n_labels)

    Returns
    -------
    y
        As given, or as an array.
    form : {"names", "lists", "matrix", "sparse"}
        A name for every document, a list of names, or a dense or sparse matrix.

    Raises
    ------
    InputError
        If labels are neither names nor numbers.
    UsageError
        If numbers are not a matrix.
    """
    if as_label_lists(y) is not None:
        return y, "names" if all(isinstance(each, str) for each in y) else "lists"
    if issparse(y):
        return y, "sparse"
    try:
        found = np.asarray(y)
    except ValueError as error:
        raise InputError(
            f"Unknown label type: y: expected names or a matrix of numbers, got {error}"
        ) from error
    if found.dtype.kind == "c":
        raise InputError("Complex data not supported: y: expected names or numbers, got complex numbers")
    if found.dtype.kind not in "biuf":
        raise InputError(f"Unknown label type: y: expected names or numbers, got {found.dtype}")
    if found.ndim != 2:
        raise UsageError(
            f"y: expected names of labels, or a matrix of shape (n_documents, n_labels), got shape {found.shape}"
        )
    return y if hasattr(y, "columns") else found, "matrix"


class LabelPredictor:
    """Methods of a fitted multi-label model that assign labels to documents in memory."""

    scorer_: Scorer
    settings_: dict[str, Any]
    vocabulary_: list[str]
    label_names_: list[str]

    if TYPE_CHECKING:

        def _block(self, X: Any, min_samples: int = 0) -> Block: ...

    @property
    def classes_(self) -> np.ndarray:
        """Names of the labels, (n_labels,) object, in the order of the columns of `decision_function`."""
        return np.array(self.label_names_, dtype=object)

    def predict(self, X: Any) -> Any:
        """Return the label that ranks first for every document, in the form in which labels were given to `fit`.

        A document without a word of the vocabulary gets no label, except where labels were given as one name per
        document; it then gets the label that ranks first without any word.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            Texts, for a model that was fitted to texts, or counts or weights, not negative.

        Returns
        -------
        list of lists of str, ndarray of shape (n_documents,), or indicator matrix of shape (n_documents, n_labels)
            A list of names per document, by descending score, if the model was fitted to lists of names or to a
            corpus; an array of names (object) if it was fitted to one name per document; a matrix of zeros and
            ones (uint8) if it was fitted to a matrix, sparse if that was.

        Raises
        ------
        UsageError
            If the words differ from those of the fit.
        """
        check_is_fitted(self, "scorer_")
        block, form = self._block(X), self._form
        labels, counts = self._chosen(block)
        if form == "names":
            return np.array([self.label_names_[row[0]] for row in labels], dtype=object)
        if form == "lists":
            return [
                [self.label_names_[i] for i in row[:n]]
                for row, n in zip(labels.tolist(), counts.tolist(), strict=True)
            ]
        taken = np.arange(labels.shape[1]) < counts[:, None]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        shape = (block.n_documents, self.scorer_.n_labels)
        matrix = csr_array((np.ones(int(indptr[-1]), np.uint8), labels[taken], indptr), shape=shape)
        matrix.sort_indices()
        return matrix if form == "sparse" else matrix.toarray()

    def _chosen(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Return the best labels of documents, (n, k) int32, and how many of them each gets, (n,) int64."""
        labels, _ = self.scorer_.top(block, 1)
        return labels, (np.diff(block.words.indptr) > 0).astype(np.int64)

    @property
    def _form(self) -> str:
        """Form of the labels, as from `checked_targets`."""
        return str(self.settings_.get(TARGETS, "lists"))

    def score(self, X: Any, y: Any) -> float:
        """Return P@1: the share of documents whose label that ranks first is one of those given.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            At least one document; as for `predict`.
        y : list of str, list of lists of str, or matrix of shape (n_documents, n_labels)
            Labels, as for `fit`. Names that the model does not know count as misses.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        UsageError
            If words or the columns of a matrix of labels differ from those of the fit.
        InputError
            If a value is invalid, or the numbers of documents differ.
        """
        check_is_fitted(self, "scorer_")
        block, (y, _) = self._block(X, 1), checked_targets(y)
        if (lists := as_label_lists(y)) is not None:
            like = SimpleNamespace(vocabulary=(), label_names=self.label_names_, settings={})
            y, _, _ = label_columns_of(lists, like)
        elif y.shape[1] != self.scorer_.n_labels:
            raise UsageError(f"y: expected {self.scorer_.n_labels} labels as in the fit, got {y.shape[1]}")
        truth = label_matrix(y, block.n_documents)
        best, _ = self.scorer_.top(block, 1)
        return float(np.mean(truth[np.arange(block.n_documents), best[:, 0]]))
