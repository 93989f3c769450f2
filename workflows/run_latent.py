"""Fit the factors of views, or a tree of hidden variables, by one system; store what it found, time and memory.

`latents` runs this in a separate process, so that memory is measured for the system alone and other systems can
use another interpreter. It requires NumPy, SciPy and the system; distmom only for its own models. Only the fit
is timed: imports, conversion of the rows to the format of the system, and compilation of distmom's kernels come
first. The name of a system may end with a number of starts, of which the one with the best training likelihood
counts. The exit code is 3 if the system is not installed.

Example::

    python run_latent.py factors fast-ica --task task.npz --seed 0 --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from run_mixture import MOMENTS, em_options, n_starts
from run_peer import NOT_INSTALLED, die_first, installed
from run_topics import timed
from tree_em import Law, Shape, fit_em

#: packages with versions to store with the results
PACKAGES = ("distmom", "multiviewica", "numba", "numpy", "pgmpy", "python-picard", "scikit-learn", "scipy")


@dataclass(frozen=True)
class Given:
    """Input of a system.

    Attributes
    ----------
    arrays : dict of str to ndarray
        What a task of `latent_tasks` has stored.
    seed, n_iter : int
        ``n_iter`` is the number of iterations of EM for every start, at most.
    """

    arrays: dict[str, np.ndarray]
    seed: int
    n_iter: int

    @property
    def k(self) -> int:
        """Number of factors or states."""
        return int(self.arrays["k"])

    @property
    def shape(self) -> Shape:
        """The tree."""
        parents, above, levels = (
            tuple(self.arrays[name].tolist()) for name in ("parents", "of_leaves", "levels")
        )
        return Shape(parents, above, levels, self.k)


#: fits views (n_units, n_views, d), and returns loadings (d, at most k)
FitViews = Callable[[np.ndarray], np.ndarray]
#: fits a model; what is returned is called after the time has been taken, and gives the result
FitTree = Callable[[], Callable[[], Law]]


def prepare_moments(given: Given, name: str) -> FitViews:
    """Prepare `ECA`."""
    from distmom.errors import NumericalError
    from distmom.models import ECA

    def fit(views: np.ndarray) -> np.ndarray:
        n, n_views, d = views.shape
        groups = np.repeat(np.arange(n), n_views)
        model = ECA(given.k, random_state=given.seed).fit(views.reshape(-1, d), groups=groups)
        return np.asarray(model.components_.T)

    # So few units may not suffice, but all kernels are compiled.
    with suppress(NumericalError):
        fit(given.arrays["views"][:500])
    return fit


def prepare_means(given: Given, name: str) -> FitViews:
    """Prepare a model of scikit-learn for the mean view of every unit."""
    from sklearn.decomposition import NMF, FactorAnalysis, FastICA

    k, seed = given.k, given.seed
    model = {
        "factor-analysis": FactorAnalysis(k, rotation="varimax", random_state=seed),
        "fast-ica": FastICA(k, whiten="unit-variance", max_iter=1000, random_state=seed),
        "nmf": NMF(
            k, solver="mu", beta_loss="kullback-leibler", init="nndsvda", max_iter=500, random_state=seed
        ),
    }[name]

    def fit(views: np.ndarray) -> np.ndarray:
        model.fit(views.mean(axis=1))
        return np.asarray(model.mixing_ if name == "fast-ica" else model.components_.T)

    return fit


def prepare_multiview_ica(given: Given, name: str) -> FitViews:
    """Prepare MultiView ICA or group ICA, with views in the place of subjects; loadings are averages over them."""
    import multiviewica

    method = getattr(multiviewica, name.replace("-", ""))

    def fit(views: np.ndarray) -> np.ndarray:
        centred = np.ascontiguousarray((views - views.mean(axis=0)).transpose(1, 2, 0))
        projections, unmixing, _ = method(centred, n_components=given.k, random_state=given.seed)
        each = [np.linalg.pinv(W @ P) for W, P in zip(unmixing, projections, strict=True)]
        return np.asarray(np.mean(each, axis=0))

    return fit


def prepare_tree(given: Given, name: str) -> FitTree:
    """Prepare `LatentTree`."""
    from distmom.models import LatentTree

    shape, text = given.shape, str(given.arrays["tree"])
    leaves = [np.eye(n)[column] for n, column in zip(shape.levels, given.arrays["rows"].T, strict=True)]

    def fit() -> Callable[[], Law]:
        model = LatentTree(shape.k, tree=text, random_state=given.seed, **em_options(name)).fit(leaves)
        return lambda: Law(model.weights_[0], list(model.transitions_), model.leaves())

    LatentTree(2, widths=[100, 100, 200]).fit(np.random.default_rng(0).normal(size=(300, 400)))
    return fit


def positive(law: Law, share: float = 0.01) -> Law:
    """Return a law without zeros: every distribution is mixed with a share of the uniform one."""

    def mixed(laws: np.ndarray) -> np.ndarray:
        laws = np.maximum(laws, 0.0)
        laws = laws / laws.sum(axis=-1, keepdims=True)
        return np.asarray((1.0 - share) * laws + share / laws.shape[-1])

    return Law(mixed(law.root), [mixed(edge) for edge in law.edges], [mixed(leaf) for leaf in law.leaves])


def prepare_em(given: Given, name: str) -> FitTree:
    """Prepare EM by belief propagation from random starts."""
    shape, rows = given.shape, given.arrays["rows"]

    def fit() -> Callable[[], Law]:
        rng = np.random.default_rng(given.seed)
        runs = [fit_em(shape, Law.random(shape, rng), rows, given.n_iter) for _ in range(n_starts(name))]
        law = max(runs, key=lambda run: run[1])[0]
        return lambda: law

    return fit


def prepare_pgmpy(given: Given, name: str) -> FitTree:
    """Prepare EM for Bayesian networks by pgmpy, from one random start."""
    import pandas as pd
    from pgmpy.models import DiscreteBayesianNetwork
    from pgmpy.parameter_estimator import DiscreteEM

    shape = given.shape
    hidden = [f"h{h}" for h in range(len(shape.parents))]
    leaves = [f"x{leaf}" for leaf in range(len(shape.of_leaves))]
    edges = [(hidden[parent], hidden[g]) for g, parent in enumerate(shape.parents) if g]
    edges += [(hidden[h], leaf) for h, leaf in zip(shape.of_leaves, leaves, strict=True)]
    network = DiscreteBayesianNetwork(edges, latents=set(hidden))
    rows = pd.DataFrame(given.arrays["rows"], columns=leaves)
    model = DiscreteEM(
        latent_card=dict.fromkeys(hidden, shape.k), max_iter=given.n_iter, seed=given.seed, n_jobs=1,
        show_progress=False,
    )  # fmt: skip

    def found() -> Law:
        laws = {law.variable: law.get_values().T for law in model.parameters_}
        return Law(laws[hidden[0]][0], [laws[h] for h in hidden[1:]], [laws[leaf] for leaf in leaves])

    def fit() -> Callable[[], Law]:
        model.fit(network, rows)
        return found

    return fit


#: systems by model
FACTORS: dict[str, Callable[[Given, str], FitViews]] = {
    "distmom": prepare_moments,
    "factor-analysis": prepare_means,
    "fast-ica": prepare_means,
    "nmf": prepare_means,
    "group-ica": prepare_multiview_ica,
    "multiview-ica": prepare_multiview_ica,
}
TREES: dict[str, Callable[[Given, str], FitTree]] = {
    "distmom": prepare_tree,
    MOMENTS: prepare_tree,
    "em-1": prepare_em,
    "em-5": prepare_em,
    "pgmpy": prepare_pgmpy,
}
SYSTEMS = {"factors": FACTORS, "latent-tree": TREES}


def fit_views(given: Given, name: str) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Fit views; return the loadings, also of a second fit to the units that are held out, and the cost."""
    fit = FACTORS[name](given, name)
    loadings, cost = timed(lambda: fit(given.arrays["views"]))
    found = {"loadings": loadings}
    if len(given.arrays["again"]):
        found["again"] = fit(given.arrays["again"])
    return found, cost


