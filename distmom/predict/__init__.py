"""Label predictions and topic shares for any number of documents, streamed to disk."""

from distmom.predict.aligned import AlignedCorpus, align
from distmom.predict.shares import transform_corpus
from distmom.predict.stored_shares import LabelShares, StoredShares, read_shares
from distmom.predict.stream import predict_corpus

__all__ = [
    "AlignedCorpus",
    "LabelShares",
    "StoredShares",
    "align",
    "predict_corpus",
    "read_shares",
    "transform_corpus",
]
