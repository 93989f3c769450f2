"""Latent trees: exact populations by enumeration of all leaves, samples, files, and refusals."""

import json
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers import WeightedRows
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from distmom.cli.main import main
from distmom.corpus import RowCorpus, open_corpus
from distmom.errors import InputError, NumericalError, UsageError
from distmom.models import load_model
from distmom.models.trees import estimator
from distmom.models.trees.estimator import LatentTree
from distmom.models.trees.selection import choose_triples, nearest_triple, widest_triple
from distmom.models.trees.structure import Tree

#: trees, the hidden variable above each hidden variable, and the one above each leaf
QUARTET = ("((1,2),3,4)", (-1, 0), (1, 1, 0, 0))
STAR = ("(1,2,3)", (-1,), (0, 0, 0))
CATERPILLAR = ("(1,2,(3,(4,5)))", (-1, 0, 1), (0, 0, 1, 2, 2))
WIDE = ("((2,6),(1,5),(4,3),7)", (-1, 0, 0, 0), (2, 1, 3, 3, 2, 1, 0))
GROUPED = ("((1,2,3),(4,5,6),7,8)", (-1, 0, 0), (1, 1, 1, 2, 2, 2, 0, 0))


class Truth:
    """A tree of categorical leaves, with states in the order in which a model shows them."""

    def __init__(self, parents, above, k, levels, seed=0):
        rng = np.random.default_rng(seed)
        self.parents, self.above, self.levels = parents, above, levels
        self.root = np.sort(rng.dirichlet(np.full(k, 8.0)))[::-1]
        # The states of a variable are matched with those of its parent where the diagonal is large.
        self.edges = [0.7 * np.eye(k) + 0.3 * rng.dirichlet(np.ones(k), k) for _ in parents[1:]]
        self.leaves = [rng.dirichlet(np.full(n, 0.5), k) for n in levels]

    def joint(self):
        """Return the probabilities of all values of the leaves, by the sum over all hidden states."""
        total = np.zeros(self.levels)
        for states in product(range(len(self.root)), repeat=len(self.parents)):
            chance = self.root[states[0]]
            for g, parent in enumerate(self.parents[1:], start=1):
                chance *= self.edges[g - 1][states[parent], states[g]]
            part = np.array(chance)
            for law, h in zip(self.leaves, self.above, strict=True):
                part = np.multiply.outer(part, law[states[h]])
            total += part
        return total

    def population(self, **options):
        joint = self.joint()
        values = np.array(list(np.ndindex(*self.levels)))
        rows = np.hstack([np.eye(n)[values[:, i]] for i, n in enumerate(self.levels)])
        return WeightedRows(rows, joint.ravel(), **options)

    def sample(self, n, seed):
        rng = np.random.default_rng(seed)
        drawn = rng.choice(self.joint().size, n, p=self.joint().ravel())
        values = np.unravel_index(drawn, self.levels)
        return tuple(np.eye(n)[own] for n, own in zip(self.levels, values, strict=True))

    def errors(self, model):
        """Return the largest errors of the root, the edges, and the leaves."""
        edges = [np.abs(a - b).max() for a, b in zip(model.transitions_, self.edges, strict=True)]
        leaves = [np.abs(a - b).max() for a, b in zip(model.leaves(), self.leaves, strict=True)]
        return np.abs(model.weights_[0] - self.root).max(), max([0.0, *edges]), max(leaves)


