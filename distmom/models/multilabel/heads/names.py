"""Names of labels as evidence: each name counts as a few documents of its label."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from distmom.moments.features.tfidf import tfidf_rows

#: documents that the name of a label counts as
NAME_DOCUMENTS = 3.0
_WORD = re.compile(r"[^\W_]+")
_LETTER = re.compile(r"[^\W\d_]")


def name_sums(names: Sequence[str], vocabulary: Sequence[str], idf: np.ndarray) -> csr_array:
    """Return the cross moment of words and labels of the names, (n_words + 1, n_labels) float32.

    Column l is the tf-idf row of the name of label l. It is zero if no word of the name is in the vocabulary,
    or if the name has no letter, as a number does not describe its label.

    Parameters
    ----------
    names : sequence of str
        Names of the labels.
    vocabulary : sequence of str
    idf : ndarray of shape (n_words,) or (0,)
    """
    found = [set(_WORD.findall(name.lower())) if _LETTER.search(name) else set() for name in names]
    wanted = set().union(*found)
    numbers = {word: i for i, word in enumerate(vocabulary) if word in wanted}
    words = [sorted(numbers[word] for word in own if word in numbers) for own in found]
    indptr = np.concatenate([[0], np.cumsum([len(own) for own in words])]).astype(np.int64)
    indices = np.array([word for own in words for word in own], np.int32)
    presence = csr_array(
        (np.ones(len(indices), np.int32), indices, indptr), shape=(len(names), len(vocabulary))
    )
    rows = tfidf_rows(presence, idf, np.float32)
    # The constant feature carries no information about a name.
    shape = (len(names), len(vocabulary) + 1)
    return csr_array(csr_array((rows.data, rows.indices, rows.indptr), shape=shape).T)
