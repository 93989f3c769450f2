"""Hidden Markov models of sequences of symbols or dense steps."""
