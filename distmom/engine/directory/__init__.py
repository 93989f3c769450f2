"""The directory of a run: its arrays, partial sums and committed passes, and the records of who carries it out."""
