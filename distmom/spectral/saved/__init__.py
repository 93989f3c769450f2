"""The state of a model: its declaration, and its files."""
