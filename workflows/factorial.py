"""Factorial hidden Markov models beside hmmlearn: planted chains, fitted as chains and as joint states.

The peer, a Gaussian hidden Markov model with 2^k states, does not model chains. It is run in the same process with
restarts, of which the one with the best training likelihood counts, and needs ``pip install hmmlearn``. Joint
states are matched to the planted ones by their means. Errors are mean absolute differences of the means of the
joint states (``means``), of the joint transition matrix (``transition``), and, for chains, of their probabilities
of change (``changes``); ``held-out`` is the log-likelihood per step of sequences that were not fitted, and
``decoded`` the share of their steps whose joint state on the most probable path is the planted one.

Example::

    python workflows/factorial.py
    python workflows/factorial.py --chains 3 --sequences 2000 --restarts 10 --json factorial.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hmm import add_peer_options, best_of, peer_name, show, timed
from scipy.optimize import linear_sum_assignment

from distmom.corpus import RowCorpus
from distmom.models import FactorialHMM
from distmom.models.factorial.joint import joint_chain
from distmom.models.markov.chain import Chain
from distmom.simulate.chains import FactorialChains


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--chains", type=int, nargs="+", default=[2, 3, 4], help="numbers of chains [%(default)s]"
    )
    parser.add_argument("--values", type=int, default=20, help="values of a step [%(default)s]")
    parser.add_argument("--sequences", type=int, default=1000, help="planted sequences [%(default)s]")
    parser.add_argument("--length", type=int, default=100, help="steps of a sequence [%(default)s]")
    parser.add_argument("--noise", type=float, default=1.0, help="standard deviation [%(default)s]")
    add_peer_options(parser, restarts=5)
    parser.add_argument("--passes", type=int, nargs="+", default=[0, 10],
                        help="Baum-Welch passes after the moments [%(default)s]")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for k in args.chains:
        rows += compared(k, args)
        show(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def planted(k: int, args: argparse.Namespace) -> FactorialChains:
    """Stationary chains that are mostly -1."""
    rng = np.random.default_rng(args.seed)
    fall, rise = rng.uniform(0.15, 0.35, k), rng.uniform(0.03, 0.1, k)
    components, intercept = 0.5 * rng.standard_normal((k, args.values)), rng.standard_normal(args.values)
    return FactorialChains(components, intercept, rise / (rise + fall), fall, rise)


def compared(k: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Fit planted sequences by both systems."""
    truth = planted(k, args)
    train, test = (
        truth.sample(n, args.length, args.noise, args.seed + i) for i, n in enumerate((args.sequences, 200))
    )
    # The planted model, as an estimator that can be asked for its joint states.
    model = FactorialHMM(k)
    model.components_, model.intercept_ = truth.components, truth.intercept
    model.startprob_, model.fall_, model.rise_ = truth.start, truth.fall, truth.rise
    model.variances_, model.diagnostics_ = np.full(args.values, args.noise**2), {}
    model.fit_seconds_, model.n_features_in_ = 0.0, args.values
    joint, states = joint_chain(model._state()), joint_numbers(test.states)
    data = f"{k} chains"
    rows = [
        {
            "data": data, "system": "planted", "held-out": model.score(test.X, test.lengths) / len(test.X),
            "decoded": float(np.mean(joint_numbers(model.predict(test.X, test.lengths)) == states)),
        }
    ]  # fmt: skip
    for n in args.passes:
        fitted, seconds = timed(
            FactorialHMM(k, windows="all", n_em_iter=n), RowCorpus(train.X, train.lengths)
        )
        found = joint_chain(fitted._state())
        cost = np.linalg.norm(fitted.components_[:, None] - truth.components[None], axis=2)
        own, order = linear_sum_assignment(cost)
        changes = np.abs(
            [fitted.fall_[own] - truth.fall[order], fitted.rise_[own] - truth.rise[order]]
        ).mean()
        path = joint_numbers(fitted.predict(test.X, test.lengths))
        rows.append(
            {"data": data, "system": f"moments + {n}"}
            | errors(np.asarray(found.means).T, found.transition, path, joint, states)
            | {"changes": float(changes), "held-out": fitted.score(test.X, test.lengths) / len(test.X)}
            | {"seconds": seconds}
        )
    if args.restarts:
        from hmmlearn.hmm import GaussianHMM

        peer, seconds = best_of(GaussianHMM, train.X, train.lengths, 2**k, args, covariance_type="diag")
        path = peer.predict(test.X, test.lengths)
        rows.append(
            {"data": data, "system": peer_name(args)}
            | errors(peer.means_, peer.transmat_, path, joint, states)
            | {"held-out": peer.score(test.X, test.lengths) / len(test.X), "seconds": seconds}
        )
    return rows


def joint_numbers(states: np.ndarray) -> np.ndarray:
    """Return the number of the joint state of every step, given the chains (n, k), -1 and +1."""
    return np.asarray((states > 0) @ (1 << np.arange(states.shape[1])[::-1]))


def errors(
    means: np.ndarray, transition: np.ndarray, path: np.ndarray, joint: Chain, states: np.ndarray
) -> dict[str, float]:
    """Return the errors of joint states, matched one to one to the planted ones by their means."""
    true = np.asarray(joint.means).T
    cost = np.abs(true[:, None] - np.asarray(means)[None]).mean(axis=2)
    _, order = linear_sum_assignment(cost)
    number = np.argsort(order)
    return {
        "means": float(np.abs(np.asarray(means)[order] - true).mean()),
        "transition": float(np.abs(transition[np.ix_(order, order)] - joint.transition).mean()),
        "decoded": float(np.mean(number[path] == states)),
    }


if __name__ == "__main__":
    sys.exit(main())
