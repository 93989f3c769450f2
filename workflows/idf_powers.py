"""Report the power of idf with which values of words grow: counts, frequencies, and weights by idf.

distmom uses values that are tf-idf weights already as they are (``features="auto"`` of `MultiLabelMoM`), and
detects them by this power, in the first shard of the training documents. The last two lines of the table have the
smallest and the largest power of every kind of value.

Example::

    python workflows/idf_powers.py bibtex labels/reuters labels/goemotions data/debian
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from label_corpora import ingest_folder
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize

from distmom.engine import open_executor
from distmom.moments.features.tfidf import idf_power, inverse_document_frequency


def transformed(**options: Any) -> Callable[[csr_array], csr_array]:
    """Return the function that turns counts into weights by scikit-learn's `TfidfTransformer`."""
    return lambda X: csr_array(TfidfTransformer(**options).fit_transform(X))


def bm25(X: csr_array) -> csr_array:
    """Return the BM25 weights of counts, with k1 = 1.2 and b = 0.75."""
    n, lengths = X.shape[0], np.asarray(X.sum(axis=1)).ravel()
    frequency = np.bincount(X.indices, minlength=X.shape[1])
    saturation = 1.2 * (0.25 + 0.75 * np.repeat(lengths / lengths.mean(), np.diff(X.indptr)))
    idf = np.log1p((n - frequency + 0.5) / (frequency + 0.5))
    return csr_array((X.data * 2.2 / (X.data + saturation) * idf[X.indices], X.indices, X.indptr), X.shape)


#: values of words without idf as a factor, by the names of the columns
WITHOUT: dict[str, Callable[[csr_array], csr_array]] = {
    "counts": lambda X: X,
    "counts, sum 1": lambda X: csr_array(normalize(X, "l1")),
    "counts, length 1": lambda X: csr_array(normalize(X)),
    "presence, length 1": lambda X: csr_array(normalize(X > 0)),
    "log counts, length 1": transformed(use_idf=False, sublinear_tf=True),
}
#: values of words with idf as a factor
WITH: dict[str, Callable[[csr_array], csr_array]] = {
    "tf-idf, length 1": transformed(),
    "tf-idf, sum 1": transformed(norm="l1"),
    "log tf-idf, length 1": transformed(sublinear_tf=True),
    "log tf-idf": transformed(sublinear_tf=True, norm=None),
    "tf-idf, not smoothed": transformed(norm=None, smooth_idf=False),
    "BM25": bm25,
}


def powers(X: csr_array) -> dict[str, float]:
    """Return the power of idf for every kind of values made from counts."""
    counts = csr_array(X, dtype=np.float64)
    idf = inverse_document_frequency(np.bincount(counts.indices, minlength=X.shape[1]), X.shape[0])
    return {name: idf_power(weigh(counts), idf) for name, weigh in (WITHOUT | WITH).items()}


def table(found: dict[str, dict[str, float]]) -> str:
    """Return the powers of all corpora as a table in Markdown, with the least and the largest of every column."""
    kinds = [*WITHOUT, *WITH]
    ends = {
        name: {kind: choose(own[kind] for own in found.values()) for kind in kinds}
        for name, choose in (("least", min), ("largest", max))
    }
    lines = ["| corpus | " + " | ".join(kinds) + " |", "|---|" + "---:|" * len(kinds)]
    for name, own in (found | ends).items():
        lines.append(f"| {name} | " + " | ".join(f"{own[kind]:.2f}" for kind in kinds) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+", help="folders or prefixes, as for benchmark_peers.py")
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, float]] = {}
    for data in options.data:
        with tempfile.TemporaryDirectory() as temporary, open_executor(workers=0) as executor:
            corpus, _, _ = ingest_folder(data, Path(temporary), executor)
            found[data.name] = powers(corpus.read_shard(0).words)
    print(table(found))


if __name__ == "__main__":
    main()
