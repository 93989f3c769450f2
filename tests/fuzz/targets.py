"""Targets of fuzzing: every reader of documents and rows, and every loader of files that distmom has written.

A target is called with bytes and with a directory of its own. Only a DistmomError may escape it.
"""

import builtins
import io
import json
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
import zarr
from helpers import random_corpus

from distmom.corpus import ViewCorpus, from_arrays, open_corpus
from distmom.corpus.sources.formats import FORMATS
from distmom.corpus.sources.readers.name_files import read_labels
from distmom.corpus.sources.readers.rows import RowSpec
from distmom.corpus.sources.readers.spec import Spec
from distmom.corpus.sources.row_formats import ROW_FORMATS
from distmom.corpus.sources.tokenize import Tokenizer
from distmom.corpus.stored.manifest import CORPUS
from distmom.corpus.views import ArrayFile
from distmom.engine.directory import epochs
from distmom.engine.directory.events import read_log
from distmom.jobs.record import JOB, read_record
from distmom.models import MultiLabelMoM, SpectralLDA, TopicMoments, load_model
from distmom.predict import predict_corpus, read_shares, transform_corpus
from distmom.predict.output import OUTPUTS, verify_output
from distmom.predict.stored_shares import _read_labels
from distmom.simulate import Planted, load_truth, synthesise
from distmom.simulate.corpora import TRUTH
from distmom.spectral.saved.artifact import MODEL

#: values that take the place of others in a record
VALUES = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", "x", "../x", "/etc", "<f8",
    "|O", [], [None], [[1]], {}, {"x": 1},
)  # fmt: skip


def read_documents(name, data, folder):
    """Read a source of documents, in chunks of three, or of many where the header alone may declare them."""
    path = folder / "source"
    path.write_bytes(data)
    zero_based = True if name == "svmlight" else None
    n_words = 30 if name == "uci" else None
    spec = Spec(str(path), tokenizer=Tokenizer(min_df=1), n_words=n_words, zero_based=zero_based)
    source = FORMATS[name].open(spec)
    for chunk in source.chunks(50_000 if name == "uci" else 3):
        source.encode(chunk, source.spec)


def read_rows(name, data, folder):
    """Read a source of rows, in shards of three."""
    path = folder / "source"
    path.write_bytes(data)
    load_rows(name, path)


def load_rows(name, path):
    """Load all shards of a source of rows."""
    spec = RowSpec(str(path), "rows", 3, None, {}, None, (), None, None, 1, 2, None, False)
    for load in ROW_FORMATS[name].open(spec, builtins.map).tasks():
        load()


def read_file(read, suffix, data, folder):
    """Read one file."""
    path = folder / f"file{suffix}"
    path.write_bytes(data)
    read(path)


def edited(record, data):
    """Change a record as the bytes say: two for a place, and one for what becomes of it."""
    with io.BytesIO(data) as stream:
        for _ in range(4):
            places = list(_places(record))
            step = stream.read(3)
            if len(step) < 3 or not places:
                break
            parent, key = places[int.from_bytes(step[:2], "big") % len(places)]
            if step[2] < 32:
                del parent[key]
            else:
                parent[key] = json.loads(json.dumps(VALUES[step[2] % len(VALUES)]))
    return record


def _places(value):
    """Yield the containers of a JSON value with the keys of their entries."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(entries):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


@cache
def _originals():
    """Return the directory of everything small that distmom writes, each under the name of its kind."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    block = random_corpus(n=120, d=20, n_labels=4, shard_documents=120).read_shard(0)
    corpus = from_arrays(place / "corpus", block.words, block.labels, shard_documents=60)
    model = MultiLabelMoM(2, head="linear").fit_corpus(corpus)
    model.save(place / "model")
    predict_corpus(model, corpus, place / "predictions", top=2)
    topics = SpectralLDA(2, init="tensor", n_refine=1).fit_corpus(corpus)
    transform_corpus(topics, corpus, place / "shares")
    TopicMoments(2).fit_corpus(corpus).save(place / "moments")
    synthesise(Planted(60, 40, 6, 2, 5, 7, 2, 3.0, seed=3), place / "planted")
    zarr.create_array(place / "rows", data=np.ones((6, 2)), chunks=(2, 2))
    return place


def _edited_copy(kind, record, own, data, folder):
    """Copy what distmom has written, with one of its records edited and signed again; return its directory.

    ``own`` is the format of the record.
    """
    copy = shutil.copytree(_originals() / kind, folder / kind)
    content = own.read(copy / record)
    (copy / record).unlink()
    (copy / record).write_bytes(own.dump(edited(content, data), content.get("format_version")))
    return copy


