"""A flipped bit in a file of any kind is found before what the file holds is used."""

import json
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers import lda_corpus, planted_matrices

from distmom.cli import run as runs
from distmom.cli.main import main
from distmom.corpus import CorpusWriter, MemoryCorpus, from_arrays, ingest, open_corpus
from distmom.corpus.sources.readers.part import Part
from distmom.engine import StoredRows, TallResult
from distmom.engine.directory.run_directory import load_sums
from distmom.engine.stored import arrays as state
from distmom.errors import StoreError, UsageError
from distmom.models import MultiLabelMoM, SpectralLDA, TopicMoments, load_model
from distmom.predict import predict_corpus, read_shares, transform_corpus
from distmom.predict.output import verify_output
from distmom.simulate import load_truth, preset, synthesise

LOCAL = ("--workers", "0", "--quiet")
#: flips of each kind of file
N_FLIPS = 6


def interrupt(*event):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One of everything that distmom writes."""
    folder = tmp_path_factory.mktemp("damage")
    X, Y = planted_matrices()
    names = {"vocabulary": [f"w{i}" for i in range(120)], "label_names": [f"l{i}" for i in range(12)]}
    corpus = from_arrays(folder / "corpus", X[:400], Y[:400], shard_documents=200, **names)
    fit = ("fit", folder / "corpus", folder / "fitted", "-k", 4, "--run", folder / "run", *LOCAL)
    assert main([str(argument) for argument in fit]) == 0
    topics = lda_corpus(400, 60, 3)[2]
    lda = SpectralLDA(3, alpha0=1.0, init="tensor", n_refine=1, max_df=1.0).fit_corpus(topics)
    with pytest.MonkeyPatch.context() as change:
        # Some arrays are files of their own, others are not.
        change.setattr("distmom.spectral.saved.artifact.LARGE_BYTES", 4000)
        MultiLabelMoM.load(folder / "fitted").save(folder / "model")
        change.setattr("distmom.models.topics.kept.MAPPED_BYTES", 4000)
        TopicMoments(3, n_parts=2, max_df=1.0).fit_corpus(topics).save(folder / "kept")
    with CorpusWriter(folder / "with_ids") as writer:
        writer.write_shard(0, X[:20], Y[:20], [f"document {i}" for i in range(20)])
        writer.finalise()
    predict_corpus(load_model(folder / "fitted"), corpus, folder / "predictions", top=3)
    labelled = MemoryCorpus(topics.read_shard(0).words, np.ones((300, 1), int), label_names=["a"])
    transform_corpus(lda, labelled, folder / "shares")
    synthesise(preset("bibtex", n_documents=50, n_words=60, n_states=3), folder / "planted")
    (folder / "texts.tsv").write_text("a,b\tone two three two\nb\tone four\n" * 5)
    with pytest.raises(KeyboardInterrupt):
        ingest(folder / "texts.tsv", folder / "ingested", min_df=1, progress=interrupt)
    (part,) = folder.glob("ingested.partial/*/parts/p00000")
    shutil.copytree(part, folder / "part")
    return folder


def read_corpus(path):
    corpus = open_corpus(path)
    used = [corpus.vocabulary, corpus.label_names, corpus.document_frequency]
    return used, [corpus.read_shard(i) for i in range(len(corpus.shards))]


def read_ids(path):
    corpus = open_corpus(path)
    return [corpus.read_ids(i) for i in range(len(corpus.shards))]


def read_run(path):
    """Read all that a run resumed takes up again."""
    runs.reopen(path)
    # What a process has checked once is checked no more.
    state._maps.clear()
    for done in sorted(path.glob("passes/*/DONE.json")):
        _, record = load_sums(str(done.parent))
        if "states" in record:
            for stored in TallResult.from_json(record, path / "states").stored_arrays():
                stored.load()
        for output, digests in record["rows"].items():
            rows = StoredRows(str(path / "rows" / done.parent.name / output), digests)
            for shard in digests:
                rows.read(int(shard))


def read_part(path):
    return Part.load(path), Part.load_summary(path), Part.load_names(path)


def read_predictions(path):
    if problems := verify_output(path, "predictions"):
        raise StoreError(problems[0])


def read_all_shares(path):
    read_shares(path)
    if problems := verify_output(path, "shares"):
        raise StoreError(problems[0])


@dataclass
class Kind:
    """Files of one kind: where they are, and what reads them."""

    root: str
    pattern: str
    read: Callable[[Path], object]


KINDS = {
    "manifest": Kind("corpus", "manifest.json", read_corpus),
    "vocabulary of a corpus": Kind("corpus", "vocabulary.txt", read_corpus),
    "labels of a corpus": Kind("corpus", "labels.txt", read_corpus),
    "metadata of statistics": Kind("corpus", "statistics/*/zarr.json", read_corpus),
    "statistics": Kind("corpus", "statistics/*/c/*", read_corpus),
    "record of a shard": Kind("corpus", "shards/*/shard.json", read_corpus),
    "metadata of a shard": Kind("corpus", "shards/**/zarr.json", read_corpus),
    "words of a shard": Kind("corpus", "shards/*/words/*/c/*", read_corpus),
    "labels of a shard": Kind("corpus", "shards/*/labels/*/c/*", read_corpus),
    "ids of a corpus": Kind("with_ids", "shards/*/ids.txt", read_ids),
    "record of a model": Kind("model", "model.json", load_model),
    "metadata of a model": Kind("model", "arrays.zarr/**/zarr.json", load_model),
    "arrays of a model": Kind("model", "arrays.zarr/**/c/**/[0-9]", load_model),
    "large arrays of a model": Kind("model", "arrays/*.npy", load_model),
    "vocabulary of a model": Kind("model", "vocabulary.txt", load_model),
    "labels of a model": Kind("model", "labels.txt", load_model),
    "record of kept moments": Kind("kept", "model.json", TopicMoments.load),
    "metadata of kept moments": Kind("kept", "arrays.zarr/**/zarr.json", TopicMoments.load),
    "kept moments": Kind("kept", "arrays.zarr/**/c/**/[0-9]", TopicMoments.load),
    "large kept moments": Kind("kept", "arrays/*.npy", TopicMoments.load),
    "record of a run": Kind("run", "run.json", read_run),
    "record of a pass": Kind("run", "passes/*/DONE.json", read_run),
    "sums of a pass": Kind("run", "passes/*/*.npy", read_run),
    "states of a run": Kind("run", "states/*.npy", read_run),
    "metadata of rows": Kind("run", "rows/**/zarr.json", read_run),
    "rows": Kind("run", "rows/**/c/**/[0-9]", read_run),
    "record of predictions": Kind("predictions", "predictions.json", read_predictions),
    "text of predictions": Kind("predictions", "predictions.tsv", read_predictions),
    "names of predictions": Kind("predictions", "*.txt", read_predictions),
    "metadata of predictions": Kind("predictions", "predictions.zarr/**/zarr.json", read_predictions),
    "predictions": Kind("predictions", "predictions.zarr/*/c/*", read_predictions),
    "record of shares": Kind("shares", "shares.json", read_all_shares),
    "topics of shares": Kind("shares", "topics.json", read_shares),
    "text of shares": Kind("shares", "shares.tsv", read_all_shares),
    "ids of shares": Kind("shares", "ids.txt", read_all_shares),
    "labels of shares": Kind("shares", "labels.tsv", read_shares),
    "metadata of shares": Kind("shares", "shares.zarr/zarr.json", read_all_shares),
    "shares": Kind("shares", "shares.zarr/c/**/[0-9]", read_all_shares),
    "record of a truth": Kind("planted.truth", "truth.json", load_truth),
    "arrays of a truth": Kind("planted.truth", "*.npy", load_truth),
    "record of a part": Kind("part", "part.json", read_part),
    "arrays of a part": Kind("part", "*.npy", read_part),
}


def files_of(place, kind):
    """Files of a kind that are not empty, and that something refers to."""
    root = place / kind.root
    found = sorted(path for path in root.glob(kind.pattern) if path.is_file() and path.stat().st_size)
    if kind.pattern.startswith("states/"):
        named = "".join(path.read_text() for path in root.glob("passes/*/DONE.json"))
        # Others are written by whoever needs them, who looks at what is there (see `RunDirectory.put`).
        found = [path for path in found if path.stem in named]
    return found


def flip(path, byte, bit):
    content = path.read_bytes()
    path.write_bytes(content[:byte] + bytes([content[byte] ^ 1 << bit]) + content[byte + 1 :])


@contextmanager
def flipped(path, byte, bit):
    flip(path, byte, bit)
    try:
        yield
    finally:
        flip(path, byte, bit)


def silent(place, kind, flips):
    """Return the flips that were not found, each a file, a byte and a bit."""
    missed = []
    for path, byte, bit in flips:
        with flipped(path, byte, bit):
            try:
                kind.read(place / kind.root)
            except StoreError:
                continue
            missed.append((path.name, byte, bit))
    return missed


def random_flips(files, n, seed):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        path = files[rng.integers(len(files))]
        yield path, int(rng.integers(path.stat().st_size)), int(rng.integers(8))


def test_there_are_at_least_200_flips_and_all_is_read_without_one(place):
    assert len(KINDS) * N_FLIPS >= 200
    for kind in KINDS.values():
        kind.read(place / kind.root)


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_bit_is_found_before_use(place, name):
    kind = KINDS[name]
    files = files_of(place, kind)
    assert files
    flips = random_flips(files, N_FLIPS, list(KINDS).index(name))
    assert silent(place, kind, flips) == []


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_many_more_flips_are_found(place, name):
    kind = KINDS[name]
    flips = random_flips(files_of(place, kind), 50 * N_FLIPS, 1)
    assert silent(place, kind, flips) == []


def test_a_flipped_fingerprint_of_an_ingest_makes_it_start_anew(place, tmp_path):
    (tmp_path / "texts.tsv").write_bytes((place / "texts.tsv").read_bytes())
    whole = ingest(tmp_path / "texts.tsv", tmp_path / "whole", min_df=1)
    note = tmp_path / "again.partial" / "fingerprint"
    flips = [*random_flips([place / "ingested.partial" / "fingerprint"], N_FLIPS, 3), (note, 0, 7)]
    # The last makes it what is no text.
    for _, byte, bit in flips:
        with pytest.raises(KeyboardInterrupt):
            ingest(tmp_path / "texts.tsv", tmp_path / "again", min_df=1, progress=interrupt)
        flip(note, byte, bit)
        with pytest.raises(UsageError, match="is not a corpus yet"):
            open_corpus(tmp_path / "again")
        again = ingest(tmp_path / "texts.tsv", tmp_path / "again", min_df=1)
        assert again.digest == whole.digest
        shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_cut_or_missing_is_found(place, name):
    kind = KINDS[name]
    path = files_of(place, kind)[-1]
    content = path.read_bytes()
    try:
        for size in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:size])
            with pytest.raises(StoreError):
                kind.read(place / kind.root)
        if not name.startswith(("manifest", "record of")):
            path.unlink()
            with pytest.raises(StoreError):
                kind.read(place / kind.root)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", [name for name in KINDS if "part" not in name])
def test_verify_names_the_file_of_every_flip(place, name, capsys):
    kind = KINDS[name]
    path, byte, bit = next(random_flips(files_of(place, kind), 1, 2))
    assert main(["verify", str(place / kind.root)]) == 0
    capsys.readouterr()
    with flipped(path, byte, bit):
        assert main(["verify", str(place / kind.root)]) == 4
    found = capsys.readouterr().out
    # The error for a chunk of stored rows names the rows.
    assert path.name in found or str(path.parents[1]) in found or str(path.parents[2]) in found
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize(
    ("root", "shown"),
    [
        ("predictions", {"kind": "predictions", "n_documents": 400, "n_labels": 12, "top": 3}),
        ("shares", {"kind": "shares", "n_documents": 300, "n_topics": 3, "method": "vb"}),
        ("planted.truth", {"kind": "truth", "n_documents": 50, "n_words": 60, "n_states": 3, "seed": 0}),
        ("run", {"kind": "run", "model_name": "multilabel"}),
        ("kept", {"kind": "moments", "n_documents": 400}),
    ],
)
def test_info_says_what_things_are(place, root, shown, capsys):
    capsys.readouterr()
    assert main(["info", str(place / root), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert {name: reported.get(name) for name in shown} == shown


@pytest.mark.parametrize(
    ("name", "old", "remedy"),
    [
        ("record of a model", {"format": "distmom-model", "format_version": 2}, "fit again"),
        ("record of kept moments", {"format": "distmom-model", "format_version": 2}, "add moments up again"),
        ("record of a run", {"format": "distmom-run"}, "remove the run directory and start the run again"),
        ("record of a pass", {}, "remove the run directory and start the run again"),
        ("record of a truth", {"kind": "distmom-truth"}, "draw the corpus again"),
    ],
)
def test_records_of_an_older_distmom_are_refused_with_what_to_do(place, name, old, remedy):
    kind = KINDS[name]
    path = files_of(place, kind)[0]
    content = path.read_bytes()
    record = json.loads(content)
    kept = {key: record[key] for key in record.keys() - {"checksum", "format", "format_version"}}
    try:
        path.write_text(json.dumps({**kept, **old}, indent=1))
        with pytest.raises(StoreError, match=f"{path.name}: format.*an older distmom; .*{remedy}"):
            kind.read(place / kind.root)
    finally:
        path.write_bytes(content)


def test_outputs_of_an_older_distmom_are_refused_and_replaced(place, tmp_path, capsys):
    out = shutil.copytree(place / "shares", tmp_path / "out")
    (out / "shares.json").unlink()
    assert main(["verify", str(out)]) == 4
    assert "run 'distmom transform' again" in capsys.readouterr().out
    with pytest.raises(StoreError, match="run 'distmom transform' again"):
        read_shares(out)
    lda = SpectralLDA(2, alpha0=1.0, init="tensor", n_refine=0, max_df=1.0)
    topics = lda_corpus(400, 60, 3)[2]
    transform_corpus(lda.fit_corpus(topics), topics, out, overwrite=True)
    assert read_shares(out).n_documents == 400
