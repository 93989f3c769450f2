"""Passes over sequences with a hidden Markov model: decoding, expected counts, and sequences that are cut.

A sequence that is split across shards is decoded exactly in two passes. `TransferPass` stores, for each part of a
cut sequence, a k x k matrix of the likelihoods of its steps; `cut_edges` multiplies them and stores, for every
shard, the messages from the other parts, which the second pass reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.corpus import RowBlock
from distmom.engine import Engine, StoredRows, fingerprint
from distmom.engine.passes import WHOLE_SHARD, Pass, Rows
from distmom.engine.stored.arrays import write_rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.models.markov.chain import (
    PIECE_ROWS,
    Chain,
    Edges,
    Steps,
    best_path,
    filter_steps,
    join_parts,
    part_products,
    posterior,
)
from distmom.models.markov.kernels import add_counts, expect
from distmom.moments.dense_rows import dense_rows, mass_of, weights_of
from distmom.spectral.program.run import Run, unknown


@dataclass(frozen=True)
class ChainPass(Pass):
    """Base class of passes with a hidden Markov model.

    Attributes
    ----------
    chain : Chain
        Arrays, or stored arrays.
    n_states : int
    dense : bool
        Whether steps are dense.
    """

    chain: Any = None
    n_states: int = 0
    dense: bool = False

    block_rows = WHOLE_SHARD

    @property
    def mapped_bytes(self) -> int:
        # Means, variances and precisions, or the table and its logarithms.
        return 8 * (3 if self.dense else 2) * self.n_features * self.n_states

    def working_bytes(self, n_rows: int) -> int:
        pieces = PIECE_ROWS * (4 * self.n_states + (2 * self.n_features if self.dense else 0))
        checkpoints = n_rows // PIECE_ROWS * self.n_states
        # Likelihoods of steps, the rows where sequences begin, and states.
        return 8 * (2 * n_rows + pieces + checkpoints)

    def edges(self, rows: Rows) -> Edges:
        """Return the edges of the block, as `cut_edges` has stored them; without them, no sequence is cut."""
        stored = rows.get("edges")
        k = self.n_states
        if stored is None or not len(stored):
            return Edges.none(k)
        row = stored[0]
        return Edges(row[:k], row[k : 2 * k], int(row[2 * k]), int(row[2 * k + 1]))


@dataclass(frozen=True)
class TransferPass(ChainPass):
    """Store the products of the parts of cut sequences.

    Attributes
    ----------
    paths : bool
        Whether the products for best paths are computed; identities otherwise.

    Notes
    -----
    Stored for each shard, not each unit: ``products`` (1, 2, 2, k, k), first those of the part that continues
    a sequence, then those of the part that is continued; identities where there is none. Sum: ``parts`` ().
    """

    paths: bool = False

    @property
    def name(self) -> str:
        return "transfer"

    @property
    def row_bytes(self) -> int:
        return 32 * self.n_states**2

    def specs(self) -> dict[str, SumSpec]:
        return {"parts": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        k = self.n_states
        identity = np.stack([np.eye(k), np.where(np.eye(k) > 0.0, 0.0, -np.inf)])
        found = np.stack([identity, identity])
        steps = Steps(block, self.chain)
        n_units = block.n_documents
        ends = np.append(steps.starts[1:], len(steps))
        if block.continued and n_units:
            found[0] = part_products(steps, self.chain, slice(0, int(ends[0])), paths=self.paths)
            sums["parts"] += 1.0
        if block.continues and n_units:
            whole = n_units == 1 and block.continued
            own = slice(int(steps.starts[-1]), len(steps))
            found[1] = found[0] if whole else part_products(steps, self.chain, own, paths=self.paths)
            sums["parts"] += not whole
        return {"products": found[None]}


@dataclass(frozen=True)
class ExpectationPass(ChainPass):
    """Add up expected numbers of states, transitions and emissions: the E-step of the Baum-Welch algorithm.

    Attributes
    ----------
    origin : ndarray of shape (d,), optional
        Subtracted from dense steps before they are squared.

    Notes
    -----
    Sums: ``first`` (k,), ``pairs`` (k, k), ``log_likelihood`` (), ``mass`` (); ``counts`` (n_symbols, k), or
    for dense steps ``states`` (k,) and ``values`` (2, k, d) of the steps and their squares. Reads ``edges``.
    """

    origin: Any = None

    @property
    def name(self) -> str:
        return "expect"

    def specs(self) -> dict[str, SumSpec]:
        k, d = self.n_states, self.n_features
        specs = {
            "first": SumSpec((k,)),
            "pairs": SumSpec((k, k)),
            "log_likelihood": SumSpec(()),
            "mass": SumSpec(()),
        }
        if self.dense:
            return specs | {"states": SumSpec((k,)), "values": SumSpec((2, k, d))}
        return specs | {"counts": SumSpec((d, k))}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        steps, edges, chain = Steps(block, self.chain), self.edges(rows), self.chain
        if not len(steps):
            return None
        own, weights = dense_rows(block)
        logs, pieces = filter_steps(steps, chain, edges)
        if weights is not None:
            with np.errstate(invalid="ignore"):
                logs = np.where(weights > 0.0, weights * logs, 0.0)
        sums["log_likelihood"] += float(logs.sum())
        sums["mass"] += mass_of(own, weights)
        message = np.array(edges.after, np.float64)
        transition = np.ascontiguousarray(chain.transition, np.float64)
        pairs = np.zeros_like(transition)
        room = np.empty((min(PIECE_ROWS, len(steps)), self.n_states))
        for part in pieces:
            shares = room[: len(part.alpha)]
            expect(
                part.index, part.table, steps.begins[part.piece], weights_of(weights, part.piece), transition,
                message, part.before, part.alpha, shares, sums["first"], pairs,
            )  # fmt: skip
            if not self.dense:
                add_counts(part.index, shares, sums["counts"])
                continue
            away = steps.rows[part.piece] - self.origin
            sums["states"] += shares.sum(axis=0)
            sums["values"][0] += shares.T @ away
            sums["values"][1] += shares.T @ np.square(away)
        sums["pairs"] += pairs * transition
        return None


@dataclass(frozen=True)
class DecodePass(ChainPass):
    """Store the states of all steps and their probabilities.

    Notes
    -----
    Stored along rows: ``states`` (n,) int32, those on the most probable path, and ``probabilities`` (n, k)
    float32. Sums: ``log_likelihood`` (), ``n_steps`` (). Reads ``edges``.
    """

    row_axis = "rows"

    @property
    def name(self) -> str:
        return "decode"

    @property
    def row_bytes(self) -> int:
        return 4 + 4 * self.n_states

    def working_bytes(self, n_rows: int) -> int:
        # Posterior probabilities and states, and the copies that are stored.
        return super().working_bytes(n_rows) + 8 * n_rows * (self.n_states + 1)

    def specs(self) -> dict[str, SumSpec]:
        return {"log_likelihood": SumSpec(()), "n_steps": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        steps, edges = Steps(block, self.chain), self.edges(rows)
        logs, shares = posterior(steps, self.chain, edges, "float32")
        sums["log_likelihood"] += float(logs.sum())
        sums["n_steps"] += len(steps)
        cut = "edges" in rows
        path = best_path(
            steps, self.chain, edges, continued=cut and block.continued, continues=cut and block.continues
        )
        return {"states": path, "probabilities": shares}


def is_cut(corpus: Any) -> bool:
    """Return whether a sequence of a corpus is split across shards."""
    return any(getattr(shard, "continues", False) for shard in corpus.shards)


def cut_edges(engine: Engine, products: StoredRows, chain: Chain) -> StoredRows:
    """Store the messages to every shard from the other parts of its cut sequences.

    Parameters
    ----------
    engine : Engine
    products : StoredRows
        From `TransferPass`.
    chain : Chain

    Returns
    -------
    StoredRows
        One row per shard: ``before`` (k,), ``after`` (k,) and the two states of `Edges`.
    """
    shards, k = engine.corpus.shards, chain.n_states
    rows = np.tile(np.concatenate([np.full(k, 1.0 / k), np.ones(k), np.zeros(2)]), (len(shards), 1))

    def close(parts: list[tuple[int, np.ndarray]]) -> None:
        edges = join_parts([product for _, product in parts], chain)
        for position, ((shard, _), edge) in enumerate(zip(parts, edges, strict=True)):
            if position > 0:
                rows[shard, :k], rows[shard, 2 * k] = edge.before, edge.state_before
            if position + 1 < len(parts):
                rows[shard, k : 2 * k], rows[shard, 2 * k + 1] = edge.after, edge.state_after

    parts: list[tuple[int, np.ndarray]] = []
    with one_blas_thread():
        for index, shard in enumerate(shards):
            if not (shard.continued or shard.continues):
                continue
            own = products.read(index)[0]
            if shard.continued:
                parts.append((index, own[0]))
                if shard.n_documents == 1 and shard.continues:
                    continue
                close(parts)
            parts = [(index, own[1])] if shard.continues else []
    key = fingerprint((products.digest, chain))
    directory = engine.directory.rows_directory("edges", key, "edges")
    digests = {str(i): write_rows(directory, i, rows[i : i + 1]) for i in range(len(shards))}
    return StoredRows(directory, digests)


def stored_edges(run: Run, chain: Chain, dense: bool, *, paths: bool) -> dict[str, StoredRows]:
    """Return the stored edges of cut sequences, for passes with a model; empty where none is cut."""
    if not is_cut(run.corpus):
        return {}
    k = chain.n_states
    products = run.scan(
        TransferPass(run.corpus.n_words, chain=chain, n_states=k, dense=dense, paths=paths)
    ).rows
    edges: StoredRows = run.rows(cut_edges, products["products"], chain, out=unknown())
    return {"edges": edges}
