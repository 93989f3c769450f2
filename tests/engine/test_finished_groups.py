"""A pass that was interrupted repeats only the groups that had not been finished, and gives the same bits."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from helpers import random_corpus
from scipy.sparse import csr_array

from distmom.engine import (
    GroupDone,
    GroupsFound,
    InProcess,
    OnCluster,
    Pass,
    PassDone,
    Pruning,
    RunDirectory,
    StoredColumns,
    SumSpec,
    TallResult,
    Term,
    maps,
    open_engine,
    plan,
    reports,
)
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import EPOCH, End, Owner
from distmom.engine.executors.threads import on_threads
from distmom.errors import TakenOverError

#: shards of the corpus, each a group
N_GROUPS = 9


@dataclass(frozen=True)
class NotedPass(Pass):
    """Notes every group that is folded, and fails at one of them while a file says so."""

    place: str = ""

    def note(self, block):
        group, columns = block.first // 37, self.columns or self.features or slice(0, 0)
        stop = Path(self.place, "stop")
        if stop.exists() and group == int(stop.read_text()):
            raise RuntimeError("interrupted")
        with Path(self.place, "folded").open("a") as stream:
            stream.write(f"{group} {columns.start}\n")


@dataclass(frozen=True)
class SmallPass(NotedPass):
    """Sums of several shapes and types, and stored rows."""

    def specs(self):
        return {
            "odd": SumSpec((3,), "float32"),
            "words": SumSpec((self.n_features, 64), by_feature=True),
            "total": SumSpec(()),
            "none": SumSpec((0, 2)),
            "n": SumSpec((), "int64"),
        }

    def add(self, sums, block, rows):
        self.note(block)
        values = np.sqrt(np.asarray(block.words[:, self.slab].sum(axis=0)).ravel() + 0.1)
        sums["odd"] += values[:3].astype(np.float32)
        sums["words"] += values[:, None] * np.arange(64)
        sums["total"] += values.sum() if self.features is None else block.first / 3
        sums["n"] += block.n_documents
        return {"first": block.words.toarray()[:, :2] / 3}


@dataclass(frozen=True)
class TallPass(NotedPass):
    """A tall and a small sum, and stored rows."""

    separable: bool = False

    def specs(self):
        return {
            "tall": SumSpec((self.n_features, 6), "float32", tall="features", separable=self.separable),
            "n": SumSpec(()),
        }

    def add(self, sums, block, rows):
        self.note(block)
        columns = self.columns or slice(0, 6)
        factors = np.sqrt(np.asarray(block.words.sum(axis=1)).reshape(-1, 1) + np.arange(6))[:, columns]
        sums["tall"].single[...] += block.words.T @ factors
        sums["tall"].settle()
        sums["n"] += np.sqrt(block.n_documents)
        return None if self.separable else {"first": factors}


@dataclass(frozen=True)
class SparsePass(NotedPass):
    """A sparse sum."""

    def specs(self):
        return {"sparse": SumSpec((self.n_features, 4), n_bytes=1 << 10, sparse=True, tall="features")}

    def add(self, sums, block, rows):
        self.note(block)
        sums["sparse"].add(csr_array(block.words.T @ np.sqrt(block.words[:, :4].toarray() + 0.1)))


PASSES = {
    "small": lambda d, place: SmallPass(d, place=place),
    "tall": lambda d, place: TallPass(d, place=place),
    "separable": lambda d, place: TallPass(d, place=place, separable=True),
    "sparse": lambda d, place: SparsePass(d, place=place),
}


@pytest.fixture
def noted(tmp_path):
    """A function that returns which groups were folded since its last call."""

    def groups(of=0):
        path = tmp_path / "folded"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(int(line.split()[of]) for line in lines)

    return groups


@pytest.fixture
def stop_at(tmp_path):
    """A function that lets passes fail at a group, or at none."""

    def stop(group):
        (tmp_path / "stop").unlink(missing_ok=True)
        if group is not None:
            (tmp_path / "stop").write_text(str(group))

    return stop


def run(pass_, corpus, directory, executor=None, memory_limit=None, observer=None):
    """Return the bits of all that a pass gives."""
    with open_engine(corpus, directory, executor, memory_limit, observer) as engine:
        if isinstance(pass_, SmallPass):
            result = engine.run(pass_)
            bits = {name: np.asarray(value).tobytes() for name, value in result.sums.items()}
        else:

            def finish(tallies):
                arrays = [part.read_rows(slice(0, pass_.n_features)) for part in tallies.tall.values()]
                for runs in tallies.runs.values():
                    arrays += [part.toarray() for part in runs.read_rows(slice(0, pass_.n_features))]
                states = StoredColumns((engine.put(np.hstack(arrays)),))
                return TallResult({"all": states}, {name: float(x) for name, x in tallies.sums.items()})

            result = engine.run(pass_, finish=finish)
            bits = {"all": result.states["all"].load().parts[0].tobytes(), **result.values}
        for name, rows in result.rows.items():
            bits[name] = [rows.read(i).tobytes() for i in range(len(corpus.shards))]
        return bits


def interrupted(pass_, corpus, directory, executor=None, **options):
    with pytest.raises(RuntimeError, match="interrupted"):
        run(pass_, corpus, directory, executor, **options)
    return sorted((directory / "partial").glob("*/*/*.json"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("files", ["held", "in files"])
@pytest.mark.parametrize("kind", PASSES)
def test_only_unfinished_groups_are_repeated(tmp_path, monkeypatch, noted, stop_at, kind, files):
    if files == "in files":
        monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", 0)
        monkeypatch.setattr("distmom.engine.sums.additive.FILE_BYTES", 1000)
    corpus = random_corpus()
    assert len(corpus.shards) == N_GROUPS
    pass_ = PASSES[kind](corpus.n_words, str(tmp_path))
    expected = run(pass_, corpus, tmp_path / "calm")
    assert noted() == list(range(N_GROUPS))
    # Interrupted twice; groups that the first driver finished are still there for the third.
    for group, folded in ((3, [0, 1, 2]), (7, [3, 4, 5, 6])):
        stop_at(group)
        assert len(interrupted(pass_, corpus, tmp_path / "run")) == group
        assert noted() == folded
        # Files that no report names, of tasks that were interrupted while they wrote.
        [place] = (tmp_path / "run" / "partial").glob("*/*-*")
        (place / "half").write_bytes(b"half")
    stop_at(None)
    events = []
    assert run(pass_, corpus, tmp_path / "run", observer=events.append) == expected
    assert noted() == [7, 8]
    assert sum(event.n_documents for event in events if isinstance(event, GroupDone)) == corpus.n_documents
    assert [event for event in events if isinstance(event, GroupsFound)] == [
        GroupsFound(pass_.name, 7, N_GROUPS)
    ]
    assert list((tmp_path / "run" / "partial").iterdir()) == []
    assert run(pass_, corpus, tmp_path / "run") == expected
    assert noted() == []


@pytest.mark.parametrize("kind", PASSES)
def test_groups_that_one_process_finished_serve_on_a_cluster(tmp_path, cluster, noted, stop_at, kind):
    corpus = random_corpus()
    pass_ = PASSES[kind](corpus.n_words, str(tmp_path))
    expected = run(pass_, corpus, tmp_path / "calm")
    noted()
    stop_at(5)
    interrupted(pass_, corpus, tmp_path / "run")
    assert noted() == [0, 1, 2, 3, 4]
    stop_at(None)
    assert run(pass_, corpus, tmp_path / "run", OnCluster(cluster)) == expected
    assert noted() == [5, 6, 7, 8]
    # And the other way round; how many tasks had ended when one failed differs from time to time.
    stop_at(5)
    n_done = len(interrupted(pass_, corpus, tmp_path / "other", OnCluster(cluster)))
    noted()
    stop_at(None)
    assert run(pass_, corpus, tmp_path / "other") == expected
    # A late task of the first driver may note its group, too.
    folded = set(noted())
    assert len(folded) <= N_GROUPS - n_done
    assert 5 in folded


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def named(report):
    """Return the files that a report names, beside those of stored rows."""
    found = []

    def visit(value):
        if isinstance(value, dict) and "checksum" in value and "name" in value:
            found.append(report.with_name(value["name"]))
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            visit(inner)

    visit(json.loads(report.read_bytes()))
    return found


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize(
    ("kind", "files", "n_files"),
    # The report, what was in memory, files of sums (of sparse ones three), stored rows.
    [
        ("small", "held", 1 + 1 + 0 + 1),
        ("small", "in files", 1 + 1 + 1 + 1),
        ("tall", "held", 1 + 1 + 0 + 1),
        ("tall", "in files", 1 + 1 + 1 + 1),
        ("separable", "in files", 1 + 1 + 1 + 0),
        ("sparse", "held", 1 + 1 + 0 + 0),
        ("sparse", "in files", 1 + 0 + 3 + 0),
    ],
)
def test_a_group_whose_report_or_files_are_damaged_is_repeated(
    tmp_path, monkeypatch, noted, stop_at, kind, files, n_files, damage
):
    if files == "in files":
        monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", 0)
        monkeypatch.setattr("distmom.engine.sums.additive.FILE_BYTES", 1000)
    corpus = random_corpus()
    pass_ = PASSES[kind](corpus.n_words, str(tmp_path))
    expected = run(pass_, corpus, tmp_path / "calm")
    for number in range(n_files):
        run_directory = tmp_path / str(number)
        stop_at(5)
        report = interrupted(pass_, corpus, run_directory)[2]
        found = [report, *(path for path in named(report) if path.stat().st_size)]
        found += run_directory.glob("rows/*/*/s00002-*/c/0/0")
        assert len(found) == n_files
        damage(found[number])
        noted()
        stop_at(None)
        assert run(pass_, corpus, run_directory) == expected
        assert noted() == [2, 5, 6, 7, 8], found[number]
        assert list((run_directory / "partial").iterdir()) == []


@pytest.mark.parametrize("kind", ["small", "separable"])
def test_groups_of_another_plan_are_not_used(tmp_path, monkeypatch, noted, stop_at, kind):
    monkeypatch.setattr(plan, "RESERVED_BYTES", 0)
    corpus = random_corpus(d=2000)
    pass_ = PASSES[kind](corpus.n_words, str(tmp_path))
    limits = {}
    whole = plan.plan_pass(corpus, pass_).task_bytes
    for share in np.linspace(1.0, 0.5, 51):
        limit = int(share * whole / plan.LIMIT_SHARE)
        cut = plan.plan_pass(corpus, pass_, limit)
        limits.setdefault(max(len(cut.slabs), len(cut.columns)), limit)
        if 2 in limits:
            break
    expected = run(pass_, corpus, tmp_path / "calm", memory_limit=limits[2])
    assert noted() == sorted(2 * list(range(N_GROUPS)))
    # The parts of groups that were added up in one slab only are kept too.
    stop_at(5)
    n_done = len(interrupted(pass_, corpus, tmp_path / "run", memory_limit=limits[2]))
    assert n_done == len(noted()) == (5 if kind == "small" else 10)
    stop_at(None)
    assert run(pass_, corpus, tmp_path / "run", memory_limit=limits[2]) == expected
    assert len(noted()) == 2 * N_GROUPS - n_done
    stop_at(5)
    interrupted(pass_, corpus, tmp_path / "other", memory_limit=limits[2])
    noted()
    stop_at(7)
    # Another plan repeats all groups, and removes the files of the first plan.
    assert len(interrupted(pass_, corpus, tmp_path / "other")) == 7
    assert noted() == list(range(7))
    stop_at(None)
    assert run(pass_, corpus, tmp_path / "other", memory_limit=limits[2]) == expected
    assert noted() == sorted(2 * list(range(N_GROUPS)))


def test_a_pass_keeps_the_columns_that_were_cut_for_more_threads(tmp_path, noted, stop_at):
    corpus = random_corpus()
    pass_ = PASSES["separable"](corpus.n_words, str(tmp_path))
    expected = run(pass_, corpus, tmp_path / "calm")
    noted()
    stop_at(8)
    with on_threads(2 * N_GROUPS) as executor:
        n_done = len(interrupted(pass_, corpus, tmp_path / "run", executor))
    assert len(noted()) >= n_done > 0
    stop_at(None)
    assert run(pass_, corpus, tmp_path / "run") == expected
    # Two slabs of columns, although one thread would be given one.
    assert len(noted()) == 2 * N_GROUPS - n_done


def test_groups_are_kept_until_the_commit_is_on_the_disk(tmp_path, monkeypatch, noted):
    """The process is killed after the pass is done, and before the matrices that it made were synchronised."""
    corpus = random_corpus()
    pass_ = PASSES["separable"](corpus.n_words, str(tmp_path))
    expected = run(pass_, corpus, tmp_path / "calm")

    def full(path):
        raise OSError("the disk is gone")

    with monkeypatch.context() as change:
        change.setattr("distmom.engine.directory.run_directory.sync_path", full)
        with pytest.raises(OSError, match="the disk is gone"):
            run(pass_, corpus, tmp_path / "run")
    assert not list((tmp_path / "run" / "passes").glob("tall-*"))
    noted()
    seen = []
    assert run(pass_, corpus, tmp_path / "run", observer=seen.append) == expected
    assert noted() == []
    assert [event.resumed for event in seen if isinstance(event, PassDone)] == [False]
    assert list((tmp_path / "run" / "partial").iterdir()) == []


def test_a_driver_that_was_taken_over_does_not_disturb_the_next(tmp_path, noted):
    """It was only paused, and continues while the next one uses the groups that it had finished."""
    corpus = random_corpus()
    pass_ = PASSES["separable"](corpus.n_words, str(tmp_path))
    expected = run(pass_, corpus, tmp_path / "calm")
    noted()
    place, left = tmp_path / "run", {}

    def take_over(event):
        if isinstance(event, GroupDone) and not left and len(list(place.glob("partial/*/*/*.json"))) == 4:
            owner = replace(Owner.this(), host="elsewhere", boot="another")
            assert epochs.put_once(epochs.file_of(place, 2), EPOCH.dump(asdict(owner)))
            other = RunDirectory(place)
            other.partials.take_over(2)
            left.update({path: path.read_bytes() for path in place.glob("partial/0002/*/*")})

    with pytest.raises(TakenOverError):
        run(pass_, corpus, place, observer=take_over)
    assert len([path for path in left if path.suffix == ".json"]) == 4
    # What the first one made since then is left to the driver that comes next.
    assert {path: path.read_bytes() for path in place.glob("partial/0002/*/*")} == left
    assert not (place / "passes" / next(iter(left)).parent.name).exists()
    assert epochs.write_end(place, 2, End("failed", 5))
    noted()
    assert run(pass_, corpus, place) == expected
    assert noted() == [4, 5, 6, 7, 8]
    assert list((place / "partial").iterdir()) == []


N_ITEMS = 5


def noted_item(index, matrix, place):
    """Make two matrices, note that, and fail at an item while a file says so."""
    stop = Path(place, "stop-item")
    if stop.exists() and index == int(stop.read_text()):
        raise RuntimeError("interrupted")
    with Path(place, "items").open("a") as stream:
        stream.write(f"{index}\n")
    scaled = matrix.to_scipy() * np.float32(index + 0.1)
    return [scaled, scaled * np.float32(3)]


def run_items(pass_, corpus, directory, executor=None):
    """Return the bits of what is made of the total of a pass, item by item, before it is committed."""
    shape = (pass_.n_features, 4)

    def finish(tallies):
        matrix = engine.maps.combine([Term(tallies.runs["sparse"])])
        made = engine.maps.map_runs(noted_item, N_ITEMS, shape, 2, matrix, pass_.place)
        # Another matrix, and so other items.
        other = engine.maps.combine([Term(tallies.runs["sparse"], 2.0)])
        made += engine.maps.map_runs(noted_item, 1, shape, 2, other, pass_.place)
        arrays = [part.toarray() for runs in made for part in runs.read_rows(slice(0, pass_.n_features))]
        return TallResult({"all": StoredColumns((engine.put(np.hstack(arrays)),))}, {})

    with open_engine(corpus, directory, executor) as engine:
        return engine.run(pass_, finish=finish).states["all"].load().parts[0].tobytes()


@pytest.fixture
def items(tmp_path):
    """A function that returns which items were made since its last call."""

    def made():
        path = tmp_path / "items"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return list(map(int, found))

    return made


@pytest.mark.parametrize("where", ["in process", "on threads", "on a cluster"])
def test_what_was_made_of_the_total_is_kept_until_the_pass_is_committed(
    tmp_path, cluster, noted, items, where
):
    corpus = random_corpus()
    pass_ = PASSES["sparse"](corpus.n_words, str(tmp_path))
    expected = run_items(pass_, corpus, tmp_path / "calm")
    assert noted() == list(range(N_GROUPS))
    assert items() == [*range(N_ITEMS), 0]
    directory = tmp_path / "run"
    for stop, made in ((2, [0, 1]), (4, [2, 3])):
        (tmp_path / "stop-item").write_text(str(stop))
        with pytest.raises(RuntimeError, match="interrupted"):
            run_items(pass_, corpus, directory)
        assert items() == made
        # A file that no report names, of a task that was interrupted while it wrote.
        [report, *_] = directory.glob("partial/*/*/*/*.json")
        report.with_name("half").write_bytes(b"half")
    assert noted() == list(range(N_GROUPS))
    flip(sorted(directory.glob("partial/*/*/*/*.json"))[0])
    (tmp_path / "stop-item").unlink()
    with on_threads(2) as pool:
        executor = {"in process": None, "on threads": pool, "on a cluster": OnCluster(cluster)}[where]
        assert run_items(pass_, corpus, directory, executor) == expected
    again = items()
    assert len(again) == 3
    assert {0, 4} <= set(again)
    assert noted() == []
    assert list((directory / "partial").iterdir()) == []


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("files", ["held", "in files"])
def test_a_joined_matrix_is_kept_until_the_pass_is_committed(
    tmp_path, monkeypatch, noted, stop_at, files, mixed
):
    if files == "in files":
        monkeypatch.setattr("distmom.engine.stored.held.HELD_SUM_BYTES", 0)
    monkeypatch.setattr("distmom.engine.terms.SLAB_ENTRIES", 40)
    corpus = random_corpus()
    pass_ = PASSES["sparse"](corpus.n_words, str(tmp_path))
    added = []

    def add(*arguments, add_slab=maps.add_slab):
        added.append(arguments[-1])
        return add_slab(*arguments)

    monkeypatch.setattr(maps, "add_slab", add)

    def fit(directory, stop=False):
        def finish(tallies):
            term = Term(tallies.runs["sparse"], columns=np.arange(1.0, 5.0))
            pruning = Pruning(0.5, 0.5)
            sparse = engine.maps.combine([term], pruning)
            joined = engine.maps.combine_mixed([replace(term, factor=2.0)], pruning) if mixed else None
            if stop:
                raise RuntimeError("interrupted")
            arrays = {"indices": sparse.indices, "data": sparse.data}
            arrays |= {"dense": joined.dense} if mixed else {}
            return TallResult({name: StoredColumns((array,)) for name, array in arrays.items()}, {})

        with open_engine(corpus, directory) as engine:
            found = engine.run(pass_, finish=finish)
            return {name: stored.digest for name, stored in found.states.items()}

    expected = fit(tmp_path / "calm")
    n_slabs = len(added)
    assert n_slabs > 2
    for damage in (None, flip, Path.unlink):
        directory = tmp_path / str(damage)
        with pytest.raises(RuntimeError, match="interrupted"):
            fit(directory, stop=True)
        if damage is not None:
            [record, *_] = sorted(directory.glob("partial/*/*/joined/*.json"))
            damage(
                directory / "states" / Path(json.loads(record.read_bytes())["states"]["data"][0]["path"]).name
            )
        added.clear()
        assert fit(directory) == expected
        assert len(added) == (0 if damage is None else n_slabs // (1 + mixed))
        assert list((directory / "partial").iterdir()) == []


def test_nothing_is_kept_for_a_function_that_depends_on_more_than_its_arguments(tmp_path):
    corpus = random_corpus()
    pass_ = PASSES["sparse"](corpus.n_words, str(tmp_path))

    def finish(tallies):
        engine.maps.map_runs(lambda index: [], 1, (1, 1), 0)

    with (
        open_engine(corpus, tmp_path / "run") as engine,
        pytest.raises(TypeError, match=r"expected a function of a module, got <function .*lambda"),
    ):
        engine.run(pass_, finish=finish)


@dataclass(frozen=True)
class UnsteadyPass(Pass):
    """Adds another number in every attempt at one group, or always the same."""

    place: str = ""
    group: int = 3
    output: str = "sums"

    def specs(self):
        return {"n": SumSpec(()), "tall": SumSpec((4, 2), "float32", tall="features")}

    def add(self, sums, block, rows):
        calls = Path(self.place, "calls")
        n_calls = calls.stat().st_size if block.first // 37 == self.group and calls.exists() else 0
        if block.first // 37 == self.group:
            with calls.open("a") as stream:
                stream.write(".")
        found = {"sums": 0, "tall": 0, "rows": 0, self.output: n_calls}
        sums["n"] += found["sums"]
        sums["tall"].single[...] += found["tall"]
        return {"first": np.full((block.n_documents, 1), found["rows"])}


class Twice(InProcess):
    """Makes two attempts at every task, neither of which knows of the other."""

    def map(self, function, items):
        for item in items:
            function(item)
            yield function(item)


@pytest.mark.parametrize("output", ["sums", "tall", "rows", "none"])
def test_attempts_with_different_bits_are_reported(tmp_path, monkeypatch, caplog, output):
    monkeypatch.setattr(reports.Report, "read", lambda *arguments, **options: None)
    corpus = random_corpus()
    pass_ = UnsteadyPass(corpus.n_words, place=str(tmp_path), output=output)
    with open_engine(corpus, tmp_path / "run", Twice()) as engine:
        engine.run(pass_, finish=lambda tallies: TallResult({}, {"n": float(tallies.sums["n"])}))
    said = [each.getMessage() for each in caplog.records if "different bits" in each.getMessage()]
    if output == "none":
        assert said == []
    else:
        [message] = said
        assert message.startswith(
            "unsteady: two attempts at a task gave different bits: shard s00003: sha256 "
        )


def test_a_temporary_run_writes_no_reports(tmp_path, monkeypatch):
    def none(*arguments):
        raise AssertionError("a report was written")

    monkeypatch.setattr("distmom.engine.reports.Report.write", none)
    corpus = random_corpus()
    for kind in PASSES:
        run(PASSES[kind](corpus.n_words, str(tmp_path)), corpus, None)
