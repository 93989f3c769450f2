"""Latent structure and labels of large text corpora by the method of moments, out of core on Dask."""

from importlib.metadata import version

__version__ = version("distmom")
