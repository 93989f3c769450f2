"""Results of passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distmom.engine.stored.arrays import StoredArray, StoredColumns, StoredRows
from distmom.engine.sums.additive import Sums
from distmom.engine.sums.sparse import Runs
from distmom.engine.sums.tall import Partials


@dataclass
class PassResult:
    """The result of a pass without tall sums.

    Attributes
    ----------
    sums : Sums
        The total, memory-mapped if it is committed.
    rows : dict of str to StoredRows
        The stored row outputs.
    directory : str
        Directory in which the total is committed; empty where rows are held in memory, and nothing is.
    """

    sums: Sums
    rows: dict[str, StoredRows]
    directory: str


@dataclass
class Timing:
    """The time that one pass took.

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
    """The totals of a pass with tall sums.

    Attributes
    ----------
    sums : Sums
        The sums that are not tall.
    tall : dict of str to Partials
        The dense tall sums.
    runs : dict of str to Runs
        The sparse tall sums.
    """

    sums: Sums
    tall: dict[str, Partials]
    runs: dict[str, Runs] = field(default_factory=dict)


@dataclass
class TallResult:
    """The result of a pass with tall sums.

    Attributes
    ----------
    states : dict of str to StoredColumns
        Stored arrays made from the sums.
    values : dict
        Numbers made from the sums, JSON values.
    rows : dict of str to StoredRows
        The stored row outputs; set by the engine.
    """

    states: dict[str, StoredColumns]
    values: dict[str, Any]
    rows: dict[str, StoredRows] = field(default_factory=dict)

    def stored_arrays(self) -> list[StoredArray]:
        """Return all stored arrays, slab by slab."""
        return [part for stored in self.states.values() for part in stored.parts]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        states = {name: [vars(part) for part in stored.parts] for name, stored in self.states.items()}
        return {"states": states, "values": self.values}

    @classmethod
    def from_json(cls, record: dict[str, Any], directory: Path) -> TallResult:
        """Rebuild a result from what `to_json` returned, with stored arrays in a directory.

        Their paths are not taken from the record, as the run may have been moved since.
        """
        states = {
            name: StoredColumns(
                tuple(StoredArray(str(directory / Path(part["path"]).name), part["digest"]) for part in parts)
            )
            for name, parts in record["states"].items()
        }
        return cls(states, record["values"])
