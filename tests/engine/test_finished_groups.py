"""A pass that was interrupted repeats only the groups that had not been finished, and gives the same bits."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers import random_corpus
from noted import N_GROUPS, PASSES, SmallPass, cut, flip

from distmom.engine import (
    GroupDone,
    GroupsFound,
    OnCluster,
    PassDone,
    RunDirectory,
    StoredColumns,
    TallResult,
    open_engine,
    plan,
)
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import EPOCH, End, Owner
from distmom.engine.executors.threads import on_threads
from distmom.errors import TakenOverError


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


def test_a_temporary_run_writes_no_reports(tmp_path, monkeypatch):
    def none(*arguments):
        raise AssertionError("a report was written")

    monkeypatch.setattr("distmom.engine.reports.Report.write", none)
    corpus = random_corpus()
    for kind in PASSES:
        run(PASSES[kind](corpus.n_words, str(tmp_path)), corpus, None)
