"""Updates of a fitted model: documents are added or removed by means of the sums that it keeps."""
