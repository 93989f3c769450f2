"""Symmetric tensors of order three and four: primitives, and decompositions into components."""
