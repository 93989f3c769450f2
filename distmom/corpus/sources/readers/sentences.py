"""Sentences of texts as views: a unit per document, a row of word counts per sentence.

The file is read twice: once to count the words, once to write the rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.corpus.layers import Layer
from distmom.corpus.sources.readers.rows import RowSource
from distmom.corpus.sources.readers.source import Chunk, LineReader, Tally, bare_name, decoded, line_chunks
from distmom.corpus.sources.readers.text import json_objects, tsv_lines
from distmom.corpus.sources.tokenize import Tokenizer, choose_words
from distmom.corpus.stored.write_layers import LayerShard
from distmom.errors import InputError

#: name of the layer
VIEWS = "views"
#: the end of a sentence
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


@dataclass(frozen=True)
class SentenceSpec:
    """How sentences are read.

    Attributes
    ----------
    path : str
        JSON objects (``.jsonl``, ``.ndjson``), lines ``labels<TAB>text`` (``.tsv``), or one text per line.
    tokenizer : Tokenizer
    text_field : str, default "text"
        Field of JSON objects that has the text.
    vocabulary : tuple of str or None, default None
        Words to keep; learned by default.
    shard_documents : int, default 20_000
    strict : bool, default False
        Refuse documents without a word and blank lines, which are otherwise left out and counted.
    """

    path: str
    tokenizer: Tokenizer
    text_field: str = "text"
    vocabulary: tuple[str, ...] | None = None
    shard_documents: int = 20_000
    strict: bool = False


def open_sentences(spec: SentenceSpec, run_map: Any) -> RowSource:
    """Open texts, whose sentences become views."""
    n_documents = 0
    frequency: Counter[str] = Counter()
    words = list(spec.vocabulary) if spec.vocabulary is not None else None
    if words is None:
        for own, n in run_map(partial(_count, spec), _chunks(spec)):
            frequency.update(own)
            n_documents += n
        words = choose_words(frequency, n_documents, spec.tokenizer.min_df, spec.tokenizer.max_df)
        if not words:
            raise InputError.at(
                spec.path, None, "vocabulary", f"a word in at least {spec.tokenizer.min_df} documents",
                f"{len(frequency)} words in {n_documents} documents, none of them",
            )  # fmt: skip
    numbers = {word: i for i, word in enumerate(words)}
    tally = Tally(spec.path, spec.strict)

    def tasks() -> Iterator[Callable[[], LayerShard]]:
        return (partial(_shard, spec, numbers, chunk) for chunk in _chunks(spec, tally))

    return RowSource(tasks, {VIEWS: words}, None, tally.counts)


def _chunks(spec: SentenceSpec, tally: Tally | None = None) -> Iterator[Chunk]:
    return line_chunks(LineReader(spec.path, tally or Tally(spec.path, spec.strict)), spec.shard_documents)


def sentences_of(text: str) -> list[str]:
    """Split a text after full stops, question marks and exclamation marks that a space follows."""
    return [part for part in _END.split(text) if part]


def _texts(spec: SentenceSpec, chunk: Chunk, tally: Tally) -> Iterator[tuple[int, str]]:
    """Yield line number and text of every document; blank lines of JSON objects and of tables are left out."""
    kind = bare_name(spec.path).rpartition(".")[2]
    if kind in ("jsonl", "ndjson"):
        yield from ((number, text) for number, text, _ in json_objects(tally, chunk, spec.text_field))
    elif kind == "tsv":
        yield from ((number, text) for number, _, text in tsv_lines(tally, chunk))
    else:
        yield from enumerate(decoded(tally, chunk.first_line, chunk.lines), chunk.first_line)


def _count(spec: SentenceSpec, chunk: Chunk) -> tuple[Counter[str], int]:
    """Return the document frequency of words, and the number of documents."""
    texts = [text for _, text in _texts(spec, chunk, Tally(spec.path, spec.strict))]
    frequency: Counter[str] = Counter()
    for words in spec.tokenizer.words(texts):
        frequency.update(set(words))
    return frequency, len(texts)


def _shard(spec: SentenceSpec, numbers: dict[str, int], chunk: Chunk) -> LayerShard:
    indptr, indices, starts, ids, n_empty = [0], [], [0], [], 0
    tally = Tally(spec.path, spec.strict)
    for line, text in _texts(spec, chunk, tally):
        n_sentences = 0
        for words in spec.tokenizer.words(sentences_of(text)):
            known = [numbers[word] for word in words if word in numbers]
            if known:
                indices += known
                indptr.append(len(indices))
                n_sentences += 1
        if n_sentences:
            starts.append(starts[-1] + n_sentences)
            ids.append(str(line))
            continue
        if spec.strict:
            raise InputError.at(spec.path, line, "document", "a word of the vocabulary", "none")
        n_empty += 1
    matrix = csr_array(
        (np.ones(len(indices), np.float32), np.array(indices, np.int32), np.array(indptr, np.int64)),
        shape=(len(indptr) - 1, len(numbers)),
    )
    matrix.sum_duplicates()
    layer = Layer(VIEWS, "csr", "rows", len(numbers), "float32")
    warnings = {"empty_documents": n_empty, **tally.counts}
    return LayerShard(
        (layer,), {VIEWS: matrix}, np.array(starts, np.int64), ids=tuple(ids), warnings=warnings
    )