@pytest.mark.parametrize("decomposition", ["joint", "power"])
@pytest.mark.parametrize(
    ("tree", "k", "levels"),
    [
        (QUARTET, 2, (2, 3, 2, 4)),
        (QUARTET, 3, (4, 3, 3, 3)),
        (STAR, 3, (3, 4, 5)),
        (CATERPILLAR, 2, (2, 2, 3, 2, 2)),
        (WIDE, 2, (2, 2, 2, 3, 2, 2, 2)),
        (GROUPED, 3, (3, 3, 4, 3, 3, 3, 3, 3)),
        # Of three leaves in a group, one has too few columns for all states.
        (GROUPED, 3, (1, 3, 3, 3, 1, 3, 3, 3)),
    ],
)
def test_an_exact_population_gives_back_root_edges_and_leaves(tree, k, levels, decomposition):
    text, *structure = tree
    truth = Truth(*structure, k, levels, seed=3)
    widths = ",".join(map(str, levels))
    corpus = truth.population(shard_rows=50)
    model = LatentTree(k, tree=text, widths=widths, decomposition=decomposition, n_em_iter=0).fit_corpus(
        corpus
    )
    assert max(truth.errors(model)) < 1e-10
    law = [truth.root]
    for parent, edge in zip(truth.parents[1:], truth.edges, strict=True):
        law.append(law[parent] @ edge)
    assert_allclose(model.weights_, law, atol=1e-10)
    for name in ("asymmetry", "residual"):
        assert max(model.diagnostics_[name]) < 1e-10
    assert_allclose(model.diagnostics_["sum_weights"], 1.0, atol=1e-10)
    assert model.diagnostics_["mismatch"] < 1e-10


def test_leaves_of_real_vectors_with_units_of_their_own_are_fitted():
    rng = np.random.default_rng(0)
    text, parents, above = QUARTET
    root, edge = np.array([0.6, 0.4]), np.array([[0.9, 0.1], [0.3, 0.7]])
    means = [rng.normal(size=(2, 2)) for _ in above]
    steps = [np.vstack([s, -s]) for s in rng.normal(size=(4, 2, 2))]
    rows, weights = [], []
    for h, g in product(range(2), repeat=2):
        for i in product(range(4), repeat=4):
            states = (h, g)
            rows.append(np.concatenate([means[t][states[above[t]]] + steps[t][j] for t, j in enumerate(i)]))
            weights.append(root[h] * edge[h, g] / 4**4)
    scales, shifts = 10.0 ** rng.uniform(-3, 3, 8), 100.0 * rng.normal(size=8)
    corpus = WeightedRows((np.array(rows) + shifts) * scales, weights)
    model = LatentTree(2, tree=text, widths=(2, 2, 2, 2)).fit_corpus(corpus)
    assert_allclose(model.transitions_[0], edge, atol=1e-9)
    assert_allclose(model.weights_[0], root, atol=1e-9)
    found = model.components_ / scales - shifts
    assert_allclose(found, np.hstack(means), atol=1e-8)
    assert parents == Tree.parse(text).parents


@pytest.mark.slow
def test_errors_fall_with_the_root_of_the_number_of_rows():
    truth, errors = Truth(*QUARTET[1:], 2, (3, 3, 3, 3), seed=4), []
    for n in (6_000, 96_000):
        models = [
            LatentTree(2, tree=QUARTET[0], n_em_iter=0).fit(truth.sample(n, seed)) for seed in range(30)
        ]
        errors.append(np.mean([truth.errors(model) for model in models], axis=0))
    # A sixteenth of the variance is a quarter of the error, of the root, the edge and the leaves.
    assert_allclose(errors[0] / errors[1], 4.0, rtol=0.35)


def weak_truth(k=2):
    """Return a tree in which the first leaf of a group hardly depends on its hidden variable."""
    truth = Truth(*GROUPED[1:], k, (3,) * 8, seed=2)
    for leaf in (0, 3):
        law = truth.leaves[leaf]
        truth.leaves[leaf] = 0.99 * law.mean(axis=0) + 0.01 * law
    return truth


