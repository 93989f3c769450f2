"""Mixtures of product distributions."""
