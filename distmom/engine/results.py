"""What passes tell while they run, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distmom.engine.sparse import Runs
from distmom.engine.state import StoredArray, StoredColumns, StoredRows
from distmom.engine.sums import Sums
from distmom.engine.tall import Partials


@dataclass(frozen=True)
class PassStarted:
    """A pass begins."""

    name: str
    n_documents: int
    n_groups: int
    n_slabs: int


@dataclass(frozen=True)
class GroupDone:
    """A group of shards has been added."""

    name: str
    n_documents: int


@dataclass(frozen=True)
class PassDone:
    """A pass is committed, or was found committed (``resumed``)."""

    name: str
    n_documents: int
    seconds: float
    resumed: bool


Event = PassStarted | GroupDone | PassDone
Observer = Callable[[Event], None]


@dataclass
class PassResult:
    """What a pass leaves behind.

    Attributes
    ----------
    sums : Sums
        The total, memory-mapped.
    rows : dict of str to StoredRows
        The stored row outputs.
    directory : str
        Where the total is committed.
    """

    sums: Sums
    rows: dict[str, StoredRows]
    directory: str


@dataclass
class Timing:
    """How long one pass took.

    Attributes
    ----------
    name : str
    seconds : float
    n_documents : int
    resumed : bool
    spent : dict of str to float
        Seconds of all tasks together, by kind of work: ``read``, ``decompress``, ``kernels``, ``merge`` (adding
        up partial sums, and reading those in files), ``write``.
    """

    name: str
    seconds: float
    n_documents: int
    resumed: bool
    spent: dict[str, float] = field(default_factory=dict)


@dataclass
class Tallies:
    """The sums of a pass with tall sums.

    Attributes
    ----------
    sums : Sums
        The others.
    tall : dict of str to Partials
    runs : dict of str to Runs
        The sparse ones.
    """

    sums: Sums
    tall: dict[str, Partials]
    runs: dict[str, Runs] = field(default_factory=dict)


@dataclass
class TallResult:
    """What a pass with tall sums leaves behind.

    Attributes
    ----------
    states : dict of str to StoredColumns
    values : dict
        JSON values.
    rows : dict of str to StoredRows
        The stored row outputs; set by the engine.
    """

    states: dict[str, StoredColumns]
    values: dict[str, Any]
    rows: dict[str, StoredRows] = field(default_factory=dict)

    def stored_arrays(self) -> list[StoredArray]:
        """Return all states, slab by slab."""
        return [part for stored in self.states.values() for part in stored.parts]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        states = {name: [vars(part) for part in stored.parts] for name, stored in self.states.items()}
        return {"states": states, "values": self.values}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> TallResult:
        """Read what `to_json` has returned."""
        states = {
            name: StoredColumns(tuple(StoredArray(**part) for part in parts))
            for name, parts in record["states"].items()
        }
        return cls(states, record["values"])
