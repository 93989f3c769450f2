"""Independent components of dense rows."""
