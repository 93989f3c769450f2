"""Corpora on disk, in object stores and in memory: ingest, copying, verified reading, and blocks of documents.

The package handles files and formats; it computes no statistics beyond counts taken while reading.
"""

from distmom.corpus.block import Block, RowBlock
from distmom.corpus.copy import copy_corpus
from distmom.corpus.ingest import FORMATS, ingest, write_corpus
from distmom.corpus.ingest_rows import ingest_rows, ingest_sentences
from distmom.corpus.layered import LayeredCorpus
from distmom.corpus.layers import AnyCorpus, Layer, RowShard, Shard
from distmom.corpus.manifest import ShardInfo
from distmom.corpus.memory import MemoryCorpus
from distmom.corpus.open import open_corpus, open_words
from distmom.corpus.row_formats import ROW_FORMATS
from distmom.corpus.rows import RowCorpus
from distmom.corpus.store import Corpus
from distmom.corpus.texts import text_corpus
from distmom.corpus.views import ViewCorpus
from distmom.corpus.write import CorpusWriter, from_arrays

__all__ = [
    "FORMATS",
    "ROW_FORMATS",
    "AnyCorpus",
    "Block",
    "Corpus",
    "CorpusWriter",
    "Layer",
    "LayeredCorpus",
    "MemoryCorpus",
    "RowBlock",
    "RowCorpus",
    "RowShard",
    "Shard",
    "ShardInfo",
    "ViewCorpus",
    "copy_corpus",
    "from_arrays",
    "ingest",
    "ingest_rows",
    "ingest_sentences",
    "open_corpus",
    "open_words",
    "text_corpus",
    "write_corpus",
]
