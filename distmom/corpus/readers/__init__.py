"""Readers of the formats in which corpora come."""
