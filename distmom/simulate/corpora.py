"""Planted corpora of any size, written shard by shard together with their truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distmom.corpus import Corpus, CorpusWriter, open_corpus, open_words
from distmom.corpus.files.aside import make_aside, recover, remove_temporary
from distmom.corpus.files.commit import destination, put_directory, refuse_inside
from distmom.corpus.files.npy import map_npy
from distmom.corpus.files.records import RecordFormat, are_files, check_file, describe_files, from_record
from distmom.corpus.files.space import space_explained
from distmom.corpus.stored.shard import ShardResult, write_shard
from distmom.errors import ELSEWHERE, StoreError, UsageError
from distmom.simulate.draws import draw_documents
from distmom.simulate.planted_model import MOST_DOCUMENTS, Planted, Zipf

#: format of truth.json
TRUTH = RecordFormat("distmom-truth", 2, "draw the corpus again")
_ARRAYS = ("weights", "word_order", "label_order", "states")

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def synthesise(
    model: Planted,
    path: Any,
    *,
    first: int = 0,
    shard_documents: int = 20_000,
    overwrite: bool = False,
    map: Map = map,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Corpus:
    """Draw a corpus and write it to ``path``, and its truth to ``<path>.truth``.

    If an earlier call was ended between the two, the same call writes the missing truth, and one with other
    parameters is refused.

    A document depends only on the model and its number. The bits are therefore independent of how the work is
    distributed, and documents from ``first = n_documents`` on are test documents of the same model.

    Parameters
    ----------
    model : Planted
    path : path-like
        Directory of the corpus.
    first : int, default=0
        Number of the first document.
    shard_documents : int, default=20_000
        Number of documents in a shard.
    overwrite : bool, default=False
        Replace an existing corpus and truth.
    map : callable, optional
        Applies a function to many items and yields the results in order, such as ``Executor.map``; the built-in
        `map` by default.
    progress : callable, optional
        Called with the stage, the number of documents done, and the total.

    Returns
    -------
    Corpus

    Raises
    ------
    UsageError
        If an argument is out of range, or ``path`` or the truth exists and may not be replaced, unless only the
        truth of the same corpus is missing.
    """
    if first < 0 or shard_documents < 1:
        raise UsageError(
            f"first={first} and shard_documents={shard_documents} do not define a range of documents"
        )
    if first > (most := MOST_DOCUMENTS - model.n_documents):
        raise UsageError(f"first={first}: expected at most {most}, so that numbers of documents have 64 bits")
    refuse_inside(Path(path).absolute())
    truth = destination(f"{Path(path).absolute()}.truth")
    recover(truth)
    if truth.exists() and not overwrite:
        raise UsageError(f"{truth}: already exists; {ELSEWHERE}")
    description = {"kind": "distmom-truth", "first": first, "model": asdict(model)}
    settings = {"format": "planted", **description}
    states = np.zeros(model.n_documents if model.n_labels else 0, np.uint16)

    def draw(directory: str | None) -> Iterator[ShardResult]:
        work = partial(_draw_part, directory, model, first, shard_documents)
        for index, (result, of_shard) in enumerate(
            map(work, range(-(-model.n_documents // shard_documents)))
        ):
            start = index * shard_documents
            states[start : start + len(of_shard)] = of_shard
            if result is not None:
                yield result
            if progress is not None:
                progress("documents", min(start + shard_documents, model.n_documents), model.n_documents)

    fingerprint = json.dumps({**description, "shard_documents": shard_documents})
    try:
        with CorpusWriter(path, overwrite=overwrite, fingerprint=fingerprint) as writer:
            for result in draw(None if writer.is_finished else writer.directory):
                writer.add(result)
            corpus = open_words(path) if writer.is_finished else writer.finalise(settings=settings)
    except UsageError as error:
        if overwrite or not _is_planted(path):
            raise
        corpus = open_words(path)
        if differing := _differing(corpus, {"first": first, **asdict(model)}, shard_documents):
            raise UsageError(
                f"{path}: already holds a planted corpus with other parameters, without its truth: {differing}; "
                f"{ELSEWHERE}"
            ) from error
        list(draw(None))
    with space_explained(truth):
        _put_truth(truth, description, model, states, overwrite)
    return corpus


def _is_planted(path: Any) -> bool:
    """Return whether there is a planted corpus."""
    if not (Path(path) / "manifest.json").is_file():
        return False
    return open_corpus(path).settings.get("format") == "planted"


def _differing(corpus: Corpus, parameters: dict[str, Any], shard_documents: int) -> str:
    """Return the parameters in which a planted corpus differs from the requested ones, as text; empty if none."""
    asked = {**parameters, "shard_documents": shard_documents}
    of_shard = corpus.shards[0].n_documents
    if len(corpus.shards) == 1:
        # Documents that fit one shard are the same corpus for any larger size of shards.
        of_shard = max(of_shard, shard_documents)
    drawn = {"first": corpus.settings["first"], **corpus.settings["model"], "shard_documents": of_shard}
    names = [name for name in {**asked, **drawn} if asked.get(name) != drawn.get(name)]
    expected, got = (", ".join(f"{name}={each.get(name)}" for name in names) for each in (asked, drawn))
    return f"expected {expected}, got {got}" if names else ""


def _put_truth(
    truth: Path, description: dict[str, Any], model: Planted, states: np.ndarray, overwrite: bool
) -> None:
    temporary = make_aside(truth)
    try:
        _write_truth(temporary, description, model, states)
        put_directory(temporary, truth, overwrite=overwrite)
    finally:
        remove_temporary(temporary, truth)


def _write_truth(directory: Path, description: dict[str, Any], model: Planted, states: np.ndarray) -> None:
    arrays = {
        "weights": model.weights(),
        "word_order": model.word_order(),
        "label_order": model.label_order(),
        "states": states,
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)
    TRUTH.write(directory / "truth.json", {**description, "files": describe_files(directory)})


def _draw_part(
    directory: str | None, model: Planted, first: int, shard_documents: int, index: int
) -> tuple[ShardResult | None, np.ndarray]:
    """Draw one shard, and write it if a directory is given; return the result of writing it, and the states."""
    start = index * shard_documents
    n = min(shard_documents, model.n_documents - start)
    words, labels, states = draw_documents(model, first + start, n)
    return None if directory is None else write_shard(directory, index, words, labels), states


@dataclass(frozen=True)
class Truth:
    """The truth of a planted corpus.

    Attributes
    ----------
    model : Planted
    first : int
        Number of the first document.
    weights : ndarray of shape (n_states,)
        Probabilities of the states.
    word_order, label_order : ndarray of int32
        Column of the word (label) with each rank.
    states : ndarray of shape (n_documents,), uint16
        State of every document; empty for a topic corpus.
    """

    model: Planted
    first: int
    weights: np.ndarray
    word_order: np.ndarray
    label_order: np.ndarray
    states: np.ndarray

    def words(self, state: int) -> np.ndarray:
        """Return the word distribution of a state, of shape (n_words,)."""
        m = self.model
        return _mixture(self.word_order, state, m.n_states, m.shared, m.head, m.own_words)

    def labels(self, state: int) -> np.ndarray:
        """Return the label distribution of a state, of shape (n_labels,)."""
        m = self.model
        return _mixture(self.label_order, state, m.n_states, m.shared_labels, m.head_labels, m.own_labels)

    def head_words(self) -> np.ndarray:
        """Return the columns of the words that belong to each state, of shape (n_states, n_head)."""
        ranks = (
            np.arange(self.model.n_states)[:, None] + np.arange(self.model.head.size) * self.model.n_states
        )
        return np.asarray(self.word_order[ranks])


def _mixture(
    order: np.ndarray, state: int, n_states: int, shared: Zipf, head: Zipf, own: float
) -> np.ndarray:
    by_rank = (1.0 - own) * shared.probabilities()
    by_rank[state : state + head.size * n_states : n_states] += own * head.probabilities()
    distribution = np.empty_like(by_rank)
    distribution[order] = by_rank
    return distribution


def load_truth(path: Any) -> Truth:
    """Read a truth written by `synthesise`.

    Parameters
    ----------
    path : path-like
        Directory of the truth, ``<corpus>.truth``.

    Returns
    -------
    Truth

    Raises
    ------
    UsageError
        If the path is not the truth of a planted corpus.
    StoreError
        If a file in it is damaged or of another version.
    """
    directory = Path(path)
    if not (directory / "truth.json").is_file():
        raise UsageError(f"{directory}: is not the truth of a planted corpus")
    record = TRUTH.read(directory / "truth.json")
    if not are_files(record.get("files")):
        raise StoreError(
            f"{directory}/truth.json: files: expected sizes and digests of files, got other entries"
        )
    for key, entry in record["files"].items():
        check_file(directory, key, entry)
    arrays = {name: np.array(map_npy(directory / f"{name}.npy")) for name in _ARRAYS}
    try:
        model = from_record(Planted, record["model"], f"{directory}/truth.json: model")
        n_drawn = model.n_documents if model.n_labels else 0
        expected = [model.n_states, model.n_words, model.n_labels, n_drawn]
        if (found := [array.shape for array in arrays.values()]) != [(length,) for length in expected]:
            raise ValueError(f"arrays of shapes {found}")
        if type(record["first"]) is not int:
            raise ValueError(f"first: {record['first']!r}")
        return Truth(model, record["first"], **arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{directory}/truth.json: is not a complete description of a truth: {error!r}"
        ) from error
