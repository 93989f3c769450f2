"""Inputs of estimators: corpora, texts, arrays and tables, checked and aligned with a model."""
