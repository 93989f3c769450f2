from dataclasses import replace

import numpy as np
import pytest
from helpers import WeightedCorpus, carried_out, planted_corpus
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment
from scipy.sparse import vstack

from distmom.engine import Selection, open_engine, plan_pass
from distmom.engine.plan import LIMIT_SHARE
from distmom.errors import NumericalError, UsageError
from distmom.linalg import decompose, decompose_slices, multilinear, slice_directions, whiten
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.latent.states import StateSettings, check_size, extend_states, fit_states
from distmom.moments.documents.words import WordMomentsPass, WordSketchPass
from distmom.moments.weighting import MomentKind
from distmom.simulate.multilabel import planted
from distmom.spectral.steps.core import load_moments
from distmom.spectral.steps.recovery import tall_sum, to_columns


def population_corpus(population, lengths=(3, 4), shard_documents=50):
    """All documents of some lengths with one label each, with their probabilities."""
    parts = [population.enumerate(n, 1) for n in lengths]
    words = vstack([p.words for p in parts]).astype(int)
    labels = vstack([p.labels for p in parts]).astype(int)
    weights = np.concatenate([p.weights for p in parts]) / len(parts)
    return WeightedCorpus(words, labels, weights, shard_documents=shard_documents)


def matched(found, truth):
    """Order rows of ``found`` as in ``truth``."""
    cost = np.abs(found[:, None, :] - truth[None, :, :]).sum(axis=2)
    return linear_sum_assignment(cost.T)[1]


def assert_states_are(population, states):
    order = matched(states.components, population.O.T)
    assert_allclose(states.components[order], population.O.T, atol=1e-10)
    assert_allclose(states.weights[order], population.pi, atol=1e-10)
    assert_allclose(states.label_states[order], population.Q.T, atol=1e-10)


@pytest.mark.parametrize(
    ("decomposition", "third_moment"), [("joint", "full"), ("joint", "slices"), ("power", "full")]
)
@pytest.mark.parametrize("weighting", ["pooled", "document"])
def test_exact_population_gives_back_the_parameters(weighting, decomposition, third_moment):
    population = planted(6, 4, 3, random_state=1)
    corpus = population_corpus(population)
    settings = StateSettings(
        3,
        MomentKind("distinct", weighting, binary=False),
        n_oversamples=3,
        single_precision=False,
        smoothing=0.0,
        decomposition=decomposition,
        third_moment=third_moment,
    )
    with open_engine(corpus) as engine:
        states = carried_out(engine, fit_states, settings)
    assert_states_are(population, states)
    assert states.diagnostics["sum_pi"] == pytest.approx(1.0, abs=1e-9)
    assert states.diagnostics["residual"] < 1e-9
    assert states.diagnostics["mean_length2_labels"] == pytest.approx((9 + 16) / 2)


@pytest.mark.slow
def test_exact_population_with_more_states_than_slices_and_documents_that_are_added():
    population = planted(22, 18, 18, random_state=1)
    corpus = population_corpus(population, lengths=(3,), shard_documents=1000)
    left_out = Selection(0.3, heldout=True)
    extended = []
    for third_moment in ("full", "slices"):
        settings = StateSettings(
            18, MomentKind("distinct", binary=False), n_oversamples=2, single_precision=False, smoothing=0.0,
            third_moment=third_moment,
        )  # fmt: skip
        with open_engine(corpus) as engine:
            states = carried_out(engine, fit_states, settings)
            part = carried_out(engine, fit_states, settings, replace(left_out, heldout=False))
            extended.append(carried_out(engine, extend_states, settings, part, left_out))
        assert_states_are(population, states)
        assert states.diagnostics["third_moment"] == third_moment
        assert states.diagnostics["residual"] < 1e-9
        # A part of the population is none, so that the documents that were added have mattered.
        assert part.diagnostics["residual"] > 1e-3
        assert extended[-1].diagnostics["residual"] < 1e-9
        assert extended[-1].diagnostics["sum_pi"] == pytest.approx(1.0, abs=1e-9)
    assert states.diagnostics["n_slices"] == 17
    whole, slices = extended
    assert_allclose(slices.components, whole.components, atol=1e-10)
    assert_allclose(slices.weights, whole.weights, atol=1e-10)
    assert_allclose(slices.label_states, whole.label_states, atol=1e-10)


