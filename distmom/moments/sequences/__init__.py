"""Moments of windows of three steps of sequences."""