def fit_tree(given: Given, name: str) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Fit a tree; return its probabilities and the cost."""
    finish, cost = timed(TREES[name](given, name))
    law = finish()
    edges = {f"edge{g}": edge for g, edge in enumerate(law.edges)}
    leaves = {f"leaf{i}": leaf for i, leaf in enumerate(law.leaves)}
    return {"root": law.root, **edges, **leaves}, cost


def main(arguments: list[str] | None = None) -> int:
    """Fit one system."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", choices=SYSTEMS)
    add("system", choices=dict.fromkeys([*FACTORS, *TREES]))
    add("--task", type=Path, required=True, help="the arrays of a task")
    add("--iterations", type=int, default=200, help="of EM for every start, at most [%(default)s]")
    add("--seed", type=int, default=0, help="[%(default)s]")
    add("--out", type=Path, required=True, help="directory for found.npz and fit.json")
    options = parser.parse_args(arguments)
    if options.system not in SYSTEMS[options.model]:
        parser.error(f"{options.model}: expected one of {', '.join(SYSTEMS[options.model])}")
    die_first()
    # pgmpy warns about its own older interfaces.
    warnings.simplefilter("ignore", FutureWarning)
    options.out.mkdir(parents=True, exist_ok=True)
    with np.load(options.task, allow_pickle=False) as stored:
        given = Given(dict(stored), options.seed, options.iterations)
    try:
        found, cost = (fit_views if options.model == "factors" else fit_tree)(given, options.system)
    except ImportError as error:
        print(f"{options.system}: not installed: {error}", file=sys.stderr)
        return NOT_INSTALLED
    np.savez(options.out / "found.npz", **found)
    (options.out / "fit.json").write_text(json.dumps({**cost, "versions": installed(PACKAGES)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
