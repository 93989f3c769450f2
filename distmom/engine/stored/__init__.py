"""Arrays outside the memory of a task: stored by digest and memory-mapped, held by one process, or temporary."""
