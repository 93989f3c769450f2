"""Measure what each head of ``head="auto"`` and each option is worth, on held-out training documents.

For every fold, all heads are fitted to the other training documents and score those of the fold. A blend is
chosen on each fold and measured on the next one. The tables have the metrics of ``auto`` in percent, and for every
variant the difference in points, with the standard error over folds; the last column is the mean over corpora.
Variants leave out one head, keep the coefficients of a stack constant, or, with more than 1,000 labels, do not
rank the best labels again; ``--with`` adds variants of the parameters of the model, for which all heads are fitted
again. Test documents are not read.

Example::

    python workflows/ablation.py bibtex labels/reuters labels/goemotions -k 200 --with n_residual_passes=2
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from label_corpora import ingest_folder

from distmom.corpus import Corpus
from distmom.engine import Executor, open_executor
from distmom.engine.opening import open_engine
from distmom.models import MultiLabelMoM
from distmom.models.multilabel.blend.choice import apply_choice
from distmom.models.multilabel.blend.choose import choose_blend
from distmom.models.multilabel.blend.objective import Objective
from distmom.models.multilabel.blend.scored import Scored
from distmom.models.multilabel.folds import blend_inputs, held_out
from distmom.models.multilabel.program import score_fold
from distmom.spectral.program.execute import execute

METRICS = ("P@1", "P@3", "P@5", "nDCG@5")
#: name of the row with the metrics of all heads
WHOLE = "auto"


@dataclass
class Inputs:
    """The scores of one fold.

    Attributes
    ----------
    inputs : dict
        Arguments of `choose_blend`, by name.
    """

    inputs: dict[str, Any]

    @property
    def scored(self) -> Scored:
        """Scores of all heads."""
        scored: Scored = self.inputs["scored"]
        return scored

    def with_inputs(self, **inputs: Any) -> Inputs:
        """Return the scores with other arguments."""
        return Inputs({**self.inputs, **inputs})

    def without(self, family: str) -> Inputs:
        """Return the scores of all heads but those of a family."""
        named = zip(self.scored.names, self.scored.families, strict=True)
        return self.with_inputs(scored=self.scored.only([name for name, own in named if own != family]))

    def measure(self, other: Inputs) -> np.ndarray:
        """Return the metrics of the documents of another fold under the blend of this one, in percent."""
        choice = choose_blend(**self.inputs)
        objective = Objective(other.scored.labels, other.scored.truth, other.scored.n_true)
        found = objective.named(apply_choice(choice, other.scored))
        return 100.0 * np.array([found[metric] for metric in METRICS])


@dataclass
class Results:
    """Metrics (n_folds, 4) by corpus and variant."""

    found: dict[str, dict[str, list[np.ndarray]]] = field(default_factory=dict)

    def add(self, corpus: str, variant: str, metrics: np.ndarray) -> None:
        """Add the metrics of a fold."""
        self.found.setdefault(corpus, {}).setdefault(variant, []).append(metrics)

    def table(self, title: str, columns: list[int]) -> str:
        """Return a Markdown table of the mean of some metrics."""
        variants = dict.fromkeys(name for corpus in self.found.values() for name in corpus)
        lines = [f"| {title} | " + " | ".join(self.found) + " | mean |", "|---" * (len(self.found) + 2) + "|"]
        for variant in variants:
            cells, means, errors = [], [], []
            for corpus in self.found.values():
                if variant not in corpus:
                    cells.append("")
                    continue
                own = np.array(corpus[variant])[:, columns].mean(axis=1)
                if variant != WHOLE:
                    own = own - np.array(corpus[WHOLE])[:, columns].mean(axis=1)
                means.append(own.mean())
                errors.append(own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.nan)
                cells.append(_cell(variant, means[-1], errors[-1]))
            total = float(np.sqrt(np.square(errors).sum()) / len(errors))
            cells.append(_cell(variant, float(np.mean(means)), total))
            lines.append(f"| {variant} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def _cell(variant: str, value: float, error: float) -> str:
    return f"{value:.2f}" if variant == WHOLE else f"{value:+.2f} ± {error:.2f}"


def scored_fold(model: MultiLabelMoM, corpus: Corpus, fold: int, executor: Executor) -> Inputs:
    """Fit all heads to the training documents outside a fold, and score those of the fold."""
    settings = model.head_settings(corpus.n_documents)
    chosen = held_out(corpus, settings.seed, settings.effort)
    chosen = replace(chosen, offset=fold * chosen.fraction)
    with open_engine(corpus, None, executor) as engine:
        _, found = execute(partial(score_fold, settings=settings, chosen=chosen), engine)
        return Inputs(blend_inputs(engine, [found]))


def compare(
    name: str, corpus: Corpus, options: argparse.Namespace, executor: Executor, results: Results
) -> None:
    """Measure all variants on a corpus."""
    for setting in [WHOLE, *options.settings]:
        model = MultiLabelMoM(options.n_components, random_state=options.seed)
        if setting != WHOLE:
            key, _, value = setting.partition("=")
            model.set_params(**{key: _value(value)})
        folds = [scored_fold(model, corpus, fold, executor) for fold in range(options.folds)]
        for i, scored in enumerate(folds):
            following = folds[(i + 1) % len(folds)]
            results.add(name, setting, scored.measure(following))
            if setting != WHOLE:
                continue
            if scored.inputs["companions"] is None:
                constant = scored.with_inputs(scored=replace(scored.scored, frequency=None))
                results.add(name, "constant coefficients", constant.measure(following))
            else:
                blended = scored.with_inputs(companions=None)
                results.add(name, "without ranking again", blended.measure(following))
            for family in dict.fromkeys(scored.scored.families):
                results.add(name, f"without {family}", scored.without(family).measure(following))
        print(f"{name}: {setting}", file=sys.stderr, flush=True)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def main(arguments: list[str] | None = None) -> int:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+", help="folders, or prefixes of -train and -test files")
    parser.add_argument("-k", "--n-components", type=int, default=200, help="[%(default)s]")
    parser.add_argument("--folds", type=int, default=5, choices=range(2, 6),
                        help="documents that are scored, in fifths [%(default)s]")  # fmt: skip
    parser.add_argument("--with", dest="settings", nargs="+", default=[], metavar="NAME=VALUE",
                        help="parameters of the model, each of which is a variant")  # fmt: skip
    parser.add_argument("--workers", type=int, default=0, help="worker processes, 0 for none [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    options = parser.parse_args(arguments)
    results = Results()
    with (
        tempfile.TemporaryDirectory(prefix="ablation-") as temporary,
        open_executor(workers=options.workers) as executor,
    ):
        for data in options.data:
            train, _, _ = ingest_folder(data, Path(temporary) / data.name, executor)
            compare(data.name, train, options, executor, results)
    print(results.table("P@1", [0]))
    print(results.table("mean of P@1, P@3, P@5 and nDCG@5", list(range(len(METRICS)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
