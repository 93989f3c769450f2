"""Moments of documents with several exchangeable views."""
