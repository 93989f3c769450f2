"""Mutation testing: make small changes to modules, one at a time, and count those that the tests detect.

A mutant is a module with one operator, number, condition or loop replaced. A mutant survives if no test fails; it
then shows either a missing check or a change without effect. Cosmic Ray generates the mutants and runs the
tests on a temporary copy of one revision. Requires git and the extra `mutation`.

For each module, locations in the code are drawn at random, and one mutant at each location. With the same seed the
choice does not depend on line numbers. Excluded are mutants that do not parse or change only annotations or
the kinds of arguments; arithmetic replaced by bitwise operations, comparisons replaced by identity or the
reverse, and removed decorators, which only make a compiled kernel slower.

    pip install 'distmom[mutation,test]'
    python workflows/mutation.py --revision HEAD --out mutants.md
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

try:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult
except ModuleNotFoundError as error:
    # --help does without it.
    missing: str | None = error.name
else:
    missing = None

ROOT = Path(__file__).resolve().parents[1]
#: exact recovery of a population from its moments, which exercises most of the path from words to topics
RECOVERY = "tests/models/test_topic_moments.py::test_exact_population_comes_back_from_kept_moments"
#: tests of each module
TESTS = {
    "distmom/moments/documents/dirichlet.py": [
        "tests/moments/test_dirichlet.py",
        "tests/moments/test_view_moments.py::test_fourth_moments_are_corrected_as_the_whole_tensor_is",
        RECOVERY,
    ],
    "distmom/moments/weighting.py": ["tests/moments/test_words.py"],
    "distmom/moments/documents/word_moments.py": ["tests/moments/test_words.py", RECOVERY],
    "distmom/linalg/whiten.py": ["tests/linalg/test_whiten.py"],
    "distmom/linalg/tensors/tensor.py": [
        "tests/linalg/test_tensor.py",
        "tests/linalg/test_decompose.py::test_bad_input_is_named",
    ],
    "distmom/linalg/tensors/weights.py": [
        "tests/linalg/test_post.py",
        "tests/linalg/test_power_method.py::test_all_spurious_eigenvectors_are_distinguished_from_components",
        "tests/linalg/test_decompose.py::test_polar_factor_is_the_nearest_orthonormal_matrix",
        "tests/linalg/test_decompose.py::test_bad_input_is_named",
    ],
    "distmom/linalg/tensors/decompose.py": [
        "tests/linalg/test_decompose.py",
        "tests/linalg/test_decompose_errors.py",
        "tests/linalg/test_power_method.py",
    ],
}
#: operators of Cosmic Ray with uninformative mutants
EXCLUDED = re.compile(
    r"core/(ReplaceBinaryOperator_(?!Bit|LShift|RShift)[A-Za-z]+_(RShift|LShift|Bit[A-Za-z]+)"
    r"|ReplaceComparisonOperator_(?!Is)[A-Za-z]+_Is(Not)?"
    r"|ReplaceComparisonOperator_Is(Not)?_(?!Is)[A-Za-z]+"
    r"|RemoveDecorator)$"
)


@dataclass(frozen=True)
class Outcome:
    """Results for the mutants of one module."""

    module: str
    n_places: int
    n_killed: int
    n_timed_out: int
    survivors: list[str]
    seconds: float

    @property
    def n_mutants(self) -> int:
        """Number of tested mutants."""
        return self.n_killed + self.n_timed_out + len(self.survivors)


class _Plain(ast.NodeTransformer):
    """Removes annotations, which are never evaluated, and the distinction between kinds of arguments."""

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        node.defaults += [value for value in node.kw_defaults if value is not None]
        node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node


def meaning(code: str) -> str | None:
    """Return a normal form of the behaviour of a module, for comparison; None if it does not parse."""
    try:
        return ast.dump(_Plain().visit(ast.parse(code)))
    except SyntaxError:
        return None


def mutated(code: str, spec: MutationSpec) -> str | None:
    """Return the code of a mutant."""
    return mutate_code(code, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)


def draw(items: list[WorkItem], code: str, n: int, seed: str) -> tuple[list[WorkItem], int]:
    """Draw one mutant at each of up to n locations, and return the number of locations too.

    Locations are ordered by hashes of the lines, so that a change elsewhere in the module keeps most of the
    sample.
    """
    places: dict[tuple[int, int], list[WorkItem]] = {}
    for item in items:
        if not EXCLUDED.match(item.mutations[0].operator_name):
            places.setdefault(item.mutations[0].start_pos, []).append(item)
    original, lines, kept = meaning(code), code.splitlines(), []
    for (row, column), group in sorted(places.items()):
        line, name = lines[row - 1], group[0].mutations[0].definition_name
        place = f"{seed} {name} {line.strip()} {column - len(line) + len(line.lstrip())}"
        # The session returns items in no particular order.
        group.sort(key=lambda i: (i.mutations[0].operator_name, i.mutations[0].occurrence))
        random.Random(place).shuffle(group)
        changed = (i for i in group if meaning(mutated(code, i.mutations[0]) or "") not in (None, original))
        if (item := next(changed, None)) is not None:
            kept.append((hashlib.sha256(place.encode()).hexdigest(), (row, column), item))
    kept.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in kept[:n]], len(kept)


def check_out(revision: str, folder: Path) -> None:
    """Extract the files of a revision to an empty folder."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def run_module(module: str, copy: Path, options: argparse.Namespace) -> Outcome:
    """Test a sample of the mutants of one module in the copy."""
    started = time.monotonic()
    # The copy must precede any installation on the path.
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += TESTS[module]
    probe = [sys.executable, "-c", "import distmom; print(distmom.__file__)"]
    found = subprocess.run(
        probe, cwd=copy, env=environment, check=True, capture_output=True, text=True
    ).stdout
    if not Path(found.strip()).is_relative_to(copy):
        raise SystemExit(f"{module}: expected tests to import distmom from {copy}, got {found.strip()}")
    tested = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if tested.returncode:
        raise SystemExit(f"{module}: its tests fail without a mutation\n{tested.stdout}{tested.stderr}")

    name = Path(module).stem
    config, session = copy.parent / f"{name}.toml", copy.parent / f"{name}.sqlite"
    config.write_text(
        "[cosmic-ray]\n"
        f'module-path = "{module}"\n'
        f"timeout = {float(options.timeout)}\n"
        f"test-command = '''{' '.join(command)}'''\n"
        "excluded-modules = []\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    code = (copy / module).read_text(encoding="utf-8")
    cosmic_ray = [sys.executable, "-m", "cosmic_ray.cli"]
    subprocess.run([*cosmic_ray, "init", config, session], cwd=copy, env=environment, check=True)
    with use_db(session, WorkDB.Mode.open) as db:
        items = list(db.work_items)
        drawn, n_places = draw(items, code, options.mutants, f"{options.seed} {module}")
        chosen = {item.job_id for item in drawn}
        skipped = [item.job_id for item in items if item.job_id not in chosen]
        db.set_multiple_results(skipped, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    subprocess.run([*cosmic_ray, "exec", config, session], cwd=copy, env=environment, check=True)
    if (copy / module).read_text(encoding="utf-8") != code:
        raise SystemExit(f"{module}: was not restored after its mutants")

    n_killed, n_timed_out, survivors = 0, 0, []
    with use_db(session, WorkDB.Mode.open) as db:
        results = {item.job_id: result for item, result in db.completed_work_items}
    for item in sorted(drawn, key=lambda item: item.mutations[0].start_pos):
        result = results[item.job_id]
        if result.worker_outcome is not WorkerOutcome.NORMAL or result.test_outcome is None:
            raise SystemExit(f"{module}: {item.mutations[0].operator_name} was not tested\n{result.output}")
        if result.test_outcome is TestOutcome.SURVIVED:
            survivors.append("\n".join((result.diff or "").splitlines()[3:]))
        elif result.output == "timeout":
            n_timed_out += 1
        else:
            n_killed += 1
    return Outcome(module, n_places, n_killed, n_timed_out, survivors, time.monotonic() - started)


def report(outcomes: list[Outcome]) -> str:
    """Return the table of results and the survivors in Markdown."""
    lines = [
        "| module | places | mutants | killed | timed out | survived |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {o.module} | {o.n_places} | {o.n_mutants} | {o.n_killed} | {o.n_timed_out} | {len(o.survivors)} |"
        for o in outcomes
    ]
    for outcome in outcomes:
        for number, diff in enumerate(outcome.survivors, 1):
            lines += ["", f"{outcome.module}, survivor {number}:", "", "```diff", diff, "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Mutate, test, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"modules to mutate [{' '.join(TESTS)}]")
    parser.add_argument("--revision", default="HEAD", help="commit to test [HEAD]")
    parser.add_argument("--mutants", type=int, default=8, help="mutants per module [8]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="timeout in seconds for the tests of a mutant [120]"
    )
    parser.add_argument("--out", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    modules = options.modules or list(TESTS)
    if unknown := [module for module in modules if module not in TESTS]:
        parser.error(f"MODULE: expected some of {', '.join(TESTS)}, got {', '.join(unknown)}")
    if missing is not None:
        parser.error(f"{missing} is not installed: pip install 'distmom[mutation,test]'")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="mutation-") as temporary:
        copy = Path(temporary).resolve() / "distmom"
        copy.mkdir()
        check_out(options.revision, copy)
        for module in modules:
            outcomes.append(run_module(module, copy, options))
            print(f"{module}: {outcomes[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    text = report(outcomes)
    print(text, end="")
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
