"""Mixed recordings: files of different lengths and channels are sources, and their mixing is found."""

import importlib

import numpy as np
from numpy.testing import assert_allclose
from scipy.io import wavfile


def test_recordings_are_sources(tmp_path):
    workflow = importlib.import_module("benchmark_ica")
    rng = np.random.default_rng(0)
    sounds = [rng.laplace(size=(30_000, 2)), rng.uniform(-1, 1, 24_000), rng.standard_exponential(25_000)]
    paths = [tmp_path / f"{i}.wav" for i in range(3)]
    for path, sound in zip(paths, sounds, strict=True):
        wavfile.write(path, 8_000, (1_000 * sound).astype(np.int16))
    X, A = workflow.recordings(paths, seed=1)
    assert X.shape == (24_000, 3)
    sources = np.linalg.solve(A, X.T)
    assert_allclose(sources.std(axis=1), 1.0)
    assert np.corrcoef(sources[0], sounds[0][:24_000, 0])[0, 1] > 0.999
    unmixing, _ = workflow.by_moments(3, 0)(X)
    assert workflow.amari(unmixing @ A) < 0.02
