"""Documents that are added to a fitted model or removed from it, by the sums that it keeps."""
