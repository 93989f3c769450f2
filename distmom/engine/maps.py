"""Work on rows of tall matrices, and on sparse matrices: slabs of rows on all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from distmom.clock import add_spent
from distmom.engine.directory.run_directory import RunDirectory
from distmom.engine.environment import Environment, environment
from distmom.engine.executors.executor import Executor
from distmom.engine.joined import JoinedRecord
from distmom.engine.passes import fingerprint, named
from distmom.engine.reports import Report, remove_others
from distmom.engine.stored.arrays import SLAB_ROWS, StoredArray
from distmom.engine.stored.held import HeldOutput, Holding
from distmom.engine.sums.additive import Sums
from distmom.engine.sums.csr import Csr, MixedRows
from distmom.engine.sums.sparse import Runs, SparsePart
from distmom.engine.sums.tall import PIECE_ROWS, RowFunction, RowOutput, Tall, map_task
from distmom.engine.tasks import write_runs
from distmom.engine.terms import (
    SAMPLE_ENTRIES,
    Pruning,
    Term,
    add_slab,
    join_pieces,
    row_slabs,
    square_slab,
    stored_terms,
)

#: tasks per thread into which slabs of rows are divided: with fewer workers are idle, with more they wait for
#: the client
MAPS_PER_THREAD = 8
#: largest number of slabs of a task, which holds the small sums of each
MAX_TOGETHER = 4


@dataclass(frozen=True)
class Maps:
    """Works on slabs of rows, and needs no corpus.

    Attributes
    ----------
    directory : RunDirectory
        Directory of inputs and outputs.
    executor : Executor
        Runs the tasks.
    holding : Holding
        Which outputs stay in memory.
    spent : dict of str to float
        Seconds by kind of work, to which those of all tasks are added.
    kept : Path or None, default None
        Directory of the partial sums of a pass, for work on its total in a run that can be resumed: what
        `map_runs` and `combine` have made is kept there until the pass is committed.
    """

    directory: RunDirectory
    executor: Executor
    holding: Holding
    spent: dict[str, float]
    kept: Path | None = None

    def map_rows(
        self,
        function: RowFunction,
        inputs: Sequence[Tall],
        n_rows: int,
        outputs: Mapping[str, tuple[int, str]],
        *arguments: Any,
        piece_rows: int = PIECE_ROWS,
    ) -> tuple[dict[str, StoredArray], Sums]:
        """Call a function on slabs of rows of tall matrices, on all workers.

        Parameters
        ----------
        function : callable
            Called with a slice of rows, these rows of every input and ``arguments``; returns the same rows of the
            outputs, and sums, which are added up in the order of the slabs.
        inputs : sequence of Partials, StoredArray, StoredColumns or ndarray
        n_rows : int
        outputs : mapping of str to (int, str)
            Width and type of every output.
        *arguments
            Further small arguments.
        piece_rows : int, default `PIECE_ROWS`
            Rows that are processed at a time; sums of pieces are added up.

        Returns
        -------
        outputs : dict of str to StoredArray
        sums : Sums
        """
        n_bytes = sum(n_rows * width * np.dtype(dtype).itemsize for width, dtype in outputs.values())
        held = self.holding.holds_states(n_bytes)
        files: dict[str, RowOutput | HeldOutput] = {}
        checksums: dict[str, list[str]] = {name: [] for name in outputs}
        total: Sums | None = None
        n_slabs = -(-n_rows // SLAB_ROWS)
        n_together = max(1, min(MAX_TOGETHER, n_slabs // (MAPS_PER_THREAD * self.executor.n_threads)))
        try:
            for name, (width, dtype) in outputs.items():
                files[name] = self._output(n_rows, width, dtype, held)
            work = partial(
                map_task, function, tuple(inputs), files, n_rows, arguments, piece_rows, n_together
            )
            for slabs, spent in self.executor.map(work, range(-(-n_slabs // n_together))):
                add_spent(self.spent, spent)
                for written, sums in slabs:
                    for name, checksum in written.items():
                        checksums[name].append(checksum)
                    total = Sums(sums) if total is None else total + sums
            stored = {name: file.finish(n_rows, checksums[name]) for name, file in files.items()}
        except BaseException:
            for file in files.values():
                file.discard()
            raise
        return stored, total if total is not None else Sums()

    def _output(self, n_rows: int, width: int, dtype: str, held: bool) -> RowOutput | HeldOutput:
        """Return the array that tasks fill, in memory or in a file."""
        if held:
            return HeldOutput(n_rows, width, dtype)
        spare = self.directory.partials.spare
        return RowOutput.create(self.directory.new_state(), n_rows, width, dtype, spare)

    def map_runs(
        self,
        function: Callable[..., Sequence[csr_array]],
        n_items: int,
        shape: tuple[int, int],
        n_results: int,
        *arguments: Any,
    ) -> list[Runs]:
        """Call a function for every item, on all workers, and keep its sparse matrices in files.

        If the work on the total of a pass is interrupted, the run that is resumed calls the function only for the
        items that are left.

        Parameters
        ----------
        function : callable
            A function of a module, which depends on its arguments alone. Called with the number of an item and
            ``arguments``; returns ``n_results`` matrices.
        n_items : int
        shape : (int, int)
            Shape of every matrix.
        n_results : int
        *arguments
            Small arguments; large arrays are stored arrays.

        Returns
        -------
        list of Runs
            For every result, the matrices of all items in their order, to be added up by `combine` before the
            next pass begins.
        """
        files, reports = self.directory.partials.place("runs"), list[Report | None]([None] * n_items)
        if self.kept is not None:
            key = fingerprint(
                (named(function), n_items, shape, n_results, arguments, environment().versions())
            )
            files = self.kept / key[:16]
            reports = list(self._reports(files, key, n_items))
        runs: dict[tuple[str, int], tuple[SparsePart, ...]] = {}
        environments: frozenset[Environment] = frozenset()
        work = partial(write_runs, function, arguments, str(files), reports)
        for folded in self.executor.map(work, range(n_items)):
            add_spent(self.spent, folded.spent)
            folded.warn_of_differing(function.__qualname__)
            environments |= folded.environments
            runs |= folded.runs
        self.directory.record_environments(environments)
        return [
            Runs(tuple(part for index in range(n_items) for part in runs[str(number), index]), *shape)
            for number in range(n_results)
        ]

    def _reports(self, directory: Path, key: str, n_items: int) -> list[Report]:
        """Return the place of the report on every item, and remove the other files found there."""
        reports = [
            Report(str(directory), fingerprint((key, index)), f"item {index}") for index in range(n_items)
        ]
        remove_others(directory, reports)
        return reports

    def combine(self, terms: Sequence[Term], pruning: Pruning | None = None) -> Csr:
        """Add sparse matrices slab by slab of rows, on all workers, and store the sum.

        Parameters
        ----------
        terms : sequence of Term
            At least one; all of the same shape.
        pruning : Pruning, optional
            Entries to leave out; none by default.

        Returns
        -------
        Csr
            Stored arrays with sorted rows, float32.
        """
        return self._combine(terms, pruning, mixed=False).sparse

    def combine_mixed(self, terms: Sequence[Term], pruning: Pruning | None = None) -> MixedRows:
        """Add sparse matrices as `combine` does, with nearly full rows of the sum stored densely."""
        return self._combine(terms, pruning, mixed=True)

    def _combine(self, terms: Sequence[Term], pruning: Pruning | None, *, mixed: bool) -> MixedRows:
        terms = stored_terms(self.directory, terms)
        record = None
        if self.kept is not None:
            key = fingerprint((terms, pruning, mixed, environment().versions()))
            record = JoinedRecord(self.kept / "joined" / f"{key[:32]}.json", self.directory.states)
            if (found := record.read()) is not None:
                return found
        joined = self._joined(terms, pruning, mixed)
        if record is not None:
            record.write(joined)
        return joined

    def _joined(self, terms: Sequence[Term], pruning: Pruning | None, mixed: bool) -> MixedRows:
        slabs, lengths = row_slabs(terms)
        if pruning is not None:
            pruning = pruning.for_rows(lengths)
        files = str(self.directory.partials.place("pieces"))
        stride = max(1, int(lengths.sum()) // SAMPLE_ENTRIES)
        work = partial(add_slab, terms, slabs, files, pruning, stride)
        pieces = []
        for piece, spent in self.executor.map(work, range(len(slabs))):
            add_spent(self.spent, spent)
            pieces.append(piece)
        return join_pieces(self.directory, pieces, terms[0].shape[1], pruning, mixed)

    def column_squares(self, terms: Sequence[Term]) -> np.ndarray:
        """Return the sums of squares of the columns of a sum of sparse matrices, which is not stored.

        Parameters
        ----------
        terms : sequence of Term
            At least one; all of the same shape.

        Returns
        -------
        ndarray of shape (n_columns,), float64
        """
        terms = stored_terms(self.directory, terms)
        slabs, _ = row_slabs(terms)
        squares = np.zeros(terms[0].shape[1])
        for of_slab, spent in self.executor.map(partial(square_slab, terms, slabs), range(len(slabs))):
            add_spent(self.spent, spent)
            squares += of_slab
        return squares
