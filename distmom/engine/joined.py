"""Records of joined matrices, which are kept in a run directory until the pass of their terms is committed.

A sum of sparse matrices is named by the fingerprint of its terms and of the rule by which entries are left out.
The driver that resumes a run finds it by that name, and compares all its arrays with their digests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distmom.corpus.files.records import RecordFormat
from distmom.engine.results import TallResult
from distmom.engine.stored.arrays import StoredColumns
from distmom.engine.sums.csr import Csr, MixedRows
from distmom.errors import StoreError

#: format of a record
JOINED = RecordFormat("distmom-joined", 1, "remove the file")


@dataclass(frozen=True)
class JoinedRecord:
    """The place of the record of a joined matrix.

    Attributes
    ----------
    path : Path
        File of the record.
    states : Path
        Directory of the stored arrays.
    """

    path: Path
    states: Path

    def read(self) -> MixedRows | None:
        """Return the matrix; None unless the record and all arrays are intact."""
        try:
            found = TallResult.from_json(JOINED.read(self.path), self.states)
            for array in found.stored_arrays():
                array.load()
        except StoreError:
            return None
        arrays = {name: stored.parts[0] for name, stored in found.states.items()}
        sparse = Csr(arrays["indptr"], arrays["indices"], arrays["data"], found.values["n_columns"])
        return MixedRows(sparse, arrays["dense_row"], arrays["dense"])

    def write(self, joined: MixedRows) -> None:
        """Write the record of a matrix, whose arrays are stored."""
        sparse = joined.sparse
        arrays = {
            "indptr": sparse.indptr, "indices": sparse.indices, "data": sparse.data,
            "dense_row": joined.dense_row, "dense": joined.dense,
        }  # fmt: skip
        states = {name: StoredColumns((array,)) for name, array in arrays.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = TallResult(states, {"n_columns": sparse.n_columns}).to_json()
        JOINED.write(self.path, content, survives_power_failure=False)
