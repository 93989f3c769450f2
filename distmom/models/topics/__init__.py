"""Topic models, their kept moments, and the search for single topics."""
