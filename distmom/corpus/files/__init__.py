"""Files of any kind: written whole or not at all, checked when they are read, on disk and in object stores."""
