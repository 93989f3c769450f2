"""Executors of tasks: in this process, on its threads, and on Dask clusters that are watched while they work."""