def chosen(model, tree, leaves):
    """Return the triples that a fit to rows or to a corpus chose, leaves numbered from 1."""
    found = []

    def choosing(*arguments):
        found.append(choose_triples(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "choose_triples", choosing)
        model.set_params(tree=tree, decompose_on="client")
        (model.fit_corpus if isinstance(leaves, RowCorpus) else model.fit)(leaves)
    return [tuple(leaf + 1 for leaf in triple) for triple in found[-1]]


def test_leaves_that_hardly_show_their_hidden_variable_are_not_chosen():
    truth = weak_truth()
    model = LatentTree(2)
    triples = chosen(model, GROUPED[0], truth.sample(20_000, 0))
    assert not {leaf for triple in triples for leaf in triple} & {1, 4}
    assert max(truth.errors(model)) < 0.03
    errors = [
        np.mean(
            [
                truth.errors(LatentTree(2, tree=GROUPED[0], n_em_iter=0).fit(truth.sample(n, s)))
                for s in range(20)
            ],
            axis=0,
        )
        for n in (4_000, 64_000)
    ]
    assert_allclose(errors[0] / errors[1], 4.0, rtol=0.35)
    # They are estimated all the same, by the leaves that are chosen.
    exact = LatentTree(2, tree=GROUPED[0], widths=(3,) * 8, n_em_iter=0)
    exact.fit_corpus(truth.population(shard_rows=500))
    assert max(truth.errors(exact)) < 1e-10


def test_the_choice_depends_on_no_units():
    truth, rng = weak_truth(), np.random.default_rng(0)
    leaves = truth.sample(5_000, 1)
    plain = LatentTree(2)
    triples = chosen(plain, GROUPED[0], leaves)
    # Neither units nor origins matter, nor the basis in which a leaf is given.
    scales = 10.0 ** rng.uniform(-4, 4, (8, 3))
    assert chosen(
        LatentTree(2), GROUPED[0], [own * s + 1e3 * s for own, s in zip(leaves, scales, strict=True)]
    ) == (triples)
    mixed = [own @ rng.normal(size=(3, 3)) for own in leaves]
    assert chosen(LatentTree(2), GROUPED[0], mixed) == triples


def test_a_wide_leaf_of_noise_is_not_chosen_for_correlations_by_chance():
    rng, n = np.random.default_rng(0), 400
    root = rng.integers(0, 2, n)
    below = np.where(rng.random(n) < 0.1, 1 - root, root)
    leaves = [h[:, None] + rng.normal(size=(n, 1)) for h in (below, below, below, root, root)]
    # Among so many columns, the largest correlation with a leaf exceeds that of a leaf that shows the states.
    leaves[0] = rng.normal(size=(n, 100))
    triples = chosen(LatentTree(2), "((1,2,3),4,5)", leaves)
    assert all(1 not in triple for triple in triples)


def test_the_choice_in_an_exact_population_allows_for_no_sampling_errors():
    truth = Truth((-1, 0), (1, 1, 1, 0, 0), 2, (6, 2, 2, 2, 2))
    for leaf, chance in enumerate((0.9, 0.85, 0.85, 0.8, 0.8)):
        n = truth.levels[leaf] // 2
        truth.leaves[leaf] = np.repeat([[chance, 1.0 - chance], [1.0 - chance, chance]], n, axis=1) / n
    # The widest leaf shows the states best; 96 rows that were drawn would not reveal it.
    model = LatentTree(2, widths=truth.levels)
    assert chosen(model, "((1,2,3),4,5)", truth.population()) == [(4, 5, 1), (1, 2, 3)]


def test_equal_leaves_are_taken_in_the_order_of_their_distances_and_numbers():
    text = "((1,2,3),(4,5,6),7,8)"
    tree = Tree.parse(text)
    candidates = [tree.candidates(h, [True] * 8) for h in range(3)]
    assert [[leaf for leaf, _ in own] for own in candidates] == [
        [6, 7, 0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 3, 4, 5], [3, 4, 5, 6, 7, 0, 1, 2],
    ]  # fmt: skip
    # Leaves of one law: every pair with the same distance has the same correlation, up to rounding.
    truth = Truth(*GROUPED[1:], 2, (2,) * 8, seed=1)
    truth.leaves = [truth.leaves[0]] * 8
    truth.edges = [np.eye(2)] * 2
    for rows in (16, 37, 256):
        found = []
        population = truth.population(shard_rows=rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                estimator, "choose_triples", lambda *a, out=found: out.append(choose_triples(*a)) or out[0]
            )
            LatentTree(2, tree=text, widths=(2,) * 8, decompose_on="client").fit_corpus(population)
        assert found[0] == tuple(map(nearest_triple, candidates))


def test_candidates_are_the_nearest_leaves_of_the_nearest_branches():
    many = ",".join(str(leaf) for leaf in range(3, 23))
    tree = Tree.parse(f"((1,2),({many}),(23,24))")
    shown = [tree.candidates(h, [True] * 24) for h in range(4)]
    # Eight leaves of a branch, and the nearest of them.
    assert [leaf for leaf, _ in shown[0]] == [0, 1, *range(2, 10), 22, 23]
    assert [leaf for leaf, _ in shown[1]] == [0, 1, *range(2, 10)]
    # Fewer where there are 21 branches.
    assert [leaf for leaf, _ in shown[2]] == [*range(2, 22), 0, 1, 22]
    star = Tree.parse(f"({','.join(str(leaf) for leaf in range(1, 41))})")
    assert [leaf for leaf, _ in star.candidates(0, [True] * 40)] == list(range(32))
    usable = [leaf != 1 for leaf in range(40)]
    assert nearest_triple(star.candidates(0, usable)) == (0, 2, 3)


def test_no_pass_chooses_where_every_branch_has_one_leaf():
    corpus = RowCorpus(np.hstack(Truth((-1,), (0,) * 4, 2, (3,) * 4).sample(2_000, 0)), shard_rows=500)
    star = LatentTree(2, tree="(1,2,3,4)", widths=(3,) * 4, n_em_iter=0)
    assert [p.name for p in star.plan(corpus, n_workers=1).passes] == ["columns", "moments"]
    star.fit_corpus(corpus)
    assert [timing["name"] for timing in star.timings_] == ["columns", "moments"]


def test_the_plan_holds_for_the_widest_leaves():
    truth = weak_truth()
    leaves = list(truth.sample(3_000, 0))
    # The widest leaves show nothing.
    rng = np.random.default_rng(0)
    for leaf in (0, 3):
        leaves[leaf] = rng.normal(size=(3_000, 40))
    widths = tuple(own.shape[1] for own in leaves)
    corpus = RowCorpus(np.hstack(leaves), shard_rows=500)
    model = LatentTree(2, tree=GROUPED[0], widths=widths)
    passes = {p.name: p for p in model.plan(corpus, n_workers=1).passes}
    d = sum(widths)
    assert passes["pairs"].sums_bytes == 8 * (d * d + d + 2)
    assert passes["triples"].sums_bytes == 8 * (3 * 40 * 40 * 3 + 1)
    # Execution compares every pass with the plan.
    model.fit_corpus(corpus)
    assert [timing["name"] for timing in model.timings_] == ["columns", "pairs", "triples"]


def test_a_fit_out_of_core_and_one_that_resumes_give_the_same_bits(tmp_path):
    rows = np.hstack(weak_truth().sample(6_000, 0))
    np.save(tmp_path / "X.npy", rows)
    ingest = ["ingest", str(tmp_path / "X.npy"), str(tmp_path / "c"), "--shard-rows", "500", "--workers", "0"]
    assert main(ingest) == 0
    model = LatentTree(2, tree=GROUPED[0], widths=(3,) * 8)
    kept = model.fit_corpus(RowCorpus(rows, shard_rows=500))
    state = [kept.components_, kept.weights_, kept.transitions_]
    corpus = open_corpus(tmp_path / "c")
    for options in ({}, {"memory_limit": 1 << 30}, {"run": tmp_path / "run"}, {"run": tmp_path / "run"}):
        other = LatentTree(2, tree=GROUPED[0], widths=(3,) * 8).fit_corpus(corpus, **options)
        for a, b in zip(state, (other.components_, other.weights_, other.transitions_), strict=True):
            assert (a == b).all()


@pytest.mark.slow
@pytest.mark.cluster
def test_two_processes_give_the_same_bits(cluster):
    corpus = RowCorpus(np.hstack(weak_truth().sample(6_000, 0)), shard_rows=500)
    alone = LatentTree(2, tree=GROUPED[0], widths=(3,) * 8).fit_corpus(corpus)
    both = LatentTree(2, tree=GROUPED[0], widths=(3,) * 8).fit_corpus(corpus, client=cluster)
    for name in ("components_", "weights_", "transitions_"):
        assert (getattr(alone, name) == getattr(both, name)).all()


def test_a_wrong_tree_shows_in_the_moments_of_pairs():
    truth = Truth(*QUARTET[1:], 2, (3, 3, 3, 3), seed=4)
    mismatch = {}
    for text in ("((1,2),3,4)", "((3,4),1,2)", "((1,3),2,4)", "((1,4),2,3)", "(1,2,3,4)"):
        mismatch[text] = LatentTree(2, tree=text).fit(truth.sample(50_000, 0)).diagnostics_["mismatch"]
    # The first two are one tree with two roots.
    right = max(mismatch.pop("((1,2),3,4)"), mismatch.pop("((3,4),1,2)"))
    assert right < 0.03
    assert min(mismatch.values()) > 3.0 * right


def test_sparse_rows_shards_and_a_saved_model_give_the_same_tree(tmp_path):
    truth = Truth(*WIDE[1:], 2, (3, 3, 3, 3, 3, 3, 3), seed=3)
    leaves = truth.sample(4000, 0)
    model = LatentTree(2, tree=WIDE[0]).fit(leaves)
    sparse = LatentTree(2, tree=WIDE[0]).fit([csr_array(each) for each in leaves])
    corpus = RowCorpus(np.hstack(leaves), shard_rows=300)
    fitted = LatentTree(2, tree=WIDE[0], widths=(3,) * 7).fit_corpus(corpus)
    for other in (sparse, fitted):
        for name in ("components_", "weights_", "transitions_"):
            assert_allclose(getattr(other, name), getattr(model, name), atol=1e-9)
    fitted.save(tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert (loaded.transitions_ == fitted.transitions_).all()
    assert loaded.pictures() == json.loads(json.dumps(fitted.pictures()))
    planned = [(p.name, p.possible) for p in fitted.plan(corpus, n_workers=1).passes]
    # Whether leaves are categories is only known from the data.
    assert planned == [(name, False) for name in ("columns", "pairs", "triples")] + [("em", True)] * 10
    assert [t["name"] for t in fitted.timings_] == [name for name, _ in planned]
    star = LatentTree(2).fit(leaves[:3])
    assert star.transitions_.shape == (0, 2, 2)
    star.save(tmp_path / "s")
    assert load_model(tmp_path / "s").transitions_.shape == (0, 2, 2)


def test_another_tree_does_not_change_a_fitted_model(tmp_path):
    leaves = Truth(*QUARTET[1:], 2, (3,) * 4, seed=3).sample(3_000, 0)
    model = LatentTree(2, tree=QUARTET[0], widths=np.full(4, 3)).fit(np.hstack(leaves))
    found = model.predict_proba(leaves)
    for tree in ("(1,2,(3,4))", "(1,2,3,4)"):
        np.testing.assert_array_equal(model.set_params(tree=tree).predict_proba(leaves), found)
    with pytest.raises(UsageError, match="at least 3 branches"):
        model.set_params(tree="(1,(2,3,4))").fit(leaves)
    model.save(tmp_path / "m")
    read = load_model(tmp_path / "m")
    np.testing.assert_array_equal(read.predict_proba(leaves), found)
    assert (read.tree_, read.widths) == (QUARTET[0], [3, 3, 3, 3])


def test_the_nearest_leaves_of_three_branches_come_first():
    for text, parents, above in (QUARTET, STAR, CATERPILLAR, WIDE):
        tree = Tree.parse(text)
        assert (tree.parents, tree.of_leaves) == (parents, above)
    tree = Tree.parse(CATERPILLAR[0])
    candidates = [tree.candidates(h, [True] * 5) for h in range(3)]
    assert [nearest_triple(own) for own in candidates] == [(0, 1, 2), (2, 0, 3), (3, 4, 2)]
    assert widest_triple(candidates[0], (1, 2, 1, 3, 2)) == (3, 1, 0)
    assert [sorted(map(sorted, tree.branches(h))) for h in range(3)] == [
        [[0], [1], [2, 3, 4]], [[0, 1], [2], [3, 4]], [[0, 1, 2], [3], [4]],
    ]  # fmt: skip


def test_what_cannot_be_fitted_is_refused_with_one_sentence():
    leaves = Truth(*QUARTET[1:], 2, (3, 3, 3, 3)).sample(300, 0)
    for text in (
        "((1,2),3,5)",
        "((1,2),3,3)",
        "((1,2),3,'4')",
        "((1,2),3,4",
        "4",
        "((1,2),3,True)",
        "x",
        (1, 2, 3),
    ):
        with pytest.raises(UsageError, match=r"tree: expected leaves 1, 2, \.\.\. in parentheses"):
            LatentTree(2, tree=text).fit(leaves)
    with pytest.raises(UsageError, match="at least 3 branches below the root, got 2"):
        LatentTree(2, tree="((1,2),(3,4))").fit(leaves)
    with pytest.raises(UsageError, match="at least 2 branches below every other hidden variable, got 1"):
        LatentTree(2, tree="((1,),2,3,4)").fit(leaves)
    with pytest.raises(UsageError, match=r"n_components: expected at most 4, one more .* in a triple, got 5"):
        LatentTree(5, tree=QUARTET[0]).fit(leaves)
    with pytest.raises(InputError, match="X: expected at least one row, got none"):
        LatentTree(2, tree=QUARTET[0]).fit([leaf[:0] for leaf in leaves])
    with pytest.raises(InputError, match="number of views: expected 4, got 3"):
        LatentTree(2, tree=QUARTET[0]).fit(leaves[:3])
    for widths in ("3,3,6", "3,3,3,4", "3,3,x,3", 12):
        with pytest.raises(
            UsageError, match="widths: expected the numbers of columns of 4 leaves that add up to 12"
        ):
            LatentTree(2, tree=QUARTET[0], widths=widths).fit(np.hstack(leaves))
    # A leaf that is the same in every row tells no states apart.
    blind = (np.ones((300, 3)), *leaves[1:])
    with pytest.raises(
        NumericalError, match=r"hidden variable 1, seen by leaves 1, 2, [34]: .* fewer than 2"
    ):
        LatentTree(2, tree=QUARTET[0]).fit(blind)
    with pytest.raises(
        NumericalError, match=r"hidden variable 0, seen by leaves 3, 4, 1: .* eigenvalues above"
    ):
        LatentTree(2, tree=QUARTET[0]).fit((np.ones((300, 3)), np.ones((300, 3)), *leaves[2:]))


def test_the_command_line_fits_a_tree_and_writes_a_report(tmp_path, capsys):
    truth = Truth(*QUARTET[1:], 2, (3, 3, 3, 3), seed=3)
    np.save(tmp_path / "X.npy", np.hstack(truth.sample(20_000, 0)))
    corpus, place = str(tmp_path / "c"), str(tmp_path / "m")
    assert main(["ingest", str(tmp_path / "X.npy"), corpus, "--workers", "0"]) == 0
    options = ["--model", "latent-tree", "-k", "2", "--widths", "3,3,3,3", "--tree", QUARTET[0]]
    assert main(["plan", corpus, *options]) == 0
    assert "triples" in capsys.readouterr().out
    assert main(["fit", corpus, place, *options, "--workers", "0"]) == 0
    assert max(truth.errors(load_model(place))) < 0.1
    assert main(["report", place, str(tmp_path / "r.html")]) == 0
    assert "Hidden variable 1" in (tmp_path / "r.html").read_text()


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "trees.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    model = names["model"]
    assert_allclose(model.weights_[0], [0.6, 0.4], atol=0.05)
    assert_allclose(model.transitions_[0], [[0.8, 0.2], [0.2, 0.8]], atol=0.05)
    for found, law in zip(model.leaves(), names["laws"], strict=True):
        assert_allclose(found, law, atol=0.1)


@pytest.mark.parametrize("tree", [STAR[0], QUARTET[0]])
def test_one_state_of_leaves_that_determine_each_other_is_the_mean(tree):
    rng = np.random.default_rng(0)
    for x in (rng.exponential(size=(500, 1)), rng.normal(3.0, 1.0, (500, 1))):
        for leaf in (x, np.repeat(x, 2, axis=1)):
            model = LatentTree(1, tree=tree).fit((leaf,) * (3 if tree == STAR[0] else 4))
            assert_allclose(model.components_[0], leaf.mean(), rtol=1e-12)
            assert_allclose(model.diagnostics_["sum_weights"], 1.0)
