"""Moments of the words and labels of documents, and the shares of topics in them."""
