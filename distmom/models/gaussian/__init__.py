"""Mixtures of spherical Gaussians."""