def test_sampled_slices_recover_states_as_well_as_the_whole_third_moment():
    population, _, corpus = planted_corpus(20_000, d=200, n_labels=40, k=40, length=(8, 16))
    settings = StateSettings(
        40, MomentKind("distinct", "document", binary=False), n_oversamples=40, n_power_iter=4
    )
    errors, residuals, sides = [], [], []
    for third_moment in ("full", "slices"):
        with open_engine(corpus) as engine:
            states = carried_out(engine, fit_states, replace(settings, third_moment=third_moment))
            if third_moment == "full":
                moments = load_moments(states.directories, settings.kind, states.basis.matrix)
        order = matched(states.components, population.O.T)
        words = np.abs(states.components[order] - population.O.T).sum(axis=1).mean()
        errors.append((words, np.abs(states.weights[order] - population.pi).sum()))
        residuals.append(states.diagnostics["residual"])
    assert states.diagnostics["n_slices"] == 22
    (words, weights), (sliced_words, sliced_weights) = errors
    assert words < 0.1
    assert sliced_words < 1.01 * words
    assert sliced_weights < 1.02 * weights
    assert residuals[1] == pytest.approx(residuals[0], rel=0.05)
    # Along directions of the basis, which could be drawn before the second moment is known, slices carry noise
    # that whitening leaves out.
    white = whiten(moments.m2, 40, noise=0.0)
    whole = decompose(multilinear(moments.m3, white.W, white.W, white.W))
    before = np.random.default_rng(0).standard_normal((80, 22))
    along, mixing = np.linalg.qr(white.B.T @ before)
    for side in (white.W @ slice_directions(40), before @ np.linalg.inv(mixing)):
        matrices = np.einsum("abc,ai,bj,cl->ijl", moments.m3, white.W, white.W, side, optimize=True)
        found = decompose_slices(matrices, slice_directions(40) if not sides else along)
        cosines = np.abs(whole.eigenvectors.T @ found.eigenvectors).max(axis=1)
        sides.append((found.residual, np.sqrt(2 - 2 * np.minimum(cosines, 1.0)).mean()))
    assert sides[0][0] == pytest.approx(whole.residual, rel=0.05)
    assert sides[1][0] > 2 * whole.residual
    assert sides[0][1] < 0.5 * sides[1][1]


@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_power_steps_bring_the_states_of_slices_to_those_of_the_whole_third_moment(moments):
    _, _, corpus = planted_corpus(6000, d=100, n_labels=30, k=24, length=(8, 16))
    settings = StateSettings(24, MomentKind(moments, "document"), n_oversamples=24, single_precision=False)

    def components(third_moment, power_steps):
        own = replace(settings, third_moment=third_moment, power_steps=power_steps)
        with open_engine(corpus) as engine:
            return carried_out(engine, fit_states, own)

    whole = components("full", 0).components
    distances = []
    for power_steps in (0, 1, 8):
        states = components("slices", power_steps)
        own = states.components[matched(states.components, whole)]
        distances.append(np.abs(own - whole).sum(axis=1).mean())
        steps = [name for name, _ in states.diagnostics["history"]].count("power")
        assert steps == power_steps
    assert distances[1] < 0.75 * distances[0]
    assert distances[2] < 0.25 * distances[0]


def test_a_model_carries_out_its_power_steps():
    _, _, corpus = planted_corpus(600, d=60, n_labels=12, k=6, length=(8, 16))
    model = MultiLabelMoM(6, head="posterior", third_moment="slices", power_steps=2).fit_corpus(corpus)
    assert [timing["name"] for timing in model.timings_].count("tensor-power") == 2


