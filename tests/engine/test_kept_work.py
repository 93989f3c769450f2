"""What is made of the total of a pass is kept until the pass is committed, and then removed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import random_corpus
from noted import N_GROUPS, PASSES, flip

from distmom.engine import OnCluster, Pruning, StoredColumns, TallResult, Term, maps, open_engine
from distmom.engine.executors.threads import on_threads

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
