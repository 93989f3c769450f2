"""Fit coefficients of a stack that vary with documents and labels.

The covariates are described in `distmom.models.multilabel.blend.covariates`. Newton's method continues from
the constant coefficients, with the pairs that are `informative` given these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from distmom.blas import map_on_cores, one_blas_thread
from distmom.models.multilabel.blend.covariates import OF_DOCUMENTS, OF_LABELS, Effect
from distmom.models.multilabel.blend.curves import curve_of
from distmom.models.multilabel.blend.newton import Derivatives, minimise
from distmom.models.multilabel.blend.stack import FIT_PAIRS, PENALTY, Pairs, Stack, informative
from distmom.models.multilabel.variants import INDEXED, family_of

#: penalty of the squares of changes with a covariate, of standardised features
CHANGE_PENALTY = 30.0


def covariate_names(inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the covariates of a stack: the cosine only with inputs for which neighbours are searched."""
    searched = any(family_of(name) in INDEXED for name in inputs)
    return tuple(name for name in (*OF_DOCUMENTS, OF_LABELS) if searched or name != "cosine")


@dataclass(frozen=True)
class _VaryingDesign:
    """Features of pairs: every standardised feature x and one, and these times every covariate z.

    Attributes
    ----------
    x : ndarray of shape (2 n_inputs + 1, m), float32
        Standardised scores, standardised curves, and ones.
    z : ndarray of shape (n_covariates, m), float32
    truth, weights : ndarray of shape (m,), float32
    """

    x: np.ndarray
    z: np.ndarray
    truth: np.ndarray
    weights: np.ndarray

    def of_piece(self, b: np.ndarray, piece: slice) -> Derivatives:
        """Return the negative log-likelihood of some pairs, its gradient and its Hessian."""
        x, truth, weights = self.x[:, piece], self.truth[piece], self.weights[piece]
        full = np.vstack([x, *(x * row for row in self.z[:, piece])])
        s = b.astype(np.float32) @ full
        small = np.exp(-np.abs(s))
        p = np.where(s >= 0, np.float32(1.0), small) / (np.float32(1.0) + small)
        loss = weights * (np.maximum(s, 0.0) + np.log1p(small) - truth * s)
        gradient = full @ (weights * (p - truth))
        # A matrix times its own transpose is half of the work.
        full *= np.sqrt(weights * p * (1.0 - p))
        return float(loss.sum(dtype=np.float64)), gradient, full @ full.T


def vary(pairs: Pairs, stack: Stack) -> Stack:
    """Return a stack whose coefficients vary with the covariates of the pairs.

    Parameters
    ----------
    pairs : Pairs
        With covariates; all labels are candidates.
    stack : Stack
        Fitted to these pairs, with constant coefficients.
    """
    pairs = pairs.some(FIT_PAIRS)
    covariates = pairs.covariates
    assert covariates is not None
    used, weights = informative(stack.log_odds(pairs.scores), pairs.truth)
    rows, columns = np.divmod(used, pairs.truth.shape[1])
    effects, z = list[Effect](), list[np.ndarray]()
    n_inputs = len(stack.inputs)
    for name in covariate_names(pairs.names):
        values = covariates.values(name)
        if values.std() < 1e-6 * max(1.0, abs(values.mean())):
            continue
        zeros = (0.0,) * n_inputs
        effect = Effect(name, float(values.mean()), float(values.std()), zeros, zeros, 0.0)
        effects.append(effect)
        standardised = effect.standardised(covariates)
        of_labels = columns if standardised.ndim == 1 else (rows, columns)
        z.append(standardised[of_labels if name == OF_LABELS else rows])
    if not effects:
        return stack
    x = np.ones((2 * n_inputs + 1, len(rows)), np.float32)
    centre, scale = np.zeros(2 * n_inputs + 1), np.ones(2 * n_inputs + 1)

    def of_input(i: int) -> None:
        each = stack.inputs[i]
        s = pairs.scores[i][rows, columns].astype(np.float64)
        for at, feature in ((i, s), (n_inputs + i, curve_of(s, each.signed, each.floor))):
            mean = float(np.average(feature, weights=weights))
            spread = float(np.sqrt(np.average((feature - mean) ** 2, weights=weights)))
            centre[at], scale[at] = mean, spread if spread > 1e-9 * max(abs(mean), 1e-9) else 1.0
            x[at] = (feature - centre[at]) / scale[at]

    map_on_cores(of_input, range(n_inputs))
    truth = pairs.truth[rows, columns].astype(np.float32)
    design = _VaryingDesign(x, np.stack(z).astype(np.float32), truth, weights.astype(np.float32))
    start = stack.coefficients()
    b = np.zeros((1 + len(effects), len(scale)))
    b[0] = start * scale
    b[0, -1] += start @ centre
    ridge = np.full(b.shape, CHANGE_PENALTY)
    ridge[0] = PENALTY
    ridge[0, -1] = 1e-9
    with one_blas_thread():
        found, _ = minimise(design.of_piece, len(design.truth), b.ravel(), ridge.ravel(), single=True)
        b = found.reshape(b.shape)
    raw = b / scale
    raw[:, -1] -= raw @ centre
    if not np.isfinite(raw).all():
        return stack
    return _with_coefficients(stack, raw, effects)


def _with_coefficients(stack: Stack, raw: np.ndarray, effects: Sequence[Effect]) -> Stack:
    """Return a stack with coefficients at the mean of the covariates, and their changes, given as rows."""
    n = len(stack.inputs)
    own = [tuple(float(c) for c in row) for row in raw]
    inputs = tuple(
        replace(each, linear=own[0][i], curve=own[0][n + i]) for i, each in enumerate(stack.inputs)
    )
    changed = tuple(
        replace(effect, linear=row[:n], curve=row[n : 2 * n], intercept=row[-1])
        for effect, row in zip(effects, own[1:], strict=True)
    )
    return Stack(inputs, own[0][-1], changed)
