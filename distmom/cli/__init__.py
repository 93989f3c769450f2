"""The command line: it parses, calls the package, and prints."""
