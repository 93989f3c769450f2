"""Documents from an iterable: pairs of words and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from distmom.corpus.block import MAX_VALUE
from distmom.corpus.names import is_plain
from distmom.corpus.sources.readers.part import Numbering, Part, gather
from distmom.corpus.sources.readers.source import Chunk, Tally
from distmom.corpus.sources.readers.spec import Source, Spec
from distmom.corpus.sources.readers.text import name_labels
from distmom.errors import InputError


def open_documents(spec: Spec, documents: Iterable[Any]) -> Source:
    """Open an iterable of ``(words, labels)``; errors give positions in it, from 0, as line numbers."""

    def chunks(size: int) -> Iterator[Chunk]:
        iterator, first = iter(documents), 0
        while taken := list(islice(iterator, size)):
            yield Chunk(first, b"", first, len(taken), taken)
            first += len(taken)

    return Source(spec, chunks, encode_documents, Tally(spec.path, spec.strict), lambda: 0)


def encode_documents(chunk: Chunk, spec: Spec) -> Part:
    """Encode documents given as a list of words, or as a mapping of words to counts or weights."""
    numbering = Numbering()
    lengths, ids, values, labels = [], [], [], []
    for position, document in enumerate(chunk.other, chunk.first_document):
        try:
            words, names = document
        except (TypeError, ValueError) as error:
            raise InputError.at(
                spec.path, position, "document", "a pair of words and labels", repr(document)[:80]
            ) from error
        items = words if isinstance(words, Mapping) else Counter(words)
        for word, value in items.items():
            if not isinstance(word, str) or not word or not is_plain(word):
                raise InputError.at(
                    spec.path, position, "word", "text without control characters", repr(word)[:80]
                )
            if not (isinstance(value, (int, float, np.number)) and 0 <= value <= MAX_VALUE):
                raise InputError.at(
                    spec.path,
                    position,
                    f"value of {word!r}",
                    f"a finite number from 0 to {MAX_VALUE}",
                    repr(value)[:80],
                )
            if value:
                ids.append(numbering[word])
                values.append(float(value))
        lengths.append(sum(1 for value in items.values() if value))
        listed = list(names)
        if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
            raise InputError.at(spec.path, position, "labels", "a list of names", repr(names)[:80])
        labels.append(listed)
    rows = gather(lengths, np.array(ids, np.int64), np.array(values, np.float64))
    part = Part(
        rows.ptr, rows.ids, rows.values, np.zeros(1, np.int64), np.zeros(0, np.int32), list(numbering)
    )
    lines = range(chunk.first_document, chunk.first_document + chunk.n_documents)
    return name_labels(part, Tally(spec.path, spec.strict), labels, lines)
