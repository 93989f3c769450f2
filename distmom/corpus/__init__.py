"""Corpora on disk, in object stores and in memory: ingest, copying, verified reading, and blocks of documents.

The package handles files and formats; it computes no statistics beyond counts taken while reading.
"""

from distmom.corpus.block import Block, RowBlock
from distmom.corpus.copy import copy_corpus
from distmom.corpus.ingest import FORMATS, ingest, write_corpus
from distmom.corpus.layers import AnyCorpus, Layer, RowShard, Shard
from distmom.corpus.manifest import ShardInfo
from distmom.corpus.memory import MemoryCorpus
from distmom.corpus.rows import RowCorpus
from distmom.corpus.store import Corpus, open_corpus
from distmom.corpus.views import ViewCorpus
from distmom.corpus.write import CorpusWriter, from_arrays

__all__ = [
    "FORMATS",
    "AnyCorpus",
    "Block",
    "Corpus",
    "CorpusWriter",
    "Layer",
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
    "open_corpus",
    "write_corpus",
]
