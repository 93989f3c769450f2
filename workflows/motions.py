"""Motions of tracked points: `SubspaceSearch` from a few labelled points, beside clusterings of all points.

HOPKINS is hopkins.npz, the Hopkins 155 motion segmentation data: ``NAME/x`` (2, points, frames) are the tracks of
the points of a sequence, and ``NAME/s`` (points,) their motions. The tracks of a rigid motion are near a subspace
of dimension 4 of the 2 x frames coordinates of a track (Tron and Vidal 2007). Some points of every motion are
labelled at random. Every motion is searched from its own labelled points, and a point is assigned to the motion in
whose subspace its track is longest. The error is the share of the points without a label that are assigned to
another motion, on average over sequences and draws; seconds are CPU seconds of a sequence.

search, search (projected)
    `SubspaceSearch` with ``side="whiten"``, which takes the motions to be independent, and with the default.
labelled points
    Leading singular vectors of the labelled points of every motion.
nearest labelled point
    The motion of the nearest labelled track.
seeded k-means
    k-means from the means of the labelled tracks.
k-means and singular vectors
    Leading singular vectors of the k-means cluster that is nearest to the labelled points.
k-means, spectral
    Clusterings without labels, which are matched with the motions in the way that gives the smallest error, which
    favours them. *spectral* is scikit-learn's SpectralClustering with the squared cosines of the tracks in their
    leading 4 k directions, the shape interaction of Costeira and Kanade (1998).

Example::

    python workflows/motions.py data/models/hopkins.npz --labelled 1 2 5 10
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from row_search import kmeans_subspace, leading_vectors
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans, SpectralClustering

from distmom.errors import NumericalError
from distmom.models import SubspaceSearch

#: dimension of the subspace of a rigid motion
DIMENSION = 4


class Sequence(NamedTuple):
    """Tracks of points (n, 2 x frames), of mean square one, and their motions (n,), from 0."""

    name: str
    tracks: np.ndarray
    motions: np.ndarray

    @property
    def n_motions(self) -> int:
        """Number of motions."""
        return int(self.motions.max()) + 1


def sequences(path: Path) -> Iterator[Sequence]:
    """Yield the sequences of the file."""
    with np.load(path) as stored:
        for name in sorted({key.split("/")[0] for key in stored.files}):
            x = stored[f"{name}/x"].astype(float)
            motions = np.unique(stored[f"{name}/s"], return_inverse=True)[1]
            tracks = x.transpose(1, 0, 2).reshape(x.shape[1], -1)
            yield Sequence(name, tracks / np.sqrt(np.mean(tracks**2)), motions)


def draw_points(motions: np.ndarray, n: int, seed: int) -> list[np.ndarray]:
    """Return n random points of every motion, at most half of its points."""
    rng = np.random.default_rng(seed)
    own = [np.flatnonzero(motions == i) for i in range(motions.max() + 1)]
    return [rng.choice(each, min(n, len(each) // 2), replace=False) for each in own]


def nearest_basis(tracks: np.ndarray, bases: list[np.ndarray]) -> np.ndarray:
    """Return the subspace in which each track is longest, given orthonormal columns of all of them."""
    return np.asarray(np.array([((tracks @ basis) ** 2).sum(axis=1) for basis in bases]).argmax(axis=0))


def searched(tracks: np.ndarray, labelled: list[np.ndarray], side: str) -> np.ndarray:
    """Search for every motion; NumericalError if the tracks have too few dimensions."""
    model = SubspaceSearch(len(labelled), dimension=DIMENSION, side=side).fit(tracks)
    return nearest_basis(tracks, [model.search(rows=tracks[own], force=True).basis for own in labelled])


def nearest_track(tracks: np.ndarray, labelled: list[np.ndarray]) -> np.ndarray:
    """Return the motion of the nearest labelled track."""
    far = [np.linalg.norm(tracks[:, None] - tracks[own][None], axis=2).min(axis=1) for own in labelled]
    return np.asarray(np.array(far).argmin(axis=0))


def seeded_kmeans(tracks: np.ndarray, labelled: list[np.ndarray]) -> np.ndarray:
    """Return clusters started from the labelled tracks."""
    first = np.stack([tracks[own].mean(axis=0) for own in labelled])
    return np.asarray(KMeans(len(labelled), init=first, n_init=1).fit(tracks).labels_)


def interactions(tracks: np.ndarray, k: int) -> np.ndarray:
    """Return the squared cosines of tracks in their leading directions, all of the same variance."""
    left = np.linalg.svd(tracks, full_matrices=False)[0][:, : DIMENSION * k]
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    return np.asarray((left @ left.T) ** 2)


def spectral(affinity: np.ndarray, k: int) -> np.ndarray:
    """Return clusters of an affinity."""
    model = SpectralClustering(k, affinity="precomputed", random_state=0)
    return np.asarray(model.fit(affinity).labels_)


def wrong(found: np.ndarray, motions: np.ndarray, *, matched: bool) -> float:
    """Return the share of points with another motion, of clusters matched so that it is least if asked for."""
    if matched:
        counts = np.zeros((found.max() + 1, motions.max() + 1))
        np.add.at(counts, (found, motions), 1.0)
        own, others = linear_sum_assignment(-counts)
        return float(1.0 - counts[own, others].sum() / len(found))
    return float(np.mean(found != motions))


def with_labels(tracks: np.ndarray, labelled: list[np.ndarray]) -> dict[str, Callable[[], np.ndarray]]:
    """Return the systems that use labels."""
    k = len(labelled)
    return {
        "search": partial(searched, tracks, labelled, "whiten"),
        "search (projected)": partial(searched, tracks, labelled, "auto"),
        "labelled points": lambda: nearest_basis(
            tracks, [leading_vectors(tracks[own], DIMENSION) for own in labelled]
        ),
        "nearest labelled point": partial(nearest_track, tracks, labelled),
        "seeded k-means": partial(seeded_kmeans, tracks, labelled),
        "k-means and singular vectors": lambda: nearest_basis(
            tracks, [kmeans_subspace(tracks, k, DIMENSION, tracks[own], 0) for own in labelled]
        ),
    }


def without_labels(tracks: np.ndarray, k: int) -> dict[str, Callable[[], np.ndarray]]:
    """Return the clusterings of all points."""
    return {
        "k-means": lambda: KMeans(k, n_init=10, random_state=0).fit(tracks).labels_,
        "spectral": lambda: spectral(interactions(tracks, k), k),
    }


class Tally:
    """Errors and CPU seconds of systems, by number of motions and of labelled points."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int, str], list[tuple[float, float]]] = {}

    def add(
        self, key: tuple[int, int, str], system: Callable[[], np.ndarray], score: Callable[..., float]
    ) -> None:
        """Run a system; the error is NaN if it refuses."""
        started = time.process_time()
        try:
            error = score(system())
        except NumericalError:
            error = float("nan")
        self.rows.setdefault(key, []).append((error, time.process_time() - started))

    def table(self) -> str:
        """Return errors and CPU seconds in Markdown."""
        lines = [
            "| motions | labelled | system | error | median | refused | CPU s |",
            "|---:|---:|---|---:|---:|---:|---:|",
        ]
        for (k, n, name), own in sorted(self.rows.items(), key=lambda row: row[0][:2]):
            errors, seconds = np.array(own).T
            known = errors[~np.isnan(errors)]
            mean, middle = (float(f(known)) if len(known) else float("nan") for f in (np.mean, np.median))
            refused = len(errors) - len(known)
            lines.append(
                f"| {k} | {n or ''} | {name} | {mean:.3f} | {middle:.3f} | {refused} | {seconds.mean():.3f} |"
            )
        return "\n".join(lines)


def compare(every: Iterator[Sequence], labelled: list[int], draws: int) -> Tally:
    """Run all systems on sequences."""
    tally = Tally()
    for sequence in every:
        tracks, motions, k = sequence.tracks, sequence.motions, sequence.n_motions
        for name, system in without_labels(tracks, k).items():
            tally.add((k, 0, name), system, partial(wrong, motions=motions, matched=True))
        for n in labelled:
            for seed in range(draws):
                points = draw_points(motions, n, seed)
                rest = np.setdiff1d(np.arange(len(motions)), np.concatenate(points))

                def score(found: np.ndarray, rest: np.ndarray = rest, motions: np.ndarray = motions) -> float:
                    return wrong(found[rest], motions[rest], matched=False)

                for name, system in with_labels(tracks, points).items():
                    tally.add((k, n, name), system, score)
    return tally


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hopkins", type=Path, metavar="HOPKINS", help="hopkins.npz")
    parser.add_argument(
        "--labelled", type=int, nargs="+", default=[1, 2, 5, 10], help="points of every motion [1 2 5 10]"
    )
    parser.add_argument("--draws", type=int, default=5, help="of the labelled points [%(default)s]")
    options = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(compare(sequences(options.hopkins), options.labelled, options.draws).table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
