"""From passes to components: a basis, moments in it, whitening, and a decomposition.

All models of words share these steps. A sketch pass and ``n_power_iter`` power passes give an orthonormal basis
Q (d x r), one pass adds up the moments in that basis, W whitens ``Q'M2 Q``, and T = M3(QW, QW, QW) is decomposed.

Where the r^3 entries of M3(Q, Q, Q) do not fit, one pass adds up the first two moments and a second pass the
slices T(I, I, h) for a few directions h, which are diagonalised jointly. The directions are drawn in the whitened
space, and so after the second moment is known: directions drawn earlier, in the basis, would have components
outside of the range of W, which carry only noise. Power steps of all components, one further pass each, then use
the whole of T without forming it (`distmom.moments.documents.power`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from distmom.engine import Engine, Selection, StoredArray, StoredColumns
from distmom.engine.passes import Pass
from distmom.errors import NumericalError
from distmom.linalg import slice_directions
from distmom.moments.documents.power import WordPowerPass
from distmom.moments.documents.words import WordMomentsPass, WordSketchPass, WordSlicesPass
from distmom.moments.sketching import SketchPass
from distmom.spectral.program.run import Run, unknown
from distmom.spectral.steps.basis import N_PROBES, Basis, range_basis, unknown_columns
from distmom.spectral.steps.contracted import find_by_contractions, settled_third_moment
from distmom.spectral.steps.core import (
    Core,
    CoreSettings,
    contracted_core,
    decompose_each,
    decompose_moments,
    load_moments,
    load_slices,
    load_steps,
    moments_and_whitening,
    unknown_whitening,
)
from distmom.spectral.steps.recovery import Slabs, store_columns

_S = TypeVar("_S", bound="CoreSettings")


@dataclass(frozen=True)
class Words:
    """The words that enter the moments.

    Attributes
    ----------
    n_words : int
    numbers : StoredArray of shape (n_words of the corpus,), int32, optional
        Number of each word of the corpus among these words, -1 for the others; None (default) means all words.
    scale : StoredArray of shape (n_words, 1), optional
        Factor of every word: the moments are those of ``scale * x``. None (default) means 1.
    """

    n_words: int
    numbers: StoredArray | None = None
    scale: StoredArray | None = None


def settled(run: Run, settings: _S, words: Words) -> _S:
    """Return settings with ``third_moment="auto"`` decided: slices where the whole does not fit a worker."""
    whole = WordMomentsPass(**common_fields(settings, words, None), rank=_rank(settings, words))
    found = settled_third_moment(run, settings.third_moment, settings.decomposition, whole)
    # The whole moment is decomposed until nothing improves.
    n_steps = 0 if found == "full" else settings.power_steps
    return replace(settings, third_moment=found, power_steps=n_steps)


def fit_basis(run: Run, settings: CoreSettings, words: Words, selection: Selection | None = None) -> Basis:
    """Find a basis for the moments of some documents in ``n_power_iter + 1`` passes."""
    r = _rank(settings, words)
    common = common_fields(settings, words, selection)
    # With pairs of a position and itself every eigenvalue is positive, and probes cannot separate the noise.
    n_probes = min(N_PROBES, words.n_words - r) if settings.kind.distinct else 0
    sketch = WordSketchPass(**common, n_columns=r, seed=settings.seed, n_probes=n_probes)
    moments = _moment_passes(settings, WordMomentsPass(**common, rank=r))
    return range_basis(
        run, sketch, settings.n_power_iter, settings.dtype, basis_slabs(run, sketch, moments),
        indefinite=settings.kind.distinct, scale=words.scale,
    )  # fmt: skip


def basis_slabs(run: Run, sketch: SketchPass, moments: Sequence[Pass]) -> int:
    """Return the number of slabs of columns in which the passes that use a basis read it."""
    return max(run.plan(pass_).n_mapped for pass_ in (replace(sketch, basis=0), *moments))


def _rank(settings: CoreSettings, words: Words) -> int:
    return min(settings.n_states + settings.n_oversamples, words.n_words)


def common_fields(settings: CoreSettings, words: Words, selection: Selection | None) -> dict[str, Any]:
    """Return the fields common to all passes over the same documents and words."""
    return {
        "n_features": words.n_words, "selection": selection, "numbers": words.numbers,
        "kind": settings.kind, "single": settings.single_precision,
    }  # fmt: skip


def moment_passes(
    settings: CoreSettings, words: Words, basis: Basis, selection: Selection | None
) -> tuple[WordMomentsPass, *tuple[WordSlicesPass, ...]]:
    """Return the passes that add up the moments in a basis: one, or two where the third is taken as slices.

    Parameters
    ----------
    settings : CoreSettings
        With ``third_moment`` decided (see `settled`).
    words : Words
    basis : Basis
    selection : Selection or None
        Documents that enter the moments; None means all.
    """
    common = common_fields(settings, words, selection)
    return _moment_passes(settings, WordMomentsPass(**common, basis=basis.matrix, rank=basis.rank))


def _moment_passes(
    settings: CoreSettings, whole: WordMomentsPass
) -> tuple[WordMomentsPass, *tuple[WordSlicesPass, ...]]:
    if settings.third_moment == "full":
        return (whole,)
    second = replace(whole, third=False)
    if settings.third_moment == "none":
        return (second,)
    slices = WordSlicesPass(
        whole.n_features, whole.selection, kind=whole.kind, basis=whole.basis, rank=whole.rank,
        n_states=settings.n_states, n_slices=slice_directions(settings.n_states).shape[1], single=whole.single,
    )  # fmt: skip
    return second, slices


def find_components(
    run: Run,
    settings: CoreSettings,
    basis: Basis,
    directories: tuple[str, ...],
    slices: WordSlicesPass | None,
    near: Core | None = None,
) -> Core:
    """Whiten the second moment of some committed passes and decompose the third, whole or by slices.

    Parameters
    ----------
    run : Run
    settings : CoreSettings
    basis : Basis
    directories : tuple of str
        Directories of the committed passes whose sums are the moments.
    slices : WordSlicesPass, optional
        Contracts the third moment in a separate pass; None where the committed sums hold the whole third moment.
    near : Core, optional
        Components of most of the documents, which are improved where the whole third moment is known.

    Raises
    ------
    NumericalError
        If the second moment carries fewer components than requested; the message lists its eigenvalues.
    """
    load = partial(load_moments, directories, settings.kind, basis.matrix)
    where, out = settings.decompose_on, Core.upto(basis.rank, settings.n_states)
    if slices is None:
        return run.small(decompose_moments, load, settings, basis.noise, near, where=where, out=out)
    whitening = unknown_whitening(basis.rank, settings.n_states)
    moments, white = run.small(
        moments_and_whitening, load, settings, basis.noise, where=where, out=(unknown(), whitening)
    )
    k = white.W.shape[1]
    directions = slice_directions(k, settings.seed)
    stored, across = run.put(white.W), run.put(directions)
    pass_ = replace(slices, whitener=stored, directions=across, n_states=k, n_slices=directions.shape[1])
    scanned = run.scan(pass_).directory
    loaded = settings.kind, basis.matrix, moments, white.W
    contracted = partial(load_slices, scanned, *loaded, directions, settings.alpha0)

    def steps(components: np.ndarray) -> Callable[[], np.ndarray]:
        directory = _power_step(run, settings, basis, white.W, components, slices)
        return partial(load_steps, directory, *loaded, components, settings.alpha0)

    found = find_by_contractions(run, directions, contracted, steps, settings.power_steps, where)
    return run.apply(contracted_core, moments, white, directions, found, out=out)


def _power_step(
    run: Run,
    settings: CoreSettings,
    basis: Basis,
    whitener: np.ndarray,
    components: np.ndarray,
    slices: WordSlicesPass,
) -> str:
    """Make a pass of power steps over the documents of the slices, and return the directory of its sums."""
    d, k = slices.n_features, len(components)
    pass_ = WordPowerPass(
        d,
        slices.selection,
        numbers=slices.numbers,
        kind=slices.kind,
        vectors=0,
        n_vectors=k,
        single=slices.single,
    )
    n_slabs = run.plan(pass_).n_mapped
    vectors = run.rows(
        _power_vectors, basis, whitener, components, d, n_slabs, settings.dtype,
        out=unknown_columns(d, k, n_slabs),
    )  # fmt: skip
    return run.scan(replace(pass_, vectors=vectors)).directory


def _power_vectors(
    engine: Engine,
    basis: Basis,
    whitener: np.ndarray,
    components: np.ndarray,
    n_words: int,
    n_slabs: int,
    dtype: str,
) -> StoredColumns:
    """Store the components ``Q W v`` as vectors over the words."""
    small = whitener @ components
    outputs = {"vectors": (small.shape[1], n_slabs)}
    found = store_columns(engine, _vector_rows, (basis.matrix,), n_words, outputs, dtype, small)
    return found["vectors"]


def _vector_rows(rows: slice, q: np.ndarray, small: np.ndarray) -> tuple[Slabs, Slabs]:
    return {"vectors": np.asarray(q, np.float64) @ small}, {}


def find_each(
    run: Run, settings: tuple[CoreSettings, ...], basis: Basis, directories: tuple[str, ...]
) -> list[Core | NumericalError]:
    """Decompose the moments of some committed passes, loaded once, with each of some settings.

    All settings have the same ``kind``. Where the moments carry fewer components than settings request, the
    result is the error.
    """
    load = partial(load_moments, directories, settings[0].kind, basis.matrix)
    out: list[Core | NumericalError] = [Core.upto(basis.rank, each.n_states) for each in settings]
    return run.small(decompose_each, load, settings, basis.noise, where=settings[0].decompose_on, out=out)
