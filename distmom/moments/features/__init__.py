"""Sums over tf-idf rows of documents, by which heads score labels."""
