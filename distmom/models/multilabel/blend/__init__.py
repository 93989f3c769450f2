"""The choice of a blend of heads on held-out documents: sums, stacks and trees, and the metrics that decide."""
