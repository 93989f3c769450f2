"""Components behind three views of every row."""
