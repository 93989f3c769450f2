"""Data structures common to the readers of all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from distmom.corpus.sources.readers.part import Part
from distmom.corpus.sources.readers.source import Chunk, Tally
from distmom.corpus.sources.tokenize import Tokenizer


@dataclass(frozen=True)
class Spec:
    """Settings for encoding a chunk; small, and the same for every chunk.

    Attributes
    ----------
    path : str
        The source, for error messages.
    label_path : str or None, default=None
        The second file of a pair.
    strict : bool, default=False
        Raise InputError instead of repairing.
    tokenizer : Tokenizer
        For formats that contain text.
    n_words, n_labels : int or None, default=None
        Number of columns, if specified by the source or the caller; larger numbers are rejected.
    zero_based : bool or None, default=None
        Whether the source numbers words from 0 or 1, if the format does not determine it.
    text_field, labels_field : str, default="text" and "labels"
        Names of the fields with text and labels; the field "label" takes the place of a missing "labels".
    label_separator : str, default=","
        Separator of the labels of a document in lines and tables; empty if documents have at most one label.
    id_field : str or None, default=None
        Name of the field with the id of a document.
    columns : (int, int, int, int), default=(0, -1, -1, 0)
        For tables: positions of the text, of the labels and of the ids (-1 for none), number of fields.
    header : tuple of str, default=()
        For tables: names of all fields.
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
    label_separator: str = ","
    id_field: str | None = None
    columns: tuple[int, int, int, int] = (0, -1, -1, 0)
    header: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """An opened source.

    Attributes
    ----------
    spec : Spec
        Completed with information from the header of the file.
    chunks : callable
        Receives a number of documents and yields the chunks in order; also checks the end of the source.
    encode : callable
        Converts a chunk to a part; can be pickled.
    tally : Tally
        Repairs made while reading lines.
    bytes_done : callable
        Bytes of the source read so far.
    """

    spec: Spec
    chunks: Callable[[int], Iterator[Chunk]]
    encode: Callable[[Chunk, Spec], Part]
    tally: Tally
    bytes_done: Callable[[], int]
