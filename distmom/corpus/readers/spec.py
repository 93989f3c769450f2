"""What is common to the readers of all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from distmom.corpus.readers.part import Part
from distmom.corpus.readers.source import Chunk, Tally
from distmom.corpus.tokenize import Tokenizer


@dataclass(frozen=True)
class Spec:
    """All that the encoding of a chunk depends on; small, and the same for every chunk.

    Attributes
    ----------
    path : str
        The source, for errors.
    label_path : str or None
        The second file of a pair.
    strict : bool
        Refuse what would be repaired.
    tokenizer : Tokenizer
        For formats that hold text.
    n_words, n_labels : int or None
        Number of columns, if the source or the caller tells; numbers beyond are refused.
    zero_based : bool or None
        Whether the source numbers words from 0 or 1, where the format leaves that open.
    text_field, labels_field : str
        Names of the fields that hold text and labels.
    columns : (int, int, int)
        For tables: position of the text, position of the labels (-1 for none), number of fields.
    """

    path: str
    label_path: str | None = None
    strict: bool = False
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    n_words: int | None = None
    n_labels: int | None = None
    zero_based: bool | None = None
    text_field: str = "text"
    labels_field: str = "labels"
    columns: tuple[int, int, int] = (0, -1, 0)


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes
    ----------
    spec : Spec
        Completed with what the head of the file tells.
    chunks : callable
        Given a number of documents, yields the chunks in order; checks the end of the source too.
    encode : callable
        A function of a module that turns a chunk into a part.
    tally : Tally
        What was repaired while lines were read.
    bytes_done : callable
        Bytes of the source read so far.
    """

    spec: Spec
    chunks: Callable[[int], Iterator[Chunk]]
    encode: Callable[[Chunk, Spec], Part]
    tally: Tally
    bytes_done: Callable[[], int]
