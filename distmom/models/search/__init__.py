"""Search for one component of a mixture of rows from side information."""
