"""Reports of the words and labels of a corpus that a model does not know."""

from __future__ import annotations

import logging

import numpy as np

from distmom.corpus import Corpus, MemoryCorpus
from distmom.corpus.names import are_numbers
from distmom.errors import UsageError
from distmom.spectral.inputs.documents import WARN_SHARE

logger = logging.getLogger(__name__)

#: number of unknown names shown in a message
N_EXAMPLES = 5


def unknown_words(corpus: Corpus | MemoryCorpus, vocabulary: list[str]) -> int:
    """Return the number of occurrences of words outside a vocabulary, including those left out at ingest."""
    known = set(vocabulary)
    unknown = np.fromiter((word not in known for word in corpus.vocabulary), bool, corpus.n_words)
    kept = round(float(np.asarray(corpus.word_frequency)[unknown].sum()))
    return kept + int(corpus.warnings.get("unknown_words", 0))


def check_words(corpus: Corpus | MemoryCorpus, vocabulary: list[str]) -> int:
    """Log a warning if at least a tenth of the word occurrences in a corpus are unknown to a model.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    vocabulary : list of str
        Words of the model.

    Returns
    -------
    int
        Number of occurrences of unknown words, see `unknown_words`.

    Raises
    ------
    UsageError
        If the model knows none of the words.
    """
    n_unknown = unknown_words(corpus, vocabulary)
    frequency = np.asarray(corpus.word_frequency, np.float64)
    total = round(float(frequency.sum())) + int(corpus.warnings.get("unknown_words", 0))
    if n_unknown >= WARN_SHARE * total:
        _say_unknown("words", n_unknown, total, corpus.vocabulary, frequency, vocabulary)
    return n_unknown


def check_labels(corpus: Corpus | MemoryCorpus, label_names: list[str]) -> None:
    """Log a warning if at least a tenth of the label occurrences in a corpus are unknown to a model.

    Parameters
    ----------
    corpus : Corpus or MemoryCorpus
    label_names : list of str
        Labels of the model.

    Raises
    ------
    UsageError
        If the model knows none of the labels.
    """
    known, frequency = set(label_names), np.asarray(corpus.label_frequency, np.float64)
    unknown = np.fromiter((name not in known for name in corpus.label_names), bool, corpus.n_labels)
    n_unknown, total = round(float(frequency[unknown].sum())), round(float(frequency.sum()))
    if n_unknown >= WARN_SHARE * total:
        _say_unknown("labels", n_unknown, total, corpus.label_names, frequency, label_names)


def _say_unknown(
    what: str, n_unknown: int, total: int, names: list[str], frequency: np.ndarray, own: list[str]
) -> None:
    """Warn about unknown names with the most frequent as examples; UsageError if no known name occurs."""
    if not n_unknown:
        return
    known = set(own)
    by_frequency = (names[i] for i in np.argsort(-frequency, kind="stable") if frequency[i] > 0)
    examples = _examples([name for name in by_frequency if name not in known])
    advice = (
        "ingest the documents with 'distmom ingest --like MODEL' to use the words and labels of the model"
    )
    if n_unknown == total:
        if are_numbers(own):
            advice = f"the model was fitted to {what} without names: fit it again to documents with names"
        raise UsageError(
            f"{what} of the documents: expected names known to the model{_examples(own)}, "
            f"got none of them{examples}; {advice}"
        )
    counts = {"words": "are left out", "labels": "count as misses"}[what]
    # Without examples, the unknown names were left out at ingest, so the advice was followed.
    logger.warning(
        "the model does not know %.0f %% of the %s of the documents (%s of %s)%s; they %s%s",
        100.0 * n_unknown / total, what, f"{n_unknown:,}", f"{total:,}", examples, counts,
        f"; {advice}" if examples else "",
    )  # fmt: skip


def _examples(names: list[str]) -> str:
    """Return the first names as the end of a clause."""
    return f", such as {', '.join(map(repr, names[:N_EXAMPLES]))}" if names else ""
