"""Sparse columns of a matrix from their span, and the networks and hierarchies that they determine."""