def test_power_steps_without_slices_are_refused():
    with pytest.raises(UsageError, match="power_steps=2 improve components found by slices"):
        StateSettings(3, third_moment="full", power_steps=2)


@pytest.mark.parametrize("moments", ["paper", "distinct"])
def test_slices_are_taken_where_the_whole_third_moment_does_not_fit(moments):
    corpus = planted_corpus(3000, d=300, k=40, n_labels=50)[2]
    settings = StateSettings(40, MomentKind(moments), n_power_iter=1, lower=True)
    whole = plan_pass(corpus, WordMomentsPass(300, kind=settings.kind, rank=50, single=True))
    # More is missing than slabs of the vocabulary would bring.
    limit = int((whole.task_bytes - 1_000_000) / LIMIT_SHARE)
    found = {}
    for memory_limit in (None, limit):
        with open_engine(corpus, memory_limit=memory_limit) as engine:
            found[memory_limit] = carried_out(engine, fit_states, settings).diagnostics["third_moment"]
    assert found == {None: "full", limit: "slices"}
    for other in (replace(settings, third_moment="full"), replace(settings, decomposition="power")):
        with (
            open_engine(corpus, memory_limit=limit) as engine,
            pytest.raises(UsageError, match="pass moments: a task needs"),
        ):
            carried_out(engine, fit_states, other)


def test_slices_of_a_third_moment_that_is_decomposed_whole_are_refused():
    with pytest.raises(UsageError, match="decomposition='power' needs the whole third moment"):
        StateSettings(3, decomposition="power", third_moment="slices")
    with pytest.raises(
        UsageError, match="third_moment: expected one of auto, full, slices, none, got 'half'"
    ):
        StateSettings(3, third_moment="half")


@pytest.mark.parametrize("moments", ["paper", "distinct"])
@pytest.mark.parametrize("slabs", [1, 3])
def test_states_of_tall_matrices_in_slabs_are_those_of_whole_ones(moments, slabs, monkeypatch):
    corpus = planted_corpus(4000, d=400, n_labels=50, k=5)[2]
    settings = StateSettings(5, MomentKind(moments), n_oversamples=6, single_precision=False)
    found = []
    for cut in (False, True):
        if cut:
            # A basis that is orthonormalised slab by slab, stored in slabs of columns.
            monkeypatch.setattr("distmom.spectral.steps.directions.WHOLE_BYTES", 0)
            monkeypatch.setattr("distmom.spectral.steps.components.basis_slabs", lambda *_: slabs)
            for module in ("stored.arrays", "sums.tall", "maps"):
                monkeypatch.setattr(f"distmom.engine.{module}.SLAB_ROWS", 64)
        with open_engine(corpus) as engine:
            found.append(carried_out(engine, fit_states, settings))
            assert len(found[-1].basis.matrix.parts) == (slabs if cut else 1)
            power = WordSketchPass(400, n_columns=11, basis=found[-1].basis.matrix)
            columns = engine.plan(power).columns
            assert len(columns) == len(found[-1].basis.matrix.parts)
            for i, part in enumerate(found[-1].basis.matrix.parts):
                # A task maps the columns that it works on, and no others.
                assert power.for_columns(i, columns).basis.parts == (part,)
    whole, parts = found
    order = matched(parts.components, whole.components)
    assert_allclose(parts.components[order], whole.components, atol=1e-9)
    assert_allclose(parts.label_states[order], whole.label_states, atol=1e-9)
    assert_allclose(parts.label_posteriors[order], whole.label_posteriors, atol=1e-9)
    assert parts.basis.noise == pytest.approx(whole.basis.noise, rel=1e-6)


