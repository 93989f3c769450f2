"""What users pass to estimators: corpora, texts, arrays and tables, checked and aligned with a model."""
