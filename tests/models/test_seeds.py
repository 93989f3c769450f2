"""Seeds that are drawn: from NumPy's global generator, or from one that is given."""

import numpy as np
import pytest
from sklearn.base import clone

from distmom import ProductMixture, SpectralLDA, TopicMoments, TopicSearch, load_model
from distmom.corpus import MemoryCorpus
from distmom.errors import UsageError
from distmom.spectral.program.jackknife import standard_errors


def presences(n=600):
    rng = np.random.default_rng(0)
    centers = rng.uniform(0.05, 0.95, (2, 30))
    return (rng.random((n, 30)) < centers[rng.integers(0, 2, n)]).astype(int)


def model(random_state):
    # The moments depend on the random partition of the columns.
    return ProductMixture(2, n_em_iter=0, random_state=random_state)


def test_a_seed_is_drawn_for_every_fit_and_repeats_the_fit():
    X, drawn = presences(), model(None)
    first = drawn.fit(X).seed_
    components = drawn.components_
    assert drawn.random_state is None
    np.testing.assert_array_equal(model(first).fit(X).components_, components)
    assert drawn.fit(X).seed_ != first
    assert np.abs(drawn.components_ - components).max() > 0.0
    assert model(3).fit(X).seed_ == 3


def test_generators_give_the_seeds():
    X = presences()
    seeds = [model(np.random.RandomState(5)).fit(X).seed_ for _ in range(2)]
    assert seeds[0] == seeds[1]
    drawn = model(np.random.RandomState(5))
    assert [drawn.fit(X).seed_ for _ in range(2)] == [seeds[0], drawn.seed_]
    assert drawn.seed_ != seeds[0]
    np.random.seed(5)
    assert model(None).fit(X).seed_ == seeds[0]
    assert clone(drawn).get_params()["random_state"] is not drawn.random_state
    for given in (np.random.default_rng(0), "0", -1):
        with pytest.raises(UsageError, match="random_state: expected"):
            model(given).fit(X)


def test_a_seed_that_is_set_for_another_fit_does_not_change_that_of_the_last(tmp_path):
    X = presences()
    errors = standard_errors(model(3).fit(X), model(3)._corpus(X))
    for number, random_state in enumerate((7, None)):
        fitted = model(3).fit(X).set_params(random_state=random_state)
        fitted.save(tmp_path / f"{number}")
        loaded = load_model(tmp_path / f"{number}")
        assert (loaded.random_state, loaded.seed_) == (random_state, 3)
        for one in (fitted, loaded):
            found = standard_errors(one, one._corpus(X))
            assert found.keys() == errors.keys()
            for name, values in errors.items():
                np.testing.assert_array_equal(found[name], values)
        loaded.save(tmp_path / f"{number} again")
        assert load_model(tmp_path / f"{number} again").seed_ == 3
    assert model(3).fit(X).set_params(random_state=7).fit(X).seed_ == 7


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(0)], ids=["none", "generator"])
def test_a_saved_model_keeps_the_seed_that_was_drawn(random_state, tmp_path):
    X, fitted = presences(), model(random_state)
    fitted.fit(X).save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.seed_ == fitted.seed_
    assert loaded.random_state is None
    again = model(fitted.seed_).fit(X)
    again.save(tmp_path / "again")
    assert load_model(tmp_path / "again").seed_ == fitted.seed_
    corpus = fitted._corpus(X)
    expected = standard_errors(again, corpus, n_parts=3)["components_"]
    np.testing.assert_array_equal(standard_errors(loaded, corpus, n_parts=3)["components_"], expected)


def test_a_run_that_is_to_be_resumed_needs_a_seed(tmp_path):
    fitted = model(None)
    corpus = fitted._corpus(presences())
    with pytest.raises(UsageError, match="random_state: expected a whole number with a run directory"):
        fitted.fit_corpus(corpus, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    seed = fitted.fit_corpus(corpus).seed_
    assert model(None).plan(corpus).to_json() == fitted.plan(corpus).to_json()
    assert fitted.seed_ == seed


@pytest.mark.parametrize("error", [UsageError, KeyboardInterrupt])
def test_a_fit_that_fails_leaves_the_model_of_the_last_one(error, tmp_path, monkeypatch):
    X, fitted = presences(), model(None)

    def failing(self, state):
        self.weights_ = None
        raise error

    def fail():
        with monkeypatch.context() as change:
            change.setattr(ProductMixture, "_keep", failing)
            with pytest.raises(error):
                fitted.fit(X[:, ::-1][:, :20])

    fail()
    assert set(vars(fitted)) == set(fitted.get_params())
    before = dict(vars(fitted.fit(X)))
    fail()
    assert all(value is before[name] for name, value in vars(fitted).items())
    fitted.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.components_, model(loaded.seed_).fit(X).components_)


def test_kept_moments_and_searches_draw_seeds():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(30, 0.1), 2)
    X = np.stack([rng.multinomial(60, rng.dirichlet([0.2] * 2) @ topics) for _ in range(300)])
    moments = TopicMoments(2, n_parts=2, random_state=None).fit(X)
    options = {"alpha0": 1.0, "init": "tensor", "n_refine": 0, "random_state": None}
    assert SpectralLDA(2, **options).fit_moments(moments).seed_ >= 0
    found = TopicSearch(2, max_df=1.0, random_state=None)
    word = int(topics[0].argmax())
    assert found.fit(X).search([word], force=True).gap > 0.0
    again = TopicSearch(2, max_df=1.0, random_state=found.seed_).fit(X).search([word], force=True)
    assert again.gap == found.search([word], force=True).gap
    assert found.fit_moments(moments).seed_ >= 0


@pytest.mark.parametrize(
    "random_state", [None, np.random.RandomState(0), 3], ids=["none", "generator", "number"]
)
def test_stored_moments_keep_the_seed_that_was_drawn(random_state, tmp_path):
    X = presences(300)
    moments = TopicMoments(2, n_parts=2, max_df=1.0, random_state=random_state).fit(X)
    moments.save(tmp_path / "moments")
    loaded = TopicMoments.load(tmp_path / "moments")
    assert loaded.seed_ == moments.seed_
    again, expected = (each.of(MemoryCorpus(X[:100])).sums_.total() for each in (loaded, moments))
    assert again.keys() == expected.keys()
    for name, total in expected.items():
        np.testing.assert_array_equal(again[name], total)
