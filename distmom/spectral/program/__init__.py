"""The program of a model: stated once, planned, timed, carried out, and repeated without parts of the units."""
