"""Jobs: commands that run on a Dask cluster in the background."""

from distmom.jobs.job import Job
from distmom.jobs.submission import list_jobs, open_job, submit

__all__ = ["Job", "list_jobs", "open_job", "submit"]