def load_corpus(data, folder):
    """Open and read a corpus whose manifest was edited."""
    corpus = open_corpus(_edited_copy("corpus", "manifest.json", CORPUS, data, folder))
    for index in range(len(corpus.shards)):
        corpus.read_shard(index)


def load_edited_model(data, folder):
    """Load a model whose record was edited."""
    model = load_model(_edited_copy("model", "model.json", MODEL, data, folder))
    if isinstance(model, MultiLabelMoM):
        model.predict_top(random_corpus(n=4, d=model.n_features_in_).read_shard(0).words, 2)


def load_moments(data, folder):
    """Load kept moments whose record was edited, and add them up."""
    moments = TopicMoments.load(_edited_copy("moments", "model.json", MODEL, data, folder))
    moments.totals()
    moments.sums_.total()


def load_edited_truth(data, folder):
    """Load the truth of a planted corpus whose record was edited, and use it."""
    truth = load_truth(_edited_copy("planted.truth", "truth.json", TRUTH, data, folder))
    truth.head_words()
    for state in range(truth.model.n_states):
        truth.words(state)
        truth.labels(state)


def load_output(kind, data, folder):
    """Read an output whose record was edited."""
    copy = _edited_copy(kind, f"{kind}.json", OUTPUTS[kind], data, folder)
    verify_output(copy, kind)
    if kind == "shares":
        read_shares(copy)


def read_zarr_rows(data, folder):
    """Read a Zarr array whose metadata was edited, or of which a chunk is given.

    The first byte is 0 for metadata, and the rest says what becomes of them; otherwise the rest is a chunk.
    """
    copy = shutil.copytree(_originals() / "rows", folder / "rows.zarr")
    if data[:1] == b"\0":
        metadata = copy / "zarr.json"
        metadata.write_text(json.dumps(edited(json.loads(metadata.read_text()), data[1:])))
    elif data:
        (copy / "c" / "0" / "0").write_bytes(data[1:])
    load_rows("zarr", copy)


def load_job(data, folder):
    """Read the record of a job that was edited and signed again."""
    content = dict.fromkeys(
        ("id", "scheduler", "folder", "run", "url", "driver", "user", "host", "created"), "x"
    )
    content |= {
        "arguments": ["fit", "a", "b"],
        "share": 1.0,
        "priority": 0,
        "restarts": 0,
        "tls": {},
        "versions": {},
    }
    (folder / "job.json").write_bytes(JOB.dump(edited(content, data)))
    read_record(folder)


def load_epochs(data, folder):
    """Read the records of a run that were edited and signed again."""
    (folder / "epochs").mkdir()
    owner = vars(epochs.Owner.this()) | {}
    end = dict.fromkeys(epochs.End.__dataclass_fields__, "")
    beat = dict.fromkeys(epochs.Beat.__dataclass_fields__, 0)
    (folder / "epochs" / "0001.json").write_bytes(epochs.EPOCH.dump(edited(owner, data)))
    (folder / "epochs" / "0001.end.json").write_bytes(epochs.END.dump(edited(end, data)))
    (folder / "lease.json").write_bytes(epochs.LEASE.dump(edited(beat, data)))
    epochs.check_records(folder)
    for found in (epochs.owner_of(folder, 1), epochs.end_of(folder, 1), epochs.beat_of(folder)):
        repr(found)
    if (one := epochs.owner_of(folder, 1)) is not None:
        repr(one.is_gone)
    if (last := epochs.beat_of(folder)) is not None:
        repr(last.age_s)


def load_views(path):
    """Read views from an array or an archive."""
    rows = ArrayFile.find(path).load()
    corpus = ViewCorpus(path, np.zeros(rows.shape[0] if rows.ndim else 0, int))
    for index in range(len(corpus.shards)):
        corpus.read_shard(index)


TARGETS = {
    **{f"documents-{name}": partial(read_documents, name) for name in FORMATS},
    **{f"rows-{name}": partial(read_rows, name) for name in ROW_FORMATS if name != "zarr"},
    "rows-zarr": read_zarr_rows,
    "names": partial(read_file, lambda path: read_labels(str(path)), ".txt"),
    "views-npy": partial(read_file, load_views, ".npy"),
    "views-npz": partial(read_file, load_views, ".npz"),
    "log": partial(read_file, read_log, ".jsonl"),
    "record": lambda data, folder: MODEL.parse("model.json", data),
    "shares": lambda data, folder: _read_labels(folder / "labels.tsv", data, 2),
    "corpus": load_corpus,
    "model": load_edited_model,
    "moments": load_moments,
    "truth": load_edited_truth,
    "predictions": partial(load_output, "predictions"),
    "shares-record": partial(load_output, "shares"),
    "job": load_job,
    "epochs": load_epochs,
}
