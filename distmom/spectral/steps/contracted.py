"""Components of a third moment that is never formed: a decomposition of its slices, and power steps by passes.

One pass adds up the contractions T(I, I, h) of the whitened third moment T with a few random directions h, whose
common eigenvectors are the components. Each further pass adds up T(I, v, v) for all components v at once (tensor
paper, section 6.1.2), and a power step improves them. No sum has k^3 entries. A model makes its own passes, and
hands over the functions that load their contractions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmom.blas import one_blas_thread
from distmom.engine import Pass
from distmom.errors import UsageError
from distmom.linalg import Decomposition, decompose_slices, power_step
from distmom.spectral.parameters import parameter
from distmom.spectral.program.run import Decomposed, Run, unknown

#: how a third moment is added up, and "auto"
THIRD_MOMENTS = ("auto", "full", "slices")


def third_moment_parameter() -> Any:
    """Return the parameter that chooses between the whole third moment and slices."""
    return parameter(
        "Add up the whole third moment (full), or about 4 log2(k) slices of it in one more pass (slices), "
        "which requires decomposition=joint. auto uses slices where the whole does not fit the memory limit.",
        default="auto", choices=THIRD_MOMENTS,
    )  # fmt: skip


def power_steps_parameter() -> Any:
    """Return the parameter that sets the number of power steps after slices."""
    return parameter(
        "Number of power steps that improve the components found by slices, one more pass each. The whole third "
        "moment needs none.", default=0, least=0,
    )  # fmt: skip


def check_third_moment(third_moment: str, decomposition: str, power_steps: int) -> None:
    """Refuse parameters that contradict each other; UsageError."""
    if third_moment == "slices" and decomposition != "joint":
        raise UsageError(
            f"decomposition={decomposition!r} needs the whole third moment: "
            "third_moment='slices' requires decomposition='joint'"
        )
    if third_moment == "full" and power_steps:
        raise UsageError(
            f"power_steps={power_steps} improve components found by slices: "
            "they require third_moment='slices' or 'auto'"
        )


def settled_third_moment(run: Run, third_moment: str, decomposition: str, whole: Pass) -> str:
    """Return "full" or "slices" for "auto": slices where the pass of the whole third moment does not fit a worker.

    Any other value is returned as it is.
    """
    if third_moment != "auto":
        return third_moment
    return "full" if decomposition != "joint" or run.fits(whole) else "slices"


@dataclass(frozen=True)
class Contracted(Decomposed):
    """Components found by contractions.

    Attributes
    ----------
    vectors : ndarray of shape (k, k)
        Orthonormal columns.
    found : Decomposition
        With the same vectors; its residual and off-diagonal share are those of the slices.
    """

    vectors: np.ndarray
    found: Decomposition

    @property
    def n_components(self) -> int:
        return len(self.vectors)


def find_by_contractions(
    run: Run,
    directions: np.ndarray,
    slices: Callable[[], np.ndarray],
    steps: Callable[[np.ndarray], Callable[[], np.ndarray]],
    n_steps: int,
    where: str,
) -> Contracted:
    """Decompose a third moment by its slices, and improve the components by power steps.

    Parameters
    ----------
    run : Run
    directions : ndarray of shape (k, m)
        The h_l as orthonormal columns (see `distmom.linalg.slice_directions`).
    slices : callable
        Loads ``T(I, I, h_l)``, (k, k, m), from a committed pass.
    steps : callable
        Makes a pass for the components v_i, (k, k), and returns what loads ``T(I, v_i, v_i)``, (k, k).
    n_steps : int
    where : {"scheduler", "client"}
    """
    k = len(directions)
    out = Contracted(unknown(k, k), unknown())
    found = run.small(by_slices, slices, directions, where=where, out=out)
    for _ in range(n_steps):
        found = run.small(improved, steps(found.vectors), found, where=where, out=out)
    return found


def by_slices(slices: np.ndarray, directions: np.ndarray) -> Contracted:
    """Decompose slices, which are symmetric up to sampling errors; runs on the scheduler node."""
    with one_blas_thread():
        found = decompose_slices((slices + slices.transpose(1, 0, 2)) / 2.0, directions)
    return Contracted(found.eigenvectors, found)


def improved(steps: np.ndarray, before: Contracted) -> Contracted:
    """Improve components by a power step of each; runs on the scheduler node."""
    with one_blas_thread():
        values, vectors, measures = power_step(before.vectors, steps)
        # A step reorders components whose eigenvalues are nearly equal.
        nearest = np.abs(before.vectors.T @ vectors).max(axis=0)
    change = float(np.sqrt(2.0 * max(0.0, 1.0 - nearest.min())))
    history = (*before.found.history, ("power", change))
    found = replace(
        before.found,
        eigenvalues=values,
        eigenvectors=vectors,
        history=history,
        n_iter=len(history),
        diagnostics={**before.found.diagnostics, **measures},
    )
    return Contracted(vectors, found)


def sliced_facts(directions: np.ndarray, found: Contracted) -> dict[str, Any]:
    """Return the diagnostics of a model whose third moment was taken by slices."""
    history = [[str(name), float(value)] for name, value in found.found.history]
    return {"third_moment": "slices", "n_slices": directions.shape[1], "history": history}
