"""Latent states of documents and labels, and the topics of the corpus."""
