"""Passes over shards: groups of shards and a fixed tree of sums, in one process or on any Dask cluster."""

from dask.system import cpu_count
from dask.utils import parse_bytes

from distmom.engine.directory.events import (
    Event,
    GroupDone,
    GroupsFound,
    KernelsMissing,
    Observer,
    PassDone,
    PassStarted,
)
from distmom.engine.directory.run_directory import RunDirectory
from distmom.engine.executors.cluster import OnCluster
from distmom.engine.executors.connections import open_executor
from distmom.engine.executors.executor import Executor, InProcess
from distmom.engine.opening import open_engine
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows, Selection, fingerprint
from distmom.engine.plan import PassPlan, plan_pass
from distmom.engine.results import PassResult, Tallies, TallResult
from distmom.engine.run import Engine
from distmom.engine.shards import is_small
from distmom.engine.stored.arrays import Columns, StoredArray, StoredColumns, StoredRows
from distmom.engine.sums.additive import Sums, SumSpec, merge
from distmom.engine.sums.csr import Csr, MixedRows
from distmom.engine.sums.sparse import Runs
from distmom.engine.sums.tall import Partials, TallSum
from distmom.engine.terms import Pruning, Term

__all__ = [
    "WHOLE_SHARD",
    "Columns",
    "Csr",
    "Engine",
    "Event",
    "Executor",
    "GroupDone",
    "GroupsFound",
    "InProcess",
    "KernelsMissing",
    "MixedRows",
    "Observer",
    "OnCluster",
    "Partials",
    "Pass",
    "PassDone",
    "PassPlan",
    "PassResult",
    "PassStarted",
    "Pruning",
    "Rows",
    "RunDirectory",
    "Runs",
    "Selection",
    "StoredArray",
    "StoredColumns",
    "StoredRows",
    "SumSpec",
    "Sums",
    "TallResult",
    "TallSum",
    "Tallies",
    "Term",
    "cpu_count",
    "fingerprint",
    "is_small",
    "merge",
    "open_engine",
    "open_executor",
    "parse_bytes",
    "plan_pass",
]
