"""Mixtures of axis-aligned Gaussians."""
