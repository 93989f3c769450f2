"""The labels that a fitted multi-label model assigns to documents in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils.validation import check_is_fitted

from distmom.corpus import Block
from distmom.corpus.block import label_matrix
from distmom.corpus.sources.texts import as_label_lists, label_columns_of
from distmom.errors import UsageError
from distmom.models.multilabel.blend.probabilities import DEFAULT_THRESHOLD, checked_threshold
from distmom.models.multilabel.heads.chosen_labels import label_numbers, of_labels
from distmom.models.multilabel.kernels import top_labels
from distmom.models.multilabel.needs import needs
from distmom.models.multilabel.targets import ONE_LABEL, TARGET_TYPE, TARGETS, checked_targets, names_of
from distmom.spectral.inputs.checks import check_size
from distmom.spectral.inputs.tables import column_names
from distmom.spectral.posteriors import logs_of

if TYPE_CHECKING:
    from distmom.models.multilabel.heads.scorer import Scorer


class NoProbabilitiesError(UsageError, AttributeError):
    """A model that has no probabilities of labels; ``hasattr(model, "predict_proba")`` is then False."""


class LabelPredictor:
    """Methods of a fitted multi-label model that assign labels to documents in memory."""

    scorer_: Scorer
    selection_: dict[str, Any] | None
    settings_: dict[str, Any]
    vocabulary_: list[str]
    label_names_: list[str]

    if TYPE_CHECKING:

        def _block(self, X: Any, min_samples: int = 0) -> Block: ...

    @property
    def classes_(self) -> np.ndarray:
        """Labels in the order of the columns of `decision_function`, (n_labels,).

        Of the type of the labels given to `fit` if these were one per document; else names (object).
        """
        return self._labels_of(self.label_names_)

    @property
    def threshold_(self) -> float:
        """Probability from which `predict` assigns a label.

        That of the best micro F1 on held-out documents, or 0.5 if none was chosen.
        """
        return float((self.selection_ or {}).get("threshold", DEFAULT_THRESHOLD))

    def predict(
        self, X: Any, threshold: float | Literal["best"] | None = None, *, labels: Sequence[str] | None = None
    ) -> Any:
        """Return the labels of documents, in the form in which labels were given to `fit`.

        A model with probabilities (see `predict_proba`) assigns every label of probability at least the
        threshold, so a document may get none. A model without probabilities assigns the label that ranks first,
        and so does any model that was fitted to one label per document. A document without a word of the
        vocabulary gets no label, except where documents were given one label each; it then gets the label that
        ranks first without any word.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            Texts, for a model that was fitted to texts, or counts or weights, not negative.
        threshold : float or "best", optional
            From 0 to 1; "best", as by default, for `threshold_`.
        labels : list of str or int, optional
            The labels to choose from; all by default. Fewer labels take less time.
            Chosen labels are not ranked again (see `Reranker`).

        Returns
        -------
        list of lists of str, ndarray of shape (n_documents,), or indicator matrix of shape (n_documents, n_labels)
            A list of names per document, by descending score, if the model was fitted to lists of names or to a
            corpus; an array of the type of the labels given to `fit` if these were one per document; a
            matrix of zeros and ones if it was fitted to a matrix, of the same type and sparse if that was, with a
            column for every label of ``labels``, or for all.

        Raises
        ------
        UsageError
            If the words differ from those of the fit, the threshold is not from 0 to 1, there is a threshold
            and the model has no probabilities or was fitted to one label per document, or the model lacks one of
            ``labels``.
        """
        check_is_fitted(self, "scorer_")
        block, form = self._block(X), self._form
        if threshold is not None:
            given, threshold = threshold, checked_threshold(threshold, self.threshold_)
            self.require_probabilities("threshold")
            if self._has_one_label:
                raise UsageError(
                    "threshold: expected none for a model that was fitted to one label per document, which "
                    f"assigns one label to every document; got {given!r}"
                )
        scorer = self._scorer_of(labels)
        names = self.label_names_ if labels is None else list(map(str, self._names_of(labels)))
        best, counts = self._chosen(scorer, block, threshold)
        if self._has_one_label:
            return self._labels_of([names[row[0]] for row in best])
        if form == "lists":
            return [
                [names[i] for i in row[:n]] for row, n in zip(best.tolist(), counts.tolist(), strict=True)
            ]
        taken = np.arange(best.shape[1]) < counts[:, None]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        shape = (block.n_documents, scorer.n_labels)
        matrix = csr_array((np.ones(int(indptr[-1]), np.uint8), best[taken], indptr), shape=shape)
        matrix.sort_indices()
        # Not all types of dense labels are types of sparse matrices.
        return (matrix if form == "sparse" else matrix.toarray()).astype(self._label_type, copy=False)

    @needs(lambda model, name: model.require_probabilities(name))
    def predict_proba(self, X: Any, labels: Sequence[str] | None = None) -> np.ndarray:
        """Return the probability of every label for every document.

        Probabilities of a document do not sum to one, except those of a model that was fitted to one label per
        document, which divides them by their sum over all labels. They are calibrated on average over documents
        like those that ``head="auto"`` holds out: of pairs of a document and a label with probability p, a share p
        is true. They are not calibrated for each label separately, nor for documents of another kind. With more
        than 1000 labels they are calibrated on labels that rank high, and extrapolated to the others.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            As for `predict`.
        labels : list of str or int, optional
            The labels to score, which are then the columns; all by default. Fewer labels take less time, except
            for a model that was fitted to one label per document. Chosen labels are not ranked again (see
            `Reranker`).

        Returns
        -------
        ndarray of shape (n_documents, n_labels), float32
            A dense matrix, for small inputs.

        Raises
        ------
        UsageError
            If the model has no probabilities or lacks one of ``labels``, or the words differ from those of the
            fit.
        """
        check_is_fitted(self, "scorer_")
        block, one_label = self._block(X), self._has_one_label
        # Those of one label per document depend on the scores of all labels.
        scorer = self.scorer_ if one_label else self._scorer_of(labels)
        columns = self._numbers_of(labels) if one_label and labels is not None else slice(None)
        out = np.zeros((block.n_documents, scorer.n_labels if labels is None else len(labels)), np.float32)
        for rows in scorer.blocks(block.n_documents):
            found = scorer.probabilities(scorer.scores(scorer.query(block.take(rows))))
            if one_label:
                found /= np.maximum(found.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
            out[rows] = found[:, columns]
        return out

    @needs(lambda model, name: model.require_probabilities(name))
    def predict_log_proba(self, X: Any, labels: Sequence[str] | None = None) -> np.ndarray:
        """Return the logarithms of `predict_proba`, minus infinity where a probability is zero.

        Parameters, shape and errors as for `predict_proba`.
        """
        return logs_of(self.predict_proba(X, labels))

    def predict_top(self, X: Any, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of documents in memory.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            As for `predict`.
        k : int, default 5
            All labels are returned if there are fewer.

        Returns
        -------
        labels : ndarray of shape (n_documents, k), int32
            By descending score, ties by smaller label.
        scores : ndarray of shape (n_documents, k), float32

        Raises
        ------
        UsageError
            If the number of words differs from that of the fit, or k is not a whole number from 0.
        """
        check_is_fitted(self, "scorer_")
        check_size("k", k)
        k = min(k, self.scorer_.n_labels)
        return self.scorer_.top(self._block(X), k)

    def decision_function(self, X: Any, labels: Sequence[str] | None = None) -> np.ndarray:
        """Return the scores of labels as a dense matrix, for small inputs.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            As for `predict`.
        labels : list of str, optional
            Names of the labels to score, which are then the columns; all by default. Fewer labels take less time.

        Returns
        -------
        ndarray of shape (n_documents, n_labels), float32
            For a model that was fitted to one of two labels per document, and no ``labels``: as in scikit-learn,
            the preference for the second label, (n_documents,), which is the log-odds of `predict_proba`, or the
            difference of the scores in a model without probabilities.

        Raises
        ------
        UsageError
            If the number of words differs from that of the fit, or the model lacks one of ``labels``.
        """
        check_is_fitted(self, "scorer_")
        block, scorer = self._block(X), self._scorer_of(labels)
        parts = [scorer.scores(scorer.query(block.take(rows))) for rows in scorer.blocks(block.n_documents)]
        scores = np.concatenate(parts) if parts else np.zeros((0, scorer.n_labels), np.float32)
        if labels is None and self._has_one_label and scorer.n_labels == 2:
            if scorer.has_probabilities:
                scores = -np.logaddexp(np.float32(0.0), -scorer.log_odds(scores))
            return np.asarray(scores[:, 1] - scores[:, 0])
        return scores

    def require_probabilities(self, what: str) -> None:
        """Raise a UsageError that begins with ``what`` if the model has no probabilities."""
        if not self.scorer_.has_probabilities:
            raise NoProbabilitiesError(
                f"{what}: this model has no probabilities of labels, which need head='auto' and propensity=0, "
                "and an objective other than PSP@k"
            )

    def _scorer_of(self, labels: Sequence[str] | None) -> Scorer:
        """Return the scorer of some labels, or of all."""
        if labels is None:
            return self.scorer_
        return of_labels(self.scorer_, self._numbers_of(labels))

    def _numbers_of(self, labels: Sequence[Any]) -> np.ndarray:
        """Return the columns of labels, (n,) int32."""
        return label_numbers(self._names_of(labels), self.label_names_)

    def _names_of(self, labels: Sequence[Any]) -> Sequence[str]:
        """Return the names of labels, which may be numbers where the model was fitted to one per document."""
        return names_of(labels) if self._form == "numbers" and not isinstance(labels, str) else labels

    def _labels_of(self, names: Sequence[str]) -> np.ndarray:
        """Return labels as they were given to `fit`, from their names."""
        if not self._has_one_label:
            return np.array(names, object)
        values = [int(name) for name in names] if self._form == "numbers" else names
        return np.array(values, self._label_type)

    def _check_labels(self, names: list[str]) -> None:
        """Raise a UsageError if the type of the labels given to `fit` cannot represent labels."""
        if self._form != "numbers":
            return
        for name in names:
            try:
                same = names_of(self._labels_of([name]).tolist()) == [name]
            except (ValueError, OverflowError):
                same = False
            if not same:
                raise UsageError(
                    f"y: expected labels of type {np.dtype(self._label_type)} as in the fit, got {name!r}"
                )

    def _chosen(
        self, scorer: Scorer, block: Block, threshold: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best labels of documents, (n, k) int32, and the number for each document, (n,) int64."""
        has_words = np.diff(block.words.indptr) > 0
        if not scorer.has_probabilities or self._has_one_label:
            labels, _ = scorer.top(block, 1)
            return labels, has_words.astype(np.int64)
        threshold = self.threshold_ if threshold is None else threshold
        parts, counts = [], np.zeros(block.n_documents, np.int64)
        for rows in scorer.blocks(block.n_documents):
            scores = scorer.scores(scorer.query(block.take(rows)))
            # A score that is NaN is taken, so that ranking refuses it.
            left = (scorer.probabilities(scores) < np.float32(threshold)) | ~has_words[rows, None]
            scores[left] = -np.inf
            counts[rows] = scorer.n_labels - left.sum(axis=1)
            width = max(1, int(counts[rows].max()))
            parts.append(top_labels(scores, width)[0])
        out = np.zeros((block.n_documents, max(1, int(counts.max(initial=0)))), np.int32)
        for rows, part in zip(scorer.blocks(block.n_documents), parts, strict=True):
            out[rows, : part.shape[1]] = part
        return out, counts

    @property
    def _form(self) -> str:
        """Form of the labels, as from `checked_targets`."""
        return str(self.settings_.get(TARGETS, "lists"))

    def _check_form(self, form: str) -> None:
        """Raise a UsageError if single labels are names and those of the fit are numbers, or vice versa."""
        if form in ONE_LABEL and self._has_one_label and form != self._form:
            raise UsageError(f"y: expected {self._form} as in the fit, got {form}")

    @property
    def _has_one_label(self) -> bool:
        """Whether the model was fitted to one label per document."""
        return self._form in ONE_LABEL

    @property
    def _label_type(self) -> str:
        """Type of the labels, as from `label_type`; models of versions that did not keep it have the usual one."""
        usual = {"numbers": "int64", "matrix": "uint8", "sparse": "uint8"}
        return str(self.settings_.get(TARGET_TYPE, usual.get(self._form, "object")))

    def score(self, X: Any, y: Any) -> float:
        """Return P@1: the share of documents whose first-ranked label is one of the given ones.

        Parameters
        ----------
        X : list of str, or array, sparse matrix or table of shape (n_documents, n_words)
            At least one document; as for `predict`.
        y : list of str, list of lists of str, list or array of int, or matrix or table of shape \
                (n_documents, n_labels)
            Labels, as for `fit`; those of a table are found by the names of its columns, and those of a matrix
            are in the order of `classes_`. Labels that the model does not know count as misses.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        UsageError
            If words, the columns of a matrix of labels or the form of single labels, names or numbers, differ from
            those of the fit, or no column of a table is a label of the model.
        InputError
            If a value is invalid, or the numbers of documents differ.
        """
        check_is_fitted(self, "scorer_")
        block, (y, form) = self._block(X, 1), checked_targets(y)
        self._check_form(form)
        columns = np.arange(self.scorer_.n_labels)
        if (lists := as_label_lists(y)) is not None:
            y, _, _ = label_columns_of(lists, self.label_names_)
        elif (names := column_names(y, "y")) is not None:
            places = {name: place for place, name in enumerate(names)}
            columns = np.array([places.get(name, -1) for name in self.label_names_])
            if columns.max() < 0:
                expected = f"expected labels of the model, such as {self.label_names_[0]!r}"
                raise UsageError(f"y: names of columns: {expected}, got only others, such as {names[0]!r}")
        elif y.shape[1] != self.scorer_.n_labels:
            raise UsageError(f"y: expected {self.scorer_.n_labels} labels as in the fit, got {y.shape[1]}")
        truth = label_matrix(y, block.n_documents)
        best = columns[self.scorer_.top(block, 1)[0][:, 0]]
        return float(np.mean((best >= 0) & truth[np.arange(block.n_documents), best]))
