"""Joint states of several chains: the hidden Markov model of all of them, and the pass that decodes it.

k chains of two states have 2^k joint states, numbered as binary numbers with the first chain as the most
significant digit, and +1 as one. Recursions over the joint states are exact; they are those of
`distmom.models.markov.chain`, whose time grows with the square of the number of states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from distmom.corpus import RowBlock
from distmom.engine.passes import Rows
from distmom.engine.sums.additive import Sums, SumSpec
from distmom.errors import UsageError
from distmom.models.markov.chain import Chain, Steps, best_path, posterior
from distmom.models.markov.passes import ChainPass
from distmom.spectral.program.run import Run, unknown

#: largest number of chains whose joint states are decoded
MOST_CHAINS = 8
#: least probability of a change in decoding: steps may contradict an estimate of zero
_LEAST = 1e-6


def joint_values(k: int) -> np.ndarray:
    """Return the values of the chains in every joint state, (2^k, k), -1 and +1."""
    return np.array(list(product((-1.0, 1.0), repeat=k)))


def joint_chain(state: Any) -> Chain:
    """Return the hidden Markov model of the joint states, given the state of a fitted `FactorialHMM`."""
    start, fall, rise = (
        np.clip(np.asarray(law, np.float64), _LEAST, 1.0 - _LEAST)
        for law in (state.startprob, state.fall, state.rise)
    )
    k = len(start)
    components = np.asarray(state.components, np.float64)
    means = np.asarray(state.intercept, np.float64)[:, None] + components.T @ joint_values(k).T
    return Chain(
        reduce(np.kron, [np.array([1.0 - q, q]) for q in start]),
        reduce(np.kron, [np.array([[1.0 - r, r], [f, 1.0 - f]]) for f, r in zip(fall, rise, strict=True)]),
        None,
        np.ascontiguousarray(means),
        np.repeat(np.asarray(state.variances, np.float64)[:, None], 2**k, axis=1),
    )


def check_decodable(k: int, purpose: str) -> None:
    """Refuse more than `MOST_CHAINS` chains, whose joint states are too many; UsageError."""
    if k > MOST_CHAINS:
        raise UsageError(
            f"{purpose}: expected at most {MOST_CHAINS} chains, which have {2**MOST_CHAINS} joint states, got {k}"
        )


def unknown_joint_chain(d: int, k: int) -> Chain:
    """Return a model of joint states of known shapes without content, for a ledger."""
    n = 2**k
    return Chain(unknown(n), unknown(n, n), None, unknown(d, n), unknown(d, n))


def stored_chain(run: Run, chain: Chain) -> Chain:
    """Return a model of dense steps whose arrays are stored, for passes."""
    names = ("start", "transition", "means", "variances")
    return replace(chain, **{name: run.put(getattr(chain, name)) for name in names})


@dataclass(frozen=True)
class JointDecodePass(ChainPass):
    """Store the chains of all steps.

    Attributes
    ----------
    chain, n_states, dense
        As in `ChainPass`, of the joint states.
    n_chains : int

    Notes
    -----
    Stored along rows: ``states`` (n, n_chains) int8, -1 and +1 on the most probable path, and ``means``
    (n, n_chains) float32, posterior means. Sums: ``log_likelihood`` (), ``n_steps`` (). Reads ``edges``.
    """

    n_chains: int = 0

    row_axis = "rows"

    @property
    def name(self) -> str:
        return "decode"

    @property
    def mapped_bytes(self) -> int:
        return super().mapped_bytes + 16 * self.n_states**2

    @property
    def row_bytes(self) -> int:
        return 5 * self.n_chains

    def working_bytes(self, n_rows: int) -> int:
        # Paths of joint states, the chains of both kinds, and the copies that are stored.
        return super().working_bytes(n_rows) + n_rows * (4 + 18 * self.n_chains)

    def specs(self) -> dict[str, SumSpec]:
        return {"log_likelihood": SumSpec(()), "n_steps": SumSpec(())}

    def add(self, sums: Sums, block: RowBlock, rows: Rows) -> Rows | None:
        steps, edges, values = Steps(block, self.chain), self.edges(rows), joint_values(self.n_chains)
        logs, means = posterior(steps, self.chain, edges, "float32", values)
        sums["log_likelihood"] += float(logs.sum())
        sums["n_steps"] += len(steps)
        cut = "edges" in rows
        path = best_path(
            steps, self.chain, edges, continued=cut and block.continued, continues=cut and block.continues
        )
        return {"states": values.astype(np.int8)[path], "means": means}
