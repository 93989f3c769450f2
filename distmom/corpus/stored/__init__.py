"""Stored corpora: their manifest, and how their shards are read and written."""
