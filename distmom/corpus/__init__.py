"""Corpora on disk, in object stores and in memory: ingest, copying, checked reading, and blocks of documents.

The package knows files and formats, and no statistics beyond what can be counted while reading.
"""

from distmom.corpus.block import Block
from distmom.corpus.copy import copy_corpus
from distmom.corpus.ingest import FORMATS, ingest, write_corpus
from distmom.corpus.memory import MemoryCorpus
from distmom.corpus.store import Corpus, ShardInfo, open_corpus
from distmom.corpus.write import CorpusWriter, from_arrays

__all__ = [
    "FORMATS",
    "Block",
    "Corpus",
    "CorpusWriter",
    "MemoryCorpus",
    "ShardInfo",
    "copy_corpus",
    "from_arrays",
    "ingest",
    "open_corpus",
    "write_corpus",
]
