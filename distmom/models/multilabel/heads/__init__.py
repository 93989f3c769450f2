"""Heads: alternative ways to score all labels for new documents, how they are fitted, and their common scorer."""
