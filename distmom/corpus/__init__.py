"""Corpora on disk, in object stores and in memory: ingest, copying, verified reading, and blocks of documents.

The package handles files and formats; it computes no statistics beyond counts taken while reading.
"""

from distmom.corpus.block import Block, RowBlock
from distmom.corpus.copy import copy_corpus
from distmom.corpus.layers import AnyCorpus, Layer, RowShard, Shard
from distmom.corpus.memory import MemoryCorpus
from distmom.corpus.open import open_corpus, open_words
from distmom.corpus.rows import RowCorpus
from distmom.corpus.sources.formats import FORMATS
from distmom.corpus.sources.ingest import ingest, write_corpus
from distmom.corpus.sources.ingest_rows import ingest_rows, ingest_sentences
from distmom.corpus.sources.row_formats import ROW_FORMATS
from distmom.corpus.sources.texts import text_corpus
from distmom.corpus.stored.layered import LayeredCorpus
from distmom.corpus.stored.manifest import ShardInfo
from distmom.corpus.stored.words import Corpus
from distmom.corpus.stored.write_words import CorpusWriter, from_arrays
from distmom.corpus.views import ViewCorpus

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
