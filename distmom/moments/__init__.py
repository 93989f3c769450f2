"""Moments of documents, rows and sequences: passes that add them up by blocks, and moments from the total sums."""
