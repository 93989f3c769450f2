"""Label predictions, shares, factors and components for any number of documents or rows, streamed to disk."""

from distmom.predict.factors import transform_views
from distmom.predict.rows import assign_rows
from distmom.predict.shares import transform_corpus
from distmom.predict.stored_shares import LabelShares, StoredShares, read_shares
from distmom.predict.stream import predict_corpus
from distmom.spectral.inputs.aligned import AlignedCorpus, align

__all__ = [
    "AlignedCorpus",
    "LabelShares",
    "StoredShares",
    "align",
    "assign_rows",
    "predict_corpus",
    "read_shares",
    "transform_corpus",
    "transform_views",
]
