"""Label predictions, topic shares and factors for any number of documents or groups, streamed to disk."""

from distmom.predict.aligned import AlignedCorpus, align
from distmom.predict.factors import transform_views
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
    "transform_views",
]
