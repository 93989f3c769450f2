"""Additive sums: small ones, tall ones with a row per feature, and sparse ones that exceed memory."""