@pytest.mark.slow
def test_error_falls_with_the_root_of_the_number_of_documents():
    errors = []
    for n in (2000, 32000):
        values = []
        for seed in range(3):
            population, _, corpus = planted_corpus(n, d=60, n_labels=8, k=4, seed=seed, length=(10, 10))
            settings = StateSettings(
                4, MomentKind("distinct", "document", binary=False), single_precision=False
            )
            with open_engine(corpus) as engine:
                states = carried_out(engine, fit_states, settings)
            order = matched(states.components, population.O.T)
            values.append(np.abs(states.components[order] - population.O.T).sum(axis=1).mean())
        errors.append(np.mean(values))
    slope = np.log(errors[1] / errors[0]) / np.log(16)
    assert -0.65 < slope < -0.35


def test_too_many_states_are_refused_with_the_eigenvalues_or_lowered():
    corpus = population_corpus(planted(6, 4, 3, random_state=1))
    kind = MomentKind("distinct", binary=False)
    with open_engine(corpus) as engine:
        with pytest.raises(NumericalError, match=r"n_components=5, but .*use n_components=3 or fewer"):
            carried_out(engine, fit_states, StateSettings(5, kind, n_oversamples=1, single_precision=False))
        states = carried_out(
            engine, fit_states, StateSettings(5, kind, n_oversamples=1, single_precision=False, lower=True)
        )
    assert states.diagnostics["n_states"] == 3
    assert states.diagnostics["n_states_asked"] == 5


def test_too_few_documents_are_refused():
    with pytest.raises(
        UsageError, match=r"n_components=11 needs .* 121 documents, the corpus has 120: use n_components=10"
    ):
        check_size(120, 11, force=False)
    check_size(120, 11, force=True)
    check_size(121, 11, force=False)


@pytest.mark.parametrize(("n", "length"), [(300, (5, 8)), (2000, (5, 8)), (2000, (15, 30)), (20_000, (5, 8))])
def test_states_that_are_noise_are_refused_with_the_number_that_is_there(n, length):
    corpus = planted_corpus(n, d=200, n_labels=20, k=4, length=length)[2]
    kind = MomentKind("distinct", binary=False)
    with open_engine(corpus) as engine:
        assert (
            len(
                carried_out(
                    engine, fit_states, StateSettings(4, kind, n_power_iter=6, n_oversamples=4)
                ).weights
            )
            == 4
        )
        with pytest.raises(NumericalError, match="has 4 of n_components=8 eigenvalues above the noise level"):
            carried_out(engine, fit_states, StateSettings(8, kind, n_power_iter=6, n_oversamples=8))
        lowered = StateSettings(8, kind, n_power_iter=6, n_oversamples=8, lower=True)
        assert carried_out(engine, fit_states, lowered).diagnostics["n_states"] == 4


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [3, 6])
def test_no_state_is_taken_for_noise_and_little_noise_for_a_state(k, seed):
    corpus = planted_corpus(1000, d=150, n_labels=20, k=k, seed=seed, length=(6, 10))[2]
    settings = StateSettings(
        2 * k, MomentKind("distinct", binary=False), n_power_iter=6, n_oversamples=2 * k, lower=True
    )
    with open_engine(corpus) as engine:
        assert k <= carried_out(engine, fit_states, settings).diagnostics["n_states"] <= k + 1


class Tall(np.ndarray):
    """A matrix in memory in the place of a tall sum."""

    n_rows = property(len)
    width = property(lambda self: self.shape[1])


def test_negative_mass_is_clipped_and_reported():
    matrix = np.array([[0.6, 0.5, -1.0, 0.1], [0.6, 0.5, -1.0, 0.3], [-0.3, 0.0, 0.0, 0.0]])
    with open_engine(planted_corpus(20, d=10)[2]) as engine:
        stored, masses = tall_sum(matrix.view(Tall)).distributions(engine, "float64")
        columns = to_columns(stored)
        assert_allclose(columns, [[0.5, 0.5, 0.0, 0.25], [0.5, 0.5, 0.0, 0.75], [0.0, 0.0, 0.0, 0.0]])
    assert_allclose(masses.negative_share, [0.2, 0.0, 1.0, 0.0])
