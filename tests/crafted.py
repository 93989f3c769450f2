"""Models that somebody has crafted: edited, and given valid digests again."""

import numpy as np
import zarr

from distmom.corpus.files.records import describe_files
from distmom.spectral.saved.artifact import MODEL, save_model


def edit_record(path, edit):
    """Edit the record of a model in place and sign it anew."""
    record = MODEL.read(path / "model.json")
    edit(record)
    MODEL.write(path / "model.json", record)


def edit_arrays(path, edit):
    """Write a model anew with what ``edit(arrays, names)`` has made of its arrays and lists of names."""
    record = MODEL.read(path / "model.json")
    arrays = {
        name: np.load(path / "arrays" / f"{name.replace('/', '-')}.npy")
        if "digest" in entry
        else np.asarray(zarr.open_array(path / "arrays.zarr" / name, mode="r")[...])
        for name, entry in record["arrays"].items()
    }
    names = {
        name: (path / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        for name in ("vocabulary", "labels")
    }
    edit(arrays, names)
    rest = {key: value for key, value in record.items() if key not in ("arrays", "files")}
    save_model(path, rest, arrays, names["vocabulary"], names["labels"], overwrite=True)


def sign_files(path):
    """Sign anew a model whose files have been edited."""
    parts = ("arrays.zarr", "vocabulary.txt", "labels.txt")
    files = {key: entry for part in parts for key, entry in describe_files(path, part).items()}
    edit_record(path, lambda record: record.update(files=files))
