"""Corpora on disk, in object stores and in memory: ingest, copying, checked reading, and blocks of documents.

The package knows files and formats, and no statistics beyond what can be counted while reading.
"""

from typing import TypeAlias

from distmom.corpus.block import Block, RowBlock
from distmom.corpus.copy import copy_corpus
from distmom.corpus.ingest import FORMATS, ingest, write_corpus
from distmom.corpus.manifest import ShardInfo
from distmom.corpus.memory import MemoryCorpus
from distmom.corpus.store import Corpus, open_corpus
from distmom.corpus.views import ViewCorpus
from distmom.corpus.write import CorpusWriter, from_arrays

#: what passes run over
AnyCorpus: TypeAlias = Corpus | MemoryCorpus | ViewCorpus

__all__ = [
    "FORMATS",
    "AnyCorpus",
    "Block",
    "Corpus",
    "CorpusWriter",
    "MemoryCorpus",
    "RowBlock",
    "ShardInfo",
    "ViewCorpus",
    "copy_corpus",
    "from_arrays",
    "ingest",
    "open_corpus",
    "write_corpus",
]
