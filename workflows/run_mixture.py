"""Fit one mixture model to rows, and store its components, the groups of the rows, time and memory.

`mixtures` runs this in a separate process, so that memory is measured for the system alone and other systems can
use another interpreter. It requires NumPy, SciPy and the system; distmom only for its own models. Only the fit
is timed: imports, conversion of the rows to the format of the system, and compilation of distmom's kernels come
first. The name of a system may end with a number of starts, of which the one with the best training likelihood
counts. The exit code is 3 if the system is not installed.

Example::

    python run_mixture.py product stepmix-10 --rows rows.npz -k 5 --seed 0 --out FOLDER
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from run_peer import NOT_INSTALLED, die_first, installed
from run_topics import distributions, timed, tiny_counts
from scipy.sparse import csr_matrix, load_npz

#: packages with versions to store with the results
PACKAGES = (
    "distmom", "dmx-learn", "jax", "noloox", "numba", "numpy", "pomegranate", "scikit-learn", "scipy", "stepmix",
    "torch",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """Input of a system.

    Attributes
    ----------
    rows : csr_matrix of shape (n_rows, d)
    k, seed : int
    kinds : list of (str, int)
        For views, their distributions by the names of StepMix, and their numbers of columns.
    n_iter : int
        Iterations of EM for every start, at most.
    """

    rows: csr_matrix
    k: int
    seed: int
    kinds: list[tuple[str, int]]
    n_iter: int


@dataclass(frozen=True)
class Found:
    """A fitted mixture.

    Attributes
    ----------
    weights : ndarray of shape (k,)
    components : ndarray of shape (k, d)
        Probabilities or means of the columns.
    groups : ndarray of shape (n_rows,), int
        Component of every row.
    variances : ndarray of shape (k, d), or None
        Of the columns, in mixtures of Gaussians.
    """

    weights: np.ndarray
    components: np.ndarray
    groups: np.ndarray
    variances: np.ndarray | None = None


#: fits a model; what is returned is called after the time has been taken, and gives the result
Fit = Callable[[], Callable[[], Found]]


def em_options(name: str) -> dict[str, Any]:
    """Return the parameters of EM: none of its passes for a system by moments alone, else the defaults."""
    return {MOMENTS: {"n_em_iter": 0}, UNCORRECTED: {"em_correction": False}}.get(name, {})


def prepare_product(task: Task, name: str) -> Fit:
    """Prepare `ProductMixture`."""
    from distmom.models import ProductMixture

    ProductMixture(2).fit(tiny_counts())

    def fit() -> Callable[[], Found]:
        model = ProductMixture(task.k, random_state=task.seed, **em_options(name)).fit(task.rows)
        return lambda: Found(model.weights_, model.components_, model.predict(task.rows))

    return fit


def prepare_views(task: Task, name: str) -> Fit:
    """Prepare `MultiView`."""
    from distmom.models import MultiView

    rows, widths = task.rows.toarray(), [width for _, width in task.kinds]
    MultiView(2, widths=[100, 100, 200]).fit(tiny_counts().toarray())

    def fit() -> Callable[[], Found]:
        model = MultiView(task.k, widths=widths, random_state=task.seed, **em_options(name)).fit(rows)
        return lambda: Found(model.weights_, model.components_, model.predict(rows))

    return fit


def prepare_diagonal(task: Task, name: str) -> Fit:
    """Prepare `DiagonalMixture`."""
    from distmom.models import DiagonalMixture

    rows, tiny = task.rows.toarray(), np.random.default_rng(0).normal(size=(300, 90))
    tiny[:100] += 1.0
    for d in (12, 90):
        DiagonalMixture(2).fit(tiny[:, :d])

    def fit() -> Callable[[], Found]:
        model = DiagonalMixture(task.k, random_state=task.seed, **em_options(name)).fit(rows)
        return lambda: Found(model.weights_, model.means_, model.predict(rows), model.variances_)

    return fit


def prepare_scikit_learn(task: Task, name: str) -> Fit:
    """Prepare EM by `GaussianMixture` of scikit-learn, which starts from k-means."""
    from sklearn.mixture import GaussianMixture

    rows = task.rows.toarray()
    model = GaussianMixture(
        task.k, covariance_type="diag", n_init=n_starts(name), max_iter=task.n_iter, random_state=task.seed
    )

    def fit() -> Callable[[], Found]:
        with warnings.catch_warnings():
            # A start that ends at the largest number of iterations counts as it is.
            warnings.simplefilter("ignore")
            model.fit(rows)
        return lambda: Found(model.weights_, model.means_, model.predict(rows), model.covariances_)

    return fit


def prepare_topics(task: Task, name: str) -> Fit:
    """Prepare `SingleTopic`."""
    from distmom.models import SingleTopic

    SingleTopic(2).fit(tiny_counts())

    def fit() -> Callable[[], Found]:
        model = SingleTopic(task.k, random_state=task.seed).fit(task.rows)
        return lambda: Found(model.weights_, model.components_, model.transform(task.rows).argmax(axis=1))

    return fit


def n_starts(name: str) -> int:
    """Return the number of starts at the end of the name of a system."""
    return int(name.rsplit("-", 1)[1])


def prepare_stepmix(task: Task, name: str) -> Fit:
    """Prepare EM by StepMix; ``full`` in the name gives real-valued views full covariances."""
    from stepmix import StepMix

    rows = task.rows.toarray().astype(np.float64)
    kinds = [
        (kind.replace("diag", "full") if "full" in name else kind, width)
        for kind, width in task.kinds or [("binary", rows.shape[1])]
    ]
    measurement = {f"view {i}": {"model": kind, "n_columns": n} for i, (kind, n) in enumerate(kinds)}
    model = StepMix(
        task.k, measurement=measurement, n_init=n_starts(name), max_iter=task.n_iter, random_state=task.seed,
        progress_bar=0,
    )  # fmt: skip

    def found() -> Found:
        views = model.get_parameters()["measurement"].values()
        means = [view["pis"] if "pis" in view else view["means"] for view in views]
        spread = [view["covariances"] for view in views if np.ndim(view.get("covariances")) == 2]
        variances = np.hstack(spread) if len(spread) == len(means) else None
        return Found(model.weights_, np.hstack(means), model.predict(rows), variances)

    def fit() -> Callable[[], Found]:
        model.fit(rows)
        return found

    return fit


def prepare_pomegranate(task: Task, name: str) -> Fit:
    """Prepare EM by pomegranate, which starts from k-means."""
    from pomegranate.distributions import Bernoulli, Normal
    from pomegranate.gmm import GeneralMixtureModel

    rows, real = task.rows.toarray().astype(np.float32), bool(task.kinds)
    kinds = [Normal(covariance_type="diag") if real else Bernoulli() for _ in range(task.k)]
    model = GeneralMixtureModel(kinds, max_iter=task.n_iter, random_state=task.seed)

    def found() -> Found:
        means = np.stack([(each.means if real else each.probs).numpy() for each in model.distributions])
        variances = np.stack([each.covs.numpy() for each in model.distributions]) if real else None
        return Found(model.priors.numpy(), means, model.predict(rows).numpy(), variances)

    def fit() -> Callable[[], Found]:
        model.fit(rows)
        return found

    return fit


def prepare_dmx(task: Task, name: str) -> Fit:
    """Prepare EM for a mixture of multinomial distributions by dmx-learn."""
    from dmx.stats import IntegerMultinomialEstimator, MixtureEstimator, seq_encode
    from dmx.utils.estimation import best_of

    rows, d = task.rows, task.rows.shape[1]
    pairs = list(zip(rows.indices.tolist(), rows.data.astype(float).tolist(), strict=True))
    ends = rows.indptr.tolist()
    documents = [pairs[start:stop] for start, stop in pairwise(ends)]
    kind = MixtureEstimator([IntegerMultinomialEstimator(min_val=0, max_val=d - 1) for _ in range(task.k)])
    encoded = seq_encode(documents, kind.accumulator_factory().make().acc_to_encoder())

    def fit() -> Callable[[], Found]:
        rng = np.random.RandomState(task.seed)
        _, model = best_of(
            None, None, kind, n_starts(name), task.n_iter, 0.1, 1e-9, rng, enc_data=encoded, out=io.StringIO()
        )

        def found() -> Found:
            groups = [model.seq_posterior(part).argmax(axis=1) for _, part in encoded]
            topics = np.stack([each.p_vec for each in model.components])
            return Found(model.w, topics, np.concatenate(groups))

        return found

    return fit


def prepare_noloox(task: Task, name: str) -> Fit:
    """Prepare Gibbs sampling for a mixture of Dirichlet-multinomial distributions by noloox."""
    from noloox.mixture import DirichletMultinomialMixture

    rows = task.rows.toarray().astype(np.int32)
    model = DirichletMultinomialMixture(task.k, random_state=task.seed)

    def fit() -> Callable[[], Found]:
        model.fit(rows)
        topics = distributions(model.components_ + model.beta)
        return lambda: Found(model.weights_, topics, np.asarray(model.labels_))

    return fit


#: distmom without EM
MOMENTS = "distmom-moments"
#: distmom with EM but without the pass that corrects its means
UNCORRECTED = "distmom-uncorrected"
#: systems by model
SYSTEMS: dict[str, dict[str, Callable[[Task, str], Fit]]] = {
    "product": {
        "distmom": prepare_product,
        MOMENTS: prepare_product,
        "stepmix-1": prepare_stepmix,
        "stepmix-10": prepare_stepmix,
        "pomegranate": prepare_pomegranate,
    },
    "multiview": {
        "distmom": prepare_views,
        MOMENTS: prepare_views,
        UNCORRECTED: prepare_views,
        "stepmix-1": prepare_stepmix,
        "stepmix-10": prepare_stepmix,
        "stepmix-full-10": prepare_stepmix,
    },
    "diagonal": {
        "distmom": prepare_diagonal,
        MOMENTS: prepare_diagonal,
        "scikit-learn-1": prepare_scikit_learn,
        "scikit-learn-10": prepare_scikit_learn,
        "stepmix-10": prepare_stepmix,
        "pomegranate": prepare_pomegranate,
    },
    "single-topic": {
        "distmom": prepare_topics,
        "dmx-learn-1": prepare_dmx,
        "dmx-learn-5": prepare_dmx,
        "noloox": prepare_noloox,
    },
}


def main(arguments: list[str] | None = None) -> int:
    """Fit one system."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", choices=SYSTEMS)
    add("system", choices=dict.fromkeys(name for own in SYSTEMS.values() for name in own))
    add("--rows", type=Path, required=True, help="an .npz file of scipy.sparse")
    add("-k", "--n-components", type=int, required=True)
    add("--views", nargs="*", default=[], metavar="KIND:COLUMNS",
        help="distributions of the views, by the names of StepMix, and their numbers of columns")  # fmt: skip
    add("--iterations", type=int, default=200, help="of EM for every start, at most [%(default)s]")
    add("--seed", type=int, default=0, help="[%(default)s]")
    add("--out", type=Path, required=True, help="directory for found.npz and fit.json")
    options = parser.parse_args(arguments)
    if options.system not in SYSTEMS[options.model]:
        parser.error(f"{options.model}: expected one of {', '.join(SYSTEMS[options.model])}")
    die_first()
    options.out.mkdir(parents=True, exist_ok=True)
    kinds = [(kind, int(width)) for kind, width in (view.split(":") for view in options.views)]
    rows = csr_matrix(load_npz(options.rows))
    task = Task(rows, options.n_components, options.seed, kinds, options.iterations)
    try:
        fit = SYSTEMS[options.model][options.system](task, options.system)
    except ImportError as error:
        print(f"{options.system}: not installed: {error}", file=sys.stderr)
        return NOT_INSTALLED
    finish, record = timed(fit)
    found = finish()
    arrays = {name: array for name, array in vars(found).items() if array is not None}
    np.savez(options.out / "found.npz", **arrays)
    (options.out / "fit.json").write_text(json.dumps({**record, "versions": installed(PACKAGES)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
