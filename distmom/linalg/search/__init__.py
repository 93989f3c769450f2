"""The search for one component of a mixture by side information."""
