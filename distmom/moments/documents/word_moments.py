"""Moments from the sums of word passes: subtracts repeated positions, and divides every sum by its mass.

The sums, and the formulas with the terms that are subtracted here, are those of `distmom.moments.documents.words`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distmom.engine.stored.arrays import release, release_maps
from distmom.engine.sums.additive import Sums
from distmom.engine.sums.tall import Tall, read_rows
from distmom.moments.kernels import add_slices, add_third_moment, fill_pairs, fill_symmetric
from distmom.moments.small import SmallMoments
from distmom.moments.weighting import MomentKind, positive

#: words that are processed at a time when repeated positions are subtracted
FINISH_ROWS = 8192


def word_moments(sums: Sums, kind: MomentKind, basis: Tall | None = None) -> SmallMoments:
    """Turn the sums of `WordMomentsPass` into moments.

    Parameters
    ----------
    sums : Sums
    kind : MomentKind
        As in the pass.
    basis : matrix of shape (n_words, r), optional
        The basis of the pass; required to subtract repeated positions.
    """
    m2 = np.array(sums["m2"])
    m3 = fill_symmetric(np.array(sums["m3"])) if "m3" in sums else None
    if kind.distinct:
        pairs = None if m3 is None else np.zeros_like(m3)
        for part, q in basis_rows(basis, len(sums["pair_mass"])):
            m2 -= q.T @ (q * np.asarray(sums["pair_mass"][part])[:, None])
            if pairs is not None:
                # sym3(q q z) with z = pair_rows - 2/3 triple_mass q: one product for both corrections.
                add_third_moment(pairs, q, _repeated_rows(sums, part, q))
        if m3 is not None and pairs is not None:
            fill_pairs(pairs)
            for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
                m3 -= pairs.transpose(order)
    mass1, mass2, mass3 = (positive(x) for x in sums["mass"])
    if m3 is not None:
        m3 /= mass3
    count, usable, n1, n2, n3, n2m = (float(x) for x in sums["lengths"])
    scale = max(count, 1.0)
    lengths = {
        "n_documents": count,
        "n_with_triples": usable,
        "mean_length": n1 / scale,
        "mean_length2": n2 / scale,
        "mean_length3": n3 / scale,
        "mean_length2_labels": n2m / scale,
    }
    rules = sum_rules(sums, kind)
    rows = np.array(sums["rows"]) if "rows" in sums else None
    return SmallMoments(np.asarray(sums["m1"]) / mass1, (m2 + m2.T) / (2 * mass2), m3, lengths, rules, rows)


def sum_rules(sums: Sums, kind: MomentKind) -> dict[str, float]:
    """Return the relative residuals of the sum rules of moments of distinct positions.

    Summed over all words v of the corpus at one position, also those left out of the moments,
    ``sum_v E2(Q, e_v) = Q'M1`` and ``sum_v E3(Q, Q, e_v) = Q'E2 Q`` in any basis Q. These hold exactly where
    all orders are of the same documents with the same weights. The second rule is checked along the sum of the
    columns of Q, and before repeated positions are subtracted from both sides.

    Parameters
    ----------
    sums : Sums
        Sums of `WordMomentsPass`.
    kind : MomentKind
        As in the pass.
    """
    if not kind.has_sum_rules:
        return {}
    masses = [positive(x) for x in sums["mass"]]
    # The sums still include repeated positions, which are subtracted from copies.
    below = {2: np.asarray(sums["m1"]), 3: np.asarray(sums["m2"]).sum(axis=1)}
    found = {}
    for order in rule_orders(kind):
        expected = below[order] / masses[order - 2]
        residual = np.asarray(sums[f"rule{order}"]) / masses[order - 1] - expected
        size = float(np.linalg.norm(expected))
        found[str(order)] = float(np.linalg.norm(residual)) / size if size > 0.0 else 0.0
    return found


def rule_orders(kind: MomentKind) -> range:
    """Return the orders of the moments of a pass whose sums over a position are known: two, or two and three."""
    return range(2, min(kind.orders, 3) + 1)


def half_rows(half: np.ndarray, pair_mass: np.ndarray, mass: float, basis_rows: np.ndarray) -> np.ndarray:
    """Return rows of ``M2 Q`` from the sums of a pass over distinct positions with one side in the basis.

    Parameters
    ----------
    half : ndarray of shape (n, r)
        Rows of the sum ``half``.
    pair_mass : ndarray of shape (n,)
        The same rows of the sum ``pair_mass``.
    mass : float
        Mass of the pairs.
    basis_rows : ndarray of shape (n, r)
        Rows of the basis of the pass for these words.
    """
    return np.asarray((half - pair_mass[:, None] * basis_rows) / positive(mass))


def word_slices(
    sums: Sums, kind: MomentKind, whitener: np.ndarray, directions: np.ndarray, basis: Tall | None = None
) -> np.ndarray:
    """Turn the sums of `WordSlicesPass` into slices of the whitened third moment.

    Parameters
    ----------
    sums : Sums
    kind : MomentKind
    whitener : ndarray of shape (r, k)
    directions : ndarray of shape (k, m)
        As in the pass.
    basis : matrix of shape (n_words, r), optional
        The basis of the pass; required to subtract repeated positions.

    Returns
    -------
    ndarray of shape (k, k, m), float64
        ``T(I, I, h_l)`` along the last axis, for ``T = M3(QW, QW, QW)``.
    """
    total = np.array(sums["slices"])
    if not kind.distinct:
        slices = np.ascontiguousarray(fill_pairs(total.transpose(0, 2, 1)))
    else:
        # sym3(q q z) as in `word_moments`, contracted: (z'h) q q' + (q'h) (q z' + z q').
        cross = np.zeros_like(total)
        for part, row in basis_rows(basis, len(sums["triple_mass"])):
            q = row @ whitener
            z = _repeated_rows(sums, part, q)
            add_slices(total, q, q, -(z @ directions))
            add_slices(cross, q, z, q @ directions)
        slices = np.ascontiguousarray(fill_pairs(total.transpose(0, 2, 1)))
        slices -= cross.transpose(0, 2, 1)
        slices -= cross.transpose(2, 0, 1)
    slices /= positive(sums["mass"])
    return slices


def basis_rows(basis: Tall | None, n_rows: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slabs of rows of a basis, float64, and release their mapped pages."""
    if basis is None:
        raise ValueError("moments of distinct positions need the basis")
    for start in range(0, n_rows, FINISH_ROWS):
        part = slice(start, min(start + FINISH_ROWS, n_rows))
        yield part, np.asarray(read_rows(basis, part), np.float64)
        release_maps()


def _repeated_rows(sums: Sums, part: slice, q: np.ndarray) -> np.ndarray:
    """Return the z of some words for which sym3(q q z) is the contribution of repeated positions."""
    pairs, masses = sums["pair_rows"], sums["triple_mass"]
    rows = np.asarray(pairs[part]) - (2.0 / 3.0) * np.asarray(masses[part])[:, None] * q
    release(pairs)
    return np.asarray(rows)
