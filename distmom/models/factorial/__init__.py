"""Independent hidden chains behind sequences of dense steps."""
