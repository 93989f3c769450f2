"""Labels and shares of topics for any number of documents, streamed and written to disk."""

from distmom.predict.aligned import AlignedCorpus, align
from distmom.predict.shares import transform_corpus
from distmom.predict.stream import predict_corpus

__all__ = ["AlignedCorpus", "align", "predict_corpus", "transform_corpus"]
