"""Motions of points: labels, errors and tables by hand, and motions in planted subspaces."""

import importlib

import numpy as np
import pytest
from numpy.testing import assert_allclose


@pytest.fixture
def motions():
    return importlib.import_module("motions")


def planted(motions, n=150, frames=15, seed=0):
    """Return a sequence of two motions in random subspaces of dimension 4, with little noise."""
    rng = np.random.default_rng(seed)
    own = np.repeat([0, 1], n)
    bases = np.linalg.qr(rng.normal(size=(2, 2 * frames, 4)))[0]
    tracks = np.concatenate([rng.normal(size=(n, 4)) @ basis.T for basis in bases])
    tracks += 0.005 * rng.normal(size=tracks.shape)
    return motions.Sequence("planted", tracks / np.sqrt(np.mean(tracks**2)), own)


def test_tracks_of_a_file_have_mean_square_one_and_motions_from_zero(motions, tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    np.savez(
        tmp_path / "some.npz",
        **{"b/x": x, "b/s": np.array([3, 1, 1, 2, 3]), "a/x": x, "a/s": np.ones(5, int)},
    )
    a, b = motions.sequences(tmp_path / "some.npz")
    assert (a.name, b.name, a.n_motions, b.n_motions) == ("a", "b", 1, 3)
    assert b.motions.tolist() == [2, 0, 0, 1, 2]
    assert np.mean(b.tracks**2) == pytest.approx(1.0)
    # The coordinates of a point are its first ones in all frames, then its second ones.
    assert_allclose(b.tracks[4] / b.tracks[4, 0], np.concatenate(x[:, 4]) / x[0, 4, 0], rtol=1e-6)


def test_labelled_points_are_of_their_motions_and_at_most_half(motions):
    own = np.array([0, 1, 0, 1, 1, 1, 0])
    first, second = motions.draw_points(own, 2, 0)
    assert set(own[first]) == {0}
    assert set(own[second]) == {1}
    assert (len(first), len(second)) == (1, 2)


def test_errors_are_those_by_hand(motions):
    own = np.array([0, 0, 1, 1, 1])
    found = np.array([1, 1, 0, 0, 1])
    assert motions.wrong(found, own, matched=False) == pytest.approx(4 / 5)
    assert motions.wrong(found, own, matched=True) == pytest.approx(1 / 5)
    tally = motions.Tally()
    for each in (found, own):
        tally.add((2, 1, "some"), lambda each=each: each, lambda x: motions.wrong(x, own, matched=False))
    (row,) = tally.table().splitlines()[2:]
    assert row.startswith("| 2 | 1 | some | 0.400 | 0.400 | 0 | ")


def test_tracks_of_too_few_dimensions_are_counted_as_refused(motions):
    tracks = np.outer(np.arange(1.0, 41.0), np.ones(20))
    tally = motions.Tally()
    points = [np.array([0, 1]), np.array([2, 3])]
    tally.add((2, 2, "search"), lambda: motions.searched(tracks, points, "whiten"), lambda found: 0.0)
    assert tally.table().splitlines()[-1].startswith("| 2 | 2 | search | nan | nan | 1 | ")


def test_a_point_of_each_planted_motion_is_enough_for_a_search(motions):
    sequence = planted(motions)
    tally = motions.compare(iter([sequence]), [1, 5], 2)
    errors = {key[1:]: np.mean([error for error, _ in own]) for key, own in tally.rows.items()}
    assert errors[1, "search"] < 0.03
    assert errors[5, "labelled points"] < 0.01
    assert errors[0, "spectral"] < 0.03
    # The singular vector of one point, and clusters about means, miss the subspaces.
    assert errors[1, "labelled points"] > 0.1
    assert errors[0, "k-means"] > 0.1


@pytest.mark.realdata
def test_a_labelled_point_of_a_real_motion_says_more_to_a_search(motions, real_data):
    some = [
        each for each in motions.sequences(real_data("models") / "hopkins.npz") if each.name.startswith("1R2")
    ]
    assert len(some) == 12
    tally = motions.compare(iter(some), [1], 2)
    errors = {key: np.mean([error for error, _ in own]) for key, own in tally.rows.items()}
    assert errors[2, 1, "search"] < errors[2, 1, "labelled points"]
