"""Trees of hidden variables whose leaves are observed."""
