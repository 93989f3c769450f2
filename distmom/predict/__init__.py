"""Rank labels for new documents, streamed and written to Zarr and text."""

from distmom.predict.aligned import AlignedCorpus, align
from distmom.predict.stream import predict_corpus

__all__ = ["AlignedCorpus", "align", "predict_corpus"]
