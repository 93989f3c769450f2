"""Opening a corpus of any kind."""

from __future__ import annotations

from typing import Any

from distmom.corpus.files.storage import open_storage, place_of
from distmom.corpus.stored.base import read_manifest
from distmom.corpus.stored.layered import LayeredCorpus
from distmom.corpus.stored.manifest import WORDS_VERSION
from distmom.corpus.stored.words import Corpus
from distmom.errors import UsageError


def open_corpus(path: Any) -> Corpus | LayeredCorpus:
    """Open a corpus.

    Parameters
    ----------
    path : path-like
        A directory written by `ingest`, or the URL (``s3://BUCKET/PREFIX``) of a copy of one. Keys, region and
        endpoint of a store are read from the environment.

    Returns
    -------
    Corpus or LayeredCorpus
        A corpus of words and labels, or one of other layers.

    Raises
    ------
    UsageError
        If there is no corpus, or access to it is refused.
    StoreError
        If its manifest is damaged or of a newer version, or the store does not respond.
    """
    place = place_of(path)
    manifest, digest = read_manifest(open_storage(place, first=True))
    return corpus_of(place, digest, manifest)


def corpus_of(place: str, digest: str, manifest: dict[str, Any]) -> Corpus | LayeredCorpus:
    """Return the corpus of a manifest that has been read and checked."""
    kind = Corpus if manifest["format_version"] == WORDS_VERSION else LayeredCorpus
    return kind(place, digest, manifest)


def open_words(path: Any) -> Corpus:
    """Open a corpus of words and labels; errors as `open_corpus`, and a UsageError for one of other layers."""
    corpus = open_corpus(path)
    if not isinstance(corpus, Corpus):
        has = ", ".join(f"{layer.name} ({layer.kind})" for layer in corpus.layers)
        raise UsageError(f"{corpus.path}: expected a corpus of words, got one of {has}")
    return corpus


def open_layers(path: Any) -> LayeredCorpus:
    """Open a corpus of layers; errors as `open_corpus`, and a UsageError for one of words and labels."""
    corpus = open_corpus(path)
    if not isinstance(corpus, LayeredCorpus):
        raise UsageError(f"{corpus.path}: expected a corpus of layers, got one of words and labels")
    return corpus
